/** Series of gauges, counters and histograms as charts: samples over time, every ten seconds or so. */

import { ask, pathOf } from "./api.js";
import { Curve } from "./curve.js";
import { count, durations, EXACT, labels, measured, number as said, offBy, sizes, tellingKeys, ticks, unit } from "./format.js";
import { nameOf } from "./style.js";

const NANO = 1e9;
const DOUBLES = Array.from({ length: 60 }, (_, place) => 2 ** place); // steps of an axis of bytes
const AT_ONCE = 100; // series in one question
const MOST_SERIES = 500; // in a heat map of values
const MOST_KEPT = 2000; // samples of a series that are put together; then all of it is fetched again, thinned
const STATS = "torch.monitor"; // scopes
const WINDOW = /\.window\.(count|end)$/; // of a Stat; which of them there are depends on its aggregations
const LOGGER = "tachograph.logger";
const FUNCTION = "code.function.name";
const PHASE = "dl.step.phase."; // histograms whose rate is that of the steps

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
  const stats = new Set(series.filter(({ name, scope }) => scope === STATS && WINDOW.test(name)).map(({ name }) => name.replace(WINDOW, "")));
  const found = new Map();
  for (const each of series) {
    const { name, scope, kind } = each;
    if (name === "function.calls") continue; // in the table of functions, and as the rate of its durations
    if (name === "function.duration") {
      const title = String(each.attributes[FUNCTION] ?? name);
      const key = `f${title}`;
      if (!found.has(key)) found.set(key, { key, title, scope, of: FUNCTION, names: [title], series: [] });
      found.get(key).series.push(each);
      continue;
    }
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

export class SeriesChart {
  constructor(run, chart, view) {
    this.run = run;
    this.view = view;
    this.title = chart.title;
    this.remark = "";
    this.kept = new Map(); // answers of histograms, by series: what comes is put behind
    this.update(chart);
    const { kind, unit: of } = chart.series[0];
    const units = unit(of);
    const size = of === "By" ? { ticks: sizes, incrs: DOUBLES } : {};
    const share = of === "1" && chart.machine;
    const percent = share ? { ticks: (splits) => ticks(splits.map((each) => (each === null ? null : 100 * each))).map((each) => (each === "" ? "" : `${each} %`)) } : {};
    const format = (value) => (share ? `${said(100 * value, 3)} %` : of === "By" || (of === "s" && kind !== "counter") ? measured(value, of) : undefined);
    const axis = (key, label, more = {}) => ({ key, label, colour: () => undefined, ...more });
    const rate = axis("y1", size.ticks || !units ? "a second" : `${units}/s`, { lower: 0, ...size, format });
    const axes = {
      gauge: () => [axis("y0", size.ticks ? "" : units, { lower: of === "1" ? 0 : undefined, format, ...size, ...percent })],
      counter: () => (chart.machine ? [rate] : [axis("y0", size.ticks || !units ? "total" : units, { lower: 0, format, ...size }), rate]),
      histogram: () => [axis("y0", of === "s" ? "" : units, { format, ticks: of === "s" ? durations : undefined, ...size }), ...(chart.series[0].name.startsWith(PHASE) ? [] : [axis("y1", "a second", { lower: 0 })])],
    };
    this.axes = { x: { units: "", time: true }, y: axes[kind]() };
  }

  update(chart) {
    this.chart = chart;
    this.section = chart.section;
    this.series = new Map(chart.series.map((each) => [each.series, each]));
    this.telling = chart.of ? tellingKeys(chart.series.map(({ attributes }) => attributes)) : null;
    this.all = [...new Set(chart.series.flatMap((each) => this.#lines(each).map(({ metric }) => nameOf({ metric, attributes: this.#attributes(each) }))))];
    const ranks = [...new Set(chart.series.map(laneOf))];
    this.lanes = ranks.map((key) => ({ key, label: laneLabel(key), rank: key.split("/")[0] }))
      .sort((one, other) => Number(one.rank || Infinity) - Number(other.rank || Infinity));
  }

  /** The drawn quantity, by name: a histogram has p50 or the mean. */
  get names() {
    return this.drawn?.size ? this.all.filter((name) => this.drawn.has(name)) : this.all;
  }

  /** Whether ranks have colours of their own: where each has a histogram, whose lines are told apart otherwise. */
  get byLane() {
    return this.lanes.length > 1 && this.chart.series[0].kind === "histogram" && this.names.length <= 2;
  }

  /** Return the lines that a series is drawn as: what each is called, its axis, and how its points are made. */
  #lines({ kind, name }) {
    const { stat, machine } = this.chart;
    if (kind === "counter") return machine ? [{ metric: this.title, scale: "y1", points: rates }] : [{ metric: "total", scale: "y0", points: values }, { metric: "a second", scale: "y1", points: rates }];
    if (kind === "histogram") {
      return [
        { metric: "p50", scale: "y0", points: middles, banded: true, optional: true },
        { metric: "mean", scale: "y0", points: means, optional: true }, // where nothing is known but count and sum
        { metric: "a second", scale: "y1", points: calls, beside: true },
      ].filter(({ scale }) => scale === "y0" || !name.startsWith(PHASE));
    }
    return [{ metric: stat ? name.slice(stat.length + 1) : this.title, scale: "y0", points: values }];
  }

  /** Of the machine attributes are what a chart is about, such as a state: their values say enough. */
  #attributes({ attributes }) {
    const said = Object.values(attributes ?? {});
    return this.chart.machine ? said.join(" ") : labels(attributes, this.telling);
  }

  async load({ low = null, high = null, signal = null }) {
    const numbers = [...this.series].filter(([, { rank }]) => this.view.wants(rank)).map(([number]) => number);
    const answers = [];
    for (let place = 0; place < numbers.length; place += AT_ONCE) answers.push(this.#samples(numbers.slice(place, place + AT_ONCE), low, high, signal));
    const samples = (await Promise.all(answers)).flat();
    const worst = Math.max(0, ...samples.map(({ error }) => error ?? 0));
    const many = Math.max(1, ...samples.map(({ joined }) => joined ?? 1));
    this.remark = [
      worst > EXACT ? `quantiles ${offBy(worst)}` : "",
      many > 1 ? `${count(many, "interval")} a point: zoom in for all` : "",
    ].filter(Boolean).join(" · ");
    const made = samples.flatMap((each) => this.#made(each, low, high));
    this.drawn = new Set(made.map(nameOf));
    return made;
  }

  /** Return the samples of series: all of what is between `low` and `high`, or what is here with what has come since. */
  async #samples(series, low, high, signal) {
    if (low !== null) {
      const window = { low: Math.max(0, Math.floor(low * NANO)), high: Math.max(0, Math.ceil(high * NANO)) };
      return (await ask(`${pathOf(this.run)}/samples`, { series, ...window }, signal)).samples;
    }
    const asked = [];
    const known = series.filter((number) => 0 < this.#length(number) && this.#length(number) < MOST_KEPT);
    const fresh = series.filter((number) => !known.includes(number));
    for (const number of fresh) this.kept.delete(number);
    if (fresh.length) asked.push(ask(`${pathOf(this.run)}/samples`, { series: fresh }, signal));
    if (known.length) asked.push(ask(`${pathOf(this.run)}/samples`, { series: known, low: Math.min(...known.map((number) => this.kept.get(number).time.at(-1))) }, signal));
    for (const { samples } of await Promise.all(asked)) for (const each of samples) this.#keep(each);
    return series.flatMap((number) => this.kept.get(number) ?? []);
  }

  /** Return how the values of all series spread over a part of the time; of histograms alone. */
  get spread() {
    if (this.chart.series[0].kind !== "histogram") return null;
    return (low, high) => {
      const series = [...this.series].filter(([, { rank }]) => this.view.wants(rank)).map(([number]) => number).sort((one, other) => one - other).slice(0, MOST_SERIES);
      return ask(`${pathOf(this.run)}/spreads`, { series, low: low && Math.max(0, Math.floor(low * NANO)), high: high && Math.ceil(high * NANO) });
    };
  }

  #length(number) {
    return this.kept.get(number)?.time.length ?? 0;
  }

  /** Put what has come behind what is here; thinned samples have extremes, others are their own. */
  #keep(each) {
    const kept = this.kept.get(each.series);
    if (!kept) {
      this.kept.set(each.series, each);
      return;
    }
    for (const key of ["min", "max"]) if (each[key] && !kept[key]) kept[key] = [...kept.value];
    const last = kept.time.at(-1);
    each.time.forEach((time, place) => {
      if (time <= last) return;
      for (const [key, column] of Object.entries(kept)) if (Array.isArray(column)) column.push((each[key] ?? each.value)[place]);
    });
    kept.joined = Math.max(kept.joined ?? 1, each.joined ?? 1);
    kept.error = Math.max(kept.error ?? 0, each.error ?? 0) || null;
  }

  #made(sample, low, high) {
    const each = this.series.get(sample.series);
    if (!each) return [];
    const of = { rank: each.rank, lane: laneOf(each), run: this.run, attributes: this.#attributes(each) };
    const times = sample.time.map((time) => time / NANO);
    return this.#lines(each).flatMap(({ metric, scale, points, banded, optional, beside }) => {
      const kept = times.map((x, place) => [x, points(sample, place, times), place])
        .filter(([x, y]) => y !== null && Number.isFinite(y) && (low === null || x >= low) && (high === null || x <= high));
      if (optional && !kept.length) return [];
      const answer = {
        curve: each.series, branch: 0, points: kept.length, x: kept.map(([x]) => x), y: kept.map(([, y]) => y),
        exact: (sample.joined ?? 1) < 2,
      };
      const spans = each.kind === "gauge" && sample.min ? { min: kept.map(([, , place]) => sample.min[place]), max: kept.map(([, , place]) => sample.max[place]) } : null;
      const band = !banded ? spans : Object.fromEntries(BAND.map((key) => [key, kept.map(([, , place]) => sample[key][place])]));
      return [new Curve(answer, { ...of, metric, scale, band, beside })];
    });
  }
}

const BAND = ["p90", "p99", "min", "max"];

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

const middles = ({ p50 }, place) => p50?.[place] ?? null;

const means = ({ count: many, total, p50 }, place) => (many[place] > 0 && total[place] !== null && (p50?.[place] ?? null) === null ? total[place] / many[place] : null);

const calls = ({ count: many }, place, times) => (place ? aSecond(many[place], place, times) : null);

const aSecond = (amount, place, times) => (times[place] > times[place - 1] ? amount / (times[place] - times[place - 1]) : null);
