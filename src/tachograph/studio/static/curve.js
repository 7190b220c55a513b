/** One branch of a curve, as far as the page has it: thinned by the hub, and what has come live since. */

import { averaged } from "./average.js";

export const FULL = 4; // points for each bucket that was asked for: a curve with more is fetched again, as thin as before

/** Points in ascending x, and the x where values were not finite. */
export class Curve {
  /**
   * @param {Object} answer - of `/curves`: x, y, nonfinite, exact, seq, points.
   * @param {Object} about - what tells it from others: run, metric, rank, lane, scale; and whether its x is `timed`.
   */
  constructor(answer, about) {
    Object.assign(this, about);
    this.number = answer.curve;
    this.branch = answer.branch;
    this.start = answer.start ?? 0;
    this.exact = answer.exact !== false;
    this.points = answer.points;
    this.seq = answer.seq ?? -1;
    this.x = answer.x;
    this.y = answer.y;
    this.nonfinite = answer.nonfinite ?? [];
    this.line = answer.line ?? null; // mean values, where `y` has extremes
    this.received = this.y.length; // rows of the answer; those that come live are a point each
    this.share = shareOf(this);
    this.earlier = null; // the same curve from afar, where this is a part of it
    this.knots = answer.knots ?? null; // pairs of time and x
    this.smooth = null;
  }

  get length() {
    return this.x.length;
  }

  /** Largest x, of what is not finite, too; -Infinity where there is nothing. */
  get end() {
    const last = this.x.length ? this.x[this.x.length - 1] : -Infinity;
    const other = this.nonfinite.length ? this.nonfinite[this.nonfinite.length - 1][0] : -Infinity;
    return Math.max(last, other);
  }

  /** The last value, or what it was instead of a number; null where there is none. */
  get latest() {
    if (!this.length && !this.nonfinite.length) return null;
    const other = this.nonfinite[this.nonfinite.length - 1];
    if (other && (!this.length || other[0] >= this.x[this.length - 1])) return other[1];
    return this.y[this.length - 1];
  }

  /**
   * Add points that came live.
   * @param {Array} points - each [x, y], or [x, null, "NaN"].
   * @param {number} seq - the last number among them.
   * @param {boolean} partly - some of them may be here already.
   */
  append(points, seq, partly = false) {
    const added = partly ? this.#unknown(points) : points;
    this.seq = Math.max(this.seq, seq);
    this.points += added.length;
    for (const [x, y, kind] of added) {
      if (y === null) insert(this.nonfinite, x, [x, kind ?? "NaN"]);
      else this.#put(x, y);
    }
  }

  /** Return those that come after the last one here: it is among them, unless it was thinned away. */
  #unknown(points) {
    const { end, latest } = this;
    for (let place = points.length; place; place -= 1) {
      const [x, y, kind] = points[place - 1];
      if (x === end && (y ?? kind ?? "NaN") === latest) return points.slice(place);
    }
    return points.filter(([x]) => x > end);
  }

  #put(x, y) {
    let place = this.x.length;
    while (place && this.x[place - 1] > x) place -= 1;
    if (place === this.x.length) {
      this.x.push(x);
      this.y.push(y);
      this.line?.push(y);
    } else {
      this.smooth = null;
      this.x.splice(place, 0, x);
      this.y.splice(place, 0, y);
      this.line?.splice(place, 0, y);
    }
  }

  /** Return the values of the line: through the points, or their means where they are thinned; or the average of these. */
  smoothed(weight) {
    const values = this.line ?? this.y;
    if (!weight) return this.exact ? this.y : values;
    const { earlier } = this;
    if (this.smooth?.weight !== weight || this.smooth.values.length !== values.length || this.smooth.earlier !== earlier) {
      const parts = earlier ? [...earlier.rows(this.x[0]), ...this.rows()] : this.rows();
      const averages = averaged(parts, weight, (earlier ?? this).spacing);
      this.smooth = { weight, earlier, values: averages.slice(averages.length - values.length) };
    }
    return this.smooth.values;
  }

  /** Return what is before an x as parts of an average. */
  rows(end = Infinity) {
    const last = firstFrom(this.x, end);
    const received = Math.min(this.received, last);
    const part = (first, behind, share) => ({ x: this.x.slice(first, behind), y: (this.line ?? this.y).slice(first, behind), share });
    return [part(0, received, this.share), part(received, last, 1)];
  }

  /** The usual distance of its points along the time; null along another axis. */
  get spacing() {
    return (this.timed && this.distance) || null;
  }

  /** The usual distance of its points along x. */
  get distance() {
    const begin = Math.min(this.x[0] ?? Infinity, this.nonfinite[0]?.[0] ?? Infinity);
    return this.points > 1 ? (this.end - begin) / (this.points - 1) : 0;
  }

  /** Return the place of the point whose x is nearest; -1 where there is none. */
  nearest(x) {
    const after = firstFrom(this.x, x);
    if (after === 0) return this.length ? 0 : -1;
    if (after === this.length) return after - 1;
    return x - this.x[after - 1] <= this.x[after] - x ? after - 1 : after;
  }
}

/** Return how many recorded points a row of an answer stands for. */
function shareOf({ exact, points, y }) {
  const beyond = 2; // rows on both sides of a window, which are not among its points
  return exact && y.length <= points + beyond ? 1 : points / Math.max(1, y.length);
}

function insert(list, x, entry) {
  let place = list.length;
  while (place && list[place - 1][0] > x) place -= 1;
  list.splice(place, 0, entry);
}

/** Return the first place in ascending numbers that is not below `x`. */
export function firstFrom(numbers, x) {
  let low = 0;
  let high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}
