/** A plot: axes, zoom and cursor by uPlot; the curves are drawn here, each with x values of its own. */

import { across, along, drawable, ofX, ofY } from "./extent.js";
import { brief, clocks, powers, ticks } from "./format.js";
import { beyond, dots, fillBetween, marks, projection, trace } from "./strokes.js";
import { colours } from "./theme.js";

const { uPlot } = globalThis; // a script of its own: only its minified build is that

const FAMILY = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';
const FONT = `11px ${FAMILY}`;
const SMALL_FONT = `10px ${FAMILY}`; // of a narrow chart's y axes
const DASH = [6, 4];
const LETTER = 6.4; // pixels
const SMALL_LETTER = 5.6;
const NARROW = 520; // pixels of width below which two axes have no names: what they are is said above the chart
const TALL = 240;
const BANDS = 8; // curves with a band; of more there are lines alone
const DENSE = 1.5; // points a pixel from which on lines are as thin as can be: they cover each other, and draw faster

/** Draws curves into an element. */
export class Plot {
  /**
   * @param {HTMLElement} host - where it is, as wide as that.
   * @param {Object} axes - `x`: {units, lower, upper, time}; `y`: a list of {key, label, lower, upper, colour()}.
   * @param {Object} on - `zoom(low, high)`, `reset()`, `cursor(plot)`.
   */
  constructor(host, axes, on) {
    this.host = host;
    this.axes = axes;
    this.on = on;
    this.curves = [];
    this.log = false;
    this.zoomed = null;
    this.weight = 0;
    this.outside = false; // whether a value is beyond the axes' bounds
    this.unnamed = []; // names of axes for which there is no room
    this.u = null;
  }

  /** Draw curves, as large as the element is: each with `colour`, `faint`, `width`, `scale`, and perhaps `compared`. */
  draw(curves) {
    this.curves = curves;
    const width = Math.max(200, Math.floor(this.host.clientWidth));
    const height = this.host.clientHeight || TALL;
    const used = this.axes.y.filter(({ key }) => curves.some((curve) => curve.scale === key && (curve.length || curve.nonfinite.length)));
    const shown = used.length ? used : this.axes.y;
    this.unnamed = width < NARROW && shown.length > 1 ? shown.map(({ label }) => label) : [];
    const shape = JSON.stringify([this.log, width < NARROW, shown.map(({ key }) => key)]);
    if (!this.u || this.built !== shape) this.#build(width, height, shown, shape);
    else if (this.u.width !== width || this.u.height !== height) this.u.setSize({ width, height });
    const x = this.zoomed ? drawable(this.zoomed) : ofX(across(curves), this.axes.x);
    const data = [x];
    for (const axis of this.axes.y) {
      const own = curves.filter((curve) => curve.scale === axis.key);
      data.push(ofY(along(own, x[0], x[1], this.log), axis, this.log));
    }
    this.u.batch(() => this.u.setData(data, true));
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
        drag: { x: true, y: false, setScale: false, dist: 6 },
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
  }

  #xAxis() {
    const { units, time } = this.axes.x;
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
      space: (_, axis, low, high) => (time ? 90 : Math.max(60, 16 + LETTER * longest(low, high))),
      values: (_, splits) => (time ? clocks(splits) : ticks(splits)),
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
      values: (_, splits) => (axis.ticks ?? (this.log ? powers : narrow ? brief : ticks))(splits),
    };
  }

  #select(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    const [low, high] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (low < high) this.on.zoom(low, high);
  }

  #strokes() {
    const { ctx } = this.u;
    const ratio = uPlot.pxRatio;
    const { left, top, width, height } = this.u.bbox;
    this.outside = false;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top - ratio, width, height + 2 * ratio);
    ctx.clip();
    ctx.lineJoin = "bevel";
    this.#bands(ctx);
    for (const curve of this.curves) {
      if (this.u.scales[curve.scale]?.min === null || this.u.scales[curve.scale] === undefined) continue;
      const to = projection(this.u, curve.scale);
      const values = curve.smoothed(this.weight);
      ctx.strokeStyle = ctx.fillStyle = curve.colour;
      ctx.setLineDash(curve.compared ? DASH.map((each) => each * ratio) : []);
      if (this.weight) {
        ctx.globalAlpha = 0.22 * curve.alpha;
        stroke(ctx, curve, curve.y, to, 1);
      }
      ctx.globalAlpha = curve.alpha;
      stroke(ctx, curve, values, to, curve.width * ratio);
      ctx.setLineDash([]);
      dots(ctx, curve, values, to, 2.2 * ratio);
      ctx.lineWidth = 2 * ratio;
      ctx.globalAlpha = 1;
      marks(ctx, curve, to, 4 * ratio);
      this.outside = beyond(ctx, curve, values, to, 3 * ratio) || this.outside;
    }
    ctx.restore();
  }

  /** Fill the bands below all lines: from the least to the largest value, of quantiles fainter, and from p50 to p99. */
  #bands(ctx) {
    const banded = this.curves.filter((curve) => curve.band && this.u.scales[curve.scale]?.min !== undefined && this.u.scales[curve.scale].min !== null);
    if (banded.length > BANDS) return;
    for (const curve of banded) {
      const to = projection(this.u, curve.scale);
      const { p99, min, max } = curve.band;
      ctx.fillStyle = curve.colour;
      ctx.globalAlpha = (curve.alpha * (p99 ? 0.1 : 0.25)) / Math.sqrt(banded.length);
      fillBetween(ctx, curve, min, max, to);
      ctx.globalAlpha = (curve.alpha * 0.28) / Math.sqrt(banded.length);
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
  const many = trace(context, curve, values, to);
  context.lineWidth = many > DENSE * to.width ? 1 : width;
  context.stroke();
}
