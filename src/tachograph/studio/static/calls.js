/** Single calls of profiled functions: those that failed last, and the slowest, each with the way to its trace. */

import { ask, pathOf } from "./api.js";
import { element, fill, headRow, scrolling, tabular } from "./element.js";
import { number, took, when } from "./format.js";

const OFTEN = 9000; // milliseconds between two questions
const MOST = 200; // rows of a table
const HEADS = [["Function", null], ["Took", "number"], ["Rank", "number"], ["When", "number"], ["Error", null], ["Trace", null]];

/** The tables of a run's calls, folded up; hidden where none are kept. */
export class Calls {
  constructor(view, run, signal) {
    this.view = view;
    this.run = run;
    this.signal = signal;
    this.askedAt = -Infinity;
    this.answer = { calls: [], more: 0, trace_url: "" };
    this.failed = new Table("Failed calls", "the last ones of each function");
    this.slowest = new Table("Slowest calls", "of each function");
    this.node = element("div", { class: "calls", hidden: true }, this.failed.node, this.slowest.node);
  }

  /** Ask again where the counts of functions have changed, some seconds after the last time at the earliest. */
  async look(functions) {
    const counted = JSON.stringify(functions.map(({ function: name, rank, calls }) => [name, rank, calls]));
    this.show();
    if (counted === this.counted || performance.now() - this.askedAt < OFTEN) return;
    this.askedAt = performance.now();
    try {
      this.answer = await ask(`${pathOf(this.run)}/calls`, {}, this.signal);
      this.counted = counted;
      this.show();
    } catch {
      // the banner says that the hub is gone; what is known stays
    }
  }

  show() {
    const { calls, trace_url: pattern } = this.answer;
    const of = (kind) => calls.flatMap((each) => each[kind]).filter(({ rank }) => this.view.wants(rank));
    this.failed.show(of("failed").sort((one, other) => other.time_unix_nano - one.time_unix_nano), pattern);
    this.slowest.show(of("slowest").sort((one, other) => other.seconds - one.seconds), pattern);
    this.node.hidden = this.failed.node.hidden && this.slowest.node.hidden;
  }
}

class Table {
  constructor(title, note) {
    this.count = element("span", { class: "quiet number" });
    this.head = element("tr");
    this.body = element("tbody");
    this.said = "";
    this.node = element("details", { hidden: true },
      element("summary", {}, `${title} `, this.count, element("span", { class: "note", text: ` ${note}` })),
      scrolling(title, tabular(this.head, this.body)));
  }

  show(calls, pattern) {
    const said = JSON.stringify([calls, pattern]);
    if (said === this.said) return;
    this.said = said;
    this.node.hidden = calls.length === 0;
    this.count.textContent = number(calls.length);
    const traced = calls.some((call) => call.trace_id);
    const heads = traced ? HEADS : HEADS.slice(0, -1);
    this.head.replaceWith(this.head = headRow(heads));
    fill(this.body, ...calls.slice(0, MOST).map((call) => row(call, traced, pattern)));
    if (calls.length > MOST) this.body.append(element("tr", {}, element("td", { colspan: heads.length, class: "quiet", text: `and ${number(calls.length - MOST)} more` })));
  }
}

function row(call, traced, pattern) {
  const cell = (text) => element("td", { class: "number", text });
  return element("tr", {},
    element("th", { scope: "row", class: "code", text: call.function }),
    cell(took(call.seconds)),
    cell(call.rank === null ? call.role || "–" : String(call.rank)),
    cell(when(call.time_unix_nano)),
    element("td", { class: call.error ? "bad call-error" : "quiet", text: [call.error, call.message].filter(Boolean).join(": ") || "–" }),
    traced ? element("td", { class: "code" }, call.trace_id ? trace(call.trace_id, pattern) : "–") : null);
}

/** The way to a trace where the hub knows one; its id otherwise. */
function trace(id, pattern) {
  if (!pattern) return element("span", { text: id });
  const href = pattern.replaceAll("{trace_id}", encodeURIComponent(id));
  if (!/^https?:\/\//i.test(href)) return element("span", { text: id });
  return element("a", { href, target: "_blank", rel: "noopener noreferrer", text: id.slice(0, 8), title: `Trace ${id}` });
}
