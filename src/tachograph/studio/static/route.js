/** What the address says: which page, and what of it. */

/** Return what a hash stands for: `{page: "runs"}`, or `{page: "run", run, ranks, compare}`. */
export function read(hash) {
  const [path, query = ""] = hash.replace(/^#/, "").split("?", 2);
  const found = /^\/run\/(.+)$/.exec(path);
  if (!found) return { page: "runs" };
  let run;
  try {
    run = decodeURIComponent(found[1]);
  } catch {
    run = found[1]; // no encoding at all: then it is no run's name either, and the hub says so
  }
  const words = new URLSearchParams(query);
  const ranks = words.get("rank");
  return {
    page: "run",
    run,
    ranks: ranks ? new Set(ranks.split(",").filter((each) => each !== "")) : null,
    compare: words.get("compare") || null,
  };
}

/** Return the hash of a run's page. */
export function linkTo(run, { ranks = null, compare = null } = {}) {
  const words = new URLSearchParams();
  if (ranks) words.set("rank", [...ranks].join(","));
  if (compare) words.set("compare", compare);
  return `#/run/${encodeURIComponent(run)}${words.size ? `?${words}` : ""}`;
}
