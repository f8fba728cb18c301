// Parses Prometheus' text format; computes sums and quantiles.

/** A `Map` from metric name to series, `{ labels, value }`. */
export function parse(body) {
  const found = new Map();
  for (const line of body.split("\n")) {
    if (line === "" || line[0] === "#") continue;
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!match) continue;
    const [, name, inner, value] = match;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push({ labels: labels(inner ?? ""), value: number(value) });
  }
  return found;
}

function labels(inner) {
  const found = {};
  for (const [, name, value] of inner.matchAll(/([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g)) {
    found[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
  }
  return found;
}

const number = (text) => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));

const PREFIX = "hourbucket_";

/** The series of a metric; `name` is without the prefix. */
export const series = (metrics, name, prefix = PREFIX) => metrics.get(prefix + name) ?? [];

/** The sum over all series; null if the metric is absent. */
export function sum(metrics, name, wanted = () => true, prefix = PREFIX) {
  const all = series(metrics, name, prefix).filter((s) => wanted(s.labels));
  return all.length ? all.reduce((total, s) => total + s.value, 0) : null;
}

/** Sums by one label, as a `Map`. */
export function by(metrics, name, label) {
  const sums = new Map();
  for (const s of series(metrics, name)) {
    const key = s.labels[label] ?? "";
    sums.set(key, (sums.get(key) ?? 0) + s.value);
  }
  return sums;
}

/** A histogram's cumulative counts by upper bound, summed over all labels. */
export function histogram(metrics, name, wanted = () => true) {
  const counts = new Map();
  for (const s of series(metrics, `${name}_bucket`)) {
    if (!wanted(s.labels)) continue;
    const bound = number(s.labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + s.value);
  }
  return counts;
}

/**
 * The quantile `q` of the observations between two scrapes, computed like Prometheus' histogram_quantile (linear within a
 * bucket; beyond the last finite bound, that bound). null if there were no observations.
 */
export function quantile(q, before, after) {
  const bounds = [...after.keys()].sort((a, b) => a - b);
  const counts = bounds.map((bound) => after.get(bound) - (before.get(bound) ?? 0));
  const total = counts.at(-1);
  if (!(total > 0)) return null;
  const rank = q * total;
  const at = counts.findIndex((c) => c >= rank);
  if (bounds[at] === Infinity) return bounds.at(-2) ?? null;
  const [low, below] = at === 0 ? [0, 0] : [bounds[at - 1], counts[at - 1]];
  return low + ((bounds[at] - low) * (rank - below)) / (counts[at] - below);
}
