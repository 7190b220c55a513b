/** The machine in four tiles: processors, memory, GPUs and network, in words; all else is in the section below. */

import { ask, pathOf } from "./api.js";
import { element, fill, say, small } from "./element.js";
import { bytes, count, duration, number } from "./format.js";

const NANO = 1e9;
const WIDTH = 240; // of a picture, in units of its own
const HEIGHT = 44;
const MOST_KEPT = 2000; // samples of a series; then all of them are fetched again, thinned
const LEAST = 1024; // bytes a second: below that a network's picture is flat
const LOOPBACK = /^(lo\d*|ifb\d+)$/; // traffic that goes nowhere, or that another interface has counted

const percent = (share) => `${number(100 * share, share < 0.0995 ? 2 : 3)} %`;
const mode = (name, value) => (series) => series.attributes[name] === value;

const shares = (kept) => kept.map(({ sample }) => line(sample, ({ value, min, max }, place) => spread(value[place], min?.[place], max?.[place])));

/** Content of each tile: which series, how a line is made of them, and how it is said. */
const TILES = [
  {
    title: "CPU", wanted: ({ name, attributes }) => name === "system.cpu.utilization" && attributes["cpu.mode"] === "idle",
    also: ({ name }) => name === "system.cpu.logical.count",
    lines: (kept) => kept.map(({ sample }) => line(sample, ({ value, min, max }, place) => spread(1 - value[place], max && 1 - max[place], min && 1 - min[place]))),
    said: (now) => `${percent(now)} busy`,
    more: (tile) => (tile.extra.length ? `of ${count(tile.extra.at(-1), "processor")}` : ""),
    top: 1,
  },
  {
    title: "Memory", wanted: ({ name, attributes }) => name === "system.memory.utilization" && attributes["system.memory.state"] === "used",
    also: ({ name }) => name === "system.memory.limit",
    lines: shares,
    said: (now) => `${percent(now)} used`,
    more: (tile, now) => (tile.extra.length ? `${bytes(now * tile.extra.at(-1))} of ${bytes(tile.extra.at(-1))}` : ""),
    top: 1,
  },
  {
    title: "GPU", wanted: (series) => series.name === "hw.gpu.utilization" && mode("hw.gpu.task", "general")(series),
    lines: shares,
    said: (now, all) => (all.length > 1 ? `${percent(now)} busy, ${percent(Math.min(...all))} the least` : `${percent(now)} busy`),
    more: (tile) => count(tile.kept.size, "GPU"),
    top: 1,
  },
  {
    title: "Network", wanted: ({ name, attributes }) => name === "system.network.io" && !LOOPBACK.test(attributes["network.interface.name"] ?? ""),
    lines: (kept) => ["receive", "transmit"].map((direction) => summed(kept.filter(({ series }) => series.attributes["network.io.direction"] === direction))),
    said: (_, [received, sent]) => `${bytes(received ?? 0)}/s in, ${bytes(sent ?? 0)}/s out`,
    more: () => "",
    top: null,
  },
];

/** The four tiles of a run; hidden where its hub has not looked at the machine. */
export class Machine {
  /** @param {function()} open - shows all of it. */
  constructor(run, signal, open) {
    this.run = run;
    this.signal = signal;
    this.tiles = TILES.map((about) => new Tile(about));
    this.bySeries = new Map();
    const all = small("all of it", "Every series of the machine", open);
    this.node = element("section", { class: "block machine", "aria-label": "Machine", hidden: true },
      element("h2", {}, "Machine ", all), element("div", { class: "tiles" }, ...this.tiles.map(({ node }) => node)));
  }

  /** Take the series of the run's answer: what is new is fetched. */
  async show(series) {
    for (const each of series) {
      if (this.bySeries.has(each.series) || each.kind === "histogram") continue;
      const tile = this.tiles.find(({ about }) => about.wanted(each) || about.also?.(each));
      if (tile) this.bySeries.set(each.series, { tile, series: each });
    }
    await this.#load([...this.bySeries].filter(([number, { tile }]) => !tile.has(number)).map(([number]) => number));
  }

  async #load(numbers) {
    if (!numbers.length) return;
    try {
      const { samples } = await ask(`${pathOf(this.run)}/samples`, { series: numbers }, this.signal);
      for (const each of samples) {
        const known = this.bySeries.get(each.series);
        known?.tile.start(known.series, each);
      }
    } catch {
      return; // the banner says that the hub is gone; the next look asks again
    }
    this.draw();
  }

  /** Take samples that came live. */
  add(samples) {
    const long = [];
    for (const each of samples) {
      const known = this.bySeries.get(each.series);
      if (known?.tile.add(each) > MOST_KEPT) long.push(each.series);
    }
    this.draw();
    this.#load(long);
  }

  draw() {
    for (const tile of this.tiles) tile.draw();
    this.node.hidden = this.tiles.every(({ node }) => node.hidden);
  }
}

class Tile {
  constructor(about) {
    this.about = about;
    this.kept = new Map(); // series and samples, by number
    this.others = new Map(); // the same of what is said beside the line, such as a size
    this.now = element("p", { class: "tile-now number" });
    this.beside = element("p", { class: "tile-more quiet" });
    this.picture = element("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "tile-picture" });
    this.span = element("p", { class: "tile-span quiet number" });
    this.node = element("div", { class: "tile", hidden: true, role: "group", "aria-label": about.title },
      element("h3", { text: about.title }), this.now, this.beside, this.picture, this.span);
  }

  has(number) {
    return this.kept.has(number) || this.others.has(number);
  }

  start(series, sample) {
    (this.about.wanted(series) ? this.kept : this.others).set(series.series, { series, sample });
  }

  /** Put samples behind those that are here; return how many these are. */
  add({ series: number, time, value }) {
    const sample = (this.kept.get(number) ?? this.others.get(number))?.sample;
    if (!sample) return 0;
    const last = sample.time.at(-1) ?? 0;
    time.forEach((each, place) => {
      if (each <= last) return;
      sample.time.push(each);
      for (const key of ["value", "min", "max"]) sample[key]?.push(value[place]);
    });
    return sample.time.length;
  }

  get extra() {
    return [...this.others.values()].flatMap(({ sample }) => sample.value.slice(-1)).filter(Number.isFinite);
  }

  draw() {
    const lines = this.about.lines([...this.kept.values()]).filter(({ points }) => points.length);
    this.node.hidden = lines.length === 0;
    if (!lines.length) return;
    const last = lines.map(({ points }) => points.at(-1).y);
    const now = last.reduce((sum, each) => sum + each, 0) / last.length;
    const all = lines.flatMap(({ points }) => points);
    const most = all.reduce((found, { high }) => Math.max(found, high), 0);
    const [first, end] = [all.reduce((found, { x }) => Math.min(found, x), Infinity), all.reduce((found, { x }) => Math.max(found, x), -Infinity)];
    say(this.now, this.about.said(now, last));
    say(this.beside, [this.about.more(this, now), this.about.top ? `at most ${percent(most)}` : `at most ${bytes(most)}/s`].filter(Boolean).join("; "));
    say(this.span, end > first ? `over ${duration((end - first) / NANO)}` : "one look so far");
    const top = this.about.top ?? Math.max(LEAST, most);
    const px = (x) => (end > first ? (WIDTH * (x - first)) / (end - first) : WIDTH);
    const py = (y) => HEIGHT - 1 - (HEIGHT - 2) * Math.max(0, Math.min(1, y / top));
    const at = (x, y) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`;
    fill(this.picture, element("svg:title", { text: `${this.about.title}: ${this.now.textContent}; ${this.beside.textContent}` }), ...lines.flatMap(({ points }, place) => [
      points.some(({ low, high }) => low !== high)
        ? element("svg:polygon", { class: `tile-band line-${place % 2}`, points: [...points.map(({ x, high }) => at(x, high)), ...points.map(({ x, low }) => at(x, low)).reverse()].join(" ") })
        : null,
      element("svg:polyline", { class: `tile-line line-${place % 2}`, points: points.map(({ x, y }) => at(x, y)).join(" ") }),
    ].filter(Boolean)));
  }
}

/** Return a line of a series: x, y, and the extremes of what each point stands for. */
function line(sample, of) {
  const points = sample.time.map((x, place) => ({ x, ...of(sample, place) }));
  return { points: points.filter(({ y }) => Number.isFinite(y)) };
}

const spread = (y, low, high) => ({ y, low: Number.isFinite(low) ? low : y, high: Number.isFinite(high) ? high : y });

/** Return how much counters have risen a second together; each begins anew where it has gone down. */
function summed(kept) {
  const rates = new Map();
  for (const { sample: { time, value } } of kept) {
    for (let place = 1; place < time.length; place += 1) {
      const [before, now] = [value[place - 1], value[place]];
      const seconds = (time[place] - time[place - 1]) / NANO;
      if (before === null || now === null || seconds <= 0) continue;
      const at = Math.round(time[place] / NANO);
      rates.set(at, (rates.get(at) ?? 0) + (now >= before ? now - before : now) / seconds);
    }
  }
  const points = [...rates].sort(([one], [other]) => one - other).map(([at, y]) => ({ x: at * NANO, y, low: y, high: y }));
  return { points };
}
