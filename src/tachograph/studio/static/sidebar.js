/** The list of runs beside the charts: tick several to see them together. */

import { ask } from "./api.js";
import { differingKeys, labelOf, said } from "./columns.js";
import { button, element, fill, say } from "./element.js";
import { ago, number } from "./format.js";
import { lossRank } from "./groups.js";
import { linkTo, linkToComparison, listOf, state } from "./route.js";
import { runColor } from "./shades.js";

const EVERY = 3000; // milliseconds
const TYPING = 200; // milliseconds after a key until the filter is asked for
const MOST = 200; // runs in the list
const MOST_KEYS = 60; // keys of the configuration that are compared
const WIDE = 1100; // pixels of a window from which on the list is there unasked
const NARROW = 900; // pixels below which it lies over the charts, and goes once a run is chosen
const FOLDED = "tachograph.sidebar.folded";

export class Sidebar {
  /** @param {HTMLElement} node - the element beside the charts; @param {HTMLElement} opener - the button that unfolds it. */
  constructor(node, opener) {
    this.node = node;
    this.opener = opener;
    this.filter = element("input", { type: "search", "aria-label": "Filter runs", placeholder: "filter runs", spellcheck: "false", autocomplete: "off" });
    this.filter.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#look(), TYPING);
    });
    this.list = element("ul", { class: "side-runs" });
    this.words = element("p", { class: "quiet side-words", role: "status" });
    this.chosen = new Set();
    this.known = null; // columns, and how many runs have each
    fill(node,
      element("div", { class: "side-head" }, element("h2", { text: "Runs" }), element("a", { href: "#/", class: "quiet", text: "Table" }), button("«", () => this.fold(true), { class: "plain small", title: "Fold the list up", "aria-label": "Fold the list of runs up" })),
      this.filter, this.words, this.list);
    opener.addEventListener("click", () => this.fold(false));
    this.isFolded = innerWidth < NARROW || (kept() ?? (innerWidth < WIDE ? "yes" : "no")) === "yes";
  }

  /** Follow the page: beside the charts of runs the list is there, and has those ticked that are seen. */
  show({ page, run }) {
    this.chosen = new Set(page === "run" ? [run] : listOf(state.get("runs")));
    this.isWanted = page !== "runs";
    this.isFolded ||= innerWidth < NARROW;
    if (this.isWanted) this.#look();
    else clearTimeout(this.timer);
    this.#apply();
    this.#draw();
  }

  fold(folded) {
    this.isFolded = folded;
    keep(folded ? "yes" : "no");
    this.#apply();
    if (!folded) this.filter.focus();
  }

  #apply() {
    const some = this.isWanted && (this.answer?.total ?? 0) > 1;
    this.node.hidden = !some || this.isFolded;
    this.opener.hidden = !some || !this.isFolded;
  }

  async #look() {
    clearTimeout(this.timer);
    if (!document.hidden) {
      try {
        await this.#ask();
      } catch (error) {
        if (error.status === 400) say(this.words, error.message); // the banner says the rest
      }
    }
    if (this.isWanted) this.timer = setTimeout(() => this.#look(), EVERY);
  }

  async #ask() {
    const keys = Object.keys(this.known ?? {}).filter((name) => name.startsWith("config.")).slice(0, MOST_KEYS);
    const first = this.known === null || this.version !== this.answer?.version;
    const answer = await ask("/api/table", { filter: this.filter.value.trim(), limit: MOST, column: [...keys, ...(this.metric ? [this.metric] : [])], ...(first ? { names: 1 } : {}) });
    if (answer.error) {
      say(this.words, answer.error);
      return;
    }
    this.answer = answer;
    if (first) {
      const before = JSON.stringify(this.known);
      this.known = answer.columns;
      this.version = answer.version;
      this.metric = keyMetric(this.known);
      if (JSON.stringify(this.known) !== before) {
        await this.#ask(); // with the columns that are known now
        return;
      }
    }
    say(this.words, answer.rows > MOST ? `the newest ${MOST} of ${number(answer.rows)}` : answer.rows ? "" : "No run matches.");
    this.#apply();
    this.#draw();
  }

  #draw() {
    const items = (this.answer?.items ?? []).filter(({ run }) => run);
    const telling = differingKeys(items);
    const best = bestOf(items, this.metric);
    const shown = JSON.stringify([items.map(({ run, columns }) => [run.id, run.name, run.state, columns]), [...this.chosen], telling, best]);
    if (shown === this.shown) return;
    this.shown = shown;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    fill(this.list, ...items.map((item) => this.#item(item, telling, best)));
    if (focused) this.list.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  #item({ run, columns }, telling, best) {
    const name = run.name || run.id;
    const check = element("input", { type: "checkbox", "data-run": run.id, "aria-label": `Show ${name}`, on: { change: () => this.#tick(run.id, check.checked) } });
    check.checked = this.chosen.has(run.id);
    const value = this.metric && columns[this.metric] !== undefined && columns[this.metric] !== null ? said(columns[this.metric], 4) : "";
    return element("li", { class: check.checked ? "side-run chosen" : "side-run" }, check,
      element("span", { class: "swatch", style: { background: runColor(run.id) } }),
      element("a", { href: linkTo(run.id), title: `${name}\n${run.id}`, "aria-current": check.checked && this.chosen.size === 1 ? "page" : null },
        element("span", { class: "side-name", text: labelOf({ run, columns }, telling) }),
        element("span", { class: "side-facts quiet number" },
          value ? `${value}${run.id === best ? " ★" : ""}` : "", element("span", { class: run.state === "finished" ? "" : `state-${run.state}`, text: run.state === "finished" ? ago(run.last) : run.state }))));
  }

  /** Show one run more, or one less: one by itself has its page, several are drawn together. */
  #tick(run, on) {
    const next = new Set(this.chosen);
    if (on) next.add(run);
    else next.delete(run);
    if (!next.size) {
      this.shown = ""; // the last one stays
      this.#draw();
      return;
    }
    const runs = [...next];
    location.hash = (runs.length === 1 ? linkTo(runs[0]) : linkToComparison(runs)).slice(1);
  }
}

/** Return the column of the metric that says most about a run: its last loss. */
function keyMetric(known) {
  const names = Object.keys(known).filter((name) => name.startsWith("last.") && lossRank(name.slice(5)) < 2);
  return names.sort((one, other) => lossRank(one.slice(5)) - lossRank(other.slice(5)) || known[other] - known[one])[0] ?? null;
}

/** Return the run with the least loss; null where fewer than two have one. */
function bestOf(items, metric) {
  const found = items.filter(({ columns }) => typeof columns[metric] === "number");
  if (found.length < 2) return null;
  return found.reduce((best, item) => (item.columns[metric] < best.columns[metric] ? item : best)).run.id;
}

function kept() {
  try {
    return localStorage.getItem(FOLDED);
  } catch {
    return null;
  }
}

function keep(value) {
  try {
    localStorage.setItem(FOLDED, value);
  } catch {
    // it is as before after a reload
  }
}
