/** Faults of a run, at the top of its page: each fault leads to its place in the charts. */

import { ask, pathOf } from "./api.js";
import { button, element, fill, headRow, say, scrolling, tabular } from "./element.js";
import { count, number, when } from "./format.js";
import { Goodput } from "./goodput.js";
import { showPlace } from "./marks.js";

const MOST = 4; // reasons of losses that are named without being asked for
const OFTEN = 5000; // milliseconds between two questions
const QUIET = new Set(["restart", "dropped", "slow"]); // a run may go well with these
const BRIEF = 3; // faults that the line names while it is shut
const LONG = 300; // characters of a message that scrolls

/** The faults of a run; hidden where there are none. */
export class Faults {
  /** @param {function(): Card[]} cards - returns those that the page has; @param {AbortSignal} signal - ends with the page. */
  constructor(run, cards, signal) {
    this.run = run;
    this.cards = cards;
    this.signal = signal;
    this.askedAt = -Infinity;
    this.count = element("span", { class: "quiet number" });
    this.list = element("ol", { class: "fault-list" });
    this.losses = element("div");
    this.words = element("p", { class: "quiet", role: "status" });
    this.heading = element("span");
    this.goodput = new Goodput();
    this.brief = element("span", { class: "fault-brief quiet" });
    this.node = element("details", { class: "faults", "aria-label": "Faults", hidden: true },
      element("summary", {}, element("h2", {}, this.heading, " ", this.count), this.brief), this.list, this.losses, this.words);
  }

  /** Ask what went wrong, some seconds after the last time at the earliest; `now` for at once. */
  async look(now = false) {
    if (!now && performance.now() - this.askedAt < OFTEN) return;
    this.askedAt = performance.now();
    try {
      this.show(await ask(`${pathOf(this.run)}/faults`, {}, this.signal));
    } catch {
      // the banner says that the hub is gone; what is known stays
    }
  }

  show({ faults, more, losses, goodput }) {
    this.goodput.show(goodput);
    const said = JSON.stringify([faults, more, losses]);
    if (said === this.said) return;
    this.said = said;
    const listed = faults.filter(({ kind }) => kind !== "dropped");
    const left = Object.entries(more ?? {}).filter(([kind]) => kind !== "dropped");
    const focused = [...this.list.querySelectorAll("button")].indexOf(document.activeElement);
    fill(this.list, ...listed.map((fault) => this.#item(fault)), ...left.map(([kind, many]) => element("li", { class: "quiet", text: `and ${number(many)} more: ${kind}` })));
    if (focused >= 0) this.list.querySelectorAll("button")[focused]?.focus();
    const lost = losses.length ? `lost: ${count(losses.reduce((sum, { points }) => sum + points, 0), "point")}` : "";
    this.brief.textContent = [...listed.slice(0, BRIEF).map(({ title }) => title), lost].filter(Boolean).join(" · ");
    const unfolded = this.losses.firstChild?.open ?? false;
    fill(this.losses, losses.length ? lossesOf(losses) : null);
    if (losses.length) this.losses.firstChild.open = unfolded;
    say(this.heading, listed.length && listed.every(({ kind }) => kind === "slow") ? "Why it is slow" : "Faults");
    this.count.textContent = listed.length > 1 ? ` ${listed.length}` : "";
    this.node.classList.toggle("loud", listed.some(({ kind }) => !QUIET.has(kind)));
    this.node.hidden = !listed.length && !losses.length;
  }

  #item(fault) {
    const { kind, title, detail, time, place } = fault;
    const text = place
      ? button(title, () => this.#go(fault), { class: "fault-link", title: "Show it in the charts" })
      : element("span", { class: "fault-title", text: title });
    const long = detail.length > LONG || detail.split("\n").length > 4;
    return element("li", { class: `fault ${QUIET.has(kind) ? "quiet-fault" : ""}`, "data-kind": kind },
      element("div", { class: "fault-head" }, text, time ? element("span", { class: "quiet number", text: when(time) }) : null),
      detail ? element("p", { class: long ? "fault-detail long" : "fault-detail", text: detail, ...(long ? { tabindex: "0", role: "group", "aria-label": "All of the message" } : {}) }) : null);
  }

  async #go({ place, title }) {
    this.words.textContent = "";
    if (!(await showPlace(this.cards(), place, title))) this.words.textContent = `The chart of ${place.metric} is not on this page: it may be folded up, or its rank not chosen.`;
  }
}

/** Points that were lost: how many, and when unfolded by reason and destination, each reason explained. */
function lossesOf(losses) {
  const all = losses.reduce((sum, { points }) => sum + points, 0);
  const short = losses.slice(0, MOST).map(({ reason, destination, points }) => `${reason}${destination ? ` (${destination})` : ""} ${number(points)}`);
  if (losses.length > MOST) short.push("…");
  const rows = losses.map(({ reason, destination, points, why }) => element("tr", {},
    element("th", { scope: "row", class: "code", text: reason }), element("td", { text: destination || "–" }),
    element("td", { class: "number", text: number(points) }), element("td", { text: why.replaceAll("`", "") })));
  return element("details", { class: "notice losses" },
    element("summary", { text: `Lost: ${count(all, "point")} – ${short.join(", ")}` }),
    scrolling("Table of losses", tabular(headRow(["Reason", "Destination", "Points", "Meaning"]), element("tbody", {}, ...rows))));
}
