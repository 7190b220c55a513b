/** How a reader has arranged the sections of a run's page: folded, pinned, in another order. */

import { button, element, fill, small } from "./element.js";
import { ordered as inOrder } from "./groups.js";
import { listOf, state, wordOf } from "./route.js";

const NAMES = ["pin", "fold", "order"];
const MOST = 200; // sections that are kept

/** The arrangement: in the address, and kept for each program; the address wins. */
export class Arrangement {
  constructor() {
    this.program = null;
    this.read();
  }

  /** Take what the address says; what is kept, where it says nothing. */
  read() {
    const kept = NAMES.some((name) => state.get(name) !== null) ? {} : this.#kept();
    for (const name of NAMES) this[name] = new Set(listOf(state.get(name) ?? kept[name] ?? ""));
  }

  /** Know the program: what was kept for it holds. */
  of(program) {
    if (this.program === program) return;
    this.program = program;
    this.read();
  }

  #kept() {
    try {
      return (this.program !== null && JSON.parse(localStorage.getItem(this.#key))) || {};
    } catch {
      return {}; // a browser that keeps nothing, or something else
    }
  }

  get #key() {
    return `tachograph.sections.${this.program}`;
  }

  keep() {
    const told = Object.fromEntries(NAMES.map((name) => [name, wordOf([...this[name]].slice(0, MOST))]));
    state.set(told, true);
    try {
      if (NAMES.some((name) => told[name])) localStorage.setItem(this.#key, JSON.stringify(told));
      else localStorage.removeItem(this.#key);
    } catch {
      // the address has it
    }
  }

  /** Return sections in order: those that are pinned, those that were moved, and the others as they come. */
  ordered(sections) {
    const order = [...this.order];
    const place = ({ key }, at) => (this.pin.has(key) ? [0, [...this.pin].indexOf(key)] : order.includes(key) ? [1, order.indexOf(key)] : [order.length ? 2 : 1, at]);
    return inOrder(sections, place);
  }

  /** Tell whether a section is folded up: groups are open at first, what is below them is not. */
  folds({ key, folded }, open = false) {
    return this.fold.has(key) !== (folded && !open);
  }

  toggle(name, key) {
    if (!this[name].delete(key)) this[name].add(key);
    this.keep();
  }

  /** Move a section before or behind its neighbour among those that are listed. */
  move(keys, key, by) {
    const among = keys.filter((each) => this.pin.has(each) === this.pin.has(key));
    const at = among.indexOf(key);
    if (at + by < 0 || at + by >= among.length) return;
    among.splice(at + by, 0, ...among.splice(at, 1));
    if (this.pin.has(key)) this.pin = new Set(among);
    else this.order = new Set(among);
    this.keep();
  }

  clear() {
    for (const name of NAMES) this[name].clear();
    this.keep();
  }
}

/** Let a reader arrange the sections: `listed()` returns them in order, {key, title, folded}. */
export function arrange(dialog, listed, arrangement, changed) {
  const list = element("ul", { class: "arranged" });
  const act = (change, key, what) => {
    change();
    changed();
    show();
    list.querySelector(`[data-of="${CSS.escape(key)}"] [data-act="${what}"]`)?.focus();
  };
  const show = () => {
    const sections = listed();
    const keys = sections.filter(({ folded }) => !folded).map(({ key }) => key);
    fill(list, ...sections.map((section) => {
      const { key, title, folded } = section;
      const name = title || "Metrics without a group";
      const does = (what, text, label, pressed, change) => small(text, label, () => act(change, key, what), {
        "data-act": what, "aria-label": `${label} ${name}`, "aria-pressed": pressed === null ? null : String(pressed),
      });
      return element("li", { "data-of": key }, element("span", { class: "name", text: name, title: name }),
        does("fold", "fold", "Fold up", arrangement.folds(section), () => arrangement.toggle("fold", key)),
        ...(folded ? [] : [
          does("pin", "pin", "Pin to the top", arrangement.pin.has(key), () => arrangement.toggle("pin", key)),
          does("up", "↑", "Move up", null, () => arrangement.move(keys, key, -1)),
          does("down", "↓", "Move down", null, () => arrangement.move(keys, key, 1)),
        ]));
    }));
  };
  show();
  fill(dialog, element("h2", { text: "Sections" }), list,
    element("div", { class: "actions" },
      button("Close", () => dialog.close()), button("As at first", () => act(() => arrangement.clear(), "", ""))));
  dialog.showModal();
}
