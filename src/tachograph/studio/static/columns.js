/** The columns of the table of runs: what each is called, how its values read, and the dialog in which they are chosen. */

import { button, element, fill } from "./element.js";
import { bytes, count, duration, number, when } from "./format.js";
import { lossRank } from "./groups.js";
import { chip } from "./header.js";

const FACTS = {
  state: "State", program: "Program", start: "Started", last: "Last heard", duration: "Duration", ranks: "Ranks", restarts: "Restarts",
  points: "Points", size: "Size", tags: "Tags", notes: "Notes", ended: "End", processes: "Processes",
};
const FIRST = ["state", "program", "start", "duration", "ranks", "points", "size"];
const NARROW = ["state", "start", "duration"]; // on a phone
const OF = { config: "Configuration", summary: "Results", last: "Last value", min: "Least value", max: "Greatest value" };
const MOST = 150; // names that are shown at once: more are found by searching

/** Return the columns that are shown until others are chosen: facts, and the loss where there is one. */
export function defaults(known) {
  const names = Object.keys(known).filter((name) => name.startsWith("last.") && lossRank(name.slice(5)) < 2);
  names.sort((one, other) => lossRank(one.slice(5)) - lossRank(other.slice(5)) || known[other] - known[one]);
  return [...(innerWidth < 640 ? NARROW : FIRST), ...names.slice(0, 1)];
}

export function heading(name) {
  if (FACTS[name]) return FACTS[name];
  const [of, ...rest] = name.split(".");
  if (!OF[of]) return name;
  return ["last", "min", "max"].includes(of) ? `${rest.join(".")} ${of}` : rest.join(".");
}

/** Tell whether a column's values are written to the right. */
export const numeric = (name) => ["duration", "ranks", "restarts", "points", "size", "processes"].includes(name) || /^(last|min|max)\./.test(name);

export function cell(name, run, value) {
  if (name === "state") return element("td", {}, chip(run.state, run.ended));
  const said = reading(name, run, value);
  const time = name === "start" || name === "last";
  const right = !time && (numeric(name) || typeof value === "number");
  return element("td", { class: right ? "number" : time ? "figures" : "words", title: right ? null : said, text: said });
}

function reading(name, run, value) {
  switch (name) {
    case "start": return when(run.started);
    case "last": return when(run.last);
    case "duration": return duration(run.seconds);
    case "size": return bytes(run.bytes);
    case "ranks": return run.ranks ? number(run.ranks) : "–";
    case "tags": return run.tags.join(", ") || "–";
    default: return said(value);
  }
}

/** Return a value of a configuration or a result as it reads. */
export function said(value, digits) {
  if (value === null || value === undefined || value === "") return "–";
  if (Array.isArray(value)) return `[${value.map((each) => (each === null ? "null" : said(each, digits))).join(", ")}]`;
  return typeof value === "number" ? number(value, digits) : typeof value === "object" ? JSON.stringify(value) : String(value);
}

const KEYS_SHOWN = 2; // of those in which runs differ, in a run's label
const CONFIG = "config.";

/** Return the keys of the configuration in which runs differ, a few; `items` are rows of the table of runs. */
export function differingKeys(items) {
  const keys = new Set(items.flatMap(({ columns }) => Object.keys(columns)).filter((name) => name.startsWith(CONFIG)));
  const differs = (key) => new Set(items.map(({ columns }) => JSON.stringify(columns[key] ?? null))).size > 1;
  return [...keys].filter(differs).slice(0, KEYS_SHOWN);
}

/** Return what tells a run from the others: the name that somebody gave it, else the keys that differ, else its id. */
export function labelOf({ run, columns }, keys) {
  const told = keys.map((key) => `${key.slice(CONFIG.length)} ${said(columns[key], 3)}`).join(" · ");
  return run.name || told || run.id;
}

/** Let columns be chosen: `done` is called with others, or with null for those of the beginning; `known` says how many runs have each. */
export function chooser(dialog, known, chosen, done) {
  const wanted = new Set(chosen);
  const names = [...Object.keys(FACTS), ...Object.keys(known).filter((name) => OF[name.split(".")[0]] && name.includes("."))];
  const find = element("input", { type: "search", placeholder: "find a column", "aria-label": "Find a column" });
  const list = element("div", { class: "offered" });
  const show = () => {
    const text = find.value.trim().toLowerCase();
    const found = names.filter((name) => !text || name.toLowerCase().includes(text));
    const groups = new Map();
    for (const name of found.slice(0, MOST)) {
      const of = FACTS[name] ? "About the run" : OF[name.split(".")[0]];
      groups.set(of, [...(groups.get(of) ?? []), name]);
    }
    fill(list, ...[...groups].map(([title, some]) => element("fieldset", {}, element("legend", { text: title }), ...some.map(box))),
      found.length > MOST ? element("p", { class: "quiet", text: `${count(found.length - MOST, "more column")}: write a part of the name` }) : null,
      found.length ? null : element("p", { class: "quiet", text: "No column is called that." }));
  };
  const box = (name) => {
    const check = element("input", { type: "checkbox", on: { change: () => (check.checked ? wanted.add(name) : wanted.delete(name)) } });
    check.checked = wanted.has(name);
    return element("label", {}, check, element("span", { text: FACTS[name] ?? name.slice(name.indexOf(".") + 1) }), FACTS[name] ? null : element("span", { class: "quiet number", text: number(known[name]) }));
  };
  const end = (columns) => {
    dialog.close();
    done(columns);
  };
  find.addEventListener("input", show);
  show();
  fill(dialog, element("h2", { text: "Columns" }), find, list,
    element("div", { class: "actions" },
      button("Show", () => end([...wanted]), { class: "plain go" }), button("As at first", () => end(null)), button("Cancel", () => dialog.close())));
  dialog.showModal();
  find.focus();
}
