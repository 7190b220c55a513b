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

/**
 * Return the sections of a page in order, each with its charts in order. Metrics that people train by come first: a group
 * with a loss before others, and in each the loss.
 * @param {Object} answer - of `/api/runs/{id}`.
 */
export function groupsOf({ charts, series }) {
  const found = new Map();
  const put = (chart, about) => {
    const folded = FOLDED.find(({ takes }) => takes(about));
    const group = about.scope === UNGROUPED ? "" : about.scope;
    const key = folded ? `f${folded.key}` : `g${group}`;
    if (!found.has(key)) found.set(key, { key, title: folded?.title ?? group, folded: Boolean(folded), charts: [] });
    found.get(key).charts.push({ ...chart, section: folded || chart.shared ? "" : group, machine: folded?.key === "machine" });
  };
  for (const chart of metricCharts(charts)) put(chart, { scope: chart.group, name: chart.metrics[0].metric, curve: true });
  for (const chart of seriesCharts(series, charts)) put(chart, { scope: chart.scope, name: chart.series[0].name, role: chart.series[0].role });
  const sections = [...found.values()];
  for (const section of sections) section.charts = ordered(section.charts, byLoss);
  const last = ({ folded, key }) => (folded ? 1 + FOLDED.findIndex((each) => key === `f${each.key}`) : 0);
  return ordered(sections, (section) => [last(section), Math.min(1, byLoss(section.charts[0])[0] - 1), section.title === "" ? 1 : 0]);
}

/** Return the charts of curves, without progress bars: one for metrics that share it, one for each further axis. */
function metricCharts(charts) {
  return charts.flatMap((chart) => {
    const metrics = chart.metrics.filter(({ progress }) => !progress);
    if (!metrics.length) return [];
    return [{ ...chart, metrics, names: metrics.map(({ metric }) => metric), key: chart.shared ? "shared" : `m${chart.kind}\n${metrics[0].scale}` }];
  });
}

const byLoss = ({ names }) => [Math.min(...names.map(lossRank))];

/** Return how much a name says that it is a loss: 0 where it is that, 1 where a word of it is, 2 for any other. */
export function lossRank(name) {
  if (name.toLowerCase() === "loss") return 0;
  const words = name.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  return words.includes("loss") ? 1 : 2;
}

/** Return a list by the numbers that `of` says of each, equal ones in the order that they had. */
export function ordered(list, of) {
  return list.map((each, place) => ({ each, by: of(each, place) })).sort((one, other) => compare(one.by, other.by)).map(({ each }) => each);
}
