/** How curves get onto a canvas: of each column of pixels no more than its first, least, greatest and last value. */

import { firstFrom } from "./curve.js";
import { colours } from "./theme.js";

const ALONE = 5; // pixels to each side of a band of one point
const WIDE = 3; // pixels of a column of an envelope: in each of them are both a smallest and a largest value
const [COLUMN, MANY] = [2, 8]; // widths of a line, and points, of which an average is one mean
const FAR = 9999; // pixels beyond a plot at which lines end: canvases have no larger numbers
const FEW = 14; // pixels a point from which on each gets a dot

/** Return what turns x and values of a scale into pixels of a plot. */
export function projection(plot, scale) {
  const { left, top, width, height } = plot.bbox;
  const { min: x0, max: x1 } = plot.scales.x;
  const { min: y0, max: y1, distr } = plot.scales[scale];
  const log = distr === 3;
  const [low, high] = log ? [Math.log10(y0), Math.log10(y1)] : [y0, y1];
  const across = width / (x1 - x0);
  const up = height / (high - low);
  const at = (y) => top + height - ((log ? Math.log10(y) : y) - low) * up;
  return {
    x: (x) => left + (x - x0) * across,
    y: at,
    near: (y) => Math.max(top - FAR, Math.min(top + height + FAR, at(y))),
    log, x0, x1, left, top, width, height, bottom: top + height,
  };
}

/** Return the places between which points are in view, with one more at each side for the lines that lead there. */
const inView = (xs, to) => [Math.max(0, firstFrom(xs, to.x0) - 1), Math.min(xs.length, firstFrom(xs, to.x1) + 2)];

/**
 * Trace a curve's points in view: the line breaks where a value was not finite.
 * @returns {number} how many points are in view.
 */
export function trace(context, curve, values, to) {
  const { x: xs } = curve;
  const [begin, end] = inView(xs, to);
  const breaks = curve.ranks ? [] : curve.nonfinite; // of many ranks the others go on
  let gap = 0;
  while (gap < breaks.length && begin < xs.length && breaks[gap][0] < xs[begin]) gap += 1;
  let column = NaN;
  let down = false;
  let [least, greatest, last, x] = [0, 0, 0, 0];
  const finish = () => {
    if (!down || Number.isNaN(column)) return;
    if (least < last || greatest > last) {
      context.lineTo(x, least);
      context.lineTo(x, greatest);
      context.lineTo(x, last);
    }
  };
  for (let place = begin; place < end; place += 1) {
    if (gap < breaks.length && breaks[gap][0] <= xs[place]) {
      finish();
      down = false;
      while (gap < breaks.length && breaks[gap][0] <= xs[place]) gap += 1;
    }
    const value = values[place];
    if (to.log && value <= 0) {
      finish();
      down = false;
      continue;
    }
    const at = to.x(xs[place]);
    const y = to.near(value);
    if (down && Math.round(at) === column) {
      if (y < least) least = y;
      if (y > greatest) greatest = y;
      last = y;
      continue;
    }
    finish();
    if (down) context.lineTo(at, y);
    else context.moveTo(at, y);
    down = true;
    column = Math.round(at);
    x = at;
    least = greatest = last = y;
  }
  finish();
  return end - begin;
}

/**
 * Trace an average of points in view through its means of some pixels each, where there are more points than pixels: an
 * average that goes up and down would cover its band.
 * @returns {boolean} whether there are so many.
 */
export function means(context, { x: xs }, values, to, width) {
  const [begin, end] = inView(xs, to);
  const column = Math.max(COLUMN * width, (MANY * to.width) / (end - begin));
  if ((end - begin) * width < to.width) return false;
  for (let place = begin; place < end;) {
    const first = to.x(xs[place]);
    let [at, sum, many] = [0, 0, 0];
    for (; place < end && to.x(xs[place]) - first < column; place += 1) {
      if (to.log && values[place] <= 0) continue;
      at += to.x(xs[place]);
      sum += to.near(values[place]);
      many += 1;
    }
    if (many) context.lineTo(at / many, sum / many);
  }
  return true;
}

/** Fill what is between two values of each point of a curve in view; where one of them is not known there is a gap. */
export function fillBetween(context, { x: xs }, lows, highs, to) {
  const y = (value) => (to.log && value <= 0 ? to.bottom : to.near(value));
  let [place, end] = inView(xs, to);
  context.beginPath();
  while (place < end) {
    const begin = place;
    while (place < end && lows[place] !== null && highs[place] !== null) place += 1;
    if (place - begin === 1) {
      const [top, bottom] = [y(highs[begin]), y(lows[begin])];
      context.rect(to.x(xs[begin]) - ALONE, top, 2 * ALONE, bottom - top);
    } else if (place > begin) {
      context.moveTo(to.x(xs[begin]), y(highs[begin]));
      for (let at = begin + 1; at < place; at += 1) context.lineTo(to.x(xs[at]), y(highs[at]));
      for (let at = place - 1; at >= begin; at -= 1) context.lineTo(to.x(xs[at]), y(lows[at]));
      context.closePath();
    }
    place += place === begin ? 1 : 0;
  }
  context.fill();
}

/** Fill what is between the least and the greatest of a curve's points in each column of pixels. */
export function envelope(context, { x: xs, y: ys }, to) {
  const [begin, end] = inView(xs, to);
  const columns = [];
  for (let place = begin; place < end; place += 1) {
    if (to.log && ys[place] <= 0) continue;
    const at = Math.round(to.x(xs[place]));
    const y = to.near(ys[place]);
    const last = columns[columns.length - 1];
    if (last && at - last[0] < WIDE) [last[1], last[2]] = [Math.min(last[1], y), Math.max(last[2], y)];
    else columns.push([at, y, y]);
  }
  if (!columns.length) return;
  context.beginPath();
  context.moveTo(columns[0][0], columns[0][1]);
  for (const [at, top] of columns) context.lineTo(at, top);
  for (let place = columns.length - 1; place >= 0; place -= 1) context.lineTo(columns[place][0], columns[place][2]);
  context.closePath();
  context.fill();
}

/** Draw events as lines from top to bottom: faults in their colour, restarts without a gap. */
export function rulers(context, found, to, ratio) {
  const { bad, quiet } = colours();
  const before = {};
  context.lineWidth = ratio;
  for (const { x, bad: wrong, restart } of found) {
    const at = Math.round(to.x(x)) + 0.5;
    if (at < to.left || at > to.left + to.width || before[wrong] === at) continue;
    before[wrong] = at;
    context.strokeStyle = wrong ? bad : quiet;
    context.setLineDash(restart ? [] : [3 * ratio, 3 * ratio]);
    context.beginPath();
    context.moveTo(at, to.top);
    context.lineTo(at, to.bottom);
    context.stroke();
  }
  context.setLineDash([]);
}

/** Put a dot on each point in view, where they are few. */
export function dots(context, curve, values, to, radius) {
  const { x: xs } = curve;
  const begin = firstFrom(xs, to.x0);
  const end = firstFrom(xs, to.x1 + 1e-12 * Math.abs(to.x1 || 1));
  const last = Math.min(xs.length, end + 1);
  if ((last - begin) * FEW * radius > to.width) return;
  context.beginPath();
  for (let place = begin; place < last; place += 1) {
    if (xs[place] > to.x1 || (to.log && values[place] <= 0)) continue;
    const [x, y] = [to.x(xs[place]), to.y(values[place])];
    context.moveTo(x + radius, y);
    context.arc(x, y, radius, 0, 2 * Math.PI);
  }
  context.fill();
}

export const MARKS = { NaN: "×", Infinity: "∧", "-Infinity": "∨" }; // as text

/** Mark where values were not finite: a cross for NaN at the foot, an arrow for what is infinite at its edge. */
export function marks(context, curve, to, size) {
  context.beginPath();
  const before = { NaN: -Infinity, Infinity: -Infinity, "-Infinity": -Infinity };
  for (const [x, kind] of curve.nonfinite) {
    if (x < to.x0 || x > to.x1) continue;
    const at = to.x(x);
    if (at - before[kind] < size) continue; // as good as the same place
    before[kind] = at;
    if (kind === "NaN") {
      const y = to.bottom - 1.6 * size;
      context.moveTo(at - size, y - size);
      context.lineTo(at + size, y + size);
      context.moveTo(at - size, y + size);
      context.lineTo(at + size, y - size);
    } else {
      const up = kind === "Infinity" ? 1 : -1;
      const y = up > 0 ? to.top + 0.6 * size : to.bottom - 0.6 * size;
      context.moveTo(at - size, y + 1.4 * up * size);
      context.lineTo(at, y);
      context.lineTo(at + size, y + 1.4 * up * size);
    }
  }
  context.stroke();
}

/** Point at values beyond the axis's bounds with small wedges on its edge; returns whether there are any. */
export function beyond(context, curve, values, to, size) {
  let some = false;
  let before = -Infinity;
  context.beginPath();
  for (let place = firstFrom(curve.x, to.x0); place < curve.length && curve.x[place] <= to.x1; place += 1) {
    const y = to.y(values[place]);
    if (y >= to.top - 1 && y <= to.bottom + 1) continue;
    if (Number.isNaN(y) || (to.log && values[place] <= 0)) continue;
    some = true;
    const at = to.x(curve.x[place]);
    if (at - before < 2 * size) continue;
    before = at;
    const [edge, inwards] = y < to.top ? [to.top, 1] : [to.bottom, -1];
    context.moveTo(at - size, edge + inwards * size * 1.5);
    context.lineTo(at, edge);
    context.lineTo(at + size, edge + inwards * size * 1.5);
    context.closePath();
  }
  context.fill();
  return some;
}
