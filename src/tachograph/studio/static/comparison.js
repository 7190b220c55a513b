/** The source of a chart in which several runs have one metric: a line each, of many ranks their median. */

import { ask, pathOf } from "./api.js";
import { Curve, FULL } from "./curve.js";
import { labels, tellingKeys, unit } from "./format.js";
import { together } from "./ranks.js";
import { nameOf } from "./style.js";

const MOST_PAIRS = 1000; // buckets a run
const ALL_PAIRS = 12_000; // buckets a chart
const LEAST_PAIRS = 60;
const AT_ONCE = 4; // questions: a browser has six connections to a hub
const MOST_KEPT = 2000; // runs, each along an axis
const MOST_PARTS = 8; // answers of each

/** An answer: the curves of a run between two places on the axis; null for no end. */
class Part {
  constructor(low, high, curves) {
    Object.assign(this, { low, high, curves });
    this.exact = curves.every(({ exact }) => exact);
  }

  /** Tell whether it has all that a window shows: it is that of the window, or has each point of a wider one. */
  holds(low, high) {
    if (low === this.low && high === this.high) return true;
    return this.exact && (this.low === null || (low !== null && low >= this.low)) && (this.high === null || (high !== null && high <= this.high));
  }

  get whole() {
    return this.low === null && this.high === null;
  }

  /** Put points that came live behind those that are here; false where it is to be fetched again. */
  add({ curve: number, branch, points, seq, after }, most) {
    const own = this.curves.filter((curve) => curve.number === number);
    const found = own.find((curve) => curve.branch === branch);
    const head = Math.max(...own.map((curve) => curve.seq));
    if (!found || after > head) return false;
    if (seq > head) found.append(points, seq, after < head);
    return Math.max(found.length, found.nonfinite.length) <= most;
  }
}

export class Comparison {
  /**
   * @param {Object} metric - of the answer: group, metric, kind, x, y, runs.
   * @param {Array} lanes - the runs: {key, label, colour()}.
   * @param {View} view - along which x.
   */
  constructor(metric, lanes, view) {
    this.view = view;
    this.kept = new Map(); // {run, plain, parts} by question
    this.byLane = true;
    this.title = metric.kind ? `${metric.metric} – ${metric.kind}` : metric.metric;
    this.section = metric.group;
    this.names = [metric.metric];
    this.update(metric, lanes);
    const { units, lower, upper } = metric.y;
    this.axes = {
      x: { units: metric.x?.units ?? "", lower: metric.x?.lower, upper: metric.x?.upper, time: false },
      y: [{ key: "y", lower, upper, label: unit(units), colour: () => undefined }],
    };
  }

  update(metric, lanes) {
    this.metric = metric;
    this.runs = metric.runs;
    this.lanes = lanes.filter(({ key }) => metric.runs.includes(key));
    const left = lanes.length - this.lanes.length;
    this.remark = left ? `${this.lanes.length} of ${lanes.length} runs have it` : "";
  }

  get pairs() {
    return Math.round(Math.max(LEAST_PAIRS, Math.min(MOST_PAIRS, ALL_PAIRS / this.lanes.length)));
  }

  /** Return a line for each run, of all x or of a part. */
  async load({ low = null, high = null, signal = null }) {
    const along = this.view.x && this.view.x !== "own" ? { x: this.view.x } : {};
    const query = { metric: this.metric.metric, group: this.metric.group, low, high, pairs: this.pairs, ...along };
    const waiting = [...this.lanes];
    const found = [];
    const work = async () => {
      for (let lane = waiting.shift(); lane; lane = waiting.shift()) found.push(...await this.#curves(lane.key, query, signal));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    return found;
  }

  /** Return the lines of a run: of what is here already where that has each point of the window. */
  async #curves(run, { low, high, ...query }, signal) {
    const key = JSON.stringify([run, query]);
    const known = this.kept.get(key)?.parts ?? [];
    let part = known.find((each) => each.holds(low, high));
    if (!part) {
      let own;
      try {
        const answer = await ask(`${pathOf(run)}/curves`, { low, high, ...query }, signal);
        own = answer.curves.filter(({ kind }) => kind === this.metric.kind);
      } catch (error) {
        if (error.status === 404) return []; // it is gone, or has no points there
        throw error;
      }
      const telling = tellingKeys(own.map(({ attributes }) => attributes));
      part = new Part(low, high, own.map((curve) => new Curve(curve, {
        run, metric: this.metric.metric, scale: "y", rank: curve.rank, lane: run, timed: this.view.timed, attributes: labels(curve.attributes, telling),
      })));
      if (this.kept.size > MOST_KEPT) this.kept.clear();
      this.kept.set(key, { run, plain: this.view.plain, parts: [part, ...known.slice(0, MOST_PARTS - 1)] });
    }
    const lines = together(part.curves);
    for (const line of lines) Object.assign(line, { run, lane: run, rank: null });
    for (const name of lines.map(nameOf)) if (!this.names.includes(name)) this.names.push(name);
    return lines;
  }

  /** Return pairs: each curve of a run that is here in whole, and its last number. */
  heads(run) {
    const curves = [...this.kept.values()].filter((each) => each.run === run).flatMap(({ parts }) => parts.filter(({ whole }) => whole).flatMap((part) => part.curves));
    return Object.entries(Object.groupBy(curves, ({ number }) => number)).map(([number, own]) => [number, Math.max(...own.map(({ seq }) => seq))]);
  }

  /**
   * Take what has come of a run since, as the hub answers it; what cannot be put behind what is here is fetched again.
   * @returns {boolean} whether anything is another than before.
   */
  take(run, { curves, stale, new: fresh }) {
    const renewed = fresh.some(([group, metric]) => group === this.metric.group && metric === this.metric.metric);
    let changed = renewed;
    for (const [key, kept] of this.kept) {
      if (kept.run !== run) continue;
      const numbers = new Set(kept.parts.flatMap((part) => part.curves.map(({ number }) => number)));
      const own = curves.filter(({ curve }) => numbers.has(curve));
      const gone = renewed || stale.some((number) => numbers.has(number)) || (own.length > 0 && !kept.plain);
      changed ||= gone || own.length > 0;
      const inside = ({ low, high }) => own.some(({ points }) => points.some(([x]) => (low === null || x >= low) && (high === null || x <= high)));
      kept.parts = kept.parts.filter((part) => (part.whole ? own.every((each) => part.add(each, FULL * this.pairs)) : !inside(part)));
      if (gone) this.kept.delete(key);
    }
    return changed;
  }
}
