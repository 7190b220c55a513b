/** The rows of the table of runs: only those in view are there, however many there are. */

import { cell, heading, numeric, said } from "./columns.js";
import { Editor } from "./editor.js";
import { button, element, fill, tabular } from "./element.js";
import { count } from "./format.js";
import { linkTo } from "./route.js";

const ROW = 34; // pixels: each row is as high, see runs.css
const AROUND = 20; // rows beyond each edge of the view

export class Grid {
  /** @param {Object} on - `window(offset)`, `sort(name)`, `picked(run, on)`, `all(on)`, `changed()`. */
  constructor(on) {
    this.on = on;
    this.sort = "";
    this.items = new Map(); // by their place
    this.rows = 0;
    this.offset = 0;
    this.columns = [];
    this.nodes = new Map(); // by run
    this.head = element("tr", {});
    this.body = element("tbody");
    this.table = tabular(this.head, this.body, "data runs");
    this.above = element("div", { class: "beyond" });
    this.below = element("div", { class: "beyond" });
    this.node = element("div", { class: "scroll virtual", hidden: true, tabindex: "-1", role: "group", "aria-label": "Runs" }, this.above, this.table, this.below);
    this.node.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.table.addEventListener("keydown", (event) => this.#key(event));
    this.resized = () => this.#scrolled();
    addEventListener("resize", this.resized);
  }

  get wanted() {
    return Math.min(400, Math.ceil(Math.max(this.node.clientHeight, innerHeight * 0.6) / ROW) + 2 * AROUND);
  }

  /** Begin at the top, once other rows are there. */
  start() {
    this.offset = 0;
    this.fresh = true;
  }

  take(answer, offset, columns, picked) {
    this.items = new Map(answer.items.map((item, place) => [offset + place, item]));
    if (this.fresh) this.node.scrollTop = 0;
    this.fresh = false;
    this.offset = offset;
    this.rows = answer.rows;
    this.own = answer.run;
    this.writable = answer.writable;
    this.columns = columns;
    this.picked = picked;
  }

  show(picked = this.picked) {
    this.picked = picked;
    this.#heads();
    this.#rows();
  }

  #heads() {
    const shape = JSON.stringify([this.columns, this.sort]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.everything = element("input", { type: "checkbox", "aria-label": "Choose all", title: "Choose all, 500 at most", on: { change: () => this.on.all(this.everything.checked) } });
      const focused = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
      fill(this.head, this.#headOf("id", "Run", this.everything), ...this.columns.map((name) => this.#headOf(name, heading(name))));
      if (focused >= 0) this.head.querySelectorAll("button")[focused]?.focus();
    }
    this.everything.checked = this.picked.size > 0 && this.picked.size >= Math.min(500, this.rows);
    this.everything.indeterminate = this.picked.size > 0 && !this.everything.checked;
  }

  /** A column's head sorts: the largest first, the smallest first, as at first. */
  #headOf(name, text, before = null) {
    const down = this.sort === `-${name}`;
    const up = this.sort === name;
    const press = () => this.on.sort(down ? name : up ? "" : `-${name}`);
    return element("th", { scope: "col", class: numeric(name) ? "number" : null, "aria-sort": down ? "descending" : up ? "ascending" : null, title: name === "id" ? null : name },
      before, button(text, press, { class: "sort" }));
  }

  #rows() {
    const first = Math.max(0, Math.min(this.rows - 1, Math.floor(this.node.scrollTop / ROW)) - AROUND);
    const end = Math.min(this.rows, first + Math.ceil((this.node.clientHeight || innerHeight) / ROW) + 2 * AROUND);
    const shown = [];
    for (let place = first; place < end; place += 1) shown.push(this.#row(this.items.get(place), place));
    if (shown.length !== this.body.children.length || shown.some((row, place) => this.body.children[place] !== row)) {
      const focused = document.activeElement?.closest?.("tr");
      const kept = shown.includes(focused) ? document.activeElement : null;
      fill(this.body, ...shown);
      if (kept && document.activeElement !== kept) kept.focus({ preventScroll: true });
    }
    this.above.style.setProperty("height", `${first * ROW}px`);
    this.below.style.setProperty("height", `${(this.rows - end) * ROW}px`);
    this.table.setAttribute("aria-rowcount", String(this.rows + 1));
    if (this.nodes.size > 2000) this.nodes.clear();
  }

  #row(item, place) {
    if (!item) return element("tr", { class: "pending" }, element("th", { scope: "row", text: "…" }), ...this.columns.map(() => element("td")));
    if (!item.run) return this.#group(item);
    const { run, columns } = item;
    const key = JSON.stringify([item, this.columns, run.id === this.own, this.writable]);
    let known = this.nodes.get(run.id);
    if (known?.key !== key) {
      const focused = known?.node.contains(document.activeElement) ? document.activeElement.tagName : null;
      const made = { key, ...this.#made(run, columns) };
      if (known?.node.isConnected) known.node.replaceWith(made.node);
      if (focused) made.node.querySelector(focused.toLowerCase())?.focus({ preventScroll: true });
      this.nodes.set(run.id, made);
      known = made;
    }
    known.check.checked = this.picked.has(run.id);
    known.node.classList.toggle("picked", known.check.checked);
    known.node.setAttribute("aria-rowindex", String(place + 2));
    return known.node;
  }

  #made(run, columns) {
    const check = element("input", { type: "checkbox", "aria-label": `Choose ${run.name || run.id}`, on: { change: () => this.on.picked(run.id, check.checked) } });
    const damage = run.damage?.length ? element("span", { class: "bad", title: run.damage.join("\n"), text: "damaged" }) : null;
    let editor = null;
    if (this.writable) {
      editor = new Editor(run.id, this.on.changed, this.on.changed);
      editor.show({ writable: true, run, notes: columns.notes ?? "" });
      editor.button.setAttribute("aria-label", `Edit ${run.name || run.id}`);
    }
    const node = element("tr", { class: "run-row" },
      element("th", { scope: "row" }, element("div", { class: "run-cell" }, check,
        element("a", { href: linkTo(run.id), text: run.name || run.id, title: run.name || run.id }),
        run.name ? element("span", { class: "quiet id", text: run.id, title: run.id }) : null, damage,
        ...(run.tags ?? []).map((text) => element("span", { class: "chip tag", text })), editor?.node)),
      ...this.columns.map((name) => cell(name, run, columns[name])));
    return { node, check };
  }

  #group({ group, runs }) {
    return element("tr", { class: "group-row" }, element("th", { colspan: String(this.columns.length + 1), scope: "rowgroup" },
      element("span", { class: "stuck" }, element("strong", { text: said(group) }), element("span", { class: "quiet number", text: ` ${count(runs, "run")}` }))));
  }

  #scrolled() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = null;
      this.#rows();
      const first = Math.floor(this.node.scrollTop / ROW);
      const last = Math.min(this.rows - 1, first + Math.ceil(this.node.clientHeight / ROW));
      if (this.rows && (!this.items.has(first) || !this.items.has(last))) this.on.window(Math.max(0, first - AROUND));
    });
  }

  /** Arrows go from run to run, x chooses it. */
  #key(event) {
    const row = event.target.closest("tr.run-row");
    if (!row || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("dialog")) return;
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) {
      let next = row;
      do next = by > 0 ? next.nextElementSibling : next.previousElementSibling;
      while (next && !next.matches(".run-row"));
      next?.querySelector("a").focus({ preventScroll: true });
      next?.scrollIntoView({ block: "nearest" });
    } else if (event.key === "x") row.querySelector("input").click();
    else return;
    event.preventDefault();
  }

  close() {
    removeEventListener("resize", this.resized);
    cancelAnimationFrame(this.drawing);
  }
}
