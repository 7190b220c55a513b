/** Events of a run while the page is open, as the hub tells them; and whether the hub is there at all. */

import { ask, pathOf } from "./api.js";
import { shared } from "./shared.js";

const RETRY = 2000; // milliseconds, where the browser has given up by itself
const SILENCE = 5000; // milliseconds between two looks whether the hub still answers
const AWAY = 20_000; // milliseconds out of sight after which a page listens no more: a browser has few connections
const PATIENCE = 1500; // milliseconds until the hub is said to be gone
const KINDS = ["hello", "points", "progress", "events", "run", "samples", "problem"];

/** One connection to the hub, which comes back by itself. */
export class Live {
  /**
   * @param {Object} on - functions by the kind of event, called with its data; `lost()` and `back()` of the hub.
   */
  constructor(run, on) {
    this.on = on;
    this.path = `${pathOf(run)}/live`;
    this.cursor = "";
    this.gone = false;
    this.closed = false;
    if (shared) { // nothing comes any more
      queueMicrotask(() => on.hello({ heads: {} }));
      return;
    }
    this.#open();
    this.watch = setInterval(() => this.#look(), SILENCE);
    this.seen = () => this.#seen();
    document.addEventListener("visibilitychange", this.seen);
  }

  #open() {
    const source = new EventSource(this.cursor ? `${this.path}?after=${encodeURIComponent(this.cursor)}` : this.path);
    this.source = source;
    source.addEventListener("open", () => this.#back());
    source.addEventListener("error", () => {
      if (this.closed) return;
      if (source.readyState !== EventSource.CLOSED) {
        this.#lost();
        return;
      }
      this.#refused();
      clearTimeout(this.again);
      this.again = setTimeout(() => this.#open(), RETRY);
    });
    for (const kind of KINDS) {
      source.addEventListener(kind, (event) => {
        this.cursor = event.lastEventId || this.cursor;
        this.on[kind]?.(JSON.parse(event.data));
      });
    }
  }

  #lost() {
    if (this.gone || this.closed) return;
    this.gone = true;
    this.soon = setTimeout(() => this.on.lost(), PATIENCE);
  }

  #seen() {
    clearTimeout(this.asleep);
    if (document.hidden) {
      this.asleep = setTimeout(() => this.source.close(), AWAY);
    } else if (this.source.readyState === EventSource.CLOSED) {
      clearTimeout(this.again);
      this.#open();
    }
  }

  /** It answers, but not with a stream: a hub that ends, or that has enough listeners; a run that was pruned. */
  async #refused() {
    try {
      await ask(this.path.replace(/\/live$/, ""));
      if (!this.closed) this.on.problem({ error: "This page is not live: too many are open. Trying again …" });
      this.gone = true;
    } catch (error) {
      if (error.status === 0) this.#lost();
      else if (!this.closed) this.on.problem({ error: `${error.message}; trying again …` });
    }
  }

  #back() {
    if (!this.gone) return;
    this.gone = false;
    clearTimeout(this.soon);
    this.on.back();
  }

  /** A hub that hangs does not break the connection: ask it. */
  async #look() {
    if (document.hidden || this.source.readyState !== EventSource.OPEN) return;
    try {
      await fetch("/healthz", { signal: AbortSignal.timeout(SILENCE) });
      this.#back();
    } catch {
      this.#lost();
    }
  }

  close() {
    this.closed = true;
    this.source?.close();
    document.removeEventListener("visibilitychange", this.seen);
    clearTimeout(this.soon);
    clearTimeout(this.asleep);
    clearInterval(this.watch);
    clearTimeout(this.again);
  }
}
