/** A line in a chart at the place of a fault, and the way there. */

import { bring, element } from "./element.js";

const PATIENCE = 5000; // milliseconds until a chart is drawn that has come into view

/**
 * Scroll to the chart of a place, and mark its x.
 * @param {Card[]} cards - of the page.
 * @param {Object} place - {metric, group, kind, x, time} as the hub says it.
 * @param {string} words - of the fault.
 * @returns {Promise<boolean>} whether there is such a chart.
 */
export async function showPlace(cards, place, words) {
  const card = cards.find(({ source: { chart } }) => (chart.kind ?? "") === place.kind
    && chart.metrics?.some(({ metric, group = chart.group }) => metric === place.metric && group === place.group));
  if (!card) return false;
  bring(card.node, "center");
  card.node.focus({ preventScroll: true });
  for (const began = performance.now(); !card.plot.u; await new Promise((done) => setTimeout(done, 50))) {
    if (performance.now() - began > PATIENCE) return true;
  }
  draw(card, place, words);
  return true;
}

function draw(card, place, words) {
  for (const { plot } of card.settings.cards) plot.pin = null;
  for (const old of document.querySelectorAll(".fault-mark")) old.remove();
  const at = () => (card.axis.time ? place.time / 1e9 : card.axis.elapsed ? (place.time - card.settings.began) / 1e9 : card.settings.x === "step" ? NaN : place.x);
  const { min, max } = card.plot.u.scales.x;
  if (card.zoom && (at() < min || at() > max)) card.reset();
  card.plot.pin = { at, line: element("div", { class: "fault-mark", role: "img", "aria-label": words, title: words }) };
  card.plot.redraw();
  card.node.setAttribute("aria-description", words);
}
