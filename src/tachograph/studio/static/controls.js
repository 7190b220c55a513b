/** A reader's choices for all charts of a run: ranks, another run, smoothing. */

import { ask } from "./api.js";
import { element, fill } from "./element.js";
import { when } from "./format.js";
import { wordOf } from "./route.js";
import { X_CHOICES } from "./view.js";

const NEWEST = 100; // runs that are offered: the table has all
const SEVERAL = "\n"; // no run's id
const AT_REST = 120; // milliseconds without a change of the smoothing after which it is asked for
const CHIPS = 8; // ranks with a button each; more are written

/** The bar of choices. */
export class Controls {
  /**
   * @param {string} run - the page's.
   * @param {View} view - what is chosen.
   * @param {function(Object)} changed - called with other ranks or another run.
   */
  constructor(run, view, changed) {
    this.run = run;
    this.view = view;
    this.changed = changed;
    this.ranks = element("div", { class: "ranks", role: "group", "aria-label": "Ranks", hidden: true });
    this.known = "";
    this.others = element("select", { "aria-label": "Compare with another run" });
    this.others.addEventListener("focus", () => this.#offer());
    this.others.addEventListener("change", () => {
      if (this.others.value === SEVERAL) location.hash = `#/?${new URLSearchParams({ chosen: wordOf([this.run]) })}`;
      else this.changed({ compare: this.others.value || null });
    });
    this.#options([]);
    this.words = element("span", { class: "bad", role: "status" });
    this.level = element("output", { class: "number", text: "0" });
    this.slider = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: "0", "aria-label": "Smoothing" });
    this.slider.addEventListener("input", () => {
      this.level.textContent = this.slider.value;
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.view.set({ weight: Number(this.slider.value) }), AT_REST);
    });
    this.along = element("select", { "aria-label": "X axis of all charts" },
      ...Object.entries(X_CHOICES).map(([value, text]) => element("option", { value, text })));
    this.along.addEventListener("change", () => this.view.set({ x: this.along.value }));
    this.moved();
    this.node = element("div", { class: "controls", role: "group", "aria-label": "How charts are drawn" },
      this.ranks,
      element("label", {}, element("span", { text: "X" }), this.along),
      element("label", {}, element("span", { text: "Smoothing" }), this.slider, this.level),
      element("label", {}, element("span", { text: "Compare" }), this.others), this.words);
  }

  /** Show what the address says. */
  moved() {
    this.along.value = this.view.x;
    this.slider.value = String(this.view.weight);
    this.level.textContent = String(this.view.weight);
  }

  /** Show which ranks there are. */
  show(ranks) {
    const key = JSON.stringify([ranks, this.view.ranks && [...this.view.ranks]]);
    if (key === this.known) return;
    this.known = key;
    this.ranks.hidden = ranks.length < 2;
    fill(this.ranks, element("span", { text: "Ranks" }), ...(ranks.length > CHIPS ? [this.#written(ranks)] : this.#chips(ranks)));
  }

  #chips(ranks) {
    const chosen = this.view.ranks;
    const button = (text, pressed, press) => element("button", { type: "button", class: "rank", text, "aria-pressed": String(pressed), on: { click: press } });
    const toggle = (rank) => {
      const next = new Set(chosen ?? []);
      if (!next.delete(rank)) next.add(rank);
      this.#choose(next.size && next.size < ranks.length ? next : null, ranks);
    };
    return [
      button("all", chosen === null, () => this.#choose(null, ranks)),
      ...ranks.map((rank) => button(String(rank), chosen?.has(String(rank)) ?? false, () => toggle(String(rank)))),
    ];
  }

  #written(ranks) {
    const input = element("input", { type: "text", class: "written", placeholder: `all of ${ranks.length}; or 0-3,8`, "aria-label": "Ranks, such as 0-3,8", value: this.view.ranks ? [...this.view.ranks].join(",") : "" });
    input.addEventListener("change", () => {
      const wanted = numbers(input.value).filter((rank) => ranks.includes(rank)).map(String);
      this.#choose(wanted.length ? new Set(wanted) : null, ranks);
    });
    return input;
  }

  #choose(ranks, all) {
    const focused = [...this.ranks.querySelectorAll("button")].indexOf(document.activeElement);
    this.changed({ ranks });
    this.show(all);
    if (focused >= 0) this.ranks.querySelectorAll("button")[focused]?.focus();
  }

  async #offer() {
    try {
      const { items } = await ask("/api/table", { limit: NEWEST });
      this.#options(items.map(({ run }) => run).filter(({ id }) => id !== this.run));
    } catch {
      // the banner says that the hub is gone
    }
  }

  #options(runs) {
    const chosen = this.view.compare;
    const known = chosen && !runs.some(({ id }) => id === chosen) ? [{ id: chosen, started: 0 }] : [];
    fill(this.others, element("option", { value: "", text: "no other run" }),
      element("option", { value: SEVERAL, text: "several: choose in the table of runs …" }),
      ...[...known, ...runs].map(({ id, name, started }) => element("option", { value: id, text: started ? `${name || id} (${when(started)})` : id })));
    this.others.value = chosen ?? "";
  }
}

/** Return the numbers of "0-3,8". */
function numbers(text) {
  return text.split(",").flatMap((part) => {
    const found = /^\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?$/.exec(part);
    if (!found) return [];
    const [first, last] = [Number(found[1]), Number(found[2] ?? found[1])];
    return Array.from({ length: Math.max(0, Math.min(4096, last - first + 1)) }, (_, place) => first + place);
  });
}
