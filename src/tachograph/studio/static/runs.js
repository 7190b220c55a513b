/** The table of runs: filtered, sorted and grouped by the hub, up to date by itself; all that is chosen is in the address. */

import { Refusal, ask, silent } from "./api.js";
import { chooser, defaults, heading } from "./columns.js";
import { button, element, fill, say } from "./element.js";
import { count, number } from "./format.js";
import { Grid } from "./grid.js";
import { linkToComparison, listOf, state, wordOf } from "./route.js";

const EVERY = 2000; // milliseconds
const SOON = 50; // the same, while runs are still being read
const TYPING = 200; // milliseconds after a key until the filter is asked for
const MOST = 500; // rows of one answer

export class RunsPage {
  constructor(_route, shell) {
    this.shell = shell;
    this.title = "Runs";
    this.answer = null;
    this.known = {}; // columns that there are, and how many runs have each
    this.turn = 0;
    this.search = element("input", { type: "search", id: "search", "aria-label": "Search runs", "aria-describedby": "filter-words", placeholder: "text, tag:sweep, loss < 0.3 …", spellcheck: "false", autocomplete: "off" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#choose({ filter: this.search.value.trim() }), TYPING);
    });
    this.words = element("p", { class: "filter-words", id: "filter-words", role: "status", hidden: true });
    this.count = element("span", { class: "quiet number" });
    this.group = element("select", { "aria-label": "Group by", on: { change: () => this.#choose({ group: this.group.value }) } });
    this.choice = button("Columns …", () => this.#columns());
    this.compare = element("a", { class: "plain go", hidden: true });
    this.clear = button("Clear", () => this.#pick(() => this.picked.clear()), { title: "Choose none", hidden: true });
    this.grid = new Grid({
      window: (offset) => this.#look(offset),
      sort: (sort) => this.#choose({ sort }),
      picked: (run, on) => this.#pick(() => (on ? this.picked.add(run) : this.picked.delete(run))),
      all: (on) => this.#all(on),
      changed: () => this.#look(),
    });
    this.empty = element("p", { class: "empty", text: "loading …" });
    this.dialog = element("dialog", { class: "columns", "aria-label": "Columns" });
    fill(shell.main,
      element("header", { class: "list-head" }, element("h1", {}, "Runs ", this.count), this.search,
        element("div", { class: "list-tools" }, this.compare, this.clear, element("label", {}, element("span", { class: "quiet", text: "Group" }), this.group), this.choice)),
      this.words, this.empty, this.grid.node, this.dialog);
    document.title = "Runs – Tachograph Studio";
    this.moved = () => this.#read();
    state.followers.add(this.moved);
    this.#read();
  }

  /** Take from the address what is chosen, and show that. */
  #read() {
    this.filter = state.get("filter") ?? "";
    if (this.search !== document.activeElement || !this.typing) this.search.value = this.filter;
    this.columns = state.get("columns") === null ? null : listOf(state.get("columns"));
    this.picked = new Set(listOf(state.get("chosen")));
    this.grid.sort = state.get("sort") ?? "";
    this.by = state.get("group") ?? "";
    this.grid.start();
    this.#look(0);
  }

  #choose(changed) {
    clearTimeout(this.typing);
    this.typing = null;
    state.set({ filter: this.search.value.trim(), ...changed }, true);
    this.#read();
  }

  #pick(change) {
    change();
    state.set({ chosen: wordOf(this.picked) });
    this.#show();
  }

  async #all(on) {
    if (!on) {
      this.#pick(() => this.picked.clear());
      return;
    }
    const { items } = await ask("/api/table", { ...this.#query(), column: [], offset: 0, limit: MOST });
    this.#pick(() => items.forEach(({ run }) => run && this.picked.add(run.id)));
  }

  #query() {
    return { filter: this.filter, sort: this.grid.sort, group: this.by };
  }

  /** Ask for the rows from a place on; those in view where none is given. */
  async #look(offset = this.grid.offset) {
    clearTimeout(this.timer);
    const turn = (this.turn += 1);
    let again = EVERY;
    if (!document.hidden || this.answer === null) {
      try {
        const columns = this.columns ?? defaults(this.known);
        const first = this.answer === null || this.names !== this.answer.version;
        const answer = await ask("/api/table", { ...this.#query(), offset, limit: this.grid.wanted, column: [...columns, "notes"], ...(first ? { names: 1 } : {}) });
        if (this.closed || turn !== this.turn) return;
        if (answer.error) throw new Refusal(answer.error, 400, "", answer.at);
        const fresh = first && this.columns === null && String(defaults(answer.columns)) !== String(columns);
        if (first) {
          this.known = answer.columns;
          this.names = answer.version;
          this.#groups();
        }
        this.answer = answer;
        this.shell.banner("");
        this.#trouble(null);
        this.grid.take(answer, offset, columns, this.picked);
        this.#show();
        again = fresh ? 0 : answer.unread ? SOON : EVERY;
      } catch (error) {
        if (this.closed || turn !== this.turn) return;
        if (error.status === 400) this.#trouble(error);
        else this.shell.banner(error.status === 0 ? silent() : error.message);
      }
    }
    this.timer = setTimeout(() => this.#look(), again);
  }

  #trouble(error) {
    const hint = error ? null : this.answer?.hint;
    this.search.setAttribute("aria-invalid", String(Boolean(error)));
    this.words.hidden = !error && !hint;
    this.words.classList.toggle("bad", Boolean(error));
    const said = error?.message ?? hint ?? "";
    const key = JSON.stringify([said, error?.at, this.filter]);
    if (key === this.told) return;
    this.told = key;
    const at = error?.at;
    const letters = [...this.filter];
    fill(this.words, at === null || at === undefined ? null
      : element("code", { class: "pointed" }, letters.slice(0, at).join(""), element("mark", { text: letters[at] ?? "\u00a0" }), letters.slice(at + 1).join("")),
    said ? `${said[0].toUpperCase()}${said.slice(1)}` : null);
  }

  #show() {
    if (!this.answer) return;
    const { total, matched, unread } = this.answer;
    const some = this.filter ? `${number(matched)} of ${number(total)}` : total ? number(total) : "";
    say(this.count, unread ? `${some} – reading ${number(unread)} more …` : some);
    this.grid.node.hidden = this.answer.rows === 0;
    this.empty.hidden = this.answer.rows > 0;
    say(this.empty, unread ? "reading the runs …" : total ? `No run is called “${this.filter}”.` : "No runs yet. Start one with: tachograph run -- python train.py");
    this.grid.show(this.picked);
    const many = this.picked.size;
    this.compare.hidden = this.clear.hidden = many === 0;
    this.compare.href = linkToComparison(this.picked);
    say(this.compare, `Compare ${count(many, "run")}`);
  }

  #groups() {
    const names = Object.keys(this.known).filter((name) => /^(config|summary)\./.test(name)).slice(0, 200);
    const offered = ["", "state", "program", ...names, ...(this.by && !names.includes(this.by) && !["state", "program"].includes(this.by) ? [this.by] : [])];
    fill(this.group, ...offered.map((value) => element("option", { value, text: value ? heading(value) : "not grouped" })));
    this.group.value = this.by;
  }

  #columns() {
    chooser(this.dialog, this.known, this.columns ?? defaults(this.known), (columns) => this.#choose({ columns: columns === null ? null : wordOf(columns) || "-" }));
  }

  drawn() {
    return [];
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    clearTimeout(this.typing);
    state.followers.delete(this.moved);
    this.grid.close();
  }
}
