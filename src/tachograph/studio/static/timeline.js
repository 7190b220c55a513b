/** Events on a time line: a lane for each rank, a list of the newest below. */

import { element, fill, headRow, scrolling, tabular } from "./element.js";
import { count, duration, when } from "./format.js";

const KEPT = 5000;
const MARKS = 600;
const ROWS = 60;
const QUIET = new Set(["torch.monitor.Stat", "tachograph.point", "tachograph.points", "tachograph.metric", "tachograph.definition", "tachograph.steps"]);
const SECOND = 1e9;
const [START, END] = ["tachograph.process.start", "tachograph.process.end"];
const LINES = 100; // in a chart
const ERROR = 17; // the lowest severity number of an error: OpenTelemetry's data model of logs

export class Timeline {
  constructor(view) {
    this.view = view;
    this.events = [];
    this.numbers = new Set();
    this.last = 0; // number of the newest event, shown or not
    this.lanes = element("div", { class: "lanes", role: "img", "aria-label": "Events over time" });
    this.ends = element("div", { class: "lane-ends quiet number" }, element("span"), element("span"));
    this.body = element("tbody");
    this.summary = element("span", { class: "note" });
    this.details = element("details", {},
      element("summary", { text: "List" }),
      scrolling("Table of events", tabular(headRow(["Time", "Rank", "Event", "Text"]), this.body, "data events")));
    this.details.addEventListener("toggle", () => this.show());
    this.node = element("section", { class: "block", "aria-label": "Events", hidden: true },
      element("h2", {}, "Events ", this.summary), this.lanes, this.ends, this.details);
    this.inView = true;
  }

  /** Take events, as the hub answers them; those that are known already are left. */
  add(events) {
    for (const each of events) {
      this.last = Math.max(this.last, each.number);
      if (QUIET.has(each.name) || this.numbers.has(each.number)) continue;
      this.numbers.add(each.number);
      this.events.push({ ...each, rank: each.rank ?? workerOf(each) });
    }
    for (const gone of this.events.splice(0, Math.max(0, this.events.length - KEPT))) this.numbers.delete(gone.number);
  }

  /** Whether there is any event but that processes began and ended. */
  get says() {
    return this.events.some(({ name }) => !name.startsWith("tachograph.process."));
  }

  /** Return the events that charts mark: faults and restarts first, then the newest others. */
  marks() {
    const begun = new Set();
    const found = [];
    for (const each of this.events) {
      const [again, key] = [each.name === START, `${each.rank} ${each.attributes?.role ?? ""}`];
      const restart = again && begun.has(key);
      if (again) begun.add(key);
      if ((again && !restart) || each.name === END || !this.view.wants(each.rank)) continue;
      const bad = tone(each) === "bad";
      const name = restart ? "restart" : each.name;
      const who = each.rank === null ? "" : `rank ${each.rank}`;
      found.push({ time: each.time, rank: each.rank, name, bad, restart, words: [name, who, when(each.time)].filter(Boolean).join(" · ") });
    }
    const first = found.filter(({ bad, restart }) => bad || restart);
    return [...first, ...found.filter(({ bad, restart }) => !bad && !restart)].slice(0, LINES);
  }

  draw() {
    this.show();
  }

  show() {
    const wanted = this.events.filter(({ rank }) => this.view.wants(rank));
    this.node.hidden = wanted.length === 0;
    if (!wanted.length) return;
    this.summary.textContent = count(wanted.length, "event");
    const times = wanted.map(({ time }) => time);
    const [first, last] = [Math.min(...times), Math.max(...times)];
    const span = Math.max(last - first, SECOND);
    const lanes = new Map();
    for (const each of wanted.slice(-MARKS)) {
      const key = each.rank ?? "";
      if (!lanes.has(key)) lanes.set(key, []);
      lanes.get(key).push(each);
    }
    const order = [...lanes].sort(([one], [other]) => (one === "" ? -1 : one) - (other === "" ? -1 : other));
    fill(this.lanes, ...order.map(([rank, events]) => lane(rank, events, first, span)));
    this.ends.firstChild.textContent = when(first);
    this.ends.lastChild.textContent = first === last ? "" : `${when(last)} (${duration((last - first) / SECOND)})`;
    if (this.details.open) fill(this.body, ...wanted.slice(-ROWS).reverse().map(row));
  }
}

/** The rank that an event of torchrun's agent is about; null where it is about all. */
function workerOf({ attributes }) {
  const rank = attributes?.global_rank;
  return rank === undefined || rank === null || !Number.isInteger(Number(rank)) ? null : Number(rank);
}

function lane(rank, events, first, span) {
  return element(
    "div",
    { class: "lane" },
    element("span", { class: "lane-name", text: rank === "" ? "job" : `rank ${rank}` }),
    element("div", { class: "lane-track" }, ...events.map((each) =>
      element("i", { class: `event ${tone(each)}`, title: `${when(each.time)} ${each.name}\n${said(each)}`, style: { left: `${(100 * (each.time - first)) / span}%` } }))),
  );
}

function tone({ name, attributes }) {
  if (attributes?.severity_number) return attributes.severity_number < ERROR ? "neutral" : "bad";
  const words = `${name} ${Object.values(attributes ?? {}).join(" ")}`.toLowerCase();
  if (/fail|error|exception|lost|sigkill|sigabrt|unhealthy/.test(words)) return "bad";
  if (/succe|healthy|start|ready/.test(words)) return "good";
  return "neutral";
}

const FIRST = ["state", "reason", "severity_text", "error", "body", "message", "source"];
const LAST = FIRST.length;

function said({ attributes }) {
  const order = ([key]) => (FIRST.includes(key) ? FIRST.indexOf(key) : LAST);
  return Object.entries(attributes ?? {})
    .filter(([key, value]) => !key.startsWith("tachograph.") && value !== "")
    .sort((one, other) => order(one) - order(other))
    .map(([key, value]) => `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join("  ");
}

function row(each) {
  return element(
    "tr",
    {},
    element("td", { class: "number", text: when(each.time) }),
    element("td", { class: "number", text: each.rank === null ? "–" : String(each.rank) }),
    element("th", { scope: "row", class: tone(each) === "bad" ? "bad" : null, text: each.name }),
    element("td", { class: "code", text: said(each) }),
  );
}
