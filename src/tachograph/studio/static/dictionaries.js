/** Notes, results, configuration and program of a run: a text, and tables of keys and values, below the charts. */

import { said } from "./columns.js";
import { element, fill, headRow, scrolling, tabular } from "./element.js";

const OPEN = 12; // keys that are shown without being asked for

class Dictionary {
  constructor(title) {
    this.count = element("span", { class: "quiet number" });
    this.body = element("tbody");
    this.fold = element("details", { class: "section" }, element("summary", {}, element("h2", {}, title, this.count)),
      scrolling(title, tabular(headRow(["Key", "Value"]), this.body, "data pairs")));
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
      element("tr", {}, element("th", { scope: "row", class: "code", text: key }), element("td", { text: value === null ? "null" : said(value, 9) }))));
  }
}

/** Return a command line as one types it. */
const typed = (argv) => argv.map((each) => (/^[\w@%+=:,./*-]+$/.test(each) ? each : `'${each.replaceAll("'", "'\\''")}'`)).join(" ");

export class Dictionaries {
  constructor() {
    this.notes = element("p", { class: "run-notes", hidden: true });
    this.summary = new Dictionary("Summary");
    this.config = new Dictionary("Configuration");
    this.program = new Dictionary("Program");
    this.node = element("div", {}, this.notes, this.summary.fold, this.config.fold, this.program.fold);
  }

  show({ config = {}, summary = {}, program = {}, notes = "" }) {
    this.notes.hidden = !notes;
    if (this.notes.textContent !== notes) this.notes.textContent = notes;
    this.summary.show(summary);
    this.config.show(config);
    this.program.show(Array.isArray(program.argv) ? { ...program, argv: typed(program.argv) } : program);
  }
}
