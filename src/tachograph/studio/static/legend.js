/** A chart's legend: names, latest values, and switches. */

import { button, element, say } from "./element.js";
import { cut, figures } from "./format.js";

const MOST = 16;

/** Return the latest value of a curve as text; empty where it has none. */
export const latestOf = (curve) => (curve.latest === null ? "" : (curve.format?.(curve.latest) ?? figures(curve.latest)));

export class Legend {
  constructor(toggle) {
    this.toggle = toggle;
    this.node = element("ul", { class: "legend", "aria-label": "Curves" });
    this.shown = "";
    this.values = new Map();
    this.all = false;
  }

  /** Show entries, as `dress` returns them. */
  show(entries, hidden) {
    const wanted = this.all ? entries : entries.slice(0, MOST);
    const shape = JSON.stringify(wanted.map(({ key, label, colour }) => [key, label, colour, hidden.has(key)])) + entries.length;
    if (shape !== this.shown) {
      this.shown = shape;
      this.values.clear();
      this.node.replaceChildren(...wanted.map((entry) => this.#entry(entry, hidden.has(entry.key))));
      if (wanted.length < entries.length) this.node.append(this.#more(entries, hidden));
    }
    for (const { key, curve } of wanted) {
      const value = this.values.get(key);
      if (value && curve) say(value, latestOf(curve));
    }
  }

  #entry({ key, label, colour, dash }, off) {
    const value = element("span", { class: "number" });
    this.values.set(key, value);
    const swatch = element("span", { class: dash?.length ? "line dashed" : "line", style: { color: colour } });
    return element("li", {}, button(null, () => this.toggle(key), { class: "entry", "aria-pressed": String(!off), title: off ? "Show" : "Hide" },
      swatch, element("span", { class: "name", text: cut(label), title: label }), value));
  }

  #more(entries, hidden) {
    return element("li", {}, button(`${entries.length - MOST} more`, () => {
      this.all = true;
      this.show(entries, hidden);
    }, { class: "entry quiet" }));
  }
}
