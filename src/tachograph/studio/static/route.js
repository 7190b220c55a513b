/** The page's address: which page it is, and its reader's choices. */

/** Return the two parts of a hash: the path of a page, and the words behind it. */
function parts(hash) {
  const [path, ...query] = hash.replace(/^#/, "").split("?");
  return [path, query.join("?")];
}

/** Return what a hash stands for: `{page: "runs"}`, `{page: "comparison"}`, or `{page: "run", run, ranks}`. */
export function read(hash) {
  const [path, query] = parts(hash);
  if (path === "/compare") return { page: "comparison" };
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
  };
}

export const linkTo = (run) => `#/run/${encodeURIComponent(run)}`;

/** Return texts as one word of an address, and `listOf` them again. */
export const wordOf = (texts) => [...texts].map((text) => encodeURIComponent(text)).join(",");

export function listOf(word) {
  try {
    return (word ?? "").split(",").filter(Boolean).map(decodeURIComponent);
  } catch {
    return []; // no word of ours
  }
}

export const linkToComparison = (runs) => `#/compare?${new URLSearchParams({ runs: wordOf(runs) })}`;

/**
 * A reader's choices, as words in the address: they are there again after a reload, by a link, and the back button
 * takes it back. Each part of the page has names of its own; what is as it was at first has no word.
 */
class State {
  constructor() {
    this.followers = new Set();
    this.#read();
  }

  #read() {
    [this.path, this.query] = parts(location.hash);
    this.words = new URLSearchParams(this.query);
  }

  get(name) {
    return this.words.get(name);
  }

  /** Return the pairs of name and text whose names begin so, the beginning taken off. */
  all(beginning) {
    return [...this.words].filter(([name]) => name.startsWith(beginning)).map(([name, text]) => [name.slice(beginning.length), text]);
  }

  /**
   * Write names into the address. Followers are not told: who writes knows.
   * @param {Object} changed - texts by name; null or an empty text takes a name away.
   * @param {boolean} step - the back button returns to how it was before.
   */
  set(changed, step = false) {
    const before = String(this.words);
    for (const [name, text] of Object.entries(changed)) {
      if (text === null || text === undefined || text === "") this.words.delete(name);
      else this.words.set(name, String(text));
    }
    if (String(this.words) === before) return;
    const hash = `#${this.path}${this.words.size ? `?${this.words}` : ""}`;
    if (step) history.pushState(null, "", hash);
    else history.replaceState(null, "", hash);
    this.query = parts(hash)[1];
  }

  /**
   * Read the address again: it is another one, by the back button or by hand. If the page is the same and something
   * follows, that is told which names have changed.
   * @returns {boolean} whether the page is the same.
   */
  moved() {
    const [path, words] = [this.path, this.words];
    this.#read();
    if (this.path !== path || !this.followers.size) return false;
    const names = new Set([...words.keys(), ...this.words.keys()].filter((name) => words.get(name) !== this.words.get(name)));
    if (names.size) for (const follower of this.followers) follower(names);
    return true;
  }
}

export const state = new State();
