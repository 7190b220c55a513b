/** The page of one run. */

import { Refusal, ask, pathOf, silent } from "./api.js";
import { Controls } from "./controls.js";
import { Dictionaries } from "./dictionaries.js";
import { Editor } from "./editor.js";
import { element, fill } from "./element.js";
import { Faults } from "./faults.js";
import { invalidate } from "./frame.js";
import { Functions } from "./functions.js";
import { Hang } from "./hang.js";
import { Header } from "./header.js";
import { Live } from "./live.js";
import { Machine } from "./machine.js";
import { Progress } from "./progress.js";
import { linkTo, read, state } from "./route.js";
import { Sections } from "./sections.js";
import { Timeline } from "./timeline.js";
import { View } from "./view.js";

const AGAIN = 1500; // milliseconds between two looks at what the run is made of
const SLOWLY = 10_000; // the same, for what no event tells: durations of functions, new series, losses
const RETRY = 3000;
const PAGES = 5; // of events, at the start
const NODE = "node"; // the role of the hub itself
const WAITING = "No metrics yet: they appear here as soon as the run records some.";
const NO_METRICS = "This run has recorded no metrics. Call tachograph.log({\"loss\": loss}, step=step) in the program, or log with a library that Tachograph records, such as TensorBoard or Weights & Biases.";
const NO_PROCESS = "No Python process of this run reported to Tachograph. “tachograph run” records the Python programs that its command starts.";

export class RunPage {
  /** @param {Object} route - {run, ranks}; @param {Object} shell - `banner(words)`, `main`. */
  constructor(route, shell) {
    this.run = route.run;
    this.shell = shell;
    this.view = new View();
    this.view.ranks = route.ranks;
    this.filled = this.told = false; // whether anything is drawn, or was said in a configuration or a summary
    this.reported = false; // whether a process of the job has
    this.bars = new Set(); // curves that are progress bars
    this.unknown = new Set(); // curves that got points, and that the next look may know
    this.elsewhere = new Set(); // curves that are in no chart: too many of a metric, or in a section that is folded up
    this.stop = new AbortController();
    this.header = new Header();
    this.editor = new Editor(this.run, () => this.#look(), () => { location.hash = "#/"; });
    this.header.tools.append(this.editor.node);
    this.controls = new Controls(this.run, this.view, (chosen) => this.#choose(chosen));
    this.progress = new Progress(this.view);
    this.empty = element("p", { class: "empty", hidden: true });
    this.timeline = new Timeline(this.view);
    this.dictionaries = new Dictionaries();
    this.functions = new Functions(this.view, this.run, this.stop.signal);
    this.sections = new Sections(this.run, this.view);
    this.view.followers.add((changed) => this.#follow(changed));
    this.moved = (names) => this.#moved(names);
    state.followers.add(this.moved);
    this.faults = new Faults(this.run, () => this.#all(), this.stop.signal);
    this.hang = new Hang(this.run, this.stop.signal);
    this.machine = new Machine(this.run, this.stop.signal, () => this.sections.open("fmachine"));
    this.title = this.run;
    fill(shell.main, element("p", { class: "empty", text: "loading …" }));
    this.#open();
  }

  #choose(chosen) {
    this.view.set(chosen);
    state.set({ rank: this.view.ranks && [...this.view.ranks].join(",") });
  }

  /** The address says something else of this run: choose that. */
  #moved(names) {
    this.view.moved(names);
    this.controls.moved();
    if (!names.has("rank")) return;
    this.#choose({ ranks: read(location.hash).ranks });
    this.controls.show(this.ranks ?? []);
  }

  async #open() {
    try {
      await this.#look();
    } catch (error) {
      if (this.stop.signal.aborted) return;
      this.#refused(error);
      this.retry = setTimeout(() => this.#open(), RETRY);
      return;
    }
    this.shell.banner("");
    this.shell.head.replaceChildren(...this.header.line);
    fill(this.shell.main, this.header.node, this.hang.node, this.faults.goodput.node, this.faults.node, element("div", { class: "strip" }, this.controls.node, this.sections.bar, this.progress.node), this.empty, element("h2", { class: "unseen", text: "Charts" }), this.sections.groups,
      this.dictionaries.node, this.timeline.node, this.functions.node, this.machine.node, this.sections.folded);
    this.live = new Live(this.run, {
      hello: (data) => this.#hello(data),
      points: (data) => this.#points(data),
      progress: (data) => this.progress.show(data.progress),
      events: (data) => this.#events(data.events),
      run: (data) => this.#head(data),
      samples: (data) => {
        this.sections.add(data.samples);
        this.machine.add(data.samples);
      },
      problem: (data) => this.shell.banner(data.error),
      lost: () => this.#lost(`${silent()} If the run has ended, “tachograph studio” shows it again.`),
      back: () => this.#back(),
    });
    this.slowly = setInterval(() => this.state === "running" && !document.hidden && this.#lookAgain(), SLOWLY);
  }

  #refused(error) {
    if (error instanceof Refusal && error.status === 0) {
      this.shell.banner(silent());
      return;
    }
    this.shell.banner("");
    const words = error instanceof Refusal && error.status === 404
      ? `${error.message[0].toUpperCase()}${error.message.slice(1)}.`.replace("?.", "?")
      : `This run cannot be shown: ${error.message}.`;
    fill(this.shell.main, element("div", { class: "empty" }, element("h1", { text: "Nothing to show" }), element("p", { text: words }),
      error.near ? element("p", {}, "The nearest: ", element("a", { href: linkTo(error.near), text: error.near })) : null,
      element("p", {}, element("a", { href: "#/", text: "All runs" }))));
  }

  /** Ask what the run is made of, and show that. */
  async #look() {
    const unknown = [...this.unknown];
    this.unknown.clear();
    const answer = await ask(pathOf(this.run), {}, this.stop.signal);
    this.lookedAt = performance.now();
    this.view.began = answer.run.started ?? 0;
    if (answer.damage?.length) answer.run.damage = [...new Set([...(answer.run.damage ?? []), ...answer.damage])];
    this.editor.show(answer);
    this.#head(answer.run);
    const bars = answer.charts.flatMap(({ metrics }) => metrics.filter(({ progress }) => progress));
    this.bars = new Set(bars.flatMap(({ curves }) => curves.map(({ curve }) => curve)));
    const groups = this.sections.show(answer);
    for (const curve of unknown) if (!this.sections.byCurve.has(curve)) this.elsewhere.add(curve);
    const ranks = new Set([...answer.processes, ...answer.charts.flatMap(({ metrics }) => metrics.flatMap(({ curves }) => curves))].map(({ rank }) => rank));
    this.ranks = [...ranks].filter((rank) => rank !== null).sort((one, other) => one - other);
    this.controls.show(this.ranks);
    this.progress.show(answer.progress, answer.run.state === "running");
    this.functions.show(answer.functions);
    this.machine.show(answer.series);
    this.dictionaries.show(answer);
    this.filled = groups + answer.progress.length + answer.functions.length > 0;
    this.reported = answer.processes.some(({ role }) => role !== NODE);
    this.told = Object.keys({ ...answer.config, ...answer.summary }).length > 0;
    this.#nothing();
  }

  /** Explain why there is nothing to see: while a run goes on, if it has no metrics; later, if it recorded nothing. */
  #nothing() {
    const live = this.state === "running";
    this.empty.hidden = this.filled || (!live && (this.told || this.timeline.says));
    this.empty.textContent = live ? WAITING : this.reported ? NO_METRICS : NO_PROCESS;
  }

  #head(run) {
    this.faults.look(this.state !== run.state);
    this.state = run.state;
    this.progress.show(this.progress.list, run.state === "running");
    this.header.show(run);
    document.title = `${run.name || run.id} – Tachograph`;
  }

  #lookAgain() {
    if (this.looking) return;
    const wait = Math.max(0, this.lookedAt + AGAIN - performance.now());
    this.looking = setTimeout(async () => {
      try {
        await this.#look();
      } catch {
        // the connection for what is live says that the hub is gone
      }
      this.looking = null;
    }, wait);
  }

  #points({ curves = [], new: fresh = [], stale = [] }) {
    const byCard = new Map();
    for (const each of curves) {
      const card = this.sections.byCurve.get(each.curve);
      if (card) byCard.set(card, [...(byCard.get(card) ?? []), each]);
      else this.#lookFor(each.curve);
    }
    for (const [card, own] of byCard) card.add(own, card.about);
    for (const number of stale) this.sections.byCurve.get(number)?.load();
    if (fresh.length) this.#lookAgain();
  }

  /** Look again for a curve that no chart has, once: that look may find that none is to have it. */
  #lookFor(curve) {
    if (this.bars.has(curve) || this.elsewhere.has(curve)) return;
    this.unknown.add(curve);
    this.#lookAgain();
  }

  #events(events) {
    this.timeline.add(events);
    if (events.length) this.#mark();
    this.#nothing();
    invalidate(this.timeline);
  }

  /** Have charts draw events as lines; where none was known, their places are yet to be fetched. */
  #mark() {
    const before = this.view.marks.length;
    this.view.marks = this.timeline.marks();
    for (const card of this.view.marks.length ? this.#all() : []) {
      if (!before && card.about) card.load();
      else invalidate(card);
    }
  }

  /** The hub says how far the run is: what is behind here is fetched. */
  #hello({ heads, progress = this.progress.list }) {
    this.progress.show(progress);
    for (const [number, head] of Object.entries(heads)) {
      const card = this.sections.byCurve.get(Number(number));
      if (this.bars.has(Number(number))) continue;
      if (!card) this.#lookFor(Number(number));
      else if (card.base !== null && card.head(Number(number)) < head) card.load();
    }
    this.#allEvents();
  }

  async #allEvents() {
    let after = this.timeline.last;
    try {
      for (let page = 0; page < PAGES; page += 1) {
        const { events, more } = await ask(`${pathOf(this.run)}/events`, { after, limit: 1000 }, this.stop.signal);
        this.#events(events);
        if (!more || !events.length) return;
        after = events[events.length - 1].number;
      }
    } catch {
      // what is live comes anyway; the banner says where the hub is gone
    }
  }

  #lost(words) {
    this.shell.banner(words);
    this.shell.head.classList.add("gone");
  }

  #back() {
    this.shell.banner("");
    this.shell.head.classList.remove("gone");
    this.#lookAgain();
    for (const card of this.#all()) if (card.stale || !card.about) card.load();
  }

  #follow(changed) {
    if ("x" in changed) for (const card of this.#all()) card.renew();
    if (["zooms", "ranges", "weight"].some((name) => name in changed)) for (const card of this.#all()) card.seen();
    if (!["ranks", "x", "weight"].some((name) => name in changed)) return;
    if ("ranks" in changed) for (const card of this.#all()) card.load();
    for (const card of this.#all()) invalidate(card, true);
    this.progress.show(this.progress.list);
    this.functions.show(this.functions.list);
    this.timeline.show();
  }

  #all() {
    return this.sections.cards();
  }

  drawn() {
    return this.#all().map((card) => card.drawn());
  }

  close() {
    this.stop.abort();
    state.followers.delete(this.moved);
    this.shell.head.replaceChildren();
    this.shell.head.classList.remove("gone");
    this.sections.close();
    this.live?.close();
    clearTimeout(this.retry);
    clearTimeout(this.looking);
    clearInterval(this.slowly);
    for (const card of this.#all()) card.destroy();
  }
}
