/** The x axis of a chart, as the reader has chosen it; events are found on it by their time. */

const NANO = 1e9;

/**
 * Return the axis that a source has under a choice: {key, units, lower, upper, time, elapsed}. Charts whose keys are the
 * same are zoomed together.
 */
export function axisOf({ axes: { x } }, choice) {
  if (choice === "relative") return { key: "relative", units: "since the start", elapsed: true };
  if (x.time || choice === "wall") return { key: "wall", units: "", time: true };
  if (choice === "step") return { key: "step", units: "step" };
  return { ...x, key: `own ${x.units || ""}`.trim() };
}

/** Return what places an event on an axis: a function of its time in nanoseconds; null where it has no place. */
export function placing(axis, began, curves) {
  if (axis.time) return (time) => time / NANO;
  if (axis.elapsed) return (time) => (time - began) / NANO;
  const known = curves.map(({ knots }) => knots).filter((knots) => knots?.length);
  return (time) => placed(known, time / NANO);
}

/** A time is on the curve that had points around it, else where the next one begins. */
function placed(known, time) {
  let next = null;
  for (const knots of known) {
    if (knots[0][0] > time) {
      if (!next || knots[0][0] < next[0]) next = knots[0];
      continue;
    }
    const after = knots.findIndex(([at]) => at >= time);
    if (after < 0) continue;
    if (after === 0) return knots[0][1];
    const [[t0, x0], [t1, x1]] = [knots[after - 1], knots[after]];
    return x0 + ((x1 - x0) * (time - t0)) / (t1 - t0 || 1);
  }
  return next ? next[1] : null;
}
