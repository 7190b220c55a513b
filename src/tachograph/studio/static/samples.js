/** Series of gauges, counters and histograms as charts: samples over time, every ten seconds or so. */

import { ask, pathOf } from "./api.js";
import { Curve } from "./curve.js";
import { labels, measured, sizes, unit } from "./format.js";
import { nameOf } from "./style.js";

const NANO = 1e9;
const DOUBLES = Array.from({ length: 60 }, (_, place) => 2 ** place); // steps of an axis of bytes
const AT_ONCE = 100; // series in one question
const STATS = "torch.monitor"; // scopes
const LOGGER = "tachograph.logger";

/**
 * Return the charts of series: one for each scope and name, those of a Stat together.
 * @param {Array} series - of the run's answer.
 * @param {Array} charts - of its metrics, whose gauges would say the same again.
 */
export function seriesCharts(series, charts) {
  const metrics = charts.flatMap(({ group, metrics: own }) => own.map((each) => ({ ...each, group })));
  const drawn = new Set(metrics.filter(({ curves }) => curves.length).map(({ group, metric }) => `${group || "tachograph.metric"}\n${metric}`));
  const logged = new Set(metrics.map(({ group, metric }) => `${group}.${metric}`));
  const loops = metrics.filter(({ progress }) => progress).map(({ metric }) => metric);
  const told = new Set(loops.flatMap((metric) => ["rate", "total", "eta"].map((of) => `${metric}.${of}`))); // by its bar
  const stats = new Set(series.filter(({ name, scope }) => scope === STATS && name.endsWith(".window.count"))
    .map(({ name }) => name.slice(0, -".window.count".length)));
  const found = new Map();
  for (const each of series) {
    const { name, scope, kind } = each;
    if (name.startsWith("function.")) continue;
    if (told.has(name) || told.has(name.replace(/#\d+(?=\.\w+$)/, ""))) continue;
    if (kind === "gauge" && (drawn.has(`${scope}\n${name}`) || (scope === LOGGER && logged.has(name)))) continue;
    const stat = scope === STATS ? [...stats].find((one) => name.startsWith(`${one}.`)) : null;
    if (stat && [`${stat}.window.sum`, `${stat}.window.end`].includes(name)) continue;
    const apart = stat && name === `${stat}.window.count` ? " – values a window" : "";
    const title = stat ? `${stat}${apart}` : scope === STATS && stats.has(name) ? `${name} – all values` : name;
    const key = `s${scope}\n${title}\n${kind}`;
    if (!found.has(key)) found.set(key, { key, title, scope, stat, names: [title], series: [] });
    found.get(key).series.push(each);
  }
  return [...found.values()];
}

/** The source of one chart of series. */
export class SeriesChart {
  constructor(run, chart, view) {
    this.run = run;
    this.view = view;
    this.title = chart.title;
    this.remark = "";
    this.update(chart);
    const { kind, unit: of } = chart.series[0];
    const units = unit(of);
    const size = of === "By" ? { ticks: sizes, incrs: DOUBLES } : {};
    const format = (value) => (of === "By" || (of === "s" && kind !== "counter") ? measured(value, of) : undefined);
    const axis = (key, label, more = {}) => ({ key, label, colour: () => undefined, ...more });
    const rate = axis("y1", size.ticks || !units ? "a second" : `${units}/s`, { lower: 0, ...size, format });
    const axes = {
      gauge: () => [axis("y0", size.ticks ? "" : units, { lower: of === "1" ? 0 : undefined, format, ...size })],
      counter: () => (chart.machine ? [rate] : [axis("y0", size.ticks || !units ? "total" : units, { lower: 0, format, ...size }), rate]),
      histogram: () => [axis("y0", units || "mean", { format, ...size }), axis("y1", "a second", { lower: 0 })],
    };
    this.axes = { x: { units: "", time: true }, y: axes[kind]() };
  }

  update(chart) {
    this.chart = chart;
    this.section = chart.section;
    this.series = new Map(chart.series.map((each) => [each.series, each]));
    this.names = [...new Set(chart.series.flatMap((each) => this.#lines(each).map(({ metric }) => nameOf({ metric, attributes: this.#attributes(each) }))))];
    const ranks = [...new Set(chart.series.map(laneOf))];
    this.lanes = ranks.map((key) => ({ key, label: laneLabel(key), rank: key.split("/")[0] }))
      .sort((one, other) => Number(one.rank || Infinity) - Number(other.rank || Infinity));
  }

  /** Return the lines that a series is drawn as: what each is called, its axis, and how its points are made. */
  #lines({ kind, name }) {
    const { stat, machine } = this.chart;
    if (kind === "counter") return machine ? [{ metric: this.title, scale: "y1", points: rates }] : [{ metric: "total", scale: "y0", points: values }, { metric: "a second", scale: "y1", points: rates }];
    if (kind === "histogram") return [{ metric: "mean", scale: "y0", points: means }, { metric: "a second", scale: "y1", points: calls }];
    return [{ metric: stat ? name.slice(stat.length + 1) : this.title, scale: "y0", points: values }];
  }

  /** Of the machine attributes are what a chart is about, such as a state: their values say enough. */
  #attributes({ attributes }) {
    const said = Object.values(attributes ?? {});
    return this.chart.machine ? said.join(" ") : labels(attributes);
  }

  async load({ low = null, high = null, signal = null }) {
    const numbers = [...this.series].filter(([, { rank }]) => this.view.wants(rank)).map(([number]) => number);
    const parts = [];
    for (let place = 0; place < numbers.length; place += AT_ONCE) parts.push(numbers.slice(place, place + AT_ONCE));
    const answers = await Promise.all(parts.map((series) => ask(`${pathOf(this.run)}/samples`, { series }, signal)));
    return answers.flatMap(({ samples }) => samples).flatMap((each) => this.#made(each, low, high));
  }

  #made(sample, low, high) {
    const each = this.series.get(sample.series);
    if (!each) return [];
    const of = { rank: each.rank, lane: laneOf(each), run: this.run, attributes: this.#attributes(each) };
    const times = sample.time.map((time) => time / NANO);
    return this.#lines(each).map(({ metric, scale, points }) => {
      const kept = times.map((x, place) => [x, points(sample, place, times)])
        .filter(([x, y]) => y !== null && Number.isFinite(y) && (low === null || x >= low) && (high === null || x <= high));
      const answer = { curve: each.series, branch: 0, points: kept.length, x: kept.map(([x]) => x), y: kept.map(([, y]) => y) };
      return new Curve(answer, { ...of, metric, scale });
    });
  }
}

const laneOf = ({ rank, role }) => `${rank ?? ""}/${rank === null ? role : ""}`;

function laneLabel(key) {
  const [rank, role] = key.split("/");
  return rank ? `rank ${rank}` : role;
}

const values = ({ value }, place) => value[place];

/** How much a counter has risen in a second since the sample before; it begins anew where it has gone down. */
function rates({ value }, place, times) {
  const [before, now] = [value[place - 1], value[place]];
  if (!place || before === null || now === null) return null;
  return aSecond(now >= before ? now - before : now, place, times);
}

const means = ({ count, total }, place) => (count[place] > 0 && total[place] !== null ? total[place] / count[place] : null);

const calls = ({ count }, place, times) => (place ? aSecond(count[place], place, times) : null);

const aSecond = (amount, place, times) => (times[place] > times[place - 1] ? amount / (times[place] - times[place - 1]) : null);
