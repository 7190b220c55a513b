/** A chart in its card: loaded when it comes into view, drawn when something has changed. */

import { lookBack } from "./average.js";
import { Curve, FULL } from "./curve.js";
import { element, say, small } from "./element.js";
import { count, number } from "./format.js";
import { across } from "./extent.js";
import { forget, invalidate } from "./frame.js";
import { Heat, ORDERS, VALUES, mapOf, spreadOf } from "./heat.js";
import { Hover } from "./hover.js";
import { Legend, latestOf } from "./legend.js";
import { choice, endsRow, Menu } from "./menu.js";
import { csvOf, pngOf, save, svgOf } from "./picture.js";
import { Plot } from "./plot.js";
import { many, together } from "./ranks.js";
import { MARKS } from "./strokes.js";
import { dress, nameOf, resumed } from "./style.js";
import { Numbers } from "./table.js";
import { follow } from "./theme.js";
import { axisOf, placing } from "./xaxis.js";

const AGAIN = 1000; // milliseconds between two fetches of what has grown too long
const RETRY = 5000; // milliseconds until what failed is fetched again
const TABLE = 2000; // milliseconds between two looks at the numbers of a chart that is live
const WAITING = 64; // messages; what is missing after them is fetched again
const NEAR = "300px"; // how far out of view a chart is loaded
const MOST_BACK = 3; // widths of what is seen that are fetched before it, for an average
const seen = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => seen.get(target)?.view(isIntersecting)),
  { rootMargin: NEAR },
);
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => invalidate(seen.get(target.parentNode), true)));

export class Card {
  /** @param {Object} source - {title, section, axes, names, lanes, load({low, high, signal}), hint, remark}. */
  constructor(source, view) {
    this.source = source;
    this.settings = view;
    this.base = null;
    this.detail = null; // curves of the part that is seen
    this.detailed = { zoom: "", from: 0 };
    this.axis = axisOf(source, view.x);
    this.id = `${source.section ?? ""}/${source.title}`;
    this.range = view.range(this.id);
    this.apart = false; // whether each of many ranks is drawn by itself
    this.hidden = view.hidden(this.id);
    this.inView = false;
    this.loading = null;
    this.waiting = []; // what came live while it was loading
    this.fetchedAt = 0;
    this.words = "";
    this.trouble = ""; // why there is no detail
    this.legend = new Legend((key) => this.#toggle(key));
    this.hover = new Hover(this.axis);
    this.#make();
    this.plot = new Plot(this.host, { x: this.axis, y: source.axes.y }, {
      zoom: (x, y) => this.zoomTo(x, y),
      near: (x, factor) => this.#near(x, factor),
      reset: () => this.reset(),
      cursor: (plot) => this.#cursor(plot),
    });
    view.cards.add(this);
    this.unfollow = follow(() => invalidate(this, true));
    seen.set(this.node, this);
    observer.observe(this.node);
    widths.observe(this.host);
    widths.observe(this.heat.node);
  }

  #make() {
    this.logButton = small("log", "Logarithmic y axes (l)", () => this.toggleLog());
    this.logButton.setAttribute("aria-pressed", "false");
    this.apartButton = small("ranks", "Each rank by itself (a)", () => this.toggleApart());
    this.apartButton.setAttribute("aria-pressed", "false");
    this.apartButton.hidden = true;
    this.heatButton = small("heat map", "As a heat map: of ranks, or of values (h)", () => this.toggleHeat());
    this.heatButton.hidden = true;
    this.heat = new Heat();
    this.tableButton = small("table", "The numbers behind it (t)", () => this.toggleTable());
    this.tableButton.setAttribute("aria-expanded", "false");
    this.menu = new Menu(this.source.title, () => this.#rows());
    this.resetButton = small("Reset", "Show all of it (r, or double-click)", () => this.reset());
    this.resetButton.hidden = true;
    this.state = element("p", { class: "state", role: "status", text: "loading …" });
    this.host = element("div", { class: "plot" }, this.state, this.resetButton);
    this.note = element("span", { class: "note" });
    this.numbers = new Numbers();
    this.table = this.numbers.node;
    this.title = element("h3", { text: this.source.title, title: this.source.title });
    this.latest = element("span", { class: "latest number" });
    this.tools = element("span", { class: "card-tools" }, this.heatButton, this.apartButton, this.logButton, this.tableButton, this.menu.node);
    this.node = element(
      "section",
      { class: "card", tabindex: "0", "aria-label": `Chart ${this.source.title}`, on: { keydown: (event) => this.#key(event) } },
      element("header", {}, this.source.section ? element("span", { class: "of quiet", text: `${this.source.section} /` }) : null, this.title, this.latest, this.note, this.tools),
      this.host, this.heat.node, this.legend.node, this.table,
    );
  }

  /** It has come into view, or left it. */
  view(inView) {
    this.inView = inView;
    if (!inView) return;
    if (this.base === null || this.stale) this.load();
    else if (this.zoom && !this.#isDetailed()) this.seen();
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
    const axis = axisOf(this.source, this.settings.x);
    if (this.base === null) say(this.state, "loading …");
    try {
      const found = await this.#fetched({ signal: this.loading.signal }, axis);
      this.base = found;
      this.#turn(axis);
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

  /** Return the curves of a part of an axis: samples have the time, and that since the start is counted here. */
  async #fetched({ low = null, high = null, signal }, axis) {
    const since = axis.elapsed && this.source.axes.x.time ? this.settings.began / 1e9 : 0;
    const found = await this.source.load({ low: low === null ? null : low + since, high: high === null ? null : high + since, signal });
    if (since) for (const curve of found) curve.x = curve.x.map((x) => x - since);
    return found;
  }

  #turn(axis) {
    if (axis.key === this.axis.key && axis.lower === this.axis.lower && axis.upper === this.axis.upper) return;
    this.detail = null;
    this.axis = this.hover.x = axis;
    this.plot.change({ x: axis, y: this.source.axes.y });
  }

  /** The reader wants another x axis: what is there is fetched again. */
  renew() {
    this.fetchedAt = 0;
    clearTimeout(this.later);
    this.later = null;
    this.load();
  }

  /** The part of x that is shown; null for all of it, and where nothing is in that part. */
  get zoom() {
    const found = this.settings.zooms.get(this.axis.key);
    const ends = found && this.base ? across(this.base) : null;
    return ends && found[0] <= ends[1] && found[1] >= ends[0] ? found : null;
  }

  #again() {
    this.later = null;
    if (this.stale) this.load();
  }

  /** The last number of a curve that is here; -1 where there is none. */
  head(number) {
    let head = -1;
    for (const curve of this.base ?? []) if (curve.number === number) head = Math.max(head, curve.seq);
    return head;
  }

  /** Take points that came live: `curves` as the event has them, `about` what tells a curve number from others. */
  add(curves, about) {
    if (this.loading && this.waiting.length < WAITING) this.waiting.push([curves, about]);
    if (this.base === null || this.loading || this.stale) return; // what is fetched next has them
    if (!this.settings.plain) {
      this.load(); // where they are along another x is for the hub to say
      return;
    }
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
    const found = (curves) => curves?.find((curve) => curve.number === number && curve.branch === branch);
    let known = found(this.base);
    if (!known) {
      known = new Curve({ curve: number, branch, start: about.start, x: [], y: [], points: 0 }, about);
      this.base.push(known);
    }
    known.append(points, seq, after < head);
    if (Math.max(known.length, known.nonfinite.length) > FULL * this.source.pairs) this.load();
    found(this.detail)?.append(points.filter(([x]) => x <= (this.zoom?.[1] ?? Infinity)), seq, true);
  }

  draw() {
    const near = this.zoom && this.detailed.zoom === String(this.zoom) ? this.detail : null;
    const wanted = ({ rank }) => this.settings.wants(rank);
    const found = (near ?? this.base ?? []).filter(wanted);
    this.apartButton.hidden = !many(this.source.lanes) || this.settings.ranks !== null;
    const joined = !this.apartButton.hidden && !this.apart;
    const curves = joined ? together(found) : found;
    if (near && this.settings.weight) {
      const base = this.base.filter(wanted);
      goOn(curves, joined ? together(base) : base);
    }
    say(this.state, curves.length && !this.words ? "" : this.words || (this.base ? "no points yet" : "loading …"));
    this.state.hidden = this.state.textContent === "";
    for (const curve of curves) curve.format = this.source.axes.y.find(({ key }) => key === curve.scale)?.format;
    const mapped = this.#heat(found);
    const lanes = joined ? [] : this.source.lanes;
    this.entries = dress(curves, this.source.names, lanes, this.hidden, this.source.byLane && !joined);
    const [first, ...more] = this.entries;
    this.legend.show(more.length ? this.entries : [], this.hidden);
    this.legend.node.hidden = !more.length;
    say(this.latest, more.length || !first?.curve ? "" : latestOf(first.curve));
    if (!mapped && (this.plot.u || curves.some((curve) => curve.length || curve.nonfinite.length))) {
      const { log, robust, ends } = this.range;
      Object.assign(this.plot, { weight: this.settings.weight, zoomed: this.zoom, log, robust, ends, marks: this.#marks(found) });
      this.plot.draw(curves.filter((curve) => curve.visible));
    }
    this.logButton.setAttribute("aria-pressed", String(this.range.log));
    this.resetButton.hidden = !this.zoom && !Object.keys(this.range.ends).length;
    const notes = [this.trouble, this.source.remark, ...(mapped ? [] : this.#notes(curves))];
    say(this.note, notes.filter(Boolean).join(" · "));
    if (!this.table.hidden) this.renewing ??= setTimeout(() => this.#renewTable(), this.table.firstChild ? TABLE : 0);
  }

  /** Return what is to be said of the curves that are drawn. */
  #notes(curves) {
    const odd = Object.keys(MARKS).filter((kind) => curves.some((curve) => curve.nonfinite.some((each) => each[1] === kind)));
    const bad = odd.map((kind) => `${MARKS[kind]} ${number(kind)}`).join(", ");
    const ranks = Math.max(0, ...curves.map((curve) => curve.ranks ?? 0));
    return [ranks ? `median of ${ranks} ranks, from least to greatest` : "", resumed(curves), bad ? `${bad}: not a finite number` : "", this.plot.outside ? "▲ beyond the axis" : "", this.plot.below && this.range.log ? `${count(this.plot.below, "value is", "values are")} not above 0: a logarithmic axis has none of them` : "", this.#axes()];
  }

  /** Say of axes without a name what they are: the first is left, the second right. */
  #axes() {
    const [left, right] = this.plot.unnamed;
    return [left && `← ${left}`, right && `${right} →`].filter(Boolean).join(" · ");
  }

  /** Draw a heat map, where one is wanted that there is; return whether it is so. */
  #heat(curves) {
    const { heat } = this.range;
    const ranked = curves.filter(({ rank }) => rank !== null);
    this.orders = { ...(this.source.spread ? { [VALUES]: "of all values" } : {}), ...(new Set(ranked.map(({ rank }) => rank)).size > 1 ? ORDERS : {}) };
    this.heatButton.hidden = !Object.keys(this.orders).length;
    const wanted = heat in this.orders;
    this.heatButton.setAttribute("aria-pressed", String(wanted));
    this.host.hidden = wanted;
    if (wanted && (heat === VALUES || this.source.names.length < 2)) this.legend.node.hidden = true; // else the metric is chosen there
    this.heat.node.hidden = !wanted;
    if (!wanted) return false;
    if (heat === VALUES) this.#spread();
    else {
      const shown = this.source.names.find((name) => ranked.some((curve) => nameOf(curve) === name && !this.hidden.has(curve.key) && !this.hidden.has(`${name}\n`)));
      this.heat.draw((most) => mapOf(ranked.filter((curve) => nameOf(curve) === shown), this.zoom, most, heat), this.axis);
    }
    return true;
  }

  /** Draw how the values spread, as it was fetched for the time and the ranks that are seen. */
  #spread() {
    const since = this.axis.elapsed ? this.settings.began / 1e9 : 0;
    const wanted = `${this.fetchedAt} ${this.zoom} ${[...(this.settings.ranks ?? [])]}`;
    if (this.spreadOf !== wanted) {
      this.spreadOf = wanted;
      const found = (spread, trouble) => {
        Object.assign(this, { spread, trouble });
        invalidate(this, true);
      };
      this.source.spread(...(this.zoom ?? []).map((each) => each + since)).then((answer) => found(answer, ""), (error) => found(null, error.message));
    }
    const { title, axes: { y: [{ format }] } } = this.source;
    if (this.spread) this.heat.draw(() => spreadOf(this.spread, { title, since, format: (value) => format?.(value) ?? number(value, 3) }), this.axis);
  }

  toggleHeat() {
    if (this.heatButton.hidden) return;
    this.#set({ heat: this.range.heat ? null : this.source.spread ? VALUES : "deviation" });
  }

  /** Return the events that have a place on the axis. */
  #marks(curves) {
    const { marks, began } = this.settings;
    if (!marks.length) return [];
    const place = placing(this.axis, began, curves);
    return marks.map((each) => ({ ...each, x: place(each) })).filter(({ x }) => x !== null);
  }

  /** Show what another source has: the same chart with a metric more, or one less, or with other axes. */
  take(source) {
    this.source = source;
    this.axis = this.hover.x = axisOf(source, this.settings.x);
    this.plot.change({ x: this.axis, y: source.axes.y });
    say(this.title, source.title);
    this.fetchedAt = 0;
    this.load();
  }

  /** Return what is drawn: for tests, and the curious. */
  drawn() {
    const { about, axis, base, heat, plot, range, settings, source, zoom } = this;
    const curves = (plot.curves ?? []).map((curve) => {
      const { metric, attributes, label, rank, lane, start, branch, scale, colour, exact, x, y, line, dash, band = null, extremes = null, nonfinite } = curve;
      const kept = { x, y: settings.weight ? curve.smoothed(settings.weight) : y, line, band, extremes, nonfinite };
      return { metric, attributes, label, rank, lane, start, branch, scale, colour, exact, dash, ...structuredClone(kept) };
    });
    return {
      title: source.title, section: source.section, runs: source.runs, series: !about, loaded: base !== null, zoom, log: plot.log, along: axis.key, x: axis, ends: plot.ends, ticks: plot.labels.x?.texts ?? [],
      y: source.axes.y.map(({ key, label, lower, upper }) => ({ key, label, lower, upper })), marks: plot.marks.map(({ x, name, bad }) => ({ x, name, bad })),
      heat: range.heat && heat.map?.rows.map(({ rank, label }) => rank ?? label),
      scales: plot.u ? Object.fromEntries(Object.entries(plot.u.scales).map(([key, { min, max }]) => [key, [min, max]])) : {}, curves,
    };
  }

  /** Show a part of it: of x in all charts that have the same, of y in this one. */
  zoomTo(x, y = null) {
    if (y) this.#set({ ends: { ...this.range.ends, ...y } }, !x);
    if (x) this.settings.zoom(this.axis.key, x);
  }

  /** Another part of x or of y is to be seen: detail is fetched, where there is more. */
  async seen() {
    this.range = this.settings.range(this.id);
    this.hidden = this.settings.hidden(this.id);
    invalidate(this, true);
    if (!this.inView) return; // what it needs is fetched when it comes into view
    const zoom = this.zoom;
    if (zoom && this.#isDetailed()) {
      this.draw();
      return;
    }
    if (!zoom) {
      this.zooming?.abort();
      this.detail = null;
    } else if (this.inView) await this.#fetchDetail();
    this.draw();
    this.#renewTable();
  }

  #isDetailed() {
    return this.detail !== null && this.detailed.zoom === String(this.zoom) && this.detailed.from <= this.#from();
  }

  /** Return where the detail begins: an average of what is seen looks back. */
  #from() {
    const [low, high] = this.zoom;
    const distance = Math.max(0, ...this.base.map((curve) => curve.distance));
    return low - Math.min(MOST_BACK * (high - low), lookBack(this.settings.weight) * distance);
  }

  #near(x, factor) {
    const { min, max } = this.plot.u.scales.x;
    const [low, high] = [x - (x - min) * factor, x + (max - x) * factor];
    const ends = across(this.base) ?? [low, high];
    if (low <= ends[0] && high >= ends[1]) this.settings.zoom(this.axis.key, null);
    else if (high - low > 1e-9 * Math.max(Math.abs(low), Math.abs(high))) this.settings.zoom(this.axis.key, [low, high]);
  }

  #move(part) {
    const { min, max } = this.plot.u.scales.x;
    if (this.zoom) this.settings.zoom(this.axis.key, [min + part * (max - min), max + part * (max - min)]);
  }

  /** Have the cursors of all charts with the same x be at the same one. */
  #cursor(plot) {
    this.hover.show(plot);
    const { left } = plot.u.cursor;
    const x = left >= 0 ? plot.u.posToVal(left, "x") : null;
    for (const card of this.settings.cards) if (card !== this && card.inView && card.axis.key === this.axis.key) card.follow(x);
  }

  follow(x) {
    const { u } = this.plot;
    if (u) this.hover.follow(u, x === null || x < u.scales.x.min || x > u.scales.x.max ? null : u.valToPos(x, "x"));
  }

  async #fetchDetail() {
    this.zooming?.abort();
    if (this.detailed.zoom !== String(this.zoom)) this.detail = null;
    if (this.base === null || this.base.every((curve) => curve.exact)) return;
    const zooming = new AbortController();
    this.zooming = zooming;
    try {
      const zoom = String(this.zoom);
      const from = this.#from();
      const found = await this.#fetched({ low: from, high: this.zoom[1], signal: zooming.signal }, this.axis);
      if (this.zooming === zooming && this.zoom) {
        this.detail = found;
        this.detailed = { zoom, from };
      }
      this.trouble = "";
    } catch (error) {
      if (error.name !== "AbortError") this.trouble = error.message; // what is there is drawn, coarse as it is
    }
  }

  reset() {
    if (Object.keys(this.range.ends).length) this.#set({ ends: {} });
    if (this.settings.zooms.has(this.axis.key)) this.settings.zoom(this.axis.key, null);
  }

  /** Have other y axes, and keep that in the address. */
  #set(changed, step = false) {
    this.settings.keepRange(this.id, { ...this.range, ...changed }, step);
    this.range = this.settings.range(this.id);
    this.menu.show();
    this.draw();
  }

  toggleLog() {
    this.#set({ log: !this.range.log });
  }

  #rows() {
    const { log, robust, ends } = this.range;
    const shown = this.source.axes.y.filter(({ key }) => this.plot.u?.scales[key]?.min !== null && this.plot.u?.scales[key] !== undefined);
    return [
      choice("Y axis", [["linear", "linear"], ["log", "logarithmic"]], log ? "log" : "linear", (key) => this.#set({ log: key === "log" })),
      choice("Range", [["all", "all values"], ["robust", "without outliers"]], robust ? "robust" : "all", (key) => this.#set({ robust: key === "robust" })),
      this.heatButton.hidden ? null : choice("Heat map", [["", "none"], ...Object.entries(this.orders)], this.range.heat ?? "", (key) => this.#set({ heat: key || null })),
      this.#pictures(),
      ...shown.map(({ key, label }) => {
        const { min, max } = this.plot.u.scales[key];
        return endsRow(label || "From – to", ends[key], [min, max], (pair) => {
          const { [key]: _, ...others } = this.range.ends;
          this.#set({ ends: pair ? { ...others, [key]: pair } : others });
        });
      }),
    ];
  }

  /** Return the row of a menu that shows the chart on the whole screen, and keeps it as a file. */
  #pictures() {
    const { title } = this.source;
    const after = (act) => () => {
      this.menu.close();
      act();
    };
    return element("div", { class: "menu-row", role: "group", "aria-label": "Chart" },
      small("full screen", "The whole screen (f)", after(() => this.toggleFull())),
      small("PNG", "A picture of pixels", after(async () => save(`${title}.png`, "image/png", await pngOf(this)))),
      small("SVG", "A picture of lines", after(() => save(`${title}.svg`, "image/svg+xml", svgOf(this)))),
      small("CSV", "The points that are seen", after(() => save(`${title}.csv`, "text/csv", csvOf(this)))));
  }

  toggleFull() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.node.requestFullscreen?.();
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
    if (this.table.hidden) this.numbers.clear();
    else this.#renewTable();
  }

  #renewTable() {
    clearTimeout(this.renewing);
    this.renewing = null;
    if (!this.table.hidden) this.numbers.show(this.plot.curves, this.source);
  }

  #toggle(key) {
    if (!this.hidden.delete(key)) this.hidden.add(key);
    this.settings.keepHidden(this.id, this.hidden);
    invalidate(this, true);
  }

  #key(event) {
    if (event.target !== this.node || event.ctrlKey || event.metaKey || event.altKey) return;
    const middle = () => (this.plot.u.cursor.left >= 0 ? this.plot.u.posToVal(this.plot.u.cursor.left, "x") : (this.plot.u.scales.x.min + this.plot.u.scales.x.max) / 2);
    const act = { h: () => this.toggleHeat(), f: () => this.toggleFull(), m: () => this.menu.summary.click(), "+": () => this.#near(middle(), 0.5), "-": () => this.#near(middle(), 2), "<": () => this.#move(-0.5), ">": () => this.#move(0.5), r: () => this.reset(), l: () => this.toggleLog(), a: () => this.toggleApart(), t: () => this.toggleTable(), Escape: () => this.hover.hide() };
    if (act[event.key] && (this.plot.u || !"+-<>".includes(event.key))) act[event.key]();
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
    this.settings.cards.delete(this);
    this.menu.close();
    widths.unobserve(this.host);
    widths.unobserve(this.heat.node);
    this.unfollow();
    this.loading?.abort();
    this.zooming?.abort();
    clearTimeout(this.later);
    clearTimeout(this.renewing);
    forget(this);
    this.plot.destroy();
    this.node.remove();
    this.inView = false;
  }
}

/** Have averages of curves that are a part of others go on from those before that part. */
function goOn(curves, whole) {
  const key = ({ run, number, branch }) => JSON.stringify([run, number, branch]);
  const earlier = new Map(whole.map((curve) => [key(curve), curve]));
  for (const curve of curves) curve.earlier = earlier.get(key(curve)) ?? null;
}
