/** A reader's words about a run: its name, tags and notes; and its end, for good. */

import { change, mayChange, takeToken } from "./api.js";
import { button, element, fill, small } from "./element.js";
import { bytes, count } from "./format.js";

/** A button, and the dialog behind it; hidden where the page may change nothing. */
export class Editor {
  /**
   * @param {function()} changed - called after a change; it may return a promise.
   * @param {function()} deleted - called after the end.
   */
  constructor(run, changed, deleted) {
    this.run = run;
    this.changed = changed;
    this.deleted = deleted;
    this.dialog = element("dialog", { class: "editor", "aria-label": "Edit the run", on: { close: () => this.dialog.remove() } });
    this.button = small("Edit", "", () => this.#open());
    this.node = element("span", { hidden: true }, this.button);
  }

  show({ writable, run, notes }) {
    this.node.hidden = !writable;
    Object.assign(this, { line: run, notes });
  }

  #open() {
    this.words = element("p", { class: "bad", role: "status" });
    const name = element("input", { type: "text", maxlength: "200", placeholder: this.run, value: this.line.name });
    const notes = element("textarea", { rows: "5", maxlength: "10000" });
    notes.value = this.notes;
    const tags = new Tags(this.line.tags);
    const save = () => this.#send({ ...tags.changes(), name: name.value, notes: notes.value }, async () => {
      await this.changed();
      this.dialog.close();
    });
    fill(this.dialog,
      element("h2", { text: "Edit" }),
      element("label", {}, element("span", { text: "Name" }), name),
      element("div", { class: "field" }, element("span", { text: "Tags" }), tags.node),
      element("label", {}, element("span", { text: "Notes" }), notes),
      this.#token(), this.words,
      element("div", { class: "actions" },
        button("Save", save), this.#cancel("Cancel"),
        button("Delete …", () => this.#confirm(), { class: "plain bad" })));
    for (const field of [name, this.token]) field?.addEventListener("keydown", ({ key }) => key === "Enter" && save());
    document.body.append(this.dialog); // its button may be drawn anew meanwhile
    addEventListener("hashchange", () => this.dialog.close(), { once: true });
    this.dialog.showModal();
    (this.token ?? name).focus();
  }

  #confirm() {
    this.words = element("p", { class: "bad", role: "status" });
    const end = () => this.#send(null, () => {
      this.dialog.close();
      this.deleted();
    });
    const size = `${count(this.line.points, "point")}, ${bytes(this.line.bytes)}`;
    fill(this.dialog,
      element("h2", { text: "Delete this run for good?" }),
      element("p", {}, element("strong", { text: this.line.name || this.run }), `: ${size}`),
      this.#token(), this.words,
      element("div", { class: "actions" },
        button("Delete", end, { class: "plain bad" }), this.#cancel("Keep")));
    this.dialog.querySelector(".actions button:last-child").focus();
  }

  #gone() {
    const leave = () => {
      this.dialog.close();
      this.deleted();
    };
    fill(this.dialog, element("h2", { text: "This run is gone" }), element("p", { text: "It was deleted meanwhile." }),
      element("div", { class: "actions" }, button("All runs", leave)));
    this.dialog.querySelector("button").focus();
  }

  #cancel(text) {
    return button(text, () => this.dialog.close());
  }

  /** Return a field for the token, where the page has none. */
  #token() {
    this.token = null;
    if (mayChange()) return null;
    this.token = element("input", { type: "password", autocomplete: "off", placeholder: "as tachograph studio --write has printed it" });
    return element("label", {}, element("span", { text: "Token" }), this.token);
  }

  async #send(what, done) {
    if (this.token) takeToken(this.token.value.trim());
    this.words.textContent = "";
    try {
      await change(this.run, what);
      await done();
    } catch (error) {
      if (error.status === 404) {
        this.#gone();
        return;
      }
      this.words.textContent = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`.replace("?.", "?");
      if (error.status === 401 && !this.token) this.words.before(this.#token());
    }
  }
}

/** Tags, each with a button that removes it, and a field for more. */
class Tags {
  constructor(tags) {
    this.before = tags;
    this.now = new Set(tags);
    this.list = element("span");
    this.field = element("input", { type: "text", maxlength: "64", placeholder: "another tag", "aria-label": "Another tag" });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.#take();
    });
    this.node = element("div", { class: "tags" }, this.list, this.field);
    this.#show();
  }

  #take() {
    const tag = this.field.value.trim();
    if (tag) this.now.add(tag);
    this.field.value = "";
    this.#show();
  }

  #show() {
    fill(this.list, ...[...this.now].map((text) => element("span", { class: "chip" }, text,
      button("×", () => {
        this.now.delete(text);
        this.#show();
        this.field.focus();
      }, { class: null, "aria-label": `Remove the tag ${text}` }))));
  }

  /** Return the tags to add and to remove, with one that is still in the field. */
  changes() {
    this.#take();
    return { add: [...this.now].filter((tag) => !this.before.includes(tag)), remove: this.before.filter((tag) => !this.now.has(tag)) };
  }
}
