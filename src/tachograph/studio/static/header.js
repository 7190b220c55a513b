/** The head of a run's page: what it is, how it is doing. */

import { element, fill } from "./element.js";
import { bytes, count, duration, when } from "./format.js";

const WORDS = {
  running: "running",
  finished: "finished",
  failed: "failed",
  killed: "killed by a signal",
  lost: "lost: it did not say that it ended",
  unknown: "state unknown",
};

/** Return a state as a chip: with the exit code or the signal, and all that is known of the end as its title. */
export const chip = (state, ended) => element("span", {
  class: `chip ${state in WORDS ? state : "unknown"}`,
  text: ended?.brief ?? state,
  title: ended && ended.words !== state ? ended.words : WORDS[state] ?? state,
});

export class Header {
  constructor() {
    this.title = element("h1");
    this.facts = element("dl", { class: "facts" });
    this.notices = element("div", { class: "notices" });
    this.tools = element("span", { class: "run-tools" });
    this.line = [
      element("div", { class: "run-title" }, this.title, this.tools),
      element("div", { class: "about-run", tabindex: "0", role: "group", "aria-label": "About the run" }, this.facts),
    ];
    this.node = element("header", { class: "run-head" }, this.notices);
  }

  show(run) {
    fill(this.title, element("span", { class: "run-id", text: run.name || run.id, title: run.name || run.id }), " ", chip(run.state, run.ended));
    const facts = [
      run.name ? ["Run", run.id] : null,
      ["Program", run.program],
      ["Started", when(run.started)],
      ["Duration", duration(run.seconds)],
      run.ranks ? ["Ranks", String(run.ranks)] : null,
      run.restarts ? ["Restarts", String(run.restarts)] : null,
      ["Points", count(run.points, "point")],
      run.thinned ? ["Thinned", `${count(run.thinned, "curve is", "curves are")} thinned: the extremes are kept`] : null,
      ["Stored", bytes(run.bytes)],
      run.tags?.length ? ["Tags", run.tags.join(", ")] : null,
    ].filter(Boolean);
    fill(this.facts, ...facts.map(([name, value]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { class: "number", text: name === "Points" ? value.replace(/ points?$/, "") : value || "–" }))));
    const notices = (run.damage ?? []).map((words) => `The file is damaged; what can be read is shown: ${words}`);
    fill(this.notices, ...notices.map((text) => element("p", { class: "notice", text })));
  }
}
