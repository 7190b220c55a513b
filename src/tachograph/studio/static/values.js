/** Metrics that are one number: recorded once, or never changed. A chart of them would be a dot or a level line. */

import { element, fill } from "./element.js";
import { cut, number } from "./format.js";

const BEGUN = 10; // points of a metric from which on a run that goes on has shown which metrics change

/**
 * Divide a run's charts into those of one number and those to draw.
 * @param {Object} answer - of `/api/runs/{id}`.
 * @returns {{values: Array<{name, low, high}>, charts: Array}}
 */
export function valuesOf({ charts, run }) {
  const most = Math.max(0, ...charts.flatMap(({ metrics }) => metrics.flatMap(({ curves }) => curves.map(({ points }) => points))));
  if (run.state === "running" && most <= BEGUN) return { values: [], charts };
  const values = [];
  const drawn = charts.flatMap((chart) => {
    if (chart.shared) return [chart]; // arranged by the program
    const metrics = chart.metrics.filter((metric) => {
      if (!isOneNumber(metric)) return true;
      values.push(valueOf(metric, chart.group));
      return false;
    });
    return metrics.length ? [{ ...chart, metrics }] : [];
  });
  return { values, charts: drawn };
}

/** Tell whether each rank has recorded one finite number of a metric, and no other. */
function isOneNumber({ curves, progress, left_out: leftOut }) {
  const constant = ({ points, branches, nonfinite, min, max }) => points > 0 && branches === 1 && nonfinite === 0 && min === max;
  return !progress && !leftOut && curves.length > 0 && curves.every(constant) && new Set(curves.map(({ attributes }) => JSON.stringify(attributes))).size === 1;
}

function valueOf({ metric, curves }, group) {
  const found = curves.map(({ min }) => min);
  return { name: group ? `${group}/${metric}` : metric, low: Math.min(...found), high: Math.max(...found) };
}

/** The strip of these numbers, above the charts. */
export class Values {
  constructor() {
    this.list = element("dl", { class: "values-list" });
    this.node = element("section", { class: "values", "aria-label": "Values", hidden: true }, element("h2", { text: "Values" }), this.list);
  }

  show(values) {
    const shown = JSON.stringify(values);
    if (shown === this.shown) return;
    this.shown = shown;
    this.node.hidden = !values.length;
    fill(this.list, ...values.map(({ name, low, high }) => element("div", {}, element("dt", { text: cut(name), title: name }),
      element("dd", { class: "number", text: low === high ? number(low, 6) : `${number(low, 4)} to ${number(high, 4)}` }))));
  }
}
