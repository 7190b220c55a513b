/** The sections of a run's page, each with the cards of its charts: those of groups in full, others folded up. */

import { Card } from "./card.js";
import { element, say } from "./element.js";
import { MetricChart } from "./metrics.js";
import { groupsOf } from "./groups.js";
import { SeriesChart } from "./samples.js";

const FEW = 8; // charts of a group; more are drawn smaller
const OPEN = 4; // functions; the charts of more are folded up

/** All sections of a run. */
export class Sections {
  constructor(run, view) {
    this.run = run;
    this.view = view;
    this.sections = new Map();
    this.order = []; // of their keys
    this.groups = element("div", { class: "groups" });
    this.folded = element("div");
    this.byCurve = new Map(); // cards
    this.bySeries = new Map();
  }

  /** Show the charts of a run's answer; return how many groups have any. */
  show(answer) {
    const wanted = groupsOf(answer);
    this.order = wanted.map(({ key }) => key);
    const groups = wanted.filter(({ folded }) => !folded);
    for (const each of wanted) {
      const { key, title, folded, charts } = each;
      let section = this.sections.get(key);
      if (!section) {
        section = folded ? this.#foldedUp(title) : group(title);
        if (key === "ffunctions" && charts.length <= OPEN) section.node.open = true;
        this.sections.set(key, section);
      }
      section.charts = charts;
      say(section.count, ` ${charts.length}`);
      const single = charts.length < 2;
      section.node.classList.toggle("single", single);
      section.grid.classList.toggle("small", !folded && charts.length > FEW);
      if (!folded) section.heading.hidden = single || (title === "" && groups.length < 2);
      if (!folded || section.node.open) this.#fill(section);
    }
    inOrder(this.groups, groups.map(({ key }) => this.sections.get(key).node));
    inOrder(this.folded, wanted.filter(({ folded }) => folded).map(({ key }) => this.sections.get(key).node));
    return groups.length;
  }

  #foldedUp(title) {
    const grid = element("div", { class: "grid" });
    const count = element("span", { class: "quiet number" });
    const node = element("details", { class: "section" }, element("summary", {}, element("h2", {}, title, count)), grid);
    const made = { node, grid, count, cards: new Map(), charts: [] };
    node.addEventListener("toggle", () => node.open && this.#fill(made));
    return made;
  }

  #fill({ charts, cards, grid }) {
    for (const chart of charts) {
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
    inOrder(grid, charts.map(({ key }) => cards.get(key).node));
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

  /** Unfold a section, and go there. */
  open(key) {
    const node = this.sections.get(key)?.node;
    if (!node) return;
    node.open = true;
    node.querySelector("summary").focus({ preventScroll: true });
    node.scrollIntoView({ block: "start" });
  }

  /** Take samples that came live: what shows them is fetched again. */
  add(samples) {
    for (const card of new Set(samples.map(({ series }) => this.bySeries.get(series)))) card?.load();
  }

  /** Return the cards that there are, as they follow each other on the page. */
  cards() {
    return this.order.flatMap((key) => {
      const { charts, cards } = this.sections.get(key);
      return charts.flatMap((chart) => cards.get(chart.key) ?? []);
    });
  }
}

/** Return how many curves or series a card is about. */
const size = ({ source }) => (source.about?.() ?? source.series).size;

function group(title) {
  const name = title || "Metrics without a group";
  const count = element("span", { class: "quiet number" });
  const heading = element("h2", {}, name, count);
  const grid = element("div", { class: "grid" });
  const node = element("section", { class: "group", "aria-label": name }, heading, grid);
  return { node, grid, count, heading, cards: new Map(), charts: [] };
}

/** Have an element hold these, in this order, and nothing else; what is in its place already is not moved. */
function inOrder(parent, nodes) {
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastChild.remove();
}
