/** Series of gauges, counters and histograms as charts: samples over time, every ten seconds or so. */

import { ask, pathOf } from "./api.js";
import { Curve } from "./curve.js";
import { measured, sizes, unit } from "./format.js";

const NANO = 1e9;
const DOUBLES = Array.from({ length: 60 }, (_, place) => 2 ** place); // steps of an axis of bytes
const AT_ONCE = 100; // series in one question

/** Sections of the page, in order: which series belong where. The first that takes a series has it. */
export const SECTIONS = [
  { key: "stats", title: "Stat windows", takes: ({ scope }) => scope === "torch.monitor" },
  { key: "machine", title: "System and GPUs", takes: ({ name }) => /^(system|process|hw|torch\.cuda|cpython)\./.test(name) },
  { key: "torchrun", title: "torchrun", takes: ({ name, scope }) => /^(torchrun|torchelastic)\b/.test(name) || /torchelastic/.test(scope) },
  { key: "others", title: "Other series", takes: () => true },
];

/**
 * Return the charts of series by section: one for each scope and name, those of a Stat together.
 * @param {Array} series - of the run's answer.
 * @param {Array} charts - of its metrics, whose gauges would say the same again.
 */
export function sectionsOf(series, charts) {
  const drawn = new Set(charts.flatMap(({ group, metrics }) => metrics.map(({ metric }) => `${group}\n${metric}`)));
  const loops = charts.flatMap(({ metrics }) => metrics.filter(({ progress }) => progress).map(({ metric }) => metric));
  const told = new Set(loops.flatMap((metric) => ["rate", "total", "eta"].map((of) => `${metric}.${of}`))); // by its bar
  const stats = new Set(series.filter(({ name, scope }) => scope === "torch.monitor" && name.endsWith(".window.count"))
    .map(({ name }) => name.slice(0, -".window.count".length)));
  const found = new Map(SECTIONS.map(({ key }) => [key, new Map()]));
  for (const each of series) {
    if (each.name.startsWith("tachograph.") || each.name.startsWith("function.")) continue;
    if (told.has(each.name) || told.has(each.name.replace(/#\d+(?=\.\w+$)/, ""))) continue;
    if (each.kind === "gauge" && (drawn.has(`${each.scope}\n${each.name}`) || drawn.has(`\n${each.name}`))) continue;
    const { key } = SECTIONS.find(({ takes }) => takes(each));
    const stat = key === "stats" ? [...stats].find((one) => each.name.startsWith(`${one}.`)) : null;
    if (stat && [`${stat}.window.sum`, `${stat}.window.end`].includes(each.name)) continue;
    const apart = stat && each.name === `${stat}.window.count` ? " – values a window" : "";
    const title = stat ? `${stat}${apart}` : stats.has(each.name) && key === "stats" ? `${each.name} – all values` : each.name;
    const charted = found.get(key);
    const named = `${each.scope}\n${title}\n${each.kind}`;
    if (!charted.has(named)) charted.set(named, { key: named, title, scope: each.scope, stat, series: [] });
    charted.get(named).series.push(each);
  }
  return SECTIONS.map(({ key, title }) => ({ key, title, charts: [...found.get(key).values()] })).filter(({ charts }) => charts.length);
}

/** The source of one chart of series. */
export class SeriesChart {
  constructor(run, chart, view) {
    this.run = run;
    this.view = view;
    this.title = chart.title;
    this.update(chart);
    const { kind, unit: of } = chart.series[0];
    const units = unit(of);
    const size = of === "By" ? { ticks: sizes, incrs: DOUBLES } : {};
    const format = (value) => (of === "By" ? measured(value, of) : of === "s" && kind !== "counter" ? measured(value, of) : undefined);
    const label = kind === "counter" ? (size.ticks ? "a second" : `${units || "1"}/s`) : kind === "histogram" ? units || "mean" : size.ticks ? "" : units;
    this.axes = { x: { units: "", time: true }, y: [{ key: "y0", label, lower: of === "1" && kind === "gauge" ? 0 : undefined, colour: () => undefined, format, ...size }] };
    if (kind === "histogram") this.axes.y.push({ key: "y1", label: "a second", lower: 0, colour: () => undefined });
  }

  update(chart) {
    this.series = new Map(chart.series.map((each) => [each.series, each]));
    this.names = new Map(chart.series.map((each) => [each.series, this.#name(each, chart)]));
    this.metrics = [...new Set(chart.series.flatMap((each) => this.#curves(each)))];
    const ranks = [...new Set(chart.series.map(({ rank, role }) => `${rank ?? ""}/${rank === null ? role : ""}`))];
    this.lanes = ranks.map((key) => ({ key, label: laneLabel(key), rank: key.split("/")[0] }))
      .sort((one, other) => Number(one.rank || Infinity) - Number(other.rank || Infinity));
    this.chart = chart;
  }

  #name(each, { stat, title }) {
    if (stat) return each.name.slice(stat.length + 1);
    const said = Object.entries(each.attributes ?? {});
    return said.map(([key, value]) => (said.length > 1 ? `${key}=${value}` : `${value}`)).join(" ") || title;
  }

  #curves(each) {
    const name = this.names.get(each.series);
    if (each.kind === "histogram" && name === this.title) return ["mean", "a second"];
    return each.kind === "histogram" ? [`${name} (mean)`, `${name} (a second)`] : [name];
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
    const of = { rank: each.rank, lane: `${each.rank ?? ""}/${each.rank === null ? each.role : ""}`, run: this.run };
    const [first, second] = this.#curves(each);
    const lines = valuesOf(each.kind, sample);
    return [[first, "y0", lines[0]], [second, "y1", lines[1]]].filter(([, , line]) => line).map(([metric, scale, line]) => {
      const kept = line.filter(([x]) => (low === null || x >= low) && (high === null || x <= high));
      const answer = { curve: each.series, branch: 0, points: kept.length, x: kept.map(([x]) => x), y: kept.map(([, y]) => y) };
      return new Curve(answer, { ...of, metric, scale });
    });
  }
}

function laneLabel(key) {
  const [rank, role] = key.split("/");
  return rank ? `rank ${rank}` : role;
}

/** Return the lines of a series: of a counter its rate, of a histogram its mean and its rate. */
function valuesOf(kind, { time, value, count, total }) {
  const seconds = time.map((each) => each / NANO);
  const pairs = (made) => seconds.map((x, place) => [x, made(place)]).filter(([, y]) => y !== null && Number.isFinite(y));
  const since = (place) => (place ? seconds[place] - seconds[place - 1] : 0);
  if (kind === "gauge") return [pairs((place) => value[place])];
  if (kind === "counter") {
    const rise = (place) => (value[place] >= value[place - 1] ? value[place] - value[place - 1] : value[place]);
    return [pairs((place) => (since(place) > 0 && value[place - 1] !== null ? rise(place) / since(place) : null))];
  }
  return [
    pairs((place) => (count[place] > 0 ? total[place] / count[place] : null)),
    pairs((place) => (since(place) > 0 ? count[place] / since(place) : null)),
  ];
}
