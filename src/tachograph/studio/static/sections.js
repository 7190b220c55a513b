/** Sections of series: folded up until somebody opens them, and filled then. */

import { Card } from "./card.js";
import { element, say } from "./element.js";
import { SeriesChart, sectionsOf } from "./samples.js";

/** All sections of a run. */
export class Sections {
  constructor(run, view) {
    this.run = run;
    this.view = view;
    this.sections = new Map();
    this.node = element("div", { class: "sections" });
    this.of = new Map(); // the card of each series
  }

  /** Show series, as the run's answer has them. */
  show(series, charts) {
    for (const { key, title, charts: wanted } of sectionsOf(series, charts)) {
      let section = this.sections.get(key);
      if (!section) {
        section = this.#section(title);
        this.sections.set(key, section);
        this.node.append(section.node);
      }
      section.wanted = wanted;
      say(section.count, ` ${wanted.length}`);
      if (section.node.open) this.#fill(section);
    }
  }

  #section(title) {
    const grid = element("div", { class: "grid" });
    const many = element("span", { class: "quiet number" });
    const node = element("details", { class: "section" }, element("summary", {}, element("h2", {}, title, many)), grid);
    const made = { node, grid, count: many, cards: new Map(), wanted: [] };
    node.addEventListener("toggle", () => node.open && this.#fill(made));
    return made;
  }

  #fill({ wanted, cards, grid }) {
    for (const chart of wanted) {
      const known = cards.get(chart.key);
      if (known) {
        if (known.source.series.size === chart.series.length) continue;
        known.source.update(chart);
        known.load();
      } else {
        const card = new Card(new SeriesChart(this.run, chart, this.view), this.view);
        cards.set(chart.key, card);
        grid.append(card.node);
      }
      for (const { series } of chart.series) this.of.set(series, cards.get(chart.key));
    }
  }

  /** Take samples that came live: what is open and shows them is fetched again. */
  add(samples) {
    for (const card of new Set(samples.map(({ series }) => this.of.get(series)))) card?.load();
  }

  cards() {
    return [...this.sections.values()].flatMap(({ cards }) => [...cards.values()]);
  }
}
