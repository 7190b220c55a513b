/** The exponential moving average of a curve, as far as the page has its points. */

const LEAST = 1e-3; // of the usual distance: of points at one time each counts
const FORGOTTEN = 1e-3; // the weight from which on older points no longer show in an average

/** Return how many points an average looks back. */
export const lookBack = (weight) => (weight > 0 ? Math.log(FORGOTTEN) / Math.log(weight) : 0);

/**
 * Return the average at each row of all parts, without the pull of its start towards zero.
 * @param {Array<Object>} parts - of one curve in ascending x, whose rows follow each other: `x`; `y`, finite; and
 *   `share`, the number of recorded points that a row stands for.
 * @param {number} weight - of what was before, in (0, 1).
 * @param {number|null} spacing - the usual distance of points, where the average is over time: a point that is further
 *   away from the one before keeps less of it.
 */
export function averaged(parts, weight, spacing = null) {
  const decay = -Math.log(weight);
  let carry = 0;
  let gone = 0;
  let last = null;
  return parts.flatMap(({ x, y, share }) =>
    y.map((value, place) => {
      const points = spacing && last !== null ? Math.max((x[place] - last) / spacing, LEAST * share) : share;
      const step = decay * points;
      carry = Math.exp(-step) * carry - Math.expm1(-step) * value;
      gone += step;
      last = x[place];
      return carry / -Math.expm1(-gone);
    }));
}
