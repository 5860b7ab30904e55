/** Texts of figures. Each has its unit, and as many digits as can be compared. */

/** `12,345`. */
export function count(value) {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Seconds: `4,321.7 s`. */
export function seconds(value) {
  const [whole, tenths] = value.toFixed(1).split(".");
  return `${count(Number(whole))}.${tenths} s`;
}

/** A length of time: `12 µs`, `3.4 ms`, `250 ms`, `8.20 s`, `78.4 s`, `3 min 20 s`, `5 h 12 min`. */
export function duration(value) {
  const s = Math.max(0, value);
  if (s === 0) return "0 s";
  if (s < 0.9995e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (s < 0.9995) return `${three(s * 1e3)} ms`;
  if (s < 120) return `${three(s)} s`;
  if (s < 7200) return parts(s, 60, "min", 1, "s");
  if (s < 172_800) return parts(s, 3600, "h", 60, "min");
  return parts(s, 86_400, "d", 3600, "h");
}

/** Seconds in larger units, where there are more than two minutes: `72 min 01 s. `. */
export function atLength(value) {
  return value < 120 ? "" : `${duration(value)}. `;
}

/** Bytes: `512 B`, `1.46 MB`, `12.0 GB`. */
export function size(value) {
  let left = value;
  for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
    if (left < 999.5 || unit === "TB") return `${unit === "B" ? left.toFixed(0) : three(left)} ${unit}`;
    left /= 1000;
  }
}

/** Bytes that there are; a device need not say. */
export function limit(value) {
  return value ? size(value) : "an unknown size";
}

/** The time of day: `14:03:22`, with the date where it is another day than today. */
export function clock(value) {
  if (!value) return "never";
  const at = new Date(value * 1000);
  const time = [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

/** Seconds beside an axis: `4,000 s`. */
export function wholeSeconds(value) {
  return value < 10 ? duration(value) : `${count(value)} s`;
}

/** Events in a second: `12.3 /s`. */
export function rate(value) {
  return `${three(value)} /s`;
}

/** The level of an event; `figures.js` colours it. */
export const level = String;

export function text(value) {
  if (value === undefined || value === null) return "";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/** The bounds of the classes of a latency histogram, in seconds; one more class has the rest. */
export const LATENCY_BOUNDS = Array.from({ length: 24 }, (_, step) => 1e-5 * 2 ** step);

/** Below which time a share of the calls stayed, as the histogram has it: `≤ 164 µs`. */
export function quantile(classes, share) {
  const all = (classes ?? []).reduce((sum, calls) => sum + calls, 0);
  if (!all) return "no calls";
  let below = 0;
  for (const [index, calls] of classes.entries()) {
    below += calls;
    if (below >= share * all) return bound(index);
  }
}

/** The name of a class of the histogram. */
export function bound(index) {
  const last = LATENCY_BOUNDS.length - 1;
  return index > last ? `> ${duration(LATENCY_BOUNDS[last])}` : `≤ ${duration(LATENCY_BOUNDS[index])}`;
}

function three(value) {
  return value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

function parts(value, large, largeUnit, small, smallUnit) {
  const whole = Math.floor(value / large);
  return `${whole} ${largeUnit} ${two(Math.floor((value - whole * large) / small))} ${smallUnit}`;
}

function two(value) {
  return String(value).padStart(2, "0");
}
