/** A chart as a picture or as text: SVG, PNG, and the points that are seen as CSV. */

import { cut } from "./format.js";
import { columnsOf, joined } from "./table.js";
import { colours } from "./theme.js";

const FAMILY = "system-ui, sans-serif";
const [TITLE, ROW, SIZE] = [24, 16, 11]; // pixels of the title, of a row of the legend, of letters
const ENTRY = 190; // pixels of an entry of the legend

export function save(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name.replaceAll(/[^\p{L}\p{N}._-]+/gu, "_").slice(0, 120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return the points that are seen as CSV, with the smoothed values beside them. */
export function csvOf({ plot, axis, settings }) {
  const { min, max } = plot.u.scales.x;
  const rows = joined(columnsOf(plot.curves, settings.weight)).filter(([x]) => x >= min && x <= max).reverse();
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const columns = columnsOf(plot.curves, settings.weight);
  const at = (x) => (axis.time ? new Date(x * 1000).toISOString() : String(x));
  const head = [axis.time ? "time" : axis.units || "x", ...columns.map(({ label }) => label)];
  return [head.map(quoted).join(","), ...rows.map(([x, values]) => [at(x), ...columns.map((_, place) => values[place] ?? "")].join(","))].join("\r\n");
}

/** A context of a canvas that writes paths of SVG. */
class Pen {
  constructor() {
    Object.assign(this, { written: [], path: "", dash: [], strokeStyle: "", fillStyle: "", lineWidth: 1, globalAlpha: 1 });
  }

  beginPath() { this.path = ""; }

  moveTo(x, y) { this.path += `M${short(x)} ${short(y)}`; }

  lineTo(x, y) { this.path += `${this.path ? "L" : "M"}${short(x)} ${short(y)}`; }

  closePath() { this.path += "Z"; }

  rect(x, y, width, height) { this.path += `M${short(x)} ${short(y)}h${short(width)}v${short(height)}h${short(-width)}Z`; }

  arc(x, y, radius) { this.path += `M${short(x + radius)} ${short(y)}a${short(radius)} ${short(radius)} 0 1 0 ${short(-2 * radius)} 0a${short(radius)} ${short(radius)} 0 1 0 ${short(2 * radius)} 0`; }

  setLineDash(dash) { this.dash = dash; }

  stroke() {
    const dash = this.dash.length ? ` stroke-dasharray="${this.dash.map(short).join(" ")}"` : "";
    if (this.path) this.written.push(`<path d="${this.path}" fill="none" stroke="${this.strokeStyle}" stroke-width="${short(this.lineWidth)}" stroke-linejoin="bevel"${dash}${this.#alpha()}/>`);
  }

  fill() {
    if (this.path) this.written.push(`<path d="${this.path}" fill="${this.fillStyle}"${this.#alpha()}/>`);
  }

  #alpha() { return this.globalAlpha < 1 ? ` opacity="${short(this.globalAlpha)}"` : ""; }
}

const short = (value) => String(Math.round(value * 100) / 100);

const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

export function svgOf(card) {
  const { u } = card.plot;
  const ratio = u.bbox.width / u.over.clientWidth;
  const { text, quiet, grid, surface } = colours();
  const { left, top, width, height } = u.bbox;
  const pen = new Pen();
  card.plot.paint(pen, ratio);
  const say = (x, y, said, { fill = quiet, anchor = "start", size = SIZE, weight = 400 } = {}) =>
    `<text x="${short(x)}" y="${short(y)}" fill="${fill}" text-anchor="${anchor}" font-size="${size * ratio}" font-weight="${weight}">${escaped(said)}</text>`;
  const lines = [];
  for (const [key, side] of sides(u)) {
    const { splits, texts } = card.plot.labels[key] ?? { splits: [], texts: [] };
    splits.forEach((split, place) => {
      if (split === null || !texts[place]) return;
      const at = u.valToPos(split, key, true);
      if (side === "x") lines.push(`<path d="M${short(at)} ${top}v${height}" stroke="${grid}" stroke-width="${ratio}"/>`, say(at, top + height + 16 * ratio, texts[place], { anchor: "middle" }));
      else {
        if (side === "left") lines.push(`<path d="M${left} ${short(at)}h${width}" stroke="${grid}" stroke-width="${ratio}"/>`);
        lines.push(say(side === "left" ? left - 6 * ratio : left + width + 6 * ratio, at + 4 * ratio, texts[place], { anchor: side === "left" ? "end" : "start" }));
      }
    });
  }
  if (card.axis.units) lines.push(say(left + width / 2, top + height + 32 * ratio, card.axis.units, { anchor: "middle" }));
  const entries = card.entries.filter(({ key }) => !card.hidden.has(key)).slice(0, 24);
  const across = Math.max(1, Math.floor(u.width / ENTRY));
  const rows = Math.ceil(entries.length / across);
  const all = [u.width, TITLE + u.height + ROW * rows + 8];
  const legend = entries.map(({ label, colour }, place) => {
    const [x, y] = [((place % across) * ENTRY + 8) * ratio, (u.height + ROW * Math.floor(place / across) + 12) * ratio];
    return `<path d="M${x} ${y - 4 * ratio}h${14 * ratio}" stroke="${colour}" stroke-width="${2.5 * ratio}"/>${say(x + 20 * ratio, y, cut(label, 26), { fill: text })}`;
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${all[0]}" height="${all[1]}" viewBox="0 0 ${all[0] * ratio} ${all[1] * ratio}" font-family="${FAMILY}">`,
    `<rect width="100%" height="100%" fill="${surface}"/>`,
    say(8 * ratio, 17 * ratio, card.source.title, { fill: text, size: 13, weight: 600 }),
    `<g transform="translate(0 ${TITLE * ratio})"><clipPath id="plot"><rect x="${left}" y="${top}" width="${width}" height="${height}"/></clipPath>`,
    ...lines, `<g clip-path="url(#plot)">`, ...pen.written, "</g>", ...legend, "</g></svg>",
  ].join("\n");
}

const sides = (u) => u.axes.map(({ scale, side }) => [scale, scale === "x" ? "x" : side === 3 ? "left" : "right"]);

/** Return a chart as PNG: its SVG in the pixels of the screen. */
export async function pngOf(card) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;utf8,${encodeURIComponent(svgOf(card))}`;
  await picture.decode();
  const ratio = devicePixelRatio || 1;
  const canvas = Object.assign(document.createElement("canvas"), { width: picture.width * ratio, height: picture.height * ratio });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}
