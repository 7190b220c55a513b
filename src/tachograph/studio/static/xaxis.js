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
  return { ...x, key: x.units === "step" ? "step" : `own ${x.units || ""}`.trim() };
}

/**
 * Return what places an event on an axis: a function of {time, rank, restart}; null where its place is not known. On an
 * x of the charts' own that is between the points of its rank, else of any; a restart is where the next branch begins.
 */
export function placing(axis, began, curves) {
  if (axis.time) return ({ time }) => time / NANO;
  if (axis.elapsed) return ({ time }) => (time - began) / NANO;
  const known = curves.filter(({ knots }) => knots?.length);
  return ({ time, rank, restart }) => {
    const own = known.filter((curve) => curve.rank === rank);
    return placed(own.length ? own : known, time / NANO, restart);
  };
}

function placed(known, time, restart) {
  let [before, next] = [null, null]; // the end of what ended before, the beginning of what began later
  for (const { knots, end } of known) {
    const after = knots.findIndex(([at]) => at >= time);
    const last = knots[knots.length - 1];
    if (after > 0) {
      const [[t0, x0], [t1, x1]] = [knots[after - 1], knots[after]];
      return x0 + ((x1 - x0) * (time - t0)) / (t1 - t0 || 1);
    }
    if (after === 0 && (!next || knots[0][0] < next[0])) [next] = knots;
    if (after < 0 && end <= last[1] && (!before || last[0] > before[0])) before = last; // else points came live since
  }
  return (restart ? next : next?.[0] === time ? next : before)?.[1] ?? null;
}
