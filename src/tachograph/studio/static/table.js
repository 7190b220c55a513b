/** The numbers behind a chart, page by page. */

import { element, fill } from "./element.js";
import { number, when } from "./format.js";

const ROWS = 200;

/**
 * Show the points that a chart draws.
 * @param {HTMLElement} into - emptied first.
 * @param {Array<Curve>} curves - as they are drawn.
 * @param {Object} source - of the chart: its axes, and a hint how to have all of it.
 */
export function showTable(into, curves, source) {
  const { x: axis } = source.axes;
  const columns = columnsOf(curves);
  const rows = joined(columns);
  const at = (x) => (axis.time ? when(x * 1e9) : number(x, 9));
  const body = element("tbody");
  const more = element("button", { type: "button", class: "plain small" });
  let shown = 0;
  const showMore = () => {
    for (const [x, values] of rows.slice(shown, shown + ROWS)) {
      body.append(
        element("tr", {}, element("th", { scope: "row", class: "number", text: at(x) }),
          ...columns.map((_, place) => element("td", { class: "number", text: values[place] === undefined ? "" : number(values[place], 9) }))),
      );
    }
    shown = Math.min(rows.length, shown + ROWS);
    more.textContent = `${rows.length - shown} more`;
    more.hidden = shown === rows.length;
  };
  more.addEventListener("click", showMore);
  showMore();
  const exact = columns.every((curve) => curve.exact);
  fill(
    into,
    element("p", { class: "quiet" }, exact ? "Every recorded point. " : "Thinned: of each stretch the smallest and the largest value; zoom in for all. ",
      source.hint ? element("span", {}, "All of it, as CSV: ", element("code", { text: source.hint })) : null),
    element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Table of ${source.title}` },
      element("table", { class: "data" },
        element("thead", {}, element("tr", {}, element("th", { scope: "col", class: "number", text: axis.time ? "time" : axis.units || "x" }),
          ...columns.map((curve) => element("th", { scope: "col", class: "number", text: heading(curve, columns) })))),
        body)),
    more,
  );
}

/** Return what is drawn of curves as columns: their points, with an average also that, and what is beside them. */
export const columnsOf = (curves, weight = 0) => curves.filter((curve) => curve.length || curve.nonfinite.length)
  .flatMap((curve) => [curve, ...(weight ? [{ ...curve, key: `${curve.key}\nsmoothed`, label: `${curve.label} (smoothed)`, length: curve.length, y: curve.smoothed(weight), nonfinite: [] }] : []), ...bandOf(curve)]);

/** Return the quantiles and extremes beside a curve as curves. */
const bandOf = ({ band, key, label, length, x, exact }) => Object.entries(band ?? {}).map(([name, values]) => (
  { key: `${key}\n${name}`, label: label.includes("p50") ? label.replace("p50", name) : `${label} ${name}`, length, x, y: values, nonfinite: [], exact }));

function heading(curve, columns) {
  const twins = columns.filter(({ key }) => key === curve.key);
  return twins.length > 1 ? `${curve.label} (branch ${twins.indexOf(curve) + 1})` : curve.label;
}

/** Return rows of x and its values, the newest first; where a curve has an x more than once, a row each. */
export function joined(columns) {
  const found = [];
  columns.forEach((curve, place) => {
    let turn = 0;
    const put = (x, value) => found.push([x, turn++, place, value]);
    for (let at = 0; at < curve.length; at += 1) {
      turn = at && curve.x[at] === curve.x[at - 1] ? turn : 0;
      put(curve.x[at], curve.y[at]);
    }
    turn = 0;
    for (const [x, kind] of curve.nonfinite) put(x, kind);
  });
  found.sort((one, other) => other[0] - one[0] || one[1] - other[1]);
  const rows = [];
  for (const [x, turn, place, value] of found) {
    const last = rows[rows.length - 1];
    if (last && last[0] === x && last[2] === turn && last[1][place] === undefined) last[1][place] = value;
    else rows.push([x, { [place]: value }, turn]);
  }
  return rows;
}
