/** Progress bars: how far loops have come, how fast, and how long they will take. */

import { element, say } from "./element.js";
import { count, duration, number, taskName } from "./format.js";

/** The bars of a run. */
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
    const several = new Set(list.map(({ rank }) => rank)).size > 1;
    const wanted = list.filter(({ rank }) => this.view.wants(rank)).sort(order);
    const keys = new Set();
    for (const each of wanted) {
      const key = JSON.stringify([each.metric, each.group, each.rank, each.execution]);
      keys.add(key);
      let bar = this.bars.get(key);
      if (!bar) {
        bar = made();
        this.bars.set(key, bar);
      }
      if (this.node.children[keys.size - 1] !== bar.node) this.node.insertBefore(bar.node, this.node.children[keys.size - 1] ?? null);
      update(bar, each, several, live);
    }
    for (const [key, bar] of this.bars) {
      if (keys.has(key)) continue;
      bar.node.remove();
      this.bars.delete(key);
    }
    this.node.hidden = wanted.length === 0;
  }
}

const order = (one, other) =>
  one.done - other.done || (one.metric < other.metric ? -1 : one.metric > other.metric ? 1 : 0) || one.execution - other.execution || (one.rank ?? -1) - (other.rank ?? -1);

function made() {
  const [name, words, inner] = [element("span", { class: "name" }), element("span", { class: "number quiet" }), element("i")];
  const track = element("div", { class: "track", role: "progressbar", "aria-valuemin": "0" }, inner);
  return { node: element("div", { class: "bar" }, name, track, words), name, words, inner, track };
}

function update({ node, name, words, inner, track }, each, several, live) {
  const who = [each.metric, several && each.rank !== null ? `rank ${each.rank}` : "", taskName(each.task)].filter(Boolean).join(" · ");
  say(name, who);
  name.title = each.group ? `${who} (${each.group})` : who;
  const part = each.count / each.total; // of a count that is no number: NaN
  const share = each.total && Number.isFinite(part) ? Math.max(0, Math.min(1, part)) : each.done ? 1 : null;
  inner.style.width = `${(100 * (share ?? 0)).toFixed(2)}%`;
  node.classList.toggle("done", each.done);
  node.classList.toggle("unknown", share === null);
  track.setAttribute("aria-label", who);
  if (share === null) track.removeAttribute("aria-valuenow");
  else track.setAttribute("aria-valuenow", String(each.count));
  if (each.total) track.setAttribute("aria-valuemax", String(each.total));
  const said = [each.total ? `${number(each.count)} of ${number(each.total)}` : count(each.count, "item")];
  if (share !== null && each.total && !each.done) said.push(`${Math.floor(100 * share)} %`);
  if (each.rate) said.push(each.rate >= 1 ? `${number(each.rate, 3)}/s` : `${duration(1 / each.rate)} each`);
  if (each.done) said.push("done");
  else if (!live) said.push("stopped");
  else if (each.eta !== null && each.eta !== undefined) said.push(`${duration(each.eta)} left`);
  say(words, said.join(" · "));
  track.setAttribute("aria-valuetext", said.join(", "));
}
