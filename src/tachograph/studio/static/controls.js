/** A reader's choices for all charts of a run: ranks, the x axis, smoothing; and runs to compare it with. */

import { button, element, fill } from "./element.js";
import { wordOf } from "./route.js";
import { shared } from "./shared.js";
import { X_CHOICES } from "./view.js";

const AT_REST = 120; // milliseconds without a change of the smoothing until charts and the address have it
const CHIPS = 8; // ranks with a button each; more are written

export class Smoothing {
  constructor(view) {
    this.view = view;
    this.level = element("output", { class: "number" });
    this.slider = element("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "Smoothing" });
    this.slider.addEventListener("input", () => {
      this.level.textContent = this.slider.value;
      clearTimeout(this.soon);
      this.soon = setTimeout(() => view.set({ weight: Number(this.slider.value) }), AT_REST);
    });
    this.node = element("label", {}, element("span", { text: "Smoothing" }), this.slider, this.level);
    this.moved();
  }

  moved() {
    this.slider.value = this.level.textContent = String(this.view.weight);
  }
}

export class Controls {
  constructor(run, view, changed) {
    this.view = view;
    this.changed = changed;
    this.ranks = element("div", { class: "ranks", role: "group", "aria-label": "Ranks", hidden: true });
    this.known = "";
    this.smoothing = new Smoothing(view);
    this.along = element("select", { "aria-label": "X axis of all charts" },
      ...Object.entries(X_CHOICES).map(([value, text]) => element("option", { value, text })));
    this.along.addEventListener("change", () => this.view.set({ x: this.along.value }));
    this.moved();
    this.node = element("div", { class: "controls", role: "group", "aria-label": "How charts are drawn" },
      this.ranks,
      element("label", {}, element("span", { text: "X axis" }), this.along),
      this.smoothing.node,
      shared ? null : element("a", { class: "plain", href: `#/?${new URLSearchParams({ chosen: wordOf([run]) })}`, text: "Compare …", title: "Choose runs to compare it with" }));
  }

  moved() {
    this.along.value = this.view.x;
    this.smoothing.moved();
  }

  show(ranks) {
    const key = JSON.stringify([ranks, this.view.ranks && [...this.view.ranks]]);
    if (key === this.known) return;
    this.known = key;
    this.ranks.hidden = ranks.length < 2;
    fill(this.ranks, element("span", { text: "Ranks" }), ...(ranks.length > CHIPS ? [this.#written(ranks)] : this.#chips(ranks)));
  }

  #chips(ranks) {
    const chosen = this.view.ranks;
    const chip = (text, pressed, press) => button(text, press, { class: "rank", "aria-pressed": String(pressed) });
    const toggle = (rank) => {
      const next = new Set(chosen ?? []);
      if (!next.delete(rank)) next.add(rank);
      this.#choose(next.size && next.size < ranks.length ? next : null, ranks);
    };
    return [
      chip("all", chosen === null, () => this.#choose(null, ranks)),
      ...ranks.map((rank) => chip(String(rank), chosen?.has(String(rank)) ?? false, () => toggle(String(rank)))),
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
