/**
 * A heat map over x: of ranks, a row each, coloured by its values or by how far they are from the median of all; or of
 * the values of histograms, a row for each bucket.
 */

import { element, say } from "./element.js";
import { clocks, count, elapsed, number, ticks, when } from "./format.js";
import { median } from "./ranks.js";
import { colours, isDark } from "./theme.js";

export const VALUES = "values"; // an order of its own
export const ORDERS = { rank: "by rank", last: "by the last value", deviation: "by deviation" };
const CELL = 3; // pixels of a column at least
const [LEAST, MOST] = [6, 16]; // pixels of a row
const TALL = 480; // pixels of all rows, until they have the least height
const LABELS = 52; // pixels
const FOOT = 20;
const SHARE = 0.01; // of the values at each end that have no colours of their own

export class Heat {
  constructor() {
    this.canvas = element("canvas", { class: "heat-map", role: "img" });
    this.scale = element("p", { class: "heat-scale quiet number" });
    this.box = element("div", { class: "heat-hover", hidden: true, "aria-hidden": "true" });
    this.node = element("div", { class: "heat", hidden: true }, this.canvas, this.box, this.scale);
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => { this.box.hidden = true; });
    this.map = null;
  }

  /**
   * Draw.
   * @param {function(number): Object} make - returns the map, `mapOf` or `spreadOf`, for at most so many columns.
   * @param {Object} axis - of x.
   */
  draw(make, axis) {
    const width = Math.floor(this.node.clientWidth);
    if (!width) return;
    const map = make(Math.floor((width - LABELS) / CELL));
    Object.assign(this, { map, axis });
    const many = map.rows.length;
    const row = Math.max(LEAST, Math.min(MOST, Math.floor(TALL / Math.max(1, many))));
    const height = row * many + FOOT;
    const ratio = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * ratio, height: height * ratio });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    this.shape = { row, cell: (width - LABELS) / map.columns };
    this.#cells(context);
    this.#words(context, width, height);
    this.canvas.setAttribute("aria-label", `Heat map of ${map.about}`);
    say(this.scale, map.says);
  }

  #cells(context) {
    const { row, cell } = this.shape;
    const { rows, low, high, deviates } = this.map;
    const shade = shades(deviates);
    const { bad } = colours();
    rows.forEach(({ values, deviations, odd }, place) => {
      for (let column = 0; column < values.length; column += 1) {
        const value = (deviates ? deviations : values)[column];
        if (!odd.has(column) && Number.isNaN(value)) continue;
        const part = deviates ? (value + high) / (2 * high || 1) : (value - low) / (high - low || 1);
        context.fillStyle = odd.has(column) ? bad : shade[Math.max(0, Math.min(shade.length - 1, Math.round(part * (shade.length - 1))))];
        context.fillRect(LABELS + column * cell, place * row, Math.ceil(cell * 10) / 10 + 0.3, row - (row > 8 ? 1 : 0));
      }
    });
  }

  #words(context, width, height) {
    const { row } = this.shape;
    const { rows, from, to } = this.map;
    context.fillStyle = colours().quiet;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    const each = Math.ceil(12 / row);
    rows.forEach(({ label }, place) => place % each === 0 && context.fillText(label, LABELS - 6, place * row + Math.min(row, 11)));
    if (from === null) return;
    const said = [from, from + (to - from) / 2, to];
    const texts = (this.axis.time ? clocks : this.axis.elapsed ? elapsed : ticks)(said);
    ["left", "center", "right"].forEach((align, place) => {
      context.textAlign = align;
      context.fillText(texts[place], LABELS + ((width - LABELS) * place) / 2, height - 6);
    });
  }

  #hover(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [column, place] = [Math.floor((event.clientX - left - LABELS) / this.shape.cell), Math.floor((event.clientY - top) / this.shape.row)];
    const { rows, from, to, columns } = this.map;
    const found = rows[place];
    this.box.hidden = !found || column < 0 || column >= columns;
    if (this.box.hidden) return;
    const x = from + ((column + 0.5) * (to - from)) / columns;
    const value = found.odd.get(column) ?? found.values[column];
    const at = this.axis.time ? when(x * 1e9) : `${this.axis.units || "x"} ${number(x, 5)}`;
    say(this.box, `${found.label} · ${at} · ${found.said?.(column) ?? (Number.isNaN(value) ? "no value" : number(value))}`);
    this.box.style.left = `${Math.min(event.clientX - left + 14, this.node.clientWidth - this.box.offsetWidth)}px`;
    this.box.style.top = `${event.clientY - top + 14}px`;
  }
}

/** Return rows of values in equal stretches of x, and the ends of their colours. */
export function mapOf(curves, zoom, most, order) {
  const ranks = new Map();
  for (const curve of curves) if (curve.rank !== null) ranks.set(curve.rank, [...(ranks.get(curve.rank) ?? []), curve]);
  const xs = curves.filter(({ length }) => length).flatMap(({ x }) => [x[0], x[x.length - 1]]);
  const [from, to] = zoom ?? (xs.length ? [Math.min(...xs), Math.max(...xs)] : [null, null]);
  const longest = Math.max(1, ...curves.map(({ x }) => (zoom ? x.filter((each) => each >= from && each <= to).length : x.length)));
  const columns = Math.max(1, Math.min(most, longest));
  const at = (x) => Math.min(columns - 1, Math.floor(((x - from) / (to - from || 1)) * columns));
  const { metric } = curves[0] ?? {};
  const rows = [...ranks].map(([rank, own]) => rowOf(rank, own, columns, at, from, to));
  const middles = Array.from({ length: columns }, (_, column) => median(rows.map(({ values }) => values[column]).filter((value) => !Number.isNaN(value))));
  for (const row of rows) {
    const values = row.values.map((value, column) => value - middles[column]);
    const known = values.filter((value) => !Number.isNaN(value)).map(Math.abs);
    Object.assign(row, { deviations: values, away: known.reduce((sum, value) => sum + value, 0) / (known.length || 1) });
  }
  const deviates = order === "deviation";
  rows.sort((one, other) => (deviates ? other.away - one.away : order === "last" ? (other.last ?? -Infinity) - (one.last ?? -Infinity) : 0) || one.rank - other.rank);
  const all = rows.flatMap(({ values, deviations }) => (deviates ? deviations.map(Math.abs) : values).filter((value) => !Number.isNaN(value))).sort((one, other) => one - other);
  const end = (part) => all[Math.round(part * (all.length - 1))] ?? null;
  const [low, high] = [deviates ? 0 : end(SHARE), end(1 - SHARE)];
  const far = [...rows].sort((one, other) => other.away - one.away)[0];
  const ends = low === null ? "no values" : deviates ? `below the median by ${number(high, 4)} … above by ${number(high, 4)}` : `${number(low, 4)} … ${number(high, 4)}`;
  const odd = rows.some((row) => row.odd.size) ? "marked: not a finite number" : "";
  const says = [`${metric}: ${ends}`, odd, far && rows.length > 2 ? `rank ${far.rank} is furthest from the median, by ${number(far.away, 3)} on average` : ""].filter(Boolean).join(" · ");
  const about = `${metric}: ${rows.length} ranks, ${ORDERS[order]}${rows.length && order !== "rank" ? `; first is rank ${rows[0].rank}` : ""}`;
  return { rows, columns, from, to, deviates, low, high, says, about };
}

/**
 * Return a map of the values of histograms: a row for each bucket, the greatest at the top, coloured by its share of the
 * values of a stretch of time.
 * @param {Object} answer - of `/spreads`; @param {Object} of - `title`; `format(value)`, how a bound is said; `since`, where the axis begins.
 */
export function spreadOf({ begin, end, joined, bounds, counts }, { title, format, since }) {
  const columns = counts[0]?.length ?? 1;
  const sums = Array.from({ length: columns }, (_, column) => counts.reduce((sum, row) => sum + row[column], 0));
  const rows = counts.map((row, place) => ({
    label: format(bounds[place][0]), odd: new Map(),
    values: row.map((each, column) => (each ? each / sums[column] : NaN)),
    said: (column) => `to ${format(bounds[place][1])}: ${row[column] ? `${count(row[column], "value")}, ${number((100 * row[column]) / sums[column], 2)} %` : "no value"}`,
  })).reverse();
  const high = Math.max(0, ...rows.flatMap(({ values }) => values.filter((each) => !Number.isNaN(each))));
  const says = rows.length ? `few … ${number(100 * high, 3)} % of the values at a time${joined > 1 ? ` · one interval in ${joined} is counted` : ""}` : "no values, or none with buckets";
  const [from, to] = rows.length ? [begin, end].map((each) => each / 1e9 - since) : [null, null];
  return { rows, columns, from, to, deviates: false, low: 0, high, says, about: `${title}: its values over time` };
}

function rowOf(rank, curves, columns, at, from, to) {
  const [sums, counts, odd] = [new Float64Array(columns), new Uint32Array(columns), new Map()];
  let last = null;
  for (const { x, y, nonfinite } of curves) {
    x.forEach((each, place) => {
      if (each < from || each > to) return;
      sums[at(each)] += y[place];
      counts[at(each)] += 1;
      last = y[place];
    });
    for (const [each, kind] of nonfinite) if (each >= from && each <= to) odd.set(at(each), kind);
  }
  return { rank, label: `rank ${rank}`, last, odd, values: Array.from(sums, (sum, column) => (counts[column] ? sum / counts[column] : NaN)) };
}

/** Return colours from little to much, or from below through the middle to above. */
function shades(deviates) {
  const stops = deviates
    ? (isDark() ? ["#5ab4ff", "#22303a", "#ff9a52"] : ["#0b62b0", "#eef1f2", "#c24a00"])
    : (isDark() ? ["#1d2a2d", "#2f7f92", "#d9f6fb"] : ["#e9f1f3", "#4a9db3", "#063a4b"]);
  const parts = stops.map((stop) => [1, 3, 5].map((place) => parseInt(stop.slice(place, place + 2), 16)));
  return Array.from({ length: 65 }, (_, step) => {
    const [one, other, part] = step < 32 ? [parts[0], parts[1], step / 32] : [parts[1], parts[2], (step - 32) / 32];
    return `rgb(${one.map((each, place) => Math.round(each + (other[place] - each) * part)).join(" ")})`;
  });
}
