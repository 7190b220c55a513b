/** Goodput: a run's wall time as one bar, the part that counted first. */

import { element, fill } from "./element.js";
import { duration } from "./format.js";

// Category: its name, and its colour.
const CATEGORIES = {
  productive: ["productive", "var(--good)"],
  data_wait: ["data wait", "var(--curve-1)"],
  checkpoint: ["checkpoints", "var(--curve-4)"],
  evaluation: ["evaluation", "var(--curve-0)"],
  compile: ["compiling", "var(--curve-6)"],
  startup: ["start-up", "var(--curve-9)"],
  restart: ["restarts", "var(--curve-3)"],
  lost: ["lost steps", "var(--bad)"],
  other: ["after the last step", "var(--line)"],
};
const LEAST = 0.005; // of the time: less is in the bar, and not named

/** The bar; hidden where nothing has trained. */
export class Goodput {
  constructor() {
    this.bar = element("div", { class: "goodput-bar", "aria-hidden": "true" });
    this.words = element("p", { class: "goodput-words quiet number" });
    this.node = element("section", { class: "goodput", "aria-label": "Goodput", hidden: true }, this.bar, this.words);
  }

  /** Show the seconds of each category, as the hub answers them; null for none. */
  show(seconds) {
    const listed = Object.entries(CATEGORIES).map(([key, [name, colour]]) => ({ name, colour, took: seconds?.[key] ?? 0 }));
    const wall = listed.reduce((sum, { took }) => sum + took, 0);
    this.node.hidden = !wall;
    if (!wall) return;
    const share = (took) => `${((100 * took) / wall).toFixed(took < wall / 10 ? 1 : 0)} %`;
    fill(this.bar, ...listed.filter(({ took }) => took > 0).map(({ name, colour, took }) =>
      element("span", { style: { "flex-grow": took, background: colour }, title: `${name}: ${share(took)}, ${duration(took)}` })));
    fill(this.words, "Goodput ", ...listed.filter(({ took }, place) => !place || took >= LEAST * wall).map(({ name, colour, took }) =>
      element("span", { class: "goodput-part" }, element("i", { style: { background: colour } }), `${name} ${share(took)}`)), ` of ${duration(wall)}`);
  }
}
