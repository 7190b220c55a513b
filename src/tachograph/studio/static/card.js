/** A chart in its card: loaded when it comes into view, drawn when something has changed. */

import { Curve } from "./curve.js";
import { element, fill, say } from "./element.js";
import { number } from "./format.js";
import { forget, invalidate } from "./frame.js";
import { Hover } from "./hover.js";
import { Legend } from "./legend.js";
import { Plot } from "./plot.js";
import { many, together } from "./ranks.js";
import { MARKS } from "./strokes.js";
import { dress, resumed } from "./style.js";
import { showTable } from "./table.js";
import { follow } from "./theme.js";

const AGAIN = 1000; // milliseconds between two fetches of what has grown too long
const RETRY = 5000; // milliseconds until what failed is fetched again
const WAITING = 64; // messages; what is missing after them is fetched again
const NEAR = "300px"; // how far out of view a chart is loaded
const seen = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => seen.get(target)?.view(isIntersecting)),
  { rootMargin: NEAR },
);
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => invalidate(seen.get(target.parentNode), true)));

/** Shows what a source has. */
export class Card {
  /**
   * @param {Object} source - {title, section, axes, names, lanes, load({low, high, signal}), hint, remark}.
   * @param {View} view - what the reader wants to see.
   */
  constructor(source, view) {
    this.source = source;
    this.settings = view;
    this.base = null;
    this.detail = null;
    this.zoom = null;
    this.apart = false; // whether each of many ranks is drawn by itself
    this.hidden = new Set();
    this.inView = false;
    this.loading = null;
    this.waiting = []; // what came live while it was loading
    this.fetchedAt = 0;
    this.words = "";
    this.trouble = ""; // why there is no detail
    this.legend = new Legend((key) => this.#toggle(key));
    this.hover = new Hover(source.axes.x);
    this.#make();
    this.plot = new Plot(this.host, source.axes, {
      zoom: (low, high) => this.zoomTo(low, high),
      reset: () => this.reset(),
      cursor: (plot) => this.hover.show(plot),
    });
    this.unfollow = follow(() => invalidate(this, true));
    seen.set(this.node, this);
    observer.observe(this.node);
    widths.observe(this.host);
  }

  #make() {
    const button = (text, title, press) =>
      element("button", { type: "button", class: "plain small", title, text, on: { click: press } });
    this.logButton = button("log", "Logarithmic y axes (l)", () => this.toggleLog());
    this.logButton.setAttribute("aria-pressed", "false");
    this.apartButton = button("ranks", "Each rank by itself (a)", () => this.toggleApart());
    this.apartButton.setAttribute("aria-pressed", "false");
    this.apartButton.hidden = true;
    this.tableButton = button("table", "The numbers behind it (t)", () => this.toggleTable());
    this.tableButton.setAttribute("aria-expanded", "false");
    this.resetButton = button("reset zoom", "All of it (r, or double-click)", () => this.reset());
    this.resetButton.hidden = true;
    this.state = element("p", { class: "state", role: "status", text: "loading …" });
    this.host = element("div", { class: "plot" }, this.state);
    this.note = element("span", { class: "note" });
    this.table = element("div", { class: "table-behind", hidden: true });
    this.title = element("h3", { text: this.source.title });
    this.node = element(
      "section",
      { class: "card", tabindex: "0", "aria-label": `Chart ${this.source.title}`, on: { keydown: (event) => this.#key(event) } },
      element("header", {}, this.source.section ? element("span", { class: "of quiet", text: `${this.source.section} /` }) : null, this.title, this.note, this.resetButton, this.apartButton, this.logButton, this.tableButton),
      this.host, this.legend.node, this.table,
    );
  }

  /** It has come into view, or left it. */
  view(inView) {
    this.inView = inView;
    if (!inView) return;
    if (this.base === null || this.stale) this.load();
    invalidate(this);
  }

  /** Fetch it, once it is in view. */
  async load() {
    this.stale = true;
    if (!this.inView || this.loading) return;
    const wait = this.fetchedAt + AGAIN - performance.now();
    if (this.base !== null && wait > 0) {
      this.later ??= setTimeout(() => this.#again(), wait);
      return;
    }
    this.stale = false;
    this.waiting = [];
    this.loading = new AbortController();
    if (this.base === null) say(this.state, "loading …");
    try {
      const found = await this.source.load({ signal: this.loading.signal });
      this.base = found;
      this.words = found.some((curve) => curve.length || curve.nonfinite.length) ? "" : "no points yet";
      this.loading = null;
      this.fetchedAt = performance.now();
      for (const [curves, about] of this.waiting.splice(0)) this.add(curves, about);
      if (this.stale) this.load();
      if (this.zoom) await this.#fetchDetail();
    } catch (error) {
      this.loading = null;
      if (error.name === "AbortError") return;
      this.words = error.message;
      this.stale = true;
      this.later ??= setTimeout(() => this.#again(), RETRY);
    }
    invalidate(this, true);
  }

  #again() {
    this.later = null;
    if (this.stale) this.load();
  }

  /** The last number of a curve that is here; -1 where there is none. */
  head(number) {
    let head = -1;
    for (const curve of this.base ?? []) if (curve.number === number && !curve.compared) head = Math.max(head, curve.seq);
    return head;
  }

  /** Take points that came live: `curves` as the event has them, `about` what tells a curve number from others. */
  add(curves, about) {
    if (this.loading && this.waiting.length < WAITING) this.waiting.push([curves, about]);
    if (this.base === null || this.loading || this.stale) return; // what is fetched next has them
    for (const entry of curves) this.#addOne(entry, about.get(entry.curve));
    this.words = "";
    invalidate(this);
  }

  #addOne({ curve: number, branch, points, seq, after }, about) {
    const head = this.head(number);
    if (seq <= head) return;
    if (!about || (after > head && head >= 0)) {
      this.load(); // something is missing
      return;
    }
    const found = (curves) => curves?.find((curve) => curve.number === number && curve.branch === branch && !curve.compared);
    let known = found(this.base);
    if (!known) {
      known = new Curve({ curve: number, branch, start: about.start, x: [], y: [], points: 0 }, about);
      this.base.push(known);
    }
    if (!known.append(points, seq, after < head)) this.load();
    found(this.detail)?.append(points.filter(([x]) => x <= this.zoom[1]), seq, true);
  }

  /** Draw it as it is now. */
  draw() {
    const found = (this.detail ?? this.base ?? []).filter(({ rank }) => this.settings.wants(rank));
    this.apartButton.hidden = !many(this.source.lanes) || this.settings.ranks !== null;
    const joined = !this.apartButton.hidden && !this.apart;
    const curves = joined ? together(found) : found;
    say(this.state, curves.length && !this.words ? "" : this.words || (this.base ? "no points yet" : "loading …"));
    this.state.hidden = this.state.textContent === "";
    for (const curve of curves) curve.format = this.source.axes.y.find(({ key }) => key === curve.scale)?.format;
    const lanes = joined ? [] : this.source.lanes;
    this.entries = dress(curves, this.source.names, lanes, this.hidden, this.source.byLane && !joined);
    this.legend.show(this.entries, this.hidden);
    if (this.plot.u || curves.some((curve) => curve.length || curve.nonfinite.length)) {
      this.plot.weight = this.settings.weight;
      this.plot.zoomed = this.zoom;
      this.plot.draw(curves.filter((curve) => curve.visible));
    }
    const odd = Object.keys(MARKS).filter((kind) => curves.some((curve) => curve.nonfinite.some((each) => each[1] === kind)));
    const bad = odd.map((kind) => `${MARKS[kind]} ${number(kind)}`).join(", ");
    const ranks = Math.max(0, ...curves.map((curve) => curve.ranks ?? 0));
    const notes = [this.trouble, this.source.remark, ranks ? `median of ${ranks} ranks, from least to greatest` : "", resumed(curves), bad ? `${bad}: not a finite number` : "", this.plot.outside ? "▲ beyond the axis" : "", this.#axes()];
    say(this.note, notes.filter(Boolean).join(" · "));
  }

  /** Say of axes without a name what they are: the first is left, the second right. */
  #axes() {
    const [left, right] = this.plot.unnamed;
    return [left && `← ${left}`, right && `${right} →`].filter(Boolean).join(" · ");
  }

  /** Show what another source has: the same chart with a metric more, or one less, or with other axes. */
  take(source) {
    this.source = source;
    this.hover.x = source.axes.x;
    this.plot.change(source.axes);
    say(this.title, source.title);
    this.fetchedAt = 0;
    this.load();
  }

  /** Return what is drawn: for tests, and the curious. */
  drawn() {
    return (this.plot.curves ?? []).map((curve) => ({
      metric: curve.metric, attributes: curve.attributes, label: curve.label, rank: curve.rank, lane: curve.lane, start: curve.start, branch: curve.branch,
      compared: curve.compared ?? null, scale: curve.scale, colour: curve.colour, exact: curve.exact,
      x: [...curve.x], y: [...curve.smoothed(this.settings.weight)], band: curve.band ?? null, extremes: curve.extremes ?? null, nonfinite: curve.nonfinite.map((each) => [...each]),
    }));
  }

  /** Show a part of it, in detail. */
  async zoomTo(low, high) {
    this.zoom = [low, high];
    this.resetButton.hidden = false;
    invalidate(this, true);
    await this.#fetchDetail();
    this.draw();
    this.#renewTable();
  }

  async #fetchDetail() {
    const [low, high] = this.zoom;
    this.zooming?.abort();
    this.detail = null;
    if (this.base === null || this.base.every((curve) => curve.exact)) return;
    const zooming = new AbortController();
    this.zooming = zooming;
    try {
      const found = await this.source.load({ low, high, signal: zooming.signal });
      if (this.zooming === zooming && this.zoom) this.detail = found;
      this.trouble = "";
    } catch (error) {
      if (error.name !== "AbortError") this.trouble = error.message; // what is there is drawn, coarse as it is
    }
  }

  /** Show all of it again. */
  reset() {
    this.zooming?.abort();
    this.zoom = this.detail = null;
    this.resetButton.hidden = true;
    this.draw();
    this.#renewTable();
  }

  toggleLog() {
    this.plot.log = !this.plot.log;
    this.logButton.setAttribute("aria-pressed", String(this.plot.log));
    invalidate(this, true);
  }

  toggleApart() {
    if (this.apartButton.hidden) return;
    this.apart = !this.apart;
    this.apartButton.setAttribute("aria-pressed", String(this.apart));
    this.draw();
    this.#renewTable();
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-expanded", String(!this.table.hidden));
    if (this.table.hidden) fill(this.table);
    else this.#renewTable();
  }

  #renewTable() {
    if (!this.table.hidden) showTable(this.table, this.plot.curves, this.source);
  }

  #toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    invalidate(this, true);
  }

  #key(event) {
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = { r: () => this.reset(), l: () => this.toggleLog(), a: () => this.toggleApart(), t: () => this.toggleTable(), Escape: () => this.hover.hide() };
    if (act[event.key]) act[event.key]();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") this.#step(event.key === "ArrowRight" ? 1 : -1);
    else return;
    event.preventDefault();
  }

  /** Move the cursor from point to point of the first curve, and say what is there. */
  #step(by) {
    const { u, curves } = this.plot;
    const curve = curves.find((each) => each.length);
    if (!u || !curve) return;
    const { left } = u.cursor;
    const at = left >= 0 ? curve.nearest(u.posToVal(left, "x")) + by : by > 0 ? 0 : curve.length - 1;
    const place = Math.max(0, Math.min(curve.length - 1, at));
    u.setCursor({ left: u.valToPos(curve.x[place], "x"), top: u.valToPos(curve.y[place], curve.scale) }, true);
    this.node.setAttribute("aria-description", this.hover.told);
  }

  destroy() {
    observer.unobserve(this.node);
    widths.unobserve(this.host);
    this.unfollow();
    this.loading?.abort();
    this.zooming?.abort();
    clearTimeout(this.later);
    forget(this);
    this.plot.destroy();
    this.node.remove();
    this.inView = false;
  }
}
