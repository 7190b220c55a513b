/** Colours of many runs, and of values: each has a contrast of 3:1 to the surface, light and dark. */

import { colours, isDark } from "./theme.js";

const GOLDEN = 137.508; // degrees: neighbours in a list are far from each other

/** Return the colour of a place in a list: of the palette, and where it is too short one of as many as are needed. */
export function listed(place, many) {
  const palette = colours().curves;
  if (many <= palette.length) return palette[place];
  const lightness = (isDark() ? 0.72 : 0.54) + (place % 2 ? 0.07 : 0);
  return `oklch(${lightness} 0.14 ${(place * GOLDEN + 240) % 360})`;
}

/** Return the colour of a run: the same on each page, whatever other runs there are. */
export function runColor(id) {
  let hash = 0x811c9dc5; // FNV-1a
  for (const byte of new TextEncoder().encode(id)) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  const lightness = (isDark() ? 0.72 : 0.54) + (hash & 0x10000 ? 0.07 : 0);
  return `oklch(${lightness} 0.14 ${hash % 360})`;
}

/** Return the colour of a part of a range, from 0 to 1: in the light from orange to violet, in the dark the other way. */
export function along(part) {
  const at = Math.max(0, Math.min(1, part));
  if (isDark()) return `oklch(${0.58 + 0.3 * at} 0.15 ${290 - 195 * at})`;
  return `oklch(${0.62 - 0.27 * at} 0.15 ${55 - 125 * at + (55 - 125 * at < 0 ? 360 : 0)})`;
}

export const missing = () => colours().quiet;

export class Shades {
  /** @param {Array} values - one for each run, undefined where it has none. */
  constructor(values) {
    this.values = values;
    const told = values.filter((each) => each !== undefined && each !== null);
    this.numbers = told.length > 0 && told.every((each) => typeof each === "number" && Number.isFinite(each));
    this.names = this.numbers ? [] : [...new Set(told.map(String))].sort();
    this.low = Math.min(...told);
    this.high = Math.max(...told);
    this.log = this.numbers && this.low > 0 && this.high / this.low > 50;
  }

  of(value) {
    if (value === undefined || value === null) return missing();
    return this.numbers ? along(this.#part(value)) : listed(this.names.indexOf(String(value)), this.names.length);
  }

  #part(value) {
    if (this.high === this.low) return 0.5;
    const at = (each) => (this.log ? Math.log(each) : each);
    return (at(value) - at(this.low)) / (at(this.high) - at(this.low));
  }
}
