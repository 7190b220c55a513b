/** A job that stands still: the doctor's verdict at the head of the run's page, and each rank beside the others. */

import { ask, pathOf } from "./api.js";
import { element, fill, headRow, scrolling, tabular } from "./element.js";
import { when } from "./format.js";

const OFTEN = 2000; // milliseconds between two questions
const MOST = 64; // ranks in the table
const LEVEL = { hang: "This run stands still", late: "Ranks wait for a late one", died: "A rank died" };

/** The verdict on a job that stands still; hidden where it gets on and never stood still. */
export class Hang {
  constructor(run, signal) {
    this.run = run;
    this.signal = signal;
    this.heading = element("h2");
    this.words = element("p", { class: "hang-words" });
    this.table = scrolling("Ranks");
    this.node = element("section", { class: "hang", role: "alert", "aria-label": "Hang", hidden: true }, this.heading, this.words, this.table);
    this.#look();
    const timer = setInterval(() => document.hidden || this.#look(), OFTEN);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  async #look() {
    try {
      this.show(await ask(`${pathOf(this.run)}/doctor`, {}, this.signal));
    } catch {
      // a shared page and an older hub have no answer; the banner says where the hub is gone
    }
  }

  show({ live, incidents }) {
    const open = live?.open ?? null;
    const past = incidents.filter(({ ended }) => ended || !live);
    const shown = open ?? past[past.length - 1];
    const said = JSON.stringify([open, past.length, open && live.ranks.map((each) => [each.state, each.operation, each.line])]);
    if (said === this.said) return;
    this.said = said;
    this.node.hidden = !shown;
    if (!shown) return;
    this.node.classList.toggle("loud", open?.grade === "hang");
    const stood = shown.grade === "died" ? LEVEL.died : "This run stood still";
    const lasted = shown.ended ? `, for ${Math.round((shown.ended - shown.began) / 1e9)} s` : "";
    this.heading.textContent = open ? LEVEL[open.grade] : `${stood} at ${when(shown.began)}${shown.grade === "died" ? "" : lasted}`;
    const times = past.filter(({ grade }) => grade === shown.grade).length;
    this.words.textContent = `${shown.text}${times > 1 && shown.grade !== "died" ? ` This happened ${times} times.` : ""}`;
    this.table.hidden = !open;
    fill(this.table, open ? table(live.ranks, new Set(open.ranks)) : null);
  }
}

/** Each rank's state, operation and line; unfolded, the stacks of its threads. */
function table(ranks, guilty) {
  const first = [...ranks].sort((one, other) => guilty.has(other.rank) - guilty.has(one.rank) || one.rank - other.rank);
  const rows = first.slice(0, MOST).map((each) => element("tr", { class: guilty.has(each.rank) ? "guilty" : false },
    element("th", { scope: "row", class: "number", text: String(each.rank) }), element("td", { text: each.state }),
    element("td", { class: "number", text: `${Math.round(each.seconds)} s` }),
    element("td", {}, element("details", {}, element("summary", { class: "code", text: each.line }),
      ...each.stacks.map(([name, lines]) => element("pre", { text: `${name}\n${lines.map((line) => `  ${line}`).join("\n")}` })))),
    element("td", { text: each.operation || "–" })));
  if (first.length > MOST) rows.push(element("tr", {}, element("td", { colspan: "5", class: "quiet", text: `and ${first.length - MOST} more ranks` })));
  return tabular(headRow([["Rank", "number"], "State", ["For", "number"], "Line", "Operation"]), element("tbody", {}, ...rows));
}
