// Formats numbers, sizes, durations and times. A missing value is an en dash.

export const NONE = "–";
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat("en", { maximumSignificantDigits: 7 });

const known = (n) => n != null && Number.isFinite(n);

/** A whole number with thousands separators. */
export const count = (n) => (known(n) ? grouped.format(n) : NONE);

/** A rate with about three digits: 0.4, 12.3, 1,234. */
export function rate(n) {
  if (!known(n)) return NONE;
  const abs = Math.abs(n);
  const digits = abs >= 100 ? 0 : abs >= 10 ? 1 : abs >= 1 || abs === 0 ? 1 : 2;
  return n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A duration: 0.4 ms, 12 ms, 3.2 s, 5 min, 3.1 h, 2.5 d. */
export function duration(seconds) {
  if (!known(seconds)) return NONE;
  const steps = [
    [86400, 86400, "d"],
    [3600, 3600, "h"],
    [120, 60, "min"],
    [1, 1, "s"],
    [0, 0.001, "ms"],
  ];
  const [, unit, name] = seconds === 0 ? [0, 1, "s"] : (steps.find(([from]) => seconds >= from) ?? [0, 1, "s"]);
  const n = seconds / unit;
  return `${n >= 10 || n === 0 ? Math.round(n) : n.toFixed(1)} ${name}`;
}

export function bytes(n) {
  if (!known(n)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  while (n >= 1024 && step < units.length - 1) [n, step] = [n / 1024, step + 1];
  return `${step === 0 || n >= 100 || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)} ${units[step]}`;
}

/** A value of a reading: numbers with up to seven digits (integers with all digits), others unchanged. */
export function value(v) {
  if (typeof v === "number") return Number.isInteger(v) && Math.abs(v) < 1e15 ? grouped.format(v) : number(v);
  return String(v);
}

function number(v) {
  const abs = Math.abs(v);
  return abs !== 0 && (abs < 1e-4 || abs >= 1e15) ? v.toPrecision(7).replace(/\.?0+e/, "e") : precise.format(v);
}

/** The number of decimals that aligns a column of these values; at most five. */
export function decimals(values) {
  const needed = values.filter(known).map((v) => (value(v).split("e")[0].split(".")[1] ?? "").length);
  return Math.min(
    needed.reduce((a, b) => Math.max(a, b), 0),
    5,
  );
}

/** A value with this many decimals; in full if rounding would reduce it to 0. */
export function fixed(v, digits) {
  if (!known(v)) return NONE;
  const abs = Math.abs(v);
  if (abs !== 0 && (abs < 10 ** -digits || abs >= 1e15)) return value(v);
  return v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const two = (n) => String(n).padStart(2, "0");

/** Milliseconds since 1970 of an RFC 3339 time. */
export const ms = (ts) => Date.parse(ts);

/** 14:05:09, in the time zone of the browser. */
export function clock(at, seconds = true) {
  const d = new Date(at);
  return `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? `:${two(d.getSeconds())}` : ""}`;
}

/** 2026-03-01 14:05:09, in the time zone of the browser. */
export function moment(at, seconds = true) {
  const d = new Date(at);
  if (Number.isNaN(d.getTime())) return NONE;
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${clock(at, seconds)}`;
}

/** "12 s ago". */
export function ago(at, now = Date.now()) {
  const seconds = (now - at) / 1000;
  if (!known(seconds)) return NONE;
  if (seconds < -1) return `in ${duration(-seconds)}`;
  return seconds < 1 ? "now" : seconds < 120 ? `${Math.floor(seconds)} s ago` : `${duration(seconds)} ago`;
}

/** The time zone of the browser, with its current offset. */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (minutes === 0) return "UTC";
  const abs = Math.abs(minutes);
  return `${name} (UTC${minutes < 0 ? "−" : "+"}${two(Math.floor(abs / 60))}:${two(abs % 60)})`;
}
