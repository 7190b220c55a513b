/** One value of each run against another: a key of the configuration and a result, as points that lead to their runs. */

import { element, fill, say, small } from "./element.js";
import { count, number } from "./format.js";
import { lossRank } from "./groups.js";
import { linkTo, state } from "./route.js";

const [WIDTH, HEIGHT] = [640, 300];
const [LEFT, RIGHT, TOP, BOTTOM] = [64, 16, 12, 34];

export class Scatter {
  constructor(choose) {
    const pick = (name, label) => element("select", { "aria-label": label, on: { change: (event) => choose({ [name]: event.target.value }) } });
    const log = (name, label) => small("log", "", () => choose({ [name]: this[name] ? "0" : "1" }), { "aria-label": label });
    this.x = pick("sx", "Across");
    this.y = pick("sy", "Upwards");
    this.logX = log("slx", "Logarithmic across");
    this.logY = log("sly", "Logarithmic upwards");
    this.words = element("p", { class: "quiet", role: "status" });
    this.plot = element("svg:svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": "A point for each run" });
    this.node = element("section", { class: "block scatter", "aria-label": "One value against another" },
      element("h2", { text: "One value against another" }),
      element("div", { class: "controls" },
        element("label", {}, element("span", { text: "Upwards" }), this.y), this.logY, element("label", {}, element("span", { text: "across" }), this.x), this.logX),
      this.words, this.plot);
  }

  /** Show runs, each {run, columns}, in their colours. */
  show(runs, colour) {
    const names = [...new Set(runs.flatMap(({ columns }) => Object.keys(columns)))];
    const several = (name) => new Set(runs.map(({ columns }) => JSON.stringify(columns[name])).filter((each) => each !== undefined)).size > 1;
    const config = names.filter((name) => name.startsWith("config.") && several(name)).sort();
    const rank = (name) => (name.startsWith("summary.") ? -1 : lossRank(name.slice(name.indexOf(".") + 1)));
    const results = names.filter((name) => /^(summary|last|min|max)\./.test(name) && runs.some(({ columns }) => typeof columns[name] === "number"))
      .sort((one, other) => rank(one) - rank(other));
    this.node.hidden = runs.length < 2 || !config.length || !results.length;
    if (this.node.hidden) return;
    const sx = state.get("sx") ?? config.find((name) => runs.some(({ columns }) => typeof columns[name] === "number")) ?? config[0];
    const sy = state.get("sy") ?? results[0];
    offer(this.x, [...config, ...results], sx);
    offer(this.y, [...results, ...config], sy);
    const told = runs.map(({ run, columns }) => ({ run, x: columns[sx], y: columns[sy] })).filter(({ x, y }) => x !== undefined && x !== null && typeof y === "number" && Number.isFinite(y));
    const across = new Axis(told.map(({ x }) => x), state.get("slx"));
    const up = new Axis(told.map(({ y }) => y), state.get("sly"));
    [this.slx, this.sly] = [across.log, up.log];
    this.logX.hidden = !across.numbers;
    this.logX.setAttribute("aria-pressed", String(across.log));
    this.logY.setAttribute("aria-pressed", String(up.log));
    const shown = told.filter(({ x, y }) => across.has(x) && up.has(y));
    const left = runs.length - shown.length;
    say(this.words, left ? `${count(left, "run has", "runs have")} no place here: a value is missing, or a logarithmic axis has none of it.` : "");
    const [px, py] = [(x) => LEFT + across.part(x) * (WIDTH - LEFT - RIGHT), (y) => HEIGHT - BOTTOM - up.part(y) * (HEIGHT - TOP - BOTTOM)];
    const key = JSON.stringify([sx, sy, across.log, up.log, shown.map(({ run, x, y }) => [run.id, run.name, x, y, colour(run.id)])]);
    if (key === this.key) return;
    this.key = key;
    fill(this.plot,
      ...up.ticks(5).map((y) => element("svg:g", {}, element("svg:line", { class: "rule", x1: LEFT, x2: WIDTH - RIGHT, y1: py(y), y2: py(y) }),
        element("svg:text", { x: LEFT - 8, y: py(y) + 4, "text-anchor": "end", text: up.label(y) }))),
      ...across.ticks(7).map((x) => element("svg:g", {}, element("svg:line", { class: "rule", x1: px(x), x2: px(x), y1: TOP, y2: HEIGHT - BOTTOM }),
        element("svg:text", { x: px(x), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle", text: across.label(x) }))),
      ...shown.map(({ run, x, y }) => {
        const name = `${run.name || run.id}: ${plain(sx)} ${across.label(x, 6)}, ${plain(sy)} ${number(y, 6)}`;
        return element("svg:a", { href: linkTo(run.id), "aria-label": name }, element("svg:title", { text: name }),
          element("svg:circle", { cx: px(x), cy: py(y), r: 6, style: { fill: colour(run.id) } }));
      }));
  }
}

const plain = (name) => name.slice(name.indexOf(".") + 1);

function offer(select, names, chosen) {
  const offered = names.includes(chosen) ? names : [chosen, ...names];
  if (select.dataset.offered !== String(offered)) {
    select.dataset.offered = String(offered);
    fill(select, ...offered.map((value) => element("option", { value, text: /^(config|summary)\./.test(value) ? plain(value) : value.replace(/^(\w+)\.(.*)$/s, "$2 $1") })));
  }
  select.value = chosen;
}

class Axis {
  constructor(values, log) {
    this.numbers = values.every((each) => typeof each === "number" && Number.isFinite(each));
    this.names = this.numbers ? [] : [...new Set(values.map(String))].sort();
    const positive = values.filter((each) => each > 0);
    const wide = positive.length === values.length && Math.max(...values) / Math.min(...values) > 50;
    this.log = this.numbers && (log === null ? wide : log === "1");
    const used = this.log ? positive.map(Math.log10) : values;
    const [low, high] = this.numbers && used.length ? [Math.min(...used), Math.max(...used)] : [0, Math.max(0, this.names.length - 1)];
    const around = (high - low || Math.abs(high) || 1) * 0.06;
    [this.low, this.high] = [low - around, high + around];
  }

  has(value) {
    return !this.log || value > 0;
  }

  part(value) {
    const at = this.numbers ? (this.log ? Math.log10(value) : value) : this.names.indexOf(String(value));
    return (at - this.low) / (this.high - this.low);
  }

  label(value, digits = 3) {
    return typeof value === "number" ? number(value, digits) : String(value).length > 14 ? `${String(value).slice(0, 13)}…` : String(value);
  }

  ticks(most) {
    if (!this.numbers) return this.names.slice(0, 12);
    if (this.log) {
      const found = [];
      const some = this.high - this.low > 2.5 ? [1] : [1, 2, 5];
      for (let power = Math.floor(this.low); power <= this.high; power += 1) found.push(...some.map((each) => each * 10 ** power));
      const inside = found.filter((each) => Math.log10(each) >= this.low && Math.log10(each) <= this.high);
      return inside.filter((_, place) => place % Math.ceil(inside.length / most) === 0);
    }
    const rough = (this.high - this.low) / most;
    const size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
    const first = Math.ceil(this.low / step);
    return Array.from({ length: Math.floor(this.high / step) - first + 1 }, (_, place) => Number(((first + place) * step).toPrecision(12)));
  }
}
