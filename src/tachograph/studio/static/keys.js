/** Keyboard: what each key does, and a list of that. */

import { bring, button, element, fill } from "./element.js";

const KEYS = [
  ["/", "search runs"],
  ["f", "find metrics, with no chart under the pointer"],
  ["j", "next chart"],
  ["k", "chart before"],
  ["← →", "values of the chart, point by point"],
  ["l", "logarithmic y axes of the chart"],
  ["a", "each of many ranks by itself"],
  ["t", "the numbers behind the chart"],
  ["h", "heat map of the ranks, or of the values"],
  ["f", "the chart on the whole screen"],
  ["m", "menu of the chart: axes, pictures"],
  ["+ −", "less or more of x, around the values that are shown"],
  ["< >", "what is before or behind"],
  ["r", "all of the chart again, after zooming"],
  ["g", "all runs"],
  ["?", "this list"],
];

export function listen(dialog, opener) {
  fill(
    dialog,
    element("h2", { text: "Keyboard" }),
    element("dl", {}, ...KEYS.flatMap(([key, does]) => [element("dt", {}, element("kbd", { text: key })), element("dd", { text: does })])),
    element("p", { class: "quiet", text: "Drag across a chart to zoom, also upwards; with two fingers, too. Double-click for all of it." }),
    button("Close", () => dialog.close()),
  );
  opener.addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const own = "rltamhf+-<>".includes(event.key) && cardAt();
    if (own) own.dispatchEvent(new KeyboardEvent("keydown", { key: event.key }));
    const act = { "/": search, f: () => document.querySelector('[aria-label="Search metrics"]')?.focus(), j: () => move(1), k: () => move(-1), g: () => (location.hash = "#/"), "?": () => dialog.showModal() }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

/** Return the card that has the focus, or else the one under the pointer. */
const cardAt = () => document.activeElement.closest?.(".card") ?? document.querySelector(".card:hover");

function search() {
  const field = document.getElementById("search");
  if (field) field.focus();
  else {
    location.hash = "#/";
    setTimeout(() => document.getElementById("search")?.focus(), 50);
  }
}

function move(by) {
  const cards = [...document.querySelectorAll(".card")].filter((card) => card.offsetParent !== null);
  const at = cards.indexOf(document.activeElement.closest?.(".card"));
  const next = cards[at < 0 ? (by > 0 ? 0 : cards.length - 1) : at + by];
  next?.focus();
  if (next) bring(next, "nearest");
}
