/** The page that compares runs: each metric of theirs in one chart, where they differ, and one value against another. */

import { ask, pathOf, silent } from "./api.js";
import { Card } from "./card.js";
import { differingKeys, labelOf, said } from "./columns.js";
import { Comparison } from "./comparison.js";
import { Smoothing } from "./controls.js";
import { button, element, fill, inOrder, say, scrolling, small, tabular } from "./element.js";
import { count, number } from "./format.js";
import { invalidate } from "./frame.js";
import { lossRank } from "./groups.js";
import { chip } from "./header.js";
import { matcher, nearest } from "./near.js";
import { linkTo, listOf, state, wordOf } from "./route.js";
import { Scatter } from "./scatter.js";
import { Shades, runColor } from "./shades.js";
import { follow } from "./theme.js";
import { View } from "./view.js";

const EVERY = 2000; // milliseconds
const MOST_ABREAST = 6; // charts of a group that share a row with another group's
const MANY = 40; // runs that are listed with a name each, until all are wanted

export class ComparisonPage {
  constructor(_route, shell) {
    this.shell = shell;
    this.title = "Comparison";
    this.view = new View();
    this.cards = new Map();
    this.sections = new Map();
    this.runs = [];
    this.newest = new Map(); // the number of the newest curve, by run
    this.heading = element("h1", { text: "Comparison" });
    this.list = element("ul", { class: "compared", "aria-label": "Runs that are compared" });
    this.gone = element("div", { class: "notices" });
    this.by = element("select", { "aria-label": "Color by", on: { change: () => this.#choose({ colour: this.by.value }) } });
    this.scale = element("span", { class: "shades" });
    this.find = element("input", { type: "search", "aria-label": "Search metrics", placeholder: "metrics, or /regex/", spellcheck: "false" });
    this.find.addEventListener("input", () => {
      state.set({ find: this.find.value });
      this.#sections();
    });
    this.smoothing = new Smoothing(this.view);
    this.groups = element("div", { class: "groups compared-cards" });
    this.empty = element("p", { class: "empty", text: "loading …" });
    this.scatter = new Scatter((chosen) => this.#choose(chosen));
    this.differences = new Differences(() => this.#choose({ keys: state.get("keys") ? null : "all" }));
    this.view.followers.add(() => this.#renew());
    this.unfollow = follow(() => this.#show());
    this.moved = (names) => {
      this.view.moved(names);
      this.smoothing.moved();
      this.find.value = state.get("find") ?? "";
      this.#look();
    };
    state.followers.add(this.moved);
    document.title = "Comparison – Tachograph Studio";
    fill(shell.main,
      element("header", { class: "run-head" }, element("a", { href: "#/", class: "up", text: "All runs" }), this.heading, this.list, this.gone),
      element("div", { class: "controls", role: "group", "aria-label": "How charts are drawn" },
        element("label", {}, element("span", { text: "Color" }), this.by), this.scale,
        this.smoothing.node, this.find),
      element("h2", { class: "unseen", text: "Metrics" }), this.empty, this.groups, this.scatter.node, this.differences.node);
    this.find.value = state.get("find") ?? "";
    this.#look();
  }

  #choose(changed) {
    state.set(changed, true);
    this.#show();
  }

  /** Ask what the runs are now; those that go on get what is new. */
  async #look() {
    clearTimeout(this.timer);
    const names = listOf(state.get("runs"));
    try {
      if (!document.hidden || !this.runs.length) {
        const answer = names.length ? await ask("/api/compare", { run: names }) : { runs: [], gone: [], metrics: [] };
        if (this.closed) return;
        this.shell.banner("");
        const live = this.runs.filter(({ run }) => run.state === "running").map(({ run }) => run.id);
        Object.assign(this, { runs: answer.runs, metrics: answer.metrics, missing: answer.gone });
        this.#show();
        for (const run of live) await this.#follow(run);
      }
    } catch (error) {
      if (this.closed) return;
      this.shell.banner(error.status === 0 ? silent() : error.message);
    }
    this.timer = setTimeout(() => this.#look(), EVERY);
  }

  /** Ask for the points of a run that have come since those that are here. */
  async #follow(run) {
    const cards = [...this.cards.values()];
    const heads = cards.flatMap(({ source }) => [...source.heads(run)]);
    if (!heads.length) return;
    const newer = this.newest.get(run) ?? Math.max(...heads.map(([number]) => number));
    const answer = await ask(`${pathOf(run)}/arrivals`, { after: heads.map((head) => head.join(":")).join(","), newer });
    this.newest.set(run, answer.newest);
    for (const card of cards) if (card.source.take(run, answer)) card.load();
  }

  /** Show what is known, as the address wants it. */
  #show() {
    if (!this.metrics) return;
    const { runs } = this;
    say(this.heading, `${count(runs.length, "run")} compared`);
    fill(this.gone, ...this.missing.map(({ run, near }) => element("p", { class: "notice" }, `The run “${run}” is gone. `,
      near ? element("span", {}, "The nearest: ", this.#instead(run, near)) : null)));
    this.#colours();
    this.#list();
    this.#sections();
    this.scatter.show(runs, this.colour);
    this.differences.show(runs, this.colour);
  }

  #instead(gone, near) {
    const names = listOf(state.get("runs")).map((name) => (name === gone ? near : name));
    return element("a", { href: `#/compare?${new URLSearchParams({ ...Object.fromEntries(state.words), runs: wordOf(new Set(names)) })}`, text: near });
  }

  #colours() {
    const keys = new Set(this.runs.flatMap(({ columns }) => Object.keys(columns)).filter((name) => /^(config|summary)\./.test(name)));
    const telling = [...keys].filter((key) => new Set(this.runs.map(({ columns }) => JSON.stringify(columns[key]))).size > 1).sort();
    const wanted = state.get("colour") ?? "";
    const offered = ["", ...telling, ...(wanted && !telling.includes(wanted) ? [wanted] : [])];
    if (String(offered) !== this.offered) {
      this.offered = String(offered);
      fill(this.by, ...offered.map((value) => element("option", { value, text: value ? value.slice(value.indexOf(".") + 1) : "by run" })));
    }
    this.by.value = wanted;
    const shades = wanted ? new Shades(this.runs.map(({ columns }) => columns[wanted])) : null;
    const values = new Map(this.runs.map(({ run, columns }) => [run.id, columns[wanted]]));
    this.colour = (run) => (shades ? shades.of(values.get(run)) : runColor(run));
    const differing = differingKeys(this.runs);
    this.lanes = this.runs.map(({ run, columns }) => ({
      key: run.id, label: `${labelOf({ run, columns }, differing)}${wanted && !differing.includes(wanted) ? ` · ${said(values.get(run.id))}` : ""}`, rank: null, execution: 0, colour: () => this.colour(run.id),
    }));
    fill(this.scale, ...(shades?.numbers ? [element("span", { class: "number", text: number(shades.low) }),
      ...Array.from({ length: 12 }, (_, place) => element("i", { style: { background: shades.of(shades.log ? shades.low * (shades.high / shades.low) ** (place / 11) : shades.low + ((shades.high - shades.low) * place) / 11) } })),
      element("span", { class: "number", text: number(shades.high) })]
      : (shades?.names ?? []).slice(0, 12).map((name) => element("span", { class: "shade" }, element("i", { style: { background: shades.of(name) } }), name))));
  }

  #list() {
    const shape = JSON.stringify([this.runs.map(({ run }) => [run.id, run.name, run.state, this.colour(run.id)]), this.all]);
    if (shape === this.listed) return;
    this.listed = shape;
    const shown = this.all ? this.runs : this.runs.slice(0, MANY);
    fill(this.list, ...shown.map(({ run }) => element("li", {},
      element("i", { class: "swatch", style: { background: this.colour(run.id) } }),
      element("a", { href: linkTo(run.id), text: run.name || run.id, title: run.id }), run.state === "finished" ? null : chip(run.state, run.ended),
      button("×", () => this.#take(run.id), { class: "take", "aria-label": `Take ${run.name || run.id} out`, title: "Take it out" }))),
    shown.length < this.runs.length ? element("li", {}, small(`${this.runs.length - shown.length} more`, "", () => {
      this.all = true;
      this.#list();
    })) : null);
  }

  #take(run) {
    state.set({ runs: wordOf(listOf(state.get("runs")).filter((each) => each !== run)) }, true);
    this.#look();
  }

  /** Have a chart for each metric that is wanted, those of a group together, losses first. */
  #sections() {
    if (!this.metrics) return;
    const { holds, problem } = matcher(this.find.value);
    this.find.setAttribute("aria-invalid", String(problem !== ""));
    const wanted = this.metrics.filter(({ group, metric }) => holds(group ? `${group}/${metric}` : metric));
    const groups = new Map();
    for (const metric of wanted) groups.set(metric.group, [...(groups.get(metric.group) ?? []), metric]);
    const loss = (some) => Math.min(...some.map(({ metric }) => lossRank(metric)));
    const order = [...groups].sort((one, other) => loss(one[1]) - loss(other[1]));
    const keys = new Set();
    const nodes = order.map(([group, some]) => {
      some.sort((one, other) => lossRank(one.metric) - lossRank(other.metric));
      const cards = some.map((metric) => {
        const key = JSON.stringify([metric.group, metric.metric, metric.kind]);
        keys.add(key);
        return this.#card(key, metric).node;
      });
      if (!this.sections.has(group)) {
        const grid = element("div", { class: "grid" });
        const name = group || "Metrics without a group";
        this.sections.set(group, { grid, title: element("h2", { text: name }), node: element("section", { class: "group", "aria-label": name }) });
        this.sections.get(group).node.append(this.sections.get(group).title, grid);
      }
      const { grid, node, title } = this.sections.get(group);
      node.classList.toggle("single", some.length < 2);
      node.style.setProperty("--charts", Math.min(MOST_ABREAST, some.length));
      title.hidden = some.length < 2 || groups.size < 2;
      inOrder(grid, cards);
      return node;
    });
    inOrder(this.groups, nodes);
    for (const [key, card] of this.cards) {
      if (keys.has(key)) continue;
      card.destroy();
      this.cards.delete(key);
    }
    this.empty.hidden = nodes.length > 0;
    say(this.empty, !this.runs.length ? "No run is chosen: choose some in the table of runs." : this.metrics.length ? `No metric is called “${this.find.value}”${this.#nearest()}.` : "These runs have recorded no metrics.");
  }

  #nearest() {
    const near = nearest(this.find.value, this.metrics.map(({ metric }) => metric));
    return near ? `; there is “${near}”` : "";
  }

  #card(key, metric) {
    const known = this.cards.get(key);
    if (!known) {
      const card = new Card(new Comparison(metric, this.lanes, this.view), this.view);
      this.cards.set(key, card);
      return card;
    }
    const before = String(known.source.runs);
    known.source.update(metric, this.lanes);
    if (String(known.source.runs) !== before) {
      known.fetchedAt = 0;
      known.load();
    } else invalidate(known, true);
    return known;
  }

  #renew() {
    for (const card of this.cards.values()) {
      if (card.renew) card.renew();
      else invalidate(card, true);
    }
  }

  drawn() {
    return [...this.cards.values()].map((card) => card.drawn());
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.unfollow();
    state.followers.delete(this.moved);
    for (const card of this.cards.values()) card.destroy();
  }
}

class Differences {
  constructor(toggle) {
    this.toggle = small("all keys", "", toggle);
    this.words = element("p", { class: "quiet" });
    this.head = element("tr");
    this.body = element("tbody");
    this.scroll = scrolling("Configurations", tabular(this.head, this.body));
    this.scroll.classList.add("differences");
    this.node = element("section", { class: "block", "aria-label": "Configuration" }, element("h2", {}, "Configuration ", this.toggle), this.words, this.scroll);
  }

  show(runs, colour) {
    const keys = [...new Set(runs.flatMap(({ columns }) => Object.keys(columns)))].filter((name) => name.startsWith("config."));
    const telling = keys.filter((key) => new Set(runs.map(({ columns }) => JSON.stringify(columns[key]))).size > 1);
    const all = state.get("keys") === "all";
    const shown = all ? keys : telling;
    this.node.hidden = runs.length === 0;
    this.toggle.hidden = keys.length === telling.length;
    this.toggle.setAttribute("aria-pressed", String(all));
    const same = keys.length - telling.length;
    say(this.words, keys.length === 0 ? "None of the runs has told a configuration." : all || same === 0 ? "" : `${count(same, "key has", "keys have")} the same value in all of them.`);
    this.scroll.hidden = shown.length === 0;
    const told = JSON.stringify([shown, runs.map(({ run, columns }) => [run.name, run.id, colour(run.id), shown.map((key) => columns[key])])]);
    if (told === this.told) return;
    this.told = told;
    fill(this.head, element("th", { scope: "col", text: "Key" }), ...runs.map(({ run }) => element("th", { scope: "col", title: run.id },
      element("i", { class: "swatch", style: { background: colour(run.id) } }), run.name || run.id)));
    fill(this.body, ...shown.sort().map((key) => element("tr", { class: telling.includes(key) ? "telling" : null }, element("th", { scope: "row", class: "code", text: key.slice(7) }),
      ...runs.map(({ columns }) => element("td", { class: typeof columns[key] === "number" ? "number" : null, text: said(columns[key]) })))));
  }
}
