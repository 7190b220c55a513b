/** The values under the pointer: of each curve the nearest point. */

import { element, fill } from "./element.js";
import { cut, duration, number, when } from "./format.js";
import { projection } from "./strokes.js";

const MOST = 12; // rows
const GAP = 16; // pixels between the pointer and the box
const SAME = 3; // pixels within which two points are as near
const NEAR = 5; // pixels from an event
const MOST_MARKS = 4;
const FAR = 40; // pixels from the pointer beyond which a curve has no point there

export class Hover {
  /** @param {Object} x - the axis: {units, time}. */
  constructor(x) {
    this.x = x;
    this.box = element("div", { class: "hover", hidden: true, "aria-hidden": "true" });
    this.layer = element("div", { class: "hover-dots", "aria-hidden": "true" });
    this.told = "";
  }

  /** Show a line where another chart's cursor is; null for none. */
  follow(u, left) {
    this.line ??= element("i", { class: "hover-line", "aria-hidden": "true" });
    this.line.hidden = left === null;
    if (left === null) return;
    if (this.line.parentNode !== u.over) u.over.append(this.line);
    this.line.style.transform = `translateX(${left}px)`;
  }

  hide() {
    this.box.hidden = true;
    this.layer.replaceChildren();
  }

  /** Show what is at the plot's cursor. */
  show(plot) {
    const { u, curves, weight } = plot;
    const { left, top } = u.cursor;
    if (left === null || left === undefined || left < 0 || !curves.length) {
      this.hide();
      return;
    }
    const found = nearest(plot, left, top);
    const marked = plot.marks.filter(({ x }) => Math.abs(u.valToPos(x, "x") - left) <= NEAR).slice(0, MOST_MARKS);
    if (!found.length && !marked.length) {
      this.hide();
      return;
    }
    if (this.box.parentNode !== u.over) u.over.append(this.layer, this.box);
    const rows = [...found].sort((one, other) => one.away - other.away || one.order - other.order).slice(0, MOST);
    const first = [...rows].sort((one, other) => Math.abs(one.left - left) - Math.abs(other.left - left))[0];
    const same = first && rows.every((row) => Math.abs(row.left - first.left) <= SAME);
    fill(
      this.box,
      first ? element("div", { class: "hover-x", text: this.#at(first.x) }) : null,
      ...marked.map(({ bad, words }) => element("div", { class: bad ? "bad" : "quiet", text: words })),
      element("table", {}, element("tbody", {}, ...rows.map((row) => this.#row(row, same, weight)))),
      found.length > rows.length ? element("div", { class: "quiet", text: `and ${found.length - rows.length} more` }) : null,
    );
    this.told = rows.map((row) => `${row.curve.label} ${number(row.value)}`).join(", ");
    this.layer.replaceChildren(...rows.filter((row) => row.top !== null).map(dot));
    this.box.hidden = false;
    this.#place(u, left, top);
  }

  #at(x) {
    if (this.x.time) return when(x * 1e9);
    if (this.x.elapsed) return `${duration(x)} since the start`;
    return this.x.units ? `${this.x.units} ${number(x, 7)}` : number(x, 7);
  }

  #row({ curve, value, x, at }, same, weight) {
    const said = (each) => curve.format?.(each) ?? number(each, 6);
    return element(
      "tr",
      {},
      element("td", {}, element("span", { class: "swatch", style: { background: curve.colour } })),
      element("th", { scope: "row", title: curve.label }, ...named(curve)),
      element("td", { class: "number", text: said(value) }),
      curve.band ? element("td", { class: "quiet number", text: beside(curve, at, said) }) : null,
      weight ? element("td", { class: "quiet", text: "smoothed" }) : null,
      same ? null : element("td", { class: "quiet number", text: this.#at(x) }),
    );
  }

  /** Put the box to the right of the pointer, or to its left where there is no room, and never beyond the window. */
  #place(u, left, top) {
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const plot = u.over.getBoundingClientRect();
    const pointer = plot.left + left;
    const fits = pointer + GAP + width <= innerWidth;
    const beside = fits ? pointer + GAP : Math.max(0, pointer - GAP - width);
    const level = plot.top + (top ?? 0) - height / 2;
    this.box.style.left = `${beside}px`;
    this.box.style.top = `${Math.max(0, Math.min(innerHeight - height, level))}px`;
  }
}

/** Return the name of a curve in parts: a long metric is cut, and its rank never. */
function named({ label, said }) {
  if (!said?.name || !said.lane) return [cut(label)];
  return [element("span", { class: "cut", text: said.name }), element("span", { text: ` ${said.lane}` })];
}

/** Return the 99th percentile and the largest value of a point; of ranks the least and the greatest, and whose they are. */
function beside({ band, extremes }, at, said) {
  const whose = (name) => (extremes ? ` (rank ${extremes[name][at]})` : "");
  return (extremes || !band.p99 ? ["min", "max"] : ["p99", "max"]).filter((name) => (band[name][at] ?? null) !== null)
    .map((name) => `${name} ${said(band[name][at])}${whose(name)}`).join(", ");
}

function dot({ left, top, curve }) {
  return element("i", { style: { left: `${left}px`, top: `${top}px`, "border-color": curve.colour } });
}

function nearest({ u, curves, weight }, left, top) {
  const x = u.posToVal(left, "x");
  const ratio = u.bbox.width / u.over.clientWidth;
  const byKey = new Map();
  curves.forEach((curve, order) => {
    const to = projection(u, curve.scale);
    const place = (value) => (to.x(value) - to.left) / ratio;
    const near = curve.nearest(x);
    const candidates = [];
    if (near >= 0) candidates.push([curve.x[near], (weight ? curve.smoothed(weight) : curve.y)[near], near]);
    for (const [where, kind] of curve.nonfinite) if (Math.abs(place(where) - left) < 4) candidates.push([where, kind]);
    for (const [where, value, at] of candidates) {
      const aside = place(where);
      const distance = Math.abs(aside - left);
      const known = byKey.get(curve.key);
      if (where < to.x0 || where > to.x1 || (distance > FAR && curves.length > 1)) continue;
      if (known && Math.abs(known.left - left) < distance - SAME) continue; // of branches the newest, which comes last
      const height = typeof value === "number" && !(to.log && value <= 0) ? (to.y(value) - to.top) / ratio : null;
      const inside = height !== null && height >= -1 && height <= u.over.clientHeight + 1;
      byKey.set(curve.key, {
        curve, value, x: where, at, order, left: aside, top: inside ? height : null,
        away: Math.hypot(distance, height === null || top === null ? 0 : height - top),
      });
    }
  });
  return [...byKey.values()];
}
