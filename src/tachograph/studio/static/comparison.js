/** The source of a chart in which several runs have one metric: a line each, of many ranks their median. */

import { ask, pathOf } from "./api.js";
import { Curve } from "./curve.js";
import { labels, tellingKeys, unit } from "./format.js";
import { together } from "./ranks.js";
import { nameOf } from "./style.js";

const MOST_PAIRS = 1000; // buckets a run
const ALL_PAIRS = 12_000; // buckets a chart
const LEAST_PAIRS = 60;
const AT_ONCE = 4; // questions: a browser has six connections to a hub
const MOST_KEPT = 2000; // runs, each along an axis, with a smoothing
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
}

/** The request of a card for a metric of several runs. */
export class Comparison {
  /**
   * @param {Object} metric - of the answer: group, metric, kind, x, y, runs.
   * @param {Array} lanes - the runs: {key, label, colour()}.
   * @param {Set<string>} live - runs that go on: their points are asked for each time.
   * @param {View} view - how smooth, along which x.
   */
  constructor(metric, lanes, live, view) {
    this.view = view;
    this.kept = new Map();
    this.byLane = true;
    this.title = metric.kind ? `${metric.metric} – ${metric.kind}` : metric.metric;
    this.section = metric.group;
    this.names = [metric.metric];
    this.update(metric, lanes, live);
    const { units, lower, upper } = metric.y;
    this.axes = {
      x: { units: metric.x?.units ?? "", lower: metric.x?.lower, upper: metric.x?.upper, time: false },
      y: [{ key: "y", lower, upper, label: unit(units), colour: () => undefined }],
    };
  }

  /** Take what is known now. */
  update(metric, lanes, live) {
    this.metric = metric;
    this.runs = metric.runs;
    this.lanes = lanes.filter(({ key }) => metric.runs.includes(key));
    this.live = live;
    const left = lanes.length - this.lanes.length;
    this.remark = left ? `${this.lanes.length} of ${lanes.length} runs have it` : "";
    this.hint = "";
  }

  /** Return a line for each run, of all x or of a part. */
  async load({ low = null, high = null, signal = null }) {
    const pairs = Math.round(Math.max(LEAST_PAIRS, Math.min(MOST_PAIRS, ALL_PAIRS / this.lanes.length)));
    const along = this.view.x && this.view.x !== "own" ? { x: this.view.x } : {};
    const query = { metric: this.metric.metric, group: this.metric.group, low, high, pairs, smooth: this.view.weight || null, ...along };
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
    const known = this.kept.get(key) ?? [];
    const renewed = this.live.has(run) && low === null && high === null;
    let own = renewed ? null : known.find((part) => part.holds(low, high))?.curves;
    if (!own) {
      try {
        const answer = await ask(`${pathOf(run)}/curves`, { low, high, ...query }, signal);
        own = answer.curves.filter(({ kind }) => kind === this.metric.kind);
      } catch (error) {
        if (error.status === 404) return []; // it is gone, or has no points there
        throw error;
      }
      if (this.kept.size > MOST_KEPT) this.kept.clear();
      const others = this.live.has(run) ? [] : known.slice(0, MOST_PARTS - 1); // of a run that goes on the newest
      this.kept.set(key, [new Part(low, high, own), ...others]);
    }
    const telling = tellingKeys(own.map(({ attributes }) => attributes));
    const made = own.map((curve) => new Curve(curve, {
      run, metric: this.metric.metric, scale: "y", rank: curve.rank, lane: run, attributes: labels(curve.attributes, telling),
    }));
    const lines = together(made);
    for (const line of lines) Object.assign(line, { run, lane: run, rank: null });
    for (const name of lines.map(nameOf)) if (!this.names.includes(name)) this.names.push(name);
    return lines;
  }
}
