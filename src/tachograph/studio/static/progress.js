/** Progress bars: how far loops have come, how fast, and how long they will take; of ranks one bar, with a tick each. */

import { element, inOrder, say } from "./element.js";
import { count, duration, number, taskName } from "./format.js";

const MOST_TICKS = 128; // in a bar; ranks that are as far share one

export class Progress {
  constructor(view) {
    this.view = view;
    this.bars = new Map();
    this.list = [];
    this.node = element("section", { class: "progress", "aria-label": "Progress", hidden: true });
  }

  /** Show loops, as the run's answer has them. */
  show(list, live = this.live) {
    this.list = list;
    this.live = live;
    const loops = new Map();
    for (const each of list.filter(({ rank }) => this.view.wants(rank))) {
      const key = JSON.stringify([each.metric, each.group, each.execution]);
      loops.set(key, [...(loops.get(key) ?? []), each]);
    }
    const wanted = [...loops].map(([key, ranks]) => ({ key, ranks: ranks.sort(slowest) })).sort(order);
    const before = this.bars;
    this.bars = new Map(wanted.map(({ key }) => [key, before.get(key) ?? made()]));
    for (const { key, ranks } of wanted) update(this.bars.get(key), ranks, live);
    inOrder(this.node, [...this.bars.values()].map(({ node }) => node));
    this.node.hidden = wanted.length === 0;
  }
}

const slowest = (one, other) => one.done - other.done || (share(one) ?? 0) - (share(other) ?? 0) || one.count - other.count || (one.rank ?? -1) - (other.rank ?? -1);

const order = ({ ranks: [one] }, { ranks: [other] }) =>
  one.done - other.done || (one.metric < other.metric ? -1 : one.metric > other.metric ? 1 : 0) || one.execution - other.execution;

/** Return how much of a loop is done, from 0 to 1; null where that is not known. */
function share({ count: many, total, done }) {
  const part = many / total; // of a count that is no number: NaN
  return total && Number.isFinite(part) ? Math.max(0, Math.min(1, part)) : done ? 1 : null;
}

function made() {
  const [name, words, inner] = [element("span", { class: "name" }), element("span", { class: "number quiet" }), element("i")];
  const track = element("div", { class: "track", role: "progressbar", "aria-valuemin": "0" }, inner);
  return { node: element("div", { class: "bar" }, name, track, words), name, words, inner, track, ticks: "" };
}

/** Show a loop of one or many ranks, the slowest first: the bar is as far as that one. */
function update(bar, ranks, live) {
  const { node, name, words, inner, track } = bar;
  const [last] = ranks;
  const first = ranks[ranks.length - 1];
  const who = [last.metric, ranks.length > 1 ? `${ranks.length} ranks` : "", taskName(last.task)].filter(Boolean).join(" · ");
  const part = share(last);
  say(name, who);
  name.title = last.group ? `${who} (${last.group})` : who;
  inner.style.width = `${(100 * (part ?? 0)).toFixed(2)}%`;
  node.classList.toggle("done", last.done);
  node.classList.toggle("unknown", part === null);
  ticks(bar, part === null || ranks.length < 2 ? [] : ranks);
  track.setAttribute("aria-label", who);
  if (part === null) track.removeAttribute("aria-valuenow");
  else track.setAttribute("aria-valuenow", String(last.count));
  if (last.total) track.setAttribute("aria-valuemax", String(last.total));
  const rate = last.rate && (last.rate >= 1 ? `${number(last.rate, 3)}/s` : `${duration(1 / last.rate)} each`);
  const many = last.total ? `${number(last.count)} of ${number(last.total)}` : count(last.count, "item");
  const said = [many];
  if (part !== null && last.total && !last.done) said.push(`${Math.floor(100 * part)} %`);
  if (rate) said.push(rate);
  if (last.done) said.push("done");
  else if (!live) said.push("stopped");
  else if (last.eta !== null && last.eta !== undefined) said.push(`${duration(last.eta)} left`);
  if (first.count > last.count && last.rank !== null) said.push(`rank ${last.rank} is last, rank ${first.rank} at ${number(first.count)}`);
  track.setAttribute("aria-valuetext", said.join(", "));
  node.title = last.done ? said.join(" · ") : "";
  say(words, last.done ? `${last.total ? `${number(last.count)}/${number(last.total)}` : many} ✓` : said.join(" · "));
}

/** Put a tick where each rank is. */
function ticks(bar, ranks) {
  const places = [...new Set(ranks.map((each) => (100 * (share(each) ?? 0)).toFixed(1)))].slice(0, MOST_TICKS);
  const shape = places.join(" ");
  if (shape === bar.ticks) return;
  bar.ticks = shape;
  bar.track.replaceChildren(bar.inner, ...places.map((place) => element("b", { style: { left: `${place}%` } })));
}
