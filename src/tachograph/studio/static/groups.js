/** The sections of a run's page: a group each, and which charts are in it. */

import { seriesCharts } from "./samples.js";
import { compare } from "./style.js";

const MACHINE = /^(system|process|hw|torch\.cuda|cpython)\./;
const UNGROUPED = "tachograph.metric"; // the scope of the gauges of metrics without a group

/** Sections below everything else, folded up. The first that takes a chart has it. */
const FOLDED = [
  { key: "functions", title: "Durations of functions", takes: ({ name, role, curve }) => !curve && name === "function.duration" && role !== "agent" },
  { key: "machine", title: "System and GPUs", takes: ({ scope, name, curve }) => scope === "tachograph.hardware" || (!curve && MACHINE.test(name)) },
  { key: "torchrun", title: "torchrun", takes: ({ name, role }) => /^torchrun\./.test(name) || role === "agent" },
  { key: "own", title: "Tachograph itself", takes: ({ scope, name, curve }) => scope === "tachograph" || (!curve && name.startsWith("tachograph.")) },
];

const KEY = new Set(["loss", "accuracy", "acc", "reward", "return", "perplexity", "ppl"]); // what people train by
const SPLITS = new Set(["train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "dev"]);
const MOST_KEY = 6; // charts
const FEW = 3; // charts of a run: the first screen shows all of them anyway

/**
 * Return the sections of a page in order, each with its charts in order. Metrics that people train by come first: a group
 * with a loss before others, and in each the loss.
 * @param {Object} answer - of `/api/runs/{id}`.
 * @param {Array} drawn - its charts of metrics that are to be drawn; all of them by default.
 */
export function groupsOf({ charts, series }, drawn = charts) {
  const found = new Map();
  const put = (chart, about) => {
    const folded = FOLDED.find(({ takes }) => takes(about));
    const group = about.scope === UNGROUPED ? "" : about.scope;
    const key = folded ? `f${folded.key}` : `g${group}`;
    if (!found.has(key)) found.set(key, { key, title: folded?.title ?? group, folded: Boolean(folded), charts: [] });
    found.get(key).charts.push({ ...chart, section: folded || chart.shared ? "" : group, machine: folded?.key === "machine" });
  };
  const { key, others } = keyCharts(metricCharts(drawn));
  if (key.length) found.set("gkey", { key: "gkey", title: "Key metrics", folded: false, mixed: true, charts: key });
  for (const chart of others) put(chart, { scope: chart.group, name: chart.metrics[0].metric, curve: true });
  for (const chart of seriesCharts(series, charts)) put(chart, { scope: chart.scope, name: chart.series[0].name, role: chart.series[0].role });
  const sections = [...found.values()];
  for (const section of sections) section.charts = ordered(section.charts, byLoss);
  const last = ({ folded, key }) => (folded ? 1 + FOLDED.findIndex((each) => key === `f${each.key}`) : 0);
  const trained = new Set(key.flatMap(({ metrics, group }) => metrics.map((metric) => metric.group ?? group))); // by what has a key metric
  return ordered(sections, (section) => [last(section), section.mixed ? 0 : 1, trained.has(section.title) ? 0 : 1, Math.min(1, byLoss(section.charts[0])[0] - 1), section.title === "" ? 1 : 0]);
}

/** Return the charts of curves, without progress bars: one for metrics that share it, one for each further axis. */
function metricCharts(charts) {
  return charts.flatMap((chart) => {
    const metrics = chart.metrics.filter(({ progress }) => !progress);
    if (!metrics.length) return [];
    return [{ ...chart, metrics, names: metrics.map(({ metric }) => metric), key: chart.shared ? "shared" : `m${chart.kind}\n${metrics[0].scale}` }];
  });
}

/** Divide charts into those of key metrics, where a metric of training and of evaluation share one, and the others. */
function keyCharts(charts) {
  const found = new Map();
  for (const chart of charts) {
    const { base, split } = partsOf(chart);
    if (!base) continue;
    const key = JSON.stringify([base, chart.kind, chart.x.units]);
    if (!found.has(key)) found.set(key, []);
    found.get(key).push({ chart, base, split });
  }
  const chosen = ordered([...found.values()], ([{ base }]) => [lossRank(base)]).slice(0, MOST_KEY);
  const taken = new Set(chosen.flat().map(({ chart }) => chart));
  if (charts.length <= FEW) return { key: [], others: charts };
  return { key: chosen.flatMap(keyChart), others: charts.filter((chart) => !taken.has(chart)) };
}

/** Return what a chart is of, such as "loss", and of which part of the data, such as "eval"; no base where it is no key metric. */
function partsOf({ shared, group, metrics }) {
  if (shared || metrics.length > 1) return {};
  const words = wordsOf(metrics[0].metric);
  const base = words.filter((word) => !SPLITS.has(word));
  const split = [...wordsOf(group), ...words].filter((word) => SPLITS.has(word)).join(" ");
  const context = wordsOf(group).filter((word) => !SPLITS.has(word)).join(" ");
  return base.length <= 2 && base.some((word) => KEY.has(word)) ? { base: [context, base.join("_")].filter(Boolean).join("/"), split } : {};
}

/** Return the charts of one key metric: one where the parts of the data tell its metrics apart. */
function keyChart(some) {
  const apart = new Set(some.map(({ split }) => split)).size === some.length;
  if (some.length < 2 || !apart) return some.map(({ chart }) => ({ ...chart, section: chart.group, key: `${chart.group}/${chart.key}` }));
  const [{ chart, base }] = some;
  const metrics = some.map(({ chart: { group, metrics: [metric] }, split }) => ({ ...metric, group, label: split || metric.metric, scale: "key" }));
  return [{ ...chart, title: base, section: "", key: `key ${base}`, metrics, names: metrics.map(({ label }) => label), scales: [{ ...chart.scales[0], scale: "key", name: null }] }];
}

const byLoss = ({ names }) => [Math.min(...names.map(lossRank))];

/** Return how much a name says that it is a loss: 0 where it is that, 1 where a word of it is, 2 for any other. */
export function lossRank(name) {
  if (name.toLowerCase() === "loss") return 0;
  return wordsOf(name).includes("loss") ? 1 : 2;
}

const wordsOf = (name) => name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase().split(/[^\p{L}\p{N}]+/u).filter(Boolean);

/** Return a list by the numbers that `of` says of each, equal ones in the order that they had. */
export function ordered(list, of) {
  return list.map((each, place) => ({ each, by: of(each, place) })).sort((one, other) => compare(one.by, other.by)).map(({ each }) => each);
}
