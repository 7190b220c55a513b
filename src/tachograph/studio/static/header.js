/** The head of a run's page: what it is, how it is doing, who was lost. */

import { element, fill } from "./element.js";
import { bytes, count, duration, number, when } from "./format.js";

const WORDS = {
  running: "running",
  finished: "finished",
  failed: "failed",
  killed: "killed by a signal",
  lost: "lost: it did not say that it ended",
  unknown: "state unknown",
};

const MOST = 4; // reasons of losses that are named without being asked for

/** Return a state as a chip: with the exit code or the signal, and all that is known of the end as its title. */
export const chip = (state, ended) => element("span", {
  class: `chip ${state in WORDS ? state : "unknown"}`,
  text: ended?.brief ?? state,
  title: ended && ended.words !== state ? ended.words : WORDS[state] ?? state,
});

/** The head of one run. */
export class Header {
  constructor() {
    this.title = element("h1");
    this.facts = element("dl", { class: "facts" });
    this.notices = element("div", { class: "notices" });
    this.losses = element("div");
    this.tools = element("span", { class: "run-tools" });
    this.node = element("header", { class: "run-head" },
      element("a", { href: "#/", class: "up", text: "All runs" }), element("div", { class: "run-title" }, this.title, this.tools), this.facts, this.notices, this.losses);
  }

  /** Show a run, its processes and its losses, as the hub answers them. */
  show(run, processes, losses, now) {
    fill(this.title, element("span", { class: "run-id", text: run.name || run.id }), " ", chip(run.state, run.ended));
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
    this.#notices(run, processes, losses, now);
  }

  #notices(run, processes, losses, now) {
    const lost = processes.filter((each) => each.lost);
    const notices = run.ended?.failure ? [failed(run)] : [];
    if (lost.length) notices.push(`Lost, without a word at the end: ${lost.map(named).join(", ")}; last heard of ${ago(lost, now)}.`);
    for (const words of run.damage ?? []) notices.push(`The file is damaged; what can be read is shown: ${words}`);
    fill(this.notices, ...notices.map((text) => element("p", { class: "notice", text })));
    const said = JSON.stringify(losses);
    if (said === this.said) return;
    this.said = said;
    const unfolded = this.losses.firstChild?.open ?? false;
    fill(this.losses, losses.length ? lossesOf(losses) : null);
    if (losses.length) this.losses.firstChild.open = unfolded;
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
    element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table of losses" },
      element("table", { class: "data" },
        element("thead", {}, element("tr", {}, ...["Reason", "Destination", "Points", "What it means"].map((text) => element("th", { scope: "col", text })))),
        element("tbody", {}, ...rows))));
}

/** What the process that failed first has said: the exception with its whole message. */
function failed({ state, ended: { failure, brief } }) {
  const who = failure.process ? `${failure.process} failed first` : state === "failed" ? "" : "The program failed";
  const what = [failure.type || "an exception", failure.message].filter(Boolean).join(": ");
  return `${brief[0].toUpperCase()}${brief.slice(1)}${who ? `; ${who}` : ""}: ${what}`;
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
