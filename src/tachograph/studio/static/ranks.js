/** Curves of many ranks as one: the line of their median, in a band from the least to the greatest of their values. */

import { Curve, firstFrom } from "./curve.js";
import { nameOf } from "./style.js";

const FEW = 4; // ranks that are drawn as lines of their own
const SAME = 1.2; // times the x of the longest curve: with more in all, ranks were not recorded at the same x
const MOST = 600; // stretches of x

/** Tell whether a chart has so many ranks that they are drawn as one. */
export const many = (lanes) => new Set(lanes.map(({ rank }) => rank)).size > FEW;

/** Return one curve for all ranks of each metric, with its attributes, its start and its branch. */
export function together(curves) {
  const groups = new Map();
  for (const curve of curves) {
    const key = JSON.stringify([nameOf(curve), curve.start, curve.branch]);
    groups.set(key, [...(groups.get(key) ?? []), curve]);
  }
  return [...groups.values()].map((some) => (some.length > 1 ? joined(some) : some[0]));
}

function joined(curves) {
  const [first] = curves;
  const { found, at, same } = places(curves);
  const values = found.map(() => []);
  const [least, lowest, greatest, highest] = [Infinity, null, -Infinity, null].map((each) => found.map(() => each));
  for (const { x, y, line, rank } of curves) {
    const [sums, counts] = [new Float64Array(found.length), new Uint32Array(found.length)];
    for (let point = 0; point < x.length; point += 1) {
      const place = at(x[point]);
      sums[place] += (line ?? y)[point];
      counts[place] += 1;
      if (y[point] < least[place]) [least[place], lowest[place]] = [y[point], rank];
      if (y[point] > greatest[place]) [greatest[place], highest[place]] = [y[point], rank];
    }
    counts.forEach((many, place) => many && values[place].push(sums[place] / many));
  }
  const kept = found.map((_, place) => place).filter((place) => values[place].length);
  const of = (list) => kept.map((place) => list[place]);
  const answer = {
    curve: first.number, branch: first.branch, start: first.start, seq: -1,
    x: of(found), y: of(values).map(median),
    nonfinite: curves.flatMap(({ nonfinite }) => nonfinite).sort((one, other) => one[0] - other[0]),
    points: curves.reduce((sum, { points }) => sum + points, 0) / curves.length,
    exact: same && curves.every(({ exact }) => exact),
  };
  const { run, metric, scale, attributes, timed } = first;
  const band = { min: of(least), max: of(greatest) };
  return new Curve(answer, {
    run, metric, scale, attributes, timed, rank: null, lane: "", band,
    extremes: { min: of(lowest), max: of(highest) }, ranks: new Set(curves.map(({ rank }) => rank)).size,
  });
}

/**
 * Return the x of a line of ranks, and which of them an x belongs to: theirs where they are the `same`, otherwise the
 * middles of equal stretches.
 */
function places(curves) {
  const longest = Math.max(...curves.map(({ length }) => length));
  const all = new Set();
  for (const { x } of curves) {
    for (let point = 0; point < x.length && all.size <= SAME * longest; point += 1) all.add(x[point]);
  }
  if (all.size <= SAME * longest) {
    const found = [...all].sort((one, other) => one - other);
    return { found, at: (x) => firstFrom(found, x), same: true };
  }
  const [low, high] = extent(curves);
  const count = Math.max(1, Math.min(MOST, Math.floor(longest / 2)));
  const whole = curves.every(({ x }) => x.every(Number.isInteger)); // as steps are: so are the middles of their stretches
  const middle = (place) => low + ((place + 0.5) * (high - low)) / count;
  const found = Array.from({ length: count }, (_, place) => (whole ? Math.floor(middle(place)) : middle(place)));
  return { found, at: (x) => Math.min(count - 1, Math.floor(((x - low) / (high - low)) * count)), same: false };
}

const extent = (curves) => [
  Math.min(...curves.filter(({ length }) => length).map(({ x }) => x[0])),
  Math.max(...curves.filter(({ length }) => length).map(({ x }) => x[x.length - 1])),
];

export function median(values) {
  values.sort((one, other) => one - other);
  return (values[(values.length - 1) >> 1] + values[values.length >> 1]) / 2; // of none: NaN
}
