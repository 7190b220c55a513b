/** The sections of a run's page, each with the cards of its charts: those of groups in full, others folded up. */

import { Arrangement, arrange } from "./arrangement.js";
import { Card } from "./card.js";
import { button, element, fill, inOrder, say, small } from "./element.js";
import { count as counted } from "./format.js";
import { MetricChart } from "./metrics.js";
import { groupsOf } from "./groups.js";
import { matcher, nearest } from "./near.js";
import { state } from "./route.js";
import { SeriesChart } from "./samples.js";
import { Values, valuesOf } from "./values.js";

const FEW = 8; // charts of a group; more are drawn smaller
const MOST_ABREAST = 6; // charts of a group that share a row with another group's
const OPEN = 4; // functions; the charts of more are folded up

export class Sections {
  constructor(run, view) {
    this.run = run;
    this.view = view;
    this.sections = new Map();
    this.order = []; // of their keys
    this.groups = element("div", { class: "groups" });
    this.values = new Values();
    this.folded = element("div");
    this.byCurve = new Map(); // cards
    this.bySeries = new Map();
    this.arrangement = new Arrangement();
    this.answer = null;
    this.#bar();
    this.moved = (names) => {
      if (![...names].some((name) => ["find", "pin", "fold", "order"].includes(name))) return;
      this.find.value = state.get("find") ?? "";
      this.arrangement.read();
      this.#again();
    };
    state.followers.add(this.moved);
  }

  /** Make the field that searches, and the button that arranges. */
  #bar() {
    this.find = element("input", { type: "search", "aria-label": "Search metrics", placeholder: "metrics, or /regex/", spellcheck: "false", value: state.get("find") ?? "" });
    this.find.addEventListener("input", () => {
      state.set({ find: this.find.value });
      this.#again();
    });
    this.words = element("span", { class: "quiet number", role: "status" });
    this.dialog = element("dialog", { "aria-label": "Sections", on: { close: () => this.dialog.remove() } });
    const listed = () => this.order.map((key) => this.sections.get(key).about);
    this.bar = element("div", { class: "find", hidden: true }, this.find,
      small("Sections …", "", () => {
        this.bar.append(this.dialog);
        arrange(this.dialog, listed, this.arrangement, () => this.#again());
      }),
      this.words);
  }

  #again() {
    if (this.answer) this.show(this.answer);
  }

  /** Say how many charts are found; where there is none, the nearest name. */
  #said(found, charts, problem) {
    const text = this.find.value.trim();
    this.find.setAttribute("aria-invalid", String(problem !== ""));
    const names = found ? [] : charts.flatMap((chart) => chart.names);
    const near = text && !found ? nearest(text, names) : null;
    fill(this.words, problem || (text ? (found ? `${counted(found, "chart")} of ${charts.length}` : `No metric is called “${text}”.`) : ""),
      near ? small(`the nearest: ${near}`, "", () => {
        this.find.value = near;
        state.set({ find: near });
        this.#again();
      }) : null);
  }

  /** Show the charts of a run's answer; return how many groups have any. */
  show(answer) {
    this.answer = answer;
    this.arrangement.of(answer.run.program);
    const { holds, problem } = matcher(this.find.value);
    const searching = this.find.value.trim() !== "" && !problem;
    const { values, charts: drawn } = valuesOf(answer);
    this.values.show(searching ? values.filter(({ name }) => holds(name)) : values);
    const wanted = this.arrangement.ordered(groupsOf(answer, drawn)).sort((one, other) => one.folded - other.folded);
    let found = 0;
    this.order = wanted.map(({ key }) => key);
    const groups = wanted.filter(({ folded }) => !folded);
    for (const each of wanted) {
      const { key, title, folded, charts } = each;
      let section = this.sections.get(key);
      if (!section) {
        section = folded ? this.#foldedUp(title, each) : this.#group(title, key);
        this.sections.set(key, section);
      }
      section.about = each;
      section.charts = charts;
      section.holds = searching ? (chart) => [...chart.names, chart.title ?? ""].some((name) => holds(title ? `${title}/${name}` : name)) : () => true;
      const shown = searching ? charts.filter(section.holds).length : charts.length;
      found += shown;
      const open = searching ? shown > 0 : !this.arrangement.folds(each, key === "ffunctions" && charts.length <= OPEN);
      say(section.count, searching && shown < charts.length ? ` ${shown} of ${charts.length}` : ` ${charts.length}`);
      section.node.hidden = shown === 0;
      const single = charts.length < 2;
      section.node.classList.toggle("single", single);
      section.node.classList.toggle("mixed", Boolean(each.mixed));
      section.node.style.setProperty("--charts", Math.min(MOST_ABREAST, shown));
      section.grid.classList.toggle("small", !folded && charts.length > FEW);
      if (folded) section.node.open = open;
      else {
        section.heading.hidden = open && (single || (title === "" && groups.length < 2));
        section.fold.setAttribute("aria-expanded", String(open));
        section.grid.hidden = !open;
        section.node.classList.toggle("shut", !open);
      }
      if (open) this.#fill(section);
    }
    const [key, others] = [groups.filter(({ mixed }) => mixed), groups.filter(({ mixed }) => !mixed)];
    const nodes = (some) => some.map((each) => this.sections.get(each.key).node);
    inOrder(this.groups, [...nodes(key), this.values.node, ...nodes(others)]);
    inOrder(this.folded, wanted.filter(({ folded }) => folded).map(({ key }) => this.sections.get(key).node));
    const charts = wanted.flatMap((each) => each.charts);
    this.bar.hidden = charts.length < 2;
    this.#said(found, charts, problem);
    return groups.length + values.length;
  }

  #foldedUp(title, about) {
    const grid = element("div", { class: "grid" });
    const count = element("span", { class: "quiet number" });
    const node = element("details", { class: "section" }, element("summary", {}, element("h2", {}, title, count)), grid);
    const made = { node, grid, count, cards: new Map(), charts: [], holds: () => true };
    node.querySelector("summary").addEventListener("click", (event) => {
      event.preventDefault(); // what is open is in the address
      if (this.find.value.trim()) {
        node.open = !node.open;
        if (node.open) this.#fill(made);
      } else this.#fold(about.key);
    });
    node.addEventListener("toggle", () => node.open && this.#fill(made)); // a search of the browser's opens it, too
    return made;
  }

  #fold(key) {
    this.arrangement.toggle("fold", key);
    this.#again();
  }

  #group(title, key) {
    return group(title, () => this.#fold(key));
  }

  #fill({ charts, cards, grid, holds }) {
    for (const chart of charts) {
      const shown = holds(chart);
      const known = cards.get(chart.key);
      if (known) known.node.hidden = !shown;
      if (!shown) continue;
      const card = this.#card(chart, cards.get(chart.key));
      cards.set(chart.key, card);
      for (const number of card.about?.keys() ?? []) this.byCurve.set(number, card);
      for (const { series } of chart.series ?? []) this.bySeries.set(series, card);
    }
    for (const [key, card] of cards) {
      if (charts.some((chart) => chart.key === key)) continue;
      cards.delete(key); // its metric has moved to the chart of a group, or its gauge has a curve now
      card.destroy();
    }
    inOrder(grid, charts.flatMap(({ key }) => cards.get(key)?.node ?? []));
  }

  /** Return the card of a chart: the one that there is, as its reader has set it, with other axes where these changed. */
  #card(chart, known) {
    const shape = JSON.stringify([chart.section, chart.x, chart.scales, chart.metrics?.map(({ metric, scale }) => [metric, scale])]);
    const make = () => (chart.metrics ? new MetricChart(this.run, chart, this.view) : new SeriesChart(this.run, chart, this.view));
    const card = known ?? new Card(make(), this.view);
    if (known?.shape === shape) {
      const before = size(known);
      known.source.update(chart);
      if (size(known) !== before) known.load();
    } else if (known) known.take(make());
    card.shape = shape;
    card.about = card.source.about?.() ?? null;
    return card;
  }

  open(key) {
    const node = this.sections.get(key)?.node;
    if (!node) return;
    if (!node.open) this.#fold(key);
    node.open = true; // while metrics are searched, too
    node.querySelector("summary").focus({ preventScroll: true });
    node.scrollIntoView({ block: "start" });
  }

  /** Take samples that came live: what shows them is fetched again. */
  add(samples) {
    for (const card of new Set(samples.map(({ series }) => this.bySeries.get(series)))) card?.load();
  }

  close() {
    state.followers.delete(this.moved);
  }

  /** Return the cards that there are, as they follow each other on the page. */
  cards() {
    return this.order.flatMap((key) => {
      const { charts, cards } = this.sections.get(key);
      return charts.flatMap((chart) => cards.get(chart.key) ?? []);
    });
  }
}

const size = ({ source }) => (source.about?.() ?? source.series).size;

function group(title, press) {
  const name = title || "Metrics without a group";
  const count = element("span", { class: "quiet number" });
  const fold = button(null, press, { class: "fold", "aria-expanded": "true" }, name, count);
  const heading = element("h2", {}, fold);
  const grid = element("div", { class: "grid" });
  const node = element("section", { class: "group", "aria-label": name }, heading, grid);
  return { node, grid, count, heading, fold, cards: new Map(), charts: [], holds: () => true };
}
