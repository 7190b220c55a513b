/** How the reader wants to see a run's charts: which ranks, along which x, how smooth, how near. */

import { listOf, state, wordOf } from "./route.js";

export const X_CHOICES = { own: "as recorded", step: "step", relative: "relative time", wall: "wall time" };
const ZOOM = "zoom."; // names in the address: of an x axis
const RANGE = "y."; // of a chart
const HIDDEN = "hide."; // curves of a chart
const HEAT = "heat:";

export class View {
  constructor() {
    this.ranks = null; // a set of ranks as text; null for all
    this.began = 0; // the run, in nanoseconds
    this.marks = []; // events that are lines in charts: {time, name, bad, restart, text}
    this.followers = new Set();
    this.cards = new Set(); // those whose cursors go together
    this.#read();
  }

  #read() {
    this.x = state.get("x") in X_CHOICES ? state.get("x") : "own";
    this.weight = Math.max(0, Math.min(0.99, Number(state.get("smooth")) || 0));
    this.zooms = new Map(state.all(ZOOM).map(([key, text]) => [key, ends(text)]).filter(([, found]) => found));
  }

  /** The address has changed: tell followers what is another one now. */
  moved(names) {
    const before = [this.x, this.weight];
    this.#read();
    const changed = { zooms: this.zooms, ranges: true };
    if (before[0] !== this.x) changed.x = this.x;
    if (before[1] !== this.weight) changed.weight = this.weight;
    if ([...names].some((name) => name in { x: 1, smooth: 1 } || [ZOOM, RANGE, HIDDEN].some((beginning) => name.startsWith(beginning)))) this.#tell(changed);
  }

  #tell(changed) {
    for (const follower of this.followers) follower(changed);
  }

  /** Change some of it, and tell all who follow what has changed. */
  set(changed) {
    Object.assign(this, changed);
    state.set({ x: this.x === "own" ? null : this.x, smooth: this.weight || null });
    this.#tell(changed);
  }

  /** Show a part of all charts with an x axis; null for all of it. */
  zoom(key, found) {
    if (found) this.zooms.set(key, found);
    else this.zooms.delete(key);
    state.set({ [ZOOM + key]: found?.join(",") ?? null }, true);
    this.#tell({ zooms: this.zooms });
  }

  /** Return how a chart's y axes are to be: {log, robust, heat: the order of a heat map, ends: a pair by axis}. */
  range(chart) {
    const words = (state.get(RANGE + chart) ?? "").split(";");
    const found = words.map((word) => /^(.*)=([^=]*)$/.exec(word)).filter(Boolean).map(([, key, text]) => [key, ends(text)]);
    return { log: words.includes("log"), robust: words.includes("robust"), heat: words.find((word) => word.startsWith(HEAT))?.slice(HEAT.length) ?? null, ends: Object.fromEntries(found.filter(([, pair]) => pair)) };
  }

  /** Keep how a chart's y axes are. */
  keepRange(chart, { log, robust, heat, ends: pairs }, step = false) {
    const words = [log ? "log" : "", robust ? "robust" : "", heat ? HEAT + heat : "", ...Object.entries(pairs).map(([key, pair]) => `${key}=${pair.join(",")}`)];
    state.set({ [RANGE + chart]: words.filter(Boolean).join(";") }, step);
  }

  /** Return the keys of a chart's curves that are switched off. */
  hidden(chart) {
    return new Set(listOf(state.get(HIDDEN + chart)));
  }

  keepHidden(chart, keys) {
    state.set({ [HIDDEN + chart]: wordOf(keys) });
  }

  /** Tell whether points can be shown as they come: along their own x. */
  get plain() {
    return this.x === "own";
  }

  /** Tell whether x is a time. */
  get timed() {
    return this.x === "relative" || this.x === "wall";
  }

  wants(rank) {
    return this.ranks === null || rank === null || this.ranks.has(String(rank));
  }
}

/** Return the two numbers of "3,8", ascending; null where it is none. */
function ends(text) {
  const found = text.split(",").map(Number);
  return found.length === 2 && found.every(Number.isFinite) && found[0] < found[1] && !text.split(",").includes("") ? found : null;
}
