/** A plot: axes, zoom and cursor by uPlot; the curves are drawn here, each with x values of its own. */

import { across, along, drawable, ofX, ofY, sturdy } from "./extent.js";
import { brief, clocks, elapsed, powers, ticks } from "./format.js";
import { beyond, dots, envelope, fillBetween, marks, means, projection, rulers, trace } from "./strokes.js";
import { colours } from "./theme.js";
import { listen } from "./touch.js";

const { uPlot } = globalThis; // a script of its own: only its minified build is that

const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const FONT = `11px ${FAMILY}`;
const SMALL_FONT = `10px ${FAMILY}`; // of a narrow chart's y axes
const LETTER = 6.4; // pixels
const SMALL_LETTER = 5.6;
const NARROW = 520; // pixels of width below which two axes have no names: what they are is said above the chart
const TALL = 240;
const SECONDS = [0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];
const WHOLE = Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat(); // between ticks
const BANDS = 8; // curves with a band; of more there are lines alone
const ENVELOPE = 0.25; // alpha of what is between the least and the greatest of thinned points
const BEHIND = 0.4; // alpha of points behind their average
const DRAG = 12; // pixels from which on a drag is one of y, too
const DENSE = 1.5; // points a pixel from which on lines are as thin as can be: they cover each other, and draw faster

export class Plot {
  /**
   * @param {HTMLElement} host - where it is, as wide as that.
   * @param {Object} axes - `x`: {units, lower, upper, time, elapsed}; `y`: a list of {key, label, lower, upper, colour()}.
   * @param {Object} on - `zoom(x, y)`: a pair of x or null, pairs by axis or null; `near(x, factor)`,
   *   `reset()`, `cursor(plot)`.
   */
  constructor(host, axes, on) {
    this.host = host;
    this.axes = axes;
    this.on = on;
    this.curves = [];
    this.log = this.robust = false;
    this.ends = {}; // of y axes by hand
    this.marks = []; // events: {x, bad, restart}
    this.pin = null; // the place of a fault that was asked for: {at(): x, line: an element}
    this.below = 0; // values that a logarithmic axis has not
    this.labels = {}; // what axes say: their splits and texts
    this.zoomed = null;
    this.weight = 0;
    this.outside = false; // whether a value is beyond the axes' bounds
    this.whole = false; // whether x are whole numbers
    this.unnamed = []; // names of axes for which there is no room
    this.u = null;
  }

  /** Draw curves, as large as the element is: each with `colour`, `faint`, `width`, `scale`. */
  draw(curves) {
    this.curves = curves;
    const width = Math.max(200, Math.floor(this.host.clientWidth));
    const height = this.host.clientHeight || TALL;
    const used = this.axes.y.filter(({ key }) => curves.some((curve) => curve.scale === key && (curve.length || curve.nonfinite.length)));
    const shown = used.length ? used : this.axes.y;
    this.unnamed = width < NARROW && shown.length > 1 ? shown.map(({ label }) => label) : [];
    this.whole = this.#countsWhole();
    const shape = JSON.stringify([this.log, width < NARROW, this.whole, shown.map(({ key }) => key)]);
    if (!this.u || this.built !== shape) this.#build(width, height, shown, shape);
    else if (this.u.width !== width || this.u.height !== height) this.u.setSize({ width, height });
    const x = this.zoomed ? drawable(this.zoomed) : ofX(across(curves), this.axes.x);
    const data = [x];
    for (const axis of this.axes.y) {
      const own = curves.filter((curve) => curve.scale === axis.key);
      data.push(this.#range(own, x, axis));
    }
    this.u.batch(() => this.u.setData(data, true));
  }

  /** Tell whether x are whole numbers, such as steps: no tick is between two of them. */
  #countsWhole() {
    const { units, time, elapsed: since } = this.axes.x;
    if (time || since) return false;
    return units === "step" || this.curves.every(({ x, length }) => x.slice(0, length).every(Number.isInteger));
  }

  #range(curves, [from, to], axis) {
    const given = this.ends[axis.key];
    if (given && !(this.log && given[0] <= 0)) return drawable(given);
    const found = along(curves, from, to, this.log);
    const middle = this.robust && found ? sturdy(curves, from, to, this.log) : null;
    return ofY(middle ? [Math.max(found[0], middle[0]), Math.min(found[1], middle[1])] : found, axis, this.log);
  }

  /** Take other axes; what is seen stays as it is. */
  change(axes) {
    this.axes = axes;
    this.built = "";
  }

  /** Draw it as it is, with other colours or another smoothing. */
  redraw() {
    this.u?.redraw(false, true);
  }

  destroy() {
    this.u?.destroy();
    this.u = null;
  }

  #build(width, height, shown, shape) {
    this.destroy();
    this.built = shape;
    const narrow = width < NARROW;
    const scales = { x: { time: Boolean(this.axes.x.time), range: (_, low, high) => [low, high] } };
    for (const { key } of this.axes.y) {
      scales[key] = { distr: this.log ? 3 : 1, range: (_, low, high) => [low, high] };
    }
    this.u = new uPlot({
      width,
      height,
      padding: [10, shown.length < 2 ? 14 : 2, 0, 2],
      legend: { show: false },
      scales,
      series: [{}, ...this.axes.y.map(({ key }) => ({ scale: key, paths: () => null, points: { show: false } }))],
      axes: [this.#xAxis(), ...shown.map((axis, place) => this.#yAxis(axis, place, narrow))],
      cursor: {
        drag: { x: true, y: true, uni: DRAG, setScale: false, dist: 6 },
        points: { show: false },
        y: false,
        bind: { dblclick: () => () => this.on.reset() },
      },
      hooks: {
        draw: [() => this.#strokes()],
        setSelect: [(u) => this.#select(u)],
        setCursor: [() => this.on.cursor(this)],
      },
    }, [[0, 1], ...this.axes.y.map(() => [0, 1])], this.host);
    listen(this);
  }

  #xAxis() {
    const { units, time, elapsed: since } = this.axes.x;
    const said = time ? clocks : since ? elapsed : ticks;
    return {
      stroke: () => colours().quiet,
      font: FONT,
      labelFont: FONT,
      label: time ? undefined : units || undefined,
      labelSize: 18,
      labelGap: 0,
      size: 26,
      gap: 4,
      grid: { stroke: () => colours().grid, width: 1 },
      ticks: { show: false },
      space: (_, axis, low, high) => (time || since ? 90 : Math.max(60, 16 + LETTER * longest(low, high))),
      ...(since ? { incrs: SECONDS } : this.whole ? { incrs: WHOLE } : {}),
      values: (_, splits) => this.#said("x", splits, said(splits)),
    };
  }

  #yAxis(axis, place, narrow) {
    return {
      scale: axis.key,
      side: place % 2 ? 1 : 3,
      stroke: () => axis.colour() ?? colours().quiet,
      font: narrow ? SMALL_FONT : FONT,
      labelFont: FONT,
      label: (!this.unnamed.length && axis.label) || undefined,
      labelSize: 18,
      labelGap: 0,
      gap: narrow ? 3 : 5,
      size: (_, values) => (narrow ? 6 : 12) + (narrow ? SMALL_LETTER : LETTER) * Math.max(3, ...(values ?? []).map((each) => each.length)),
      ...(axis.incrs ? { incrs: axis.incrs } : {}),
      grid: { show: place === 0, stroke: () => colours().grid, width: 1 },
      ticks: { show: false },
      values: (_, splits) => this.#said(axis.key, splits, (axis.ticks ?? (this.log ? powers : narrow ? brief : ticks))(splits)),
    };
  }

  /** Keep what an axis says, for a picture of it. */
  #said(key, splits, texts) {
    this.labels[key] = { splits, texts };
    return texts;
  }

  #select(u) {
    const { left, width, top, height } = u.select;
    const [across_, up] = [width >= 4 && width < u.over.clientWidth - 1, height >= 4 && height < u.over.clientHeight - 1];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const ends = (low, high) => (low < high ? [low, high] : null);
    const x = across_ ? ends(u.posToVal(left, "x"), u.posToVal(left + width, "x")) : null;
    const y = up ? Object.fromEntries(this.axes.y.map(({ key }) => [key, ends(u.posToVal(top + height, key), u.posToVal(top, key))]).filter(([, pair]) => pair)) : null;
    if (x || y) this.on.zoom(x, y);
  }

  #strokes() {
    const { left, top, width, height } = this.u.bbox;
    const { ctx } = this.u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top - uPlot.pxRatio, width, height + 2 * uPlot.pxRatio);
    ctx.clip();
    this.paint(ctx, uPlot.pxRatio);
    ctx.restore();
    this.#pinned();
  }

  /** Put the line of a fault at its place; in another plot's element where uPlot was made anew. */
  #pinned() {
    if (!this.pin) return;
    const { at, line } = this.pin;
    const left = this.u.valToPos(at(), "x");
    line.hidden = !(left >= -1 && left <= this.u.over.clientWidth + 1);
    line.style.setProperty("left", `${left}px`);
    if (line.parentNode !== this.u.over) this.u.over.append(line);
  }

  /** Draw all curves with a context: that of the canvas, or of a picture of it. */
  paint(ctx, ratio) {
    this.outside = false;
    this.below = 0;
    ctx.lineJoin = "bevel";
    rulers(ctx, this.marks, projection(this.u, this.axes.y[0].key), ratio);
    this.#bands(ctx);
    for (const curve of this.curves) {
      if (!this.#ready(curve)) continue;
      const to = projection(this.u, curve.scale);
      const values = curve.smoothed(this.weight);
      ctx.strokeStyle = ctx.fillStyle = curve.colour;
      if (!curve.exact && curve.line) {
        ctx.globalAlpha = ENVELOPE;
        envelope(ctx, curve, to);
      } else if (values !== curve.y) {
        ctx.globalAlpha = BEHIND;
        stroke(ctx, curve, curve.y, to, ratio);
      }
      ctx.globalAlpha = 1;
      ctx.setLineDash(curve.dash.map((each) => each * ratio));
      stroke(ctx, curve, values, to, curve.width * ratio);
      ctx.setLineDash([]);
      dots(ctx, curve, values, to, 2.2 * ratio);
      ctx.lineWidth = 2 * ratio;
      marks(ctx, curve, to, 4 * ratio);
      this.outside = beyond(ctx, curve, curve.y, to, 3 * ratio) || this.outside;
      if (this.log) for (const value of curve.y) this.below += value <= 0 ? 1 : 0;
    }
  }

  #ready({ scale }) {
    const found = this.u.scales[scale];
    return found !== undefined && found.min !== null && found.min !== undefined;
  }

  /** Fill the bands below all lines: from the least to the largest value, of quantiles fainter, and from p50 to p99. */
  #bands(ctx) {
    const banded = this.curves.filter((curve) => curve.band && this.#ready(curve));
    if (banded.length > BANDS) return;
    for (const curve of banded) {
      const to = projection(this.u, curve.scale);
      const { p99, min, max } = curve.band;
      ctx.fillStyle = curve.colour;
      ctx.globalAlpha = (p99 ? 0.1 : ENVELOPE) / Math.sqrt(banded.length);
      fillBetween(ctx, curve, min, max, to);
      ctx.globalAlpha = 0.28 / Math.sqrt(banded.length);
      if (p99) fillBetween(ctx, curve, curve.y, p99, to);
      const top = this.u.scales[curve.scale].max;
      this.outside ||= curve.x.some((x, place) => x >= to.x0 && x <= to.x1 && max[place] > top);
    }
    ctx.globalAlpha = 1;
  }
}

/** Return about how many letters the labels of an axis have at most. */
function longest(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 5));
  return Math.max(...ticks([high - step, high].map((each) => Math.round(each / step) * step)).map((each) => each.length));
}

function stroke(context, curve, values, to, width) {
  context.beginPath();
  if (values !== curve.y && means(context, curve, values, to, width)) context.lineWidth = width;
  else context.lineWidth = trace(context, curve, values, to) > DENSE * to.width ? 1 : width;
  context.stroke();
}
