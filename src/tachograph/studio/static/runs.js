/** The list of runs: live ones first, up to date by itself. */

import { ask, silent } from "./api.js";
import { element, fill, say } from "./element.js";
import { bytes, duration, number, when } from "./format.js";
import { chip } from "./header.js";
import { linkTo } from "./route.js";

const EVERY = 2000; // milliseconds
const MOST = 500; // rows
const HEADS = ["Run", "State", "Program", "Started", "Duration", "Ranks", "Restarts", "Points", "Size"];

/** Shows all runs of the hub until it is closed. */
export class RunsPage {
  constructor(_route, shell) {
    this.shell = shell;
    this.title = "Runs";
    this.runs = null;
    this.now = 0;
    this.search = element("input", { type: "search", id: "search", placeholder: "Search runs", "aria-label": "Search runs" });
    this.search.addEventListener("input", () => this.#show());
    this.count = element("span", { class: "quiet number" });
    this.rows = new Map();
    this.body = element("tbody");
    this.table = element("table", { class: "data runs" },
      element("thead", {}, element("tr", {}, ...HEADS.map((text, place) => element("th", { scope: "col", text, class: place > 3 ? "number" : null })))), this.body);
    this.words = element("p", { class: "empty", text: "loading …" });
    this.scroll = element("div", { class: "scroll", hidden: true }, this.table);
    fill(shell.main, element("header", { class: "list-head" }, element("h1", {}, "Runs ", this.count), this.search), this.words, this.scroll);
    document.title = "Runs – Tachograph Studio";
    this.#look();
  }

  async #look() {
    if (!document.hidden || this.runs === null) {
      try {
        const answer = await ask("/api/runs");
        if (this.closed) return;
        this.shell.banner("");
        this.runs = answer.runs;
        this.now = answer.now;
        this.own = answer.run;
        this.#show();
      } catch (error) {
        if (this.closed) return;
        this.shell.banner(error.status === 0 ? silent() : error.message);
      }
    }
    this.timer = setTimeout(() => this.#look(), EVERY);
  }

  #show() {
    if (this.runs === null) return;
    const wanted = this.search.value.trim().toLowerCase();
    const found = this.runs
      .filter(({ id, name = "", program, state, tags = [] }) => !wanted || [id, name, program, state, ...tags].join("\n").toLowerCase().includes(wanted))
      .sort((one, other) => (other.state === "running") - (one.state === "running") || other.started - one.started);
    say(this.count, this.runs.length ? String(this.runs.length) : "");
    this.scroll.hidden = found.length === 0;
    this.words.hidden = found.length > 0;
    say(this.words, this.runs.length
      ? `No run is called “${this.search.value.trim()}”.`
      : "No runs yet. Start one with: tachograph run -- python train.py");
    const shown = found.slice(0, MOST).map((run) => this.#row(run));
    if (shown.some((row, place) => this.body.children[place] !== row) || this.body.children.length !== shown.length) fill(this.body, ...shown);
  }

  #row(run) {
    const key = JSON.stringify([run, run.id === this.own]);
    const known = this.rows.get(run.id);
    if (known?.key === key) return known.node;
    const cell = (text) => element("td", { class: "number", text });
    const damage = run.damage?.length ? element("span", { class: "bad", title: run.damage.join("\n"), text: " damaged" }) : null;
    const node = element("tr", {},
      element("th", { scope: "row" }, element("a", { href: linkTo(run.id), text: run.name || run.id }),
        run.name ? element("span", { class: "quiet id", text: run.id }) : null, damage,
        ...(run.tags ?? []).map((text) => element("span", { class: "chip tag", text }))),
      element("td", {}, chip(run.state, run.ended)),
      element("td", { text: run.program || "–" }),
      element("td", { class: "figures", text: when(run.started) }),
      cell(duration(run.seconds)), cell(run.ranks ? number(run.ranks) : "–"), cell(number(run.restarts)), cell(number(run.points)), cell(bytes(run.bytes)));
    const focused = known?.node.contains(document.activeElement);
    this.rows.set(run.id, { key, node });
    if (known?.node.isConnected) {
      known.node.replaceWith(node);
      if (focused) node.querySelector("a").focus();
    }
    return node;
  }

  drawn() {
    return [];
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }
}
