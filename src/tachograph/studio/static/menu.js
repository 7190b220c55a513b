/** The menu of a chart: its y axes, its pictures, and all that needs no button of its own. */

import { element, fill, small } from "./element.js";

/** A menu that unfolds below its button; Escape and a click elsewhere fold it up. */
export class Menu {
  /** @param {function()} rows - returns what is in it when it unfolds. */
  constructor(title, rows) {
    this.rows = rows;
    this.summary = element("summary", { class: "plain small", title: "Axes, pictures, full screen (m)", "aria-label": `More of ${title}`, text: "⋯" });
    this.box = element("div", { class: "menu-box" });
    this.node = element("details", { class: "menu" }, this.summary, this.box);
    this.node.addEventListener("toggle", () => (this.node.open ? this.#unfold() : fill(this.box)));
    this.node.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.node.open) return;
      event.stopPropagation();
      this.close();
      this.summary.focus();
    });
    this.elsewhere = (event) => !this.node.contains(event.target) && this.close();
  }

  #unfold() {
    this.show();
    document.addEventListener("pointerdown", this.elsewhere);
  }

  /** Show its rows anew, where it is open: the focus stays in its place. */
  show() {
    if (!this.node.open) return;
    const places = () => [...this.box.querySelectorAll("button, input")];
    const at = places().indexOf(document.activeElement);
    fill(this.box, ...this.rows().filter(Boolean));
    if (at >= 0) places()[at]?.focus();
  }

  close() {
    this.node.open = false;
    fill(this.box);
    document.removeEventListener("pointerdown", this.elsewhere);
  }
}

/** Return a row of buttons of which one is pressed. */
export function choice(label, options, chosen, choose) {
  return element("div", { class: "menu-row", role: "group", "aria-label": label }, element("span", { class: "quiet", text: label }),
    ...options.map(([key, text]) => small(text, "", () => choose(key), { "aria-pressed": String(key === chosen) })));
}

/** Return a row for the two ends of an axis; `set` gets a pair of numbers, or null for those that it has by itself. */
export function endsRow(label, pair, shown, set) {
  const inputs = [0, 1].map((place) => element("input", {
    type: "text", inputmode: "decimal", class: "end", "aria-label": `${label}: ${place ? "highest" : "lowest"}`,
    value: pair ? String(pair[place]) : "", placeholder: Number.isFinite(shown?.[place]) ? String(Number(shown[place].toPrecision(5))) : "",
  }));
  const words = element("span", { class: "bad", role: "status" });
  for (const input of inputs) {
    input.addEventListener("change", () => {
      if (inputs.every(({ value }) => value.trim() === "")) {
        set(null);
        return;
      }
      const found = inputs.map(({ value }, place) => (value.trim() === "" ? shown?.[place] : Number(value.trim().replace("−", "-").replace(",", "."))));
      words.textContent = found.every(Number.isFinite) ? (found[0] < found[1] ? "" : "the first is the lower one") : "no number";
      if (!words.textContent) set(found);
    });
  }
  return element("div", { class: "menu-row", role: "group", "aria-label": label }, element("span", { class: "quiet", text: label }), inputs[0], "–", inputs[1], words);
}
