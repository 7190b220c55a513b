/** How far an axis goes: as far as its values, within its bounds. */

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { firstFrom } from "./curve.js";

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

/** Return the smallest and largest value of curves between two x; null where there is none. */
export function along(curves, from, to, log) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x, y } of curves) {
    const end = Math.min(y.length, firstFrom(x, to) + 1);
    for (let place = Math.max(0, firstFrom(x, from) - 1); place < end; place += 1) {
      if (log && y[place] <= 0) continue;
      if (y[place] < low) low = y[place];
      if (y[place] > high) high = y[place];
    }
  }
  return low <= high ? [low, high] : null;
}

/** Return an x axis's ends. Its bounds say what it shows at least: a run that goes on beyond them stays in view. */
export function ofX(found, { lower, upper, time }) {
  let [low, high] = found ?? [lower ?? (upper ?? 1) - 1, upper ?? (lower ?? 0) + 1];
  low = Math.min(low, lower ?? low);
  high = Math.max(high, upper ?? high);
  const half = time ? 30 : 0.5;
  return low < high ? [low, high] : [low - half, high + half];
}

/** Return a y axis's ends. Its bounds hold: what is beyond them is pointed at, and does not squeeze the rest. */
export function ofY(found, { lower, upper }, log) {
  if (log) {
    const [low, high] = found ?? [1, 10];
    const [from, to] = uPlot.rangeLog(low, high === low ? low * 10 : high, 10, false);
    return [lower > 0 ? lower : from, upper > 0 ? Math.max(upper, lower > 0 ? lower * 1.01 : 0) : to];
  }
  const [low, high] = found ?? [lower ?? 0, upper ?? (lower ?? 0) + 1];
  const [bottom, top] = [Math.min(lower ?? low, low), Math.max(upper ?? high, high)];
  const [from, to] = bottom === top ? around(low) : padded(bottom, top);
  let [first, last] = [lower ?? from, upper ?? to];
  if (first >= last) [first, last] = lower === null || lower === undefined ? [last - 1, last] : [first, first + 1];
  return [first, last];
}

function around(value) {
  const half = Math.abs(value) * 0.1 || 1;
  return [value - half, value + half];
}

function padded(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.01;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high <= 0 && high + room > 0 ? 0 : high + room];
}
