/** The answers of a page that is a file: its data is inside, thinned as the file was made; see `tachograph runs share`. */

const node = document.getElementById("shared");

/** Content of the file; null on a page of a hub. */
export const shared = node ? JSON.parse(node.textContent) : null;

/** Return what a hub would answer; a sentence where the file has no answer. */
export function answerOf(path, query) {
  if (path === "/api/runs") return { now: shared.run.now, run: shared.id, runs: [shared.run.run] };
  if (path === "/api/table") return table(query);
  const own = `/api/runs/${encodeURIComponent(shared.id)}`;
  if (path !== own && !path.startsWith(`${own}/`)) return "this file has another run: open it in tachograph studio";
  const answer = ANSWERS[path.slice(own.length)];
  return answer ? answer(query) : "this file has no answer to that: open the run in tachograph studio";
}

/** Return the table of runs: it has the one run, whatever it is filtered by. */
function table({ column = [], offset = 0 }) {
  const { now, run, config = {}, summary = {}, notes = "" } = shared.run;
  const told = { notes };
  for (const [of, keys] of Object.entries({ config, summary })) for (const [key, value] of Object.entries(keys)) told[`${of}.${key}`] = value;
  const columns = Object.fromEntries([column].flat().map((name) => [name, told[name] ?? null]));
  const counts = Object.fromEntries(Object.keys(told).map((name) => [name, 1]));
  return { now, run: shared.id, writable: false, total: 1, unread: 0, version: 0, matched: 1, rows: 1, columns: counts, items: offset ? [] : [{ run, columns }] };
}

const ANSWERS = {
  "": () => shared.run,
  "/curves": curves,
  "/samples": ({ series, low = null, high = null }) => ({ samples: shared.samples.filter((each) => [series].flat().includes(each.series)).map((each) => part(each, "time", low, high)) }),
  "/spreads": ({ series }) => shared.spreads[String(series)] ?? "this file has heat maps of all ranks and all of the time",
  "/events": ({ after = 0 }) => ({ events: shared.events.filter(({ number }) => number > after), more: false }),
  "/faults": () => shared.faults,
  "/calls": () => shared.calls,
};

function curves({ metric, group, rank = null, low = null, high = null, x = null }) {
  const found = shared.curves[JSON.stringify([group, metric])];
  if (!found) return "the file has no points of it";
  const all = found.curves.map((each, place) => along(each, found, place, x ?? "own"));
  const wanted = all.filter((each) => rank === null || String(each.rank) === String(rank));
  return { curves: wanted.map((each) => ({ ...part(each, "x", low, high), points: pointsOf(each, low, high), nonfinite: each.nonfinite.filter(([at]) => (low === null || at >= low) && (high === null || at <= high)) })) };
}

/** Return about how many recorded points of a curve are between two x: as large a share of them as of its rows. */
function pointsOf({ x, points }, low, high) {
  const inside = x.filter((at) => (low === null || at >= low) && (high === null || at <= high));
  return Math.round((points * inside.length) / Math.max(1, x.length));
}

/** Return a curve along an x axis: the file has that since the start, of which the time of day is made. */
function along(own, { along: axes }, place, x) {
  if (x !== "wall") return { ...own, ...axes[x]?.[place] };
  const found = { ...own, ...axes.relative[place] };
  const at = (since) => since + shared.origin;
  return { ...found, x: found.x.map(at), nonfinite: found.nonfinite.map(([since, kind]) => [at(since), kind]) };
}

/** Return the part of columns between two places on their axis, with one row beyond each end; copies, as they are added to. */
function part(columns, axis, low, high) {
  const places = columns[axis];
  let [begin, end] = [0, places.length];
  if (low !== null) while (begin + 1 < end && places[begin + 1] < low) begin += 1;
  if (high !== null) while (end - 1 > begin && places[end - 2] > high) end -= 1;
  const cut = (value) => (Array.isArray(value) && value.length === places.length ? value.slice(begin, end) : value);
  return Object.fromEntries(Object.entries(columns).map(([name, value]) => [name, cut(value)]));
}
