/** The moving average of a curve where no hub makes it: the formula of `tachograph.runs.smoothing`. */

const LEAST = 1e-3; // of the usual distance: of points at one time each counts

/**
 * Return the exponential moving average at each row, without the pull of its start towards zero.
 * @param {Array<number>} x - ascending; @param {Array<number>} y - finite.
 * @param {number} weight - of what was before, in (0, 1).
 * @param {Object} of - `share`: points that a row stands for; `spacing`: the usual distance of points, where the average is over time.
 */
export function averaged(x, y, weight, { share = 1, spacing = null } = {}) {
  const decay = -Math.log(weight);
  let [carry, gone, last] = [0, 0, null];
  return y.map((value, place) => {
    const rows = spacing && last !== null ? Math.max((x[place] - last) / spacing, LEAST * share) : share;
    const step = decay * rows;
    carry = Math.exp(-step) * carry - Math.expm1(-step) * value;
    gone += step;
    last = x[place];
    return carry / -Math.expm1(-gone);
  });
}
