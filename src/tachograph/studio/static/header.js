/** The head of a run's page: what it is, how it is doing, who was lost. */

import { element, fill } from "./element.js";
import { bytes, count, duration, when } from "./format.js";

const WORDS = {
  live: "live",
  finished: "finished",
  failed: "failed",
  lost: "lost: it did not say that it ended",
  unknown: "state unknown",
};

/** Return a state as a chip. */
export const chip = (state) => element("span", { class: `chip ${state in WORDS ? state : "unknown"}`, text: state, title: WORDS[state] ?? state });

/** The head of one run. */
export class Header {
  constructor() {
    this.title = element("h1");
    this.facts = element("dl", { class: "facts" });
    this.notices = element("div", { class: "notices" });
    this.node = element("header", { class: "run-head" },
      element("a", { href: "#/", class: "up", text: "All runs" }), this.title, this.facts, this.notices);
  }

  /** Show a run, and its processes, as the hub answers them. */
  show(run, processes, now) {
    fill(this.title, element("span", { class: "run-id", text: run.id }), " ", chip(run.state));
    const facts = [
      ["Program", run.program],
      ["Started", when(run.started)],
      ["Duration", duration(run.seconds)],
      run.ranks ? ["Ranks", String(run.ranks)] : null,
      run.restarts ? ["Restarts", String(run.restarts)] : null,
      ["Points", count(run.points, "point")],
      ["Stored", bytes(run.bytes)],
      run.tags?.length ? ["Tags", run.tags.join(", ")] : null,
    ].filter(Boolean);
    fill(this.facts, ...facts.map(([name, value]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { class: "number", text: name === "Points" ? value.replace(/ points?$/, "") : value || "–" }))));
    this.#notices(run, processes, now);
  }

  #notices(run, processes, now) {
    const lost = processes.filter((each) => each.lost);
    const notices = lost.length
      ? [`Lost, without a word at the end: ${lost.map(named).join(", ")}; last heard of ${ago(lost, now)}.`]
      : [];
    for (const words of run.damage ?? []) notices.push(`The file is damaged; what can be read is shown: ${words}`);
    fill(this.notices, ...notices.map((text) => element("p", { class: "notice", text })));
  }
}

const named = ({ rank, role, pid, host }) => {
  const who = rank === null ? role || "a process" : `rank ${rank}`;
  const where = [pid ? `pid ${pid}` : "", host ? `on ${host}` : ""].filter(Boolean).join(" ");
  return where ? `${who} (${where})` : who;
};

function ago(lost, now) {
  const last = Math.max(...lost.map((each) => each.last ?? 0));
  return last ? `${duration(Math.max(0, now - last) / 1e9)} ago` : "never";
}
