/** A chart of metrics: what it is made of, and how its curves are fetched. */

import { ask, pathOf } from "./api.js";
import { Curve } from "./curve.js";
import { count, labels, number, taskName, tellingKeys, unit } from "./format.js";
import { nameOf, ownColour } from "./style.js";

const MOST_PAIRS = 1000; // buckets a curve
const ALL_PAIRS = 8000; // buckets a chart, which holds up to four times as many points
const LEAST_PAIRS = 150;

/** Return what tells the lanes of a chart: ranks, and tasks of theirs where one has several. */
export function lanesOf(metrics) {
  const found = new Map();
  for (const { curves } of metrics) for (const curve of curves) found.set(laneOf(curve), curve);
  const tasks = new Set([...found.values()].map(({ execution }) => execution));
  return [...found]
    .map(([key, curve]) => ({ key, label: laneLabel(curve, tasks.size > 1), rank: curve.rank, execution: curve.execution }))
    .sort((one, other) => (one.rank ?? Infinity) - (other.rank ?? Infinity) || one.execution - other.execution);
}

const laneOf = ({ rank, execution }) => `${rank ?? ""}/${execution}`;

function laneLabel({ rank, execution, task }, tasks) {
  const who = rank === null ? "" : `rank ${rank}`;
  if (!tasks) return who;
  return [who, task ? `${taskName(task)} #${execution}` : execution ? `task ${execution}` : ""].filter(Boolean).join(" ");
}

export class MetricChart {
  /** @param {Object} chart - of the run's answer. */
  constructor(run, chart, view) {
    this.run = run;
    this.view = view;
    const [first, ...more] = chart.metrics;
    const own = more.length ? chart.scales.find(({ scale }) => scale === first.scale)?.name || first.metric : first.metric;
    this.title = chart.title ?? (chart.shared ? chart.group : [own, chart.kind].filter(Boolean).join(" – "));
    this.update(chart);
    this.axes = {
      x: { units: chart.x?.units ?? "", lower: chart.x?.lower, upper: chart.x?.upper, time: false },
      y: chart.scales
        .filter(({ scale }) => chart.metrics.some((metric) => metric.scale === scale))
        .map((each) => ({
          key: `y${each.scale}`, lower: each.lower, upper: each.upper,
          label: this.#axis(each, chart), colour: () => ownColour(this.names, this.#names(each.scale)),
        })),
    };
  }

  /** Take what the run's answer says of it now. */
  update(chart) {
    this.chart = chart;
    this.section = chart.section;
    const attributes = chart.metrics.flatMap(({ curves }) => curves.map((each) => each.attributes));
    this.telling = tellingKeys(attributes);
    this.names = [...new Set(chart.metrics.flatMap(({ scale }) => this.#names(scale)))];
    this.lanes = lanesOf(chart.metrics);
    this.hint = `tachograph runs export ${quoted(this.run)} ${chart.metrics.map(({ metric, group = chart.group }) => `--metric ${quoted(group && chart.title ? `${group}/${metric}` : metric)}`).join(" ")}`;
    const kept = chart.metrics.reduce((sum, { curves }) => sum + curves.length, 0);
    const left = chart.metrics.reduce((sum, each) => sum + each.left_out, 0);
    const common = new Set(Object.keys(attributes[0] ?? {}).filter((key) => !this.telling.has(key)));
    this.remark = [labels(attributes[0], common), left ? `the newest ${number(kept)} of ${count(kept + left, "curve")}` : ""].filter(Boolean).join(" · ");
  }

  /** Return the names of the curves on an axis: metrics, each with the attributes that it has. */
  #names(scale) {
    return this.chart.metrics.filter((each) => each.scale === scale).flatMap(({ metric, label = metric, curves }) => {
      const named = curves.map(({ attributes }) => nameOf({ metric: label, attributes: labels(attributes, this.telling) }));
      return named.length ? [...new Set(named)] : [label];
    });
  }

  #axis({ scale, name, units }, { metrics }) {
    const own = metrics.filter((metric) => metric.scale === scale).map(({ metric }) => metric);
    const said = name || (own.length === 1 && metrics.length > 1 ? own[0] : "");
    const of = unit(units);
    return [said, of && said ? `(${of})` : of].filter(Boolean).join(" ");
  }

  /** Return what is known of each of its curves, by number; for points that come live. */
  about() {
    const found = new Map();
    for (const metric of this.chart.metrics) {
      for (const curve of metric.curves) if (curve.curve) found.set(curve.curve, this.#about(metric, curve, { start: curve.start }));
    }
    return found;
  }

  #about({ metric, label = metric, scale }, curve, more = {}) {
    return { run: this.run, metric: label, scale: `y${scale}`, rank: curve.rank, lane: laneOf(curve), attributes: labels(curve.attributes, this.telling), ...more };
  }

  /** How many buckets each curve has, which shows the least and the greatest of each: fewer where there are many. */
  get pairs() {
    const wanted = this.lanes.filter(({ rank }) => this.view.wants(rank)).length || 1;
    const many = wanted * this.names.length;
    return Math.round(Math.max(LEAST_PAIRS, Math.min(MOST_PAIRS, ALL_PAIRS / many)));
  }

  /** Return its curves, all of x or what is between `low` and `high`. */
  async load({ low = null, high = null, signal = null }) {
    const { pairs } = this;
    const ranks = this.view.ranks;
    const rank = ranks?.size === 1 ? [...ranks][0] : null;
    const along = this.view.x === "own" ? {} : { x: this.view.x };
    const query = { low, high, rank, pairs, ...along, knots: this.view.marks.length ? 1 : null };
    return (await Promise.all(this.chart.metrics.map((metric) => this.#curves(metric, query, signal)))).flat();
  }

  async #curves(metric, query, signal) {
    let answer;
    try {
      answer = await ask(`${pathOf(this.run)}/curves`, { metric: metric.metric, group: metric.group ?? this.chart.group, ...query }, signal);
    } catch (error) {
      // defined and without points so far, or a rank that has none of it
      if (error.status === 404 && (query.rank !== null || !metric.curves.some(({ points }) => points > 0))) return [];
      throw error;
    }
    const own = answer.curves.filter(({ kind }) => kind === this.chart.kind); // a gauge may have a Metric's name
    return own.map((curve) => new Curve(curve, this.#about(metric, curve, { timed: this.view.timed })));
  }
}

const quoted = (name) => (/^[\w.:@%+=/-]+$/.test(name) && !name.startsWith("-") ? name : `'${name.replaceAll("'", "'\\''")}'`);
