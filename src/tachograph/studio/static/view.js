/** How the reader wants to see a run's charts: which ranks, how smooth, against which other run. */

/** Settings that charts follow. */
export class View {
  constructor() {
    this.ranks = null; // a set of ranks as text; null for all
    this.weight = 0;
    this.compare = null;
    this.compared = new Set(); // what the other run has: group and metric
    this.followers = new Set();
  }

  /** Change some of it, and tell all who follow what has changed. */
  set(changed) {
    Object.assign(this, changed);
    for (const follower of this.followers) follower(changed);
  }

  /** Tell whether a rank is wanted. */
  wants(rank) {
    return this.ranks === null || rank === null || this.ranks.has(String(rank));
  }
}
