/** The numbers behind a chart, page by page. */

import { element, fill, scrolling, small, tabular } from "./element.js";
import { number, when } from "./format.js";

const ROWS = 200;

/** The table of what a chart draws; it stays as its reader has it when points come. */
export class Numbers {
  constructor() {
    this.node = element("div", { class: "table-behind", hidden: true });
    this.head = element("tr");
    this.body = element("tbody");
    this.words = element("p", { class: "quiet" });
    this.box = scrolling("", tabular(this.head, this.body));
    this.more = small("", "", () => this.#add());
    this.rows = [];
  }

  /** Show the points of curves, as they are drawn, and a hint how to have all; what was unfolded and seen stays so. */
  show(curves, source) {
    const { x: axis } = source.axes;
    const columns = columnsOf(curves);
    const before = this.rows[0]?.[0];
    this.rows = joined(columns);
    const heads = [axis.time ? "time" : axis.units || "x", ...columns.map((curve) => heading(curve, columns))];
    const same = JSON.stringify(heads) === this.heads;
    this.heads = JSON.stringify(heads);
    this.columns = columns.length;
    this.at = (x) => (axis.time ? when(x * 1e9) : number(x, 9));
    const { scrollTop: top, scrollHeight: height } = this.box;
    const fresh = same ? Math.max(0, this.rows.findIndex(([x]) => x <= before)) : 0; // come since, at the top
    const shown = same ? Math.min(this.rows.length, Math.max(ROWS, this.body.rows.length + fresh)) : ROWS;
    if (!same) fill(this.head, ...heads.map((text) => element("th", { scope: "col", class: "number", text })));
    fill(this.body);
    this.#add(shown);
    const exact = columns.every((curve) => curve.exact);
    fill(this.words, exact ? "Every recorded point. " : "Thinned: of each stretch the smallest and the largest value; zoom in for all. ",
      source.hint ? element("span", {}, "All of it, as CSV: ", element("code", { text: source.hint })) : null);
    this.box.setAttribute("aria-label", `Table of ${source.title}`);
    if (!this.node.firstChild) fill(this.node, this.words, this.box, this.more);
    if (same && top > 0) this.box.scrollTop = top + (fresh && this.box.scrollHeight - height);
  }

  #add(many = ROWS) {
    const begin = this.body.rows.length;
    for (const [x, values] of this.rows.slice(begin, begin + many)) {
      this.body.append(element("tr", {}, element("th", { scope: "row", class: "number", text: this.at(x) }),
        ...Array.from({ length: this.columns }, (_, place) => element("td", { class: "number", text: values[place] === undefined ? "" : number(values[place], 9) }))));
    }
    const left = this.rows.length - this.body.rows.length;
    this.more.textContent = `${left} more`;
    this.more.hidden = left === 0;
  }

  clear() {
    this.rows = [];
    this.heads = "";
    fill(this.node);
  }
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
