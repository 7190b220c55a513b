/** How far an axis goes: as far as its values, within its bounds. */

import { firstFrom } from "./curve.js";

const { uPlot } = globalThis; // a script of its own: only its minified build is that

const EDGE = Number.MAX_VALUE / 2; // beyond it the distance of two numbers is infinite
const LEAST = 1e-12; // of its numbers' size: so wide an axis is at least, as uPlot never ends where ticks are the same
const AROUND = 1e-9; // of a number's size: so far the axis of a single one goes to each side at least
const MOST_TOPS = 0.9; // a part of the values of p99 that an axis has in any case
const SQUEEZED = 1; // times the height of these: so much may be beside them for extremes
const ENOUGH = 10; // values of which some may be outliers
const SHARE = 0.05; // of them, at each end, that a robust range need not have
const QUARTER = 0.25; // where the values at a quarter and at three quarters are equal, most values are
const BRIEF = 5; // seconds: ticks of a shorter time would all say the same second

/** Return an axis's ends so far apart, and so near, that there are numbers between them. */
export function drawable([low, high]) {
  const [first, last] = [low, high].map((each) => Math.max(-EDGE, Math.min(EDGE, each)));
  const missing = LEAST * Math.max(Math.abs(first), Math.abs(last)) - (last - first);
  return missing > 0 ? [first - missing / 2, last + missing / 2] : [first, last];
}

/** Return the smallest and largest x of curves; null where there is none. */
export function across(curves) {
  let [low, high] = [Infinity, -Infinity];
  for (const curve of curves) {
    if (curve.length) {
      low = Math.min(low, curve.x[0]);
      high = Math.max(high, curve.x[curve.length - 1]);
    }
    if (curve.nonfinite.length) {
      low = Math.min(low, curve.nonfinite[0][0]);
      high = Math.max(high, curve.nonfinite[curve.nonfinite.length - 1][0]);
    }
  }
  return low <= high ? [low, high] : null;
}

/**
 * Return the smallest and largest value of curves between two x; null where there is none. Of a band most of p99 is in
 * it, and the extremes where that leaves room for all the rest: a single slow step must not flatten what comes after it.
 */
export function along(curves, from, to, log) {
  let [low, high] = [Infinity, -Infinity];
  let [least, greatest] = [Infinity, -Infinity]; // with extremes
  const tops = [];
  for (const { x, y, band } of curves) {
    const end = Math.min(y.length, firstFrom(x, to) + 1);
    for (let place = Math.max(0, firstFrom(x, from) - 1); place < end; place += 1) {
      if (log && y[place] <= 0) continue;
      if (y[place] < low) low = y[place];
      if (y[place] > high) high = y[place];
      if (!band) continue;
      if (!band.p99) { // of ranks: what one of them has is as much worth as the median
        if (!log || band.min[place] > 0) low = Math.min(low, band.min[place]);
        high = Math.max(high, band.max[place]);
        continue;
      }
      if ( band.p99[place] !== null) tops.push(band.p99[place]);
      if (band.min[place] !== null && (!log || band.min[place] > 0)) least = Math.min(least, band.min[place]);
      greatest = Math.max(greatest, band.max[place] ?? -Infinity);
    }
  }
  if (low > high) return null;
  tops.sort((one, other) => one - other);
  high = Math.max(high, tops[Math.floor(MOST_TOPS * (tops.length - 1))] ?? high);
  const room = log ? Infinity : Math.max(SQUEEZED * (high - low), Math.abs(high) / 4);
  return [Math.max(Math.min(low, least), low - room), Math.min(Math.max(high, greatest), high + room)];
}

/**
 * Return the ends of most values of the lines of curves between two x, with half of their distance beside each: the same
 * value twice if most values are equal.
 */
export function sturdy(curves, from, to, log) {
  const found = [];
  for (const { x, y, line } of curves) {
    for (let place = firstFrom(x, from); place < x.length && x[place] <= to; place += 1) {
      const value = (line ?? y)[place];
      if (!log || value > 0) found.push(log ? Math.log(value) : value);
    }
  }
  if (found.length < ENOUGH) return null;
  found.sort((one, other) => one - other);
  const at = (part) => found[Math.round(part * (found.length - 1))];
  const constant = at(QUARTER) === at(1 - QUARTER);
  const [low, high] = constant ? [at(QUARTER), at(QUARTER)] : [at(SHARE), at(1 - SHARE)];
  const ends = [low - (high - low) / 2, high + (high - low) / 2];
  return log ? ends.map(Math.exp) : ends;
}

/** Return an x axis's ends. Its bounds say what it shows at least: a run that goes on beyond them stays in view. */
export function ofX(found, { lower, upper, time }) {
  let [low, high] = found ?? [lower ?? (upper ?? 1) - 1, upper ?? (lower ?? 0) + 1];
  low = Math.min(low, lower ?? low);
  high = Math.max(high, upper ?? high);
  const half = Math.max(time ? 30 : 0.5, AROUND * Math.abs(low));
  if (high - low > (time ? BRIEF : 0)) return drawable([low, high]);
  const middle = low + (high - low) / 2;
  return drawable([middle - half, middle + half]);
}

/** Return a y axis's ends. Its bounds hold: what is beyond them is pointed at, and does not squeeze the rest. */
export function ofY(found, { lower, upper }, log) {
  if (log) return ofLog(found ?? [1, 10], lower > 0 ? lower : null, upper > 0 ? upper : null);
  const [low, high] = found ?? [lower ?? 0, upper ?? (lower ?? 0) + 1];
  const [bottom, top] = [Math.min(lower ?? low, low), Math.max(upper ?? high, high)];
  const [from, to] = bottom === top ? around(low) : padded(bottom, top);
  let [first, last] = [lower ?? from, upper ?? to];
  if (first >= last) [first, last] = lower === null || lower === undefined ? [last - 1, last] : [first, first + 1];
  return drawable([first, last]);
}

/** Return a logarithmic axis's ends. A bound that all values are beyond holds, with a decade beside it. */
function ofLog([low, high], lower, upper) {
  const [from, to] = uPlot.rangeLog(low, high === low ? low * 10 : high, 10, false);
  const first = lower ?? (from > 0 ? from : low);
  const last = upper ?? (Number.isFinite(to) ? to : high);
  if (first < last) return [first, last];
  return lower === null ? [last / 10, last] : [first, first * 10];
}

function around(value) {
  const half = Math.abs(value) * 0.1 || 1;
  return [value - half, value + half];
}

function padded(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.01;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high <= 0 && high + room > 0 ? 0 : high + room];
}
