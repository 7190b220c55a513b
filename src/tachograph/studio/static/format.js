/** Numbers and times as people read them. */

export const EXACT = 0.0225; // a share by which quantiles of ours may be off: what has a larger one says so
const MINUS = "−";
const NEVER = "–";
const MOST_DIGITS = 16; // behind the point: a double has no more
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Return a value with about five digits. */
export function number(value, digits = 5) {
  if (value === null || value === undefined) return NEVER;
  if (typeof value === "string") return { NaN: "NaN", Infinity: "∞", "-Infinity": `${MINUS}∞` }[value] ?? value;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  let said;
  if (value === 0) said = "0";
  else if (Number.isInteger(value) && size < 1e7) said = String(size).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  else if (size >= 1e7 || size < 1e-4) said = tidy(size.toExponential(digits - 1));
  else said = tidy(size.toPrecision(digits));
  return value < 0 ? MINUS + said : said;
}

/** Return a value with four significant digits, zeros included: below each other they are aligned. */
export function figures(value) {
  const size = Math.abs(value);
  if (typeof value !== "number" || !Number.isFinite(value) || Number.isInteger(value) || size < 1e-4 || size >= 1e4) return number(value, 4);
  return (value < 0 ? MINUS : "") + size.toPrecision(4);
}

function tidy(said) {
  const [plain, power] = said.split("e");
  const short = plain.includes(".") ? plain.replace(/\.?0+$/, "") : plain;
  return power === undefined ? short : `${short}e${power.replace("+", "")}`;
}

/** Return the labels of an axis's ticks: as many digits as their distance needs, so that no two are the same. */
export function ticks(splits) {
  const known = splits.filter((each) => each !== null);
  const most = Math.max(...known.map(Math.abs));
  const steps = known.slice(1).map((each, place) => Math.abs(each - known[place]));
  const finest = steps.length ? powerOf(Math.min(...steps), 3) : powerOf(most, 5);
  const short = most >= 1e6 || (most < 1e-3 && most > 0);
  return splits.map((each) => {
    if (each === null) return "";
    if (each === 0) return "0";
    const size = Math.abs(each);
    const said = short ? scientific(size, finest) : shorten(size.toFixed(Math.min(Math.max(0, -finest), MOST_DIGITS)));
    return each < 0 ? MINUS + said : said;
  });
}

/** Return such labels for little room: from ten thousand on in thousands. */
export function brief(splits) {
  const most = Math.max(...splits.map(Math.abs));
  if (most < 1e4 || most >= 1e6) return ticks(splits);
  return ticks(splits.map((each) => (each === null ? null : each / 1000))).map((said) => (said && said !== "0" ? `${said}k` : said));
}

/** Return the power of ten of which a number, rounded to some digits, is a multiple: 2 for 500, −2 for 0.25. */
function powerOf(distance, digits) {
  const [plain, power] = Number(distance.toPrecision(digits)).toExponential().split("e");
  return Number(power) - (plain.split(".")[1] ?? "").length;
}

function scientific(size, finest) {
  const digits = Math.floor(Math.log10(size) + 1e-12) - finest;
  return tidy(size.toExponential(Math.min(Math.max(0, digits), MOST_DIGITS)));
}

const shorten = (said) => (said.includes(".") ? said : said.replace(/\B(?=(\d{3})+$)/g, "\u202f"));

/** Return the labels of an axis of times, in seconds since 1970: with the day where it is long, without seconds where they say nothing. */
export function clocks(splits) {
  const [first, last] = [splits[0], splits[splits.length - 1]];
  const whole = splits.every((each) => Math.round(each) % 60 === 0);
  return splits.map((each) => {
    const at = new Date(each * 1000);
    const day = last - first > 86_400 ? `${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` : "";
    return `${day}${pad(at.getHours())}:${pad(at.getMinutes())}${whole ? "" : `:${pad(at.getSeconds())}`}`;
  });
}

/** Return the labels of an axis of bytes: all in one unit, with as many decimals as their distance needs. */
export function sizes(splits) {
  const known = splits.filter((each) => each !== null);
  const place = Math.max(0, Math.min(SIZES.length - 1, Math.floor(Math.log2(Math.max(1, ...known.map(Math.abs))) / 10)));
  const scale = 1024 ** place;
  const step = known.length > 1 ? Math.abs(known[1] - known[0]) / scale : 1;
  const decimals = Math.min(4, Math.max(0, Math.ceil(-Math.log10(step || 1) - 1e-9)));
  return splits.map((each) => (each === null ? "" : each === 0 ? "0" : `${(each / scale).toFixed(decimals)} ${SIZES[place]}`));
}

export const powers = (splits) => splits.map((each) => (each === null ? "" : number(each, 3)));

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NEVER;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995e-3) return `${number(seconds * 1e6, 3)} µs`;
  if (seconds < 0.9995) return `${number(seconds * 1e3, 3)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

/** Return seconds that were measured, with three digits up to a minute. */
export const took = (seconds) => (Number.isFinite(seconds) && seconds >= 0.9995 && seconds < 59.95 ? `${number(seconds, 3)} s` : duration(seconds));

export function durations(splits) {
  const most = Math.max(...splits.filter((each) => each !== null).map(Math.abs));
  const [size, of] = most >= 0.9995 ? [1, "s"] : most >= 0.9995e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return ticks(splits.map((each) => (each === null ? null : each / size))).map((said) => (said ? `${said} ${of}` : ""));
}

/** Return the labels of an axis of the time since a start, in seconds. */
export function elapsed(splits) {
  const known = splits.filter((each) => each !== null).map(Math.abs);
  if (Math.max(...known) < 180) return durations(splits);
  const whole = splits.every((each) => each === null || Math.round(each) % 60 === 0);
  return splits.map((each) => {
    if (each === null) return "";
    const at = Math.round(Math.abs(each));
    const minutes = `${Math.floor(at / 3600)}:${pad(Math.floor(at / 60) % 60)}`;
    return `${each < 0 ? MINUS : ""}${minutes}${whole ? " h" : `:${pad(at % 60)}`}`;
  });
}

/** Return a name of at most so many letters: what is in its middle is left out. */
export function cut(name, most = 56) {
  const letters = [...name];
  if (letters.length <= most) return name;
  const end = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - end).join("")}…${letters.slice(-end).join("")}`;
}

/** Return by how much quantiles may be off, a share of them; null for one that is not known. */
export const offBy = (share) => (share === null || share > 9.995 ? "rough: counted in few buckets" : `± ${share < 0.1 ? number(100 * share, 2) : Math.round(100 * share)} %`);

export function bytes(size) {
  let place = 0;
  let rest = size;
  while (Math.abs(rest) >= 1024 && place < SIZES.length - 1) {
    rest /= 1024;
    place += 1;
  }
  return `${place && Math.abs(rest) < 10 ? rest.toFixed(1) : Math.round(rest)} ${SIZES[place]}`;
}

export const count = (many, one, more = `${one}s`) => `${number(many)} ${many === 1 ? one : more}`;

const pad = (value) => String(value).padStart(2, "0");

/** Return a time of day, with its date unless that is today's. */
export function when(nanoseconds) {
  if (!nanoseconds) return NEVER;
  const at = new Date(nanoseconds / 1e6);
  const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  if (at.toDateString() === new Date().toDateString()) return clock;
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${clock}`;
}

/** Return how long ago a time was, in nanoseconds since 1970. */
export function ago(nanoseconds) {
  const seconds = Math.max(0, Date.now() / 1000 - nanoseconds / 1e9);
  const [size, of] = seconds < 60 ? [1, "s"] : seconds < 3600 ? [60, "min"] : seconds < 86_400 ? [3600, "h"] : [86_400, "d"];
  return `${Math.floor(seconds / size)} ${of} ago`;
}

/** Return a unit of OpenTelemetry as an axis says it: an annotation without its braces, 1 as nothing. */
export const unit = (said) => (said === "1" || !said ? "" : said.replaceAll(/\{([^}]*)\}/g, "$1"));

export function measured(value, of) {
  if (typeof value === "number" && Number.isFinite(value)) {
    if (of === "s") return took(value);
    if (of === "By") return bytes(value);
  }
  const said = unit(of);
  if (!said) return number(value);
  return said.startsWith("%") ? `${number(value)} %` : `${number(value)} ${said}`;
}

/** Return a function's name without the module of the program that was started. */
export const taskName = (name) => (name ?? "").replace(/^__main__\./, "");

/** Return attributes as they tell a curve from others, such as `{optimizer="adam"}`; empty where there are none. */
export function labels(attributes, telling = null) {
  const said = Object.entries(attributes ?? {}).filter(([key]) => telling?.has(key) ?? true);
  return said.length ? `{${said.map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ")}}` : "";
}

/** Return the keys of the attributes that are not the same in all of several curves. */
export function tellingKeys(listed) {
  const keys = new Set(listed.flatMap((attributes) => Object.keys(attributes ?? {})));
  return new Set([...keys].filter((key) => new Set(listed.map((attributes) => JSON.stringify(attributes?.[key]))).size > 1));
}
