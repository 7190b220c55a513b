/** Notes, results, configuration and program of a run: a text, and tables of keys and values, below the charts. */

import { element, fill } from "./element.js";
import { number } from "./format.js";

const OPEN = 12; // keys that are shown without being asked for

const said = (value) => {
  if (Array.isArray(value)) return `[${value.map(said).join(", ")}]`;
  return typeof value === "number" ? number(value, 9) : String(value);
};

/** One dictionary. */
class Dictionary {
  constructor(title) {
    this.count = element("span", { class: "quiet number" });
    this.body = element("tbody");
    this.fold = element("details", { class: "section" }, element("summary", {}, element("h2", {}, title, this.count)),
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": title },
        element("table", { class: "data pairs" },
          element("thead", {}, element("tr", {}, element("th", { scope: "col", text: "Key" }), element("th", { scope: "col", text: "Value" }))),
          this.body)));
    this.shown = "";
  }

  show(values) {
    const now = JSON.stringify(values);
    if (now === this.shown) return;
    const entries = Object.entries(values);
    if (!this.shown) this.fold.open = entries.length <= OPEN;
    this.shown = now;
    this.fold.hidden = entries.length === 0;
    this.count.textContent = ` ${entries.length}`;
    fill(this.body, ...entries.map(([key, value]) =>
      element("tr", {}, element("th", { scope: "row", class: "code", text: key }), element("td", { text: said(value) }))));
  }
}

/** Return a command line as one types it. */
const typed = (argv) => argv.map((each) => (/^[\w@%+=:,./*-]+$/.test(each) ? each : `'${each.replaceAll("'", "'\\''")}'`)).join(" ");

/** All of a run. */
export class Dictionaries {
  constructor() {
    this.notes = element("p", { class: "run-notes", hidden: true });
    this.summary = new Dictionary("Summary");
    this.config = new Dictionary("Configuration");
    this.program = new Dictionary("Program");
    this.node = element("div", {}, this.notes, this.summary.fold, this.config.fold, this.program.fold);
  }

  /** Show them, as the run's answer has them. */
  show({ config = {}, summary = {}, program = {}, notes = "" }) {
    this.notes.hidden = !notes;
    if (this.notes.textContent !== notes) this.notes.textContent = notes;
    this.summary.show(summary);
    this.config.show(config);
    this.program.show(Array.isArray(program.argv) ? { ...program, argv: typed(program.argv) } : program);
  }
}
