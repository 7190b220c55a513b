/** Durations of functions: how often each ran, how long, and how it failed. */

import { Calls } from "./calls.js";
import { button, element, fill, say, scrolling, tabular } from "./element.js";
import { EXACT, number, offBy, took } from "./format.js";

const COLUMNS = [
  ["Function", (each) => each.function],
  ["Rank", (each) => each.rank ?? Infinity],
  ["Calls", (each) => each.calls],
  ["Failures", (each) => failed(each)],
  ["Mean", (each) => each.mean ?? -1],
  ["p50", (each) => each.p50 ?? -1],
  ["p99", (each) => each.p99 ?? -1],
];
const MOST = 300; // rows

const failed = ({ failures }) => Object.values(failures ?? {}).reduce((sum, each) => sum + each, 0);

export class Functions {
  constructor(view, run, signal) {
    this.view = view;
    this.calls = new Calls(view, run, signal);
    this.list = [];
    this.column = 2;
    this.down = true;
    this.body = element("tbody");
    this.note = element("span", { class: "note" });
    this.heads = COLUMNS.map(([title], place) => this.#head(title, place));
    this.node = element(
      "section",
      { class: "block", "aria-label": "Functions", hidden: true },
      element("h2", {}, "Functions ", this.note),
      scrolling("Table of functions", tabular(element("tr", {}, ...this.heads), this.body)),
      this.calls.node,
    );
  }

  #head(title, place) {
    return element("th", { scope: "col", class: place > 0 ? "number" : null }, button(title, () => {
      this.down = this.column === place ? !this.down : place > 1;
      this.column = place;
      this.show(this.list);
    }, { class: "sort" }));
  }

  show(list) {
    this.list = list;
    if (list.length) this.calls.look(list);
    const value = COLUMNS[this.column][1];
    const order = (one, other) => {
      const [left, right] = [value(one), value(other)];
      return (left < right ? -1 : left > right ? 1 : 0) * (this.down ? -1 : 1);
    };
    const wanted = list.filter(({ rank }) => this.view.wants(rank)).sort(order);
    this.heads.forEach((head, place) => {
      if (place === this.column) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.node.hidden = list.length === 0;
    const rough = list.filter(({ p50, error }) => p50 !== null && (error === null || error > EXACT)).map(({ error }) => error);
    say(this.note, rough.length ? `p50 and p99 ${offBy(rough.includes(null) ? null : Math.max(...rough))}` : "");
    const said = JSON.stringify(wanted);
    if (said === this.said) return; // what a reader has marked in it stays so
    this.said = said;
    fill(this.body, ...wanted.slice(0, MOST).map(row));
    if (wanted.length > MOST) {
      this.body.append(element("tr", {}, element("td", { colspan: "7", class: "quiet", text: `and ${wanted.length - MOST} more` })));
    }
  }
}

function row(each) {
  const failures = Object.entries(each.failures ?? {}).map(([error, many]) => `${error} × ${number(many)}`).join(", ");
  const cell = (text) => element("td", { class: "number", text });
  return element(
    "tr",
    {},
    element("th", { scope: "row", class: "code", text: each.function }),
    cell(each.rank === null ? each.role || "–" : String(each.rank)),
    cell(number(each.calls)),
    element("td", { class: failures ? "number bad" : "number quiet", text: failures || "0" }),
    cell(took(each.mean)), cell(took(each.p50)), cell(took(each.p99)),
  );
}
