/** The look of each curve, and its name in the legend: colour by metric or by rank, whichever there are more of. */

import { colours } from "./theme.js";

const MAIN = 1.7;
const THIN = 1.1;
// Lines of one colour are told apart by dashes, never by opacity: each is to have a contrast of 3:1 to what is around it.
const DASHES = [[], [9, 3], [4, 3], [9, 3, 2, 3]]; // of ranks
const BRANCH = [6, 4]; // of what a resumed run has left behind
const BESIDE = [1, 3]; // of what is beside the lines that have the ranks' colours

/**
 * Give curves their colour, dashes and width, and return the legend's entries.
 * @param {Array<string>} names - all of the chart, in order: metrics with their attributes.
 * @param {Array<{key, label}>} lanes - all of the chart: ranks, and tasks of theirs.
 * @param {Set<string>} hidden - keys of entries that are switched off.
 * @param {boolean} byLane - colour by rank, however many names there are.
 */
export function dress(curves, names, lanes, hidden, byLane = false) {
  const palette = colours().curves;
  const used = new Set(curves.map((curve) => curve.metric));
  const many = new Set(curves.map((curve) => curve.lane));
  const byName = !byLane && (names.length > 1 || lanes.length < 2);
  const newest = newestOf(curves);
  const entries = new Map();
  for (const curve of curves) {
    const place = names.indexOf(nameOf(curve));
    const name = place < 0 ? names.length : place; // of another run, or new
    const found = lanes.findIndex(({ key }) => key === curve.lane);
    const lane = found >= 0 ? found : (curve.rank ?? 0);
    const who = lanes[found]?.label ?? (curve.rank === null ? "" : `rank ${curve.rank}`);
    curve.colour = lanes[found]?.colour?.() ?? palette[(byName ? name : lane) % palette.length];
    const latest = newest.get(together(curve)) === curve;
    const aside = byLane && curve.beside;
    const ranked = byName && many.size > 1 ? DASHES[lane % DASHES.length] : [];
    const own = aside ? BESIDE : ranked;
    curve.dash = latest ? own : BRANCH;
    curve.width = aside ? THIN : MAIN;
    curve.key = together(curve);
    curve.said = parts(curve, who, used.size, Math.max(many.size, lanes.length));
    curve.label = [curve.said.name, curve.said.lane].filter(Boolean).join(" ");
    curve.visible = !hidden.has(curve.key);
    const entry = entries.get(curve.key) ?? { key: curve.key, order: [name, lane] };
    if (latest) Object.assign(entry, { label: curve.label, colour: curve.colour, dash: own, curve });
    entries.set(curve.key, entry);
  }
  curves.sort((one, other) =>
    compare([...entries.get(one.key).order, one.start, one.number, one.branch], [...entries.get(other.key).order, other.start, other.number, other.branch]));
  return [...entries.values()].sort((one, other) => compare(one.order, other.order));
}

/** Return the metric of a curve, with its attributes. */
export const nameOf = ({ metric, attributes }) => (attributes ? `${metric} ${attributes}` : metric);

const together = (curve) => `${nameOf(curve)}\n${curve.lane}`;

/** Return the label of a curve in its two parts, each empty where the chart does not need it. */
function parts(curve, lane, metrics, lanes) {
  const ranked = lanes > 1 && Boolean(lane);
  const name = metrics > 1 ? nameOf(curve) : curve.attributes || (ranked ? "" : curve.metric);
  return { name, lane: ranked ? lane : "" };
}

function newestOf(curves) {
  const found = new Map();
  for (const curve of curves) {
    const known = found.get(together(curve));
    if (!known || compare([curve.start, curve.number, curve.branch], [known.start, known.number, known.branch]) > 0) {
      found.set(together(curve), curve);
    }
  }
  return found;
}

/** Compare lists of numbers, the first ones first. */
export function compare(one, other) {
  const place = one.findIndex((each, at) => each !== other[at]);
  return place < 0 ? 0 : one[place] - other[place];
}

/** Return what is to be said of branches: that a run was resumed, and how that is drawn. Empty where it was not. */
export function resumed(curves) {
  const branches = new Map();
  for (const curve of curves) {
    branches.set(together(curve), (branches.get(together(curve)) ?? 0) + 1);
  }
  const most = Math.max(1, ...branches.values());
  return most < 2 ? "" : `resumed: ${most} branches, older ones dashed`;
}

/** Return the colour of an axis that belongs to one name of several; undefined for others. */
export function ownColour(names, own) {
  const palette = colours().curves;
  return own.length === 1 && names.length > 1 ? palette[names.indexOf(own[0]) % palette.length] : undefined;
}
