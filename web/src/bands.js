// Minimum, mean, maximum and number of the samples of series by PromQL, as the buckets of a band: for booleans, which have
// no hourly summary, and for all sensors of a tag.

import { ranges } from "./api.js";

const STEPS = [60, 300, 900, 3_600, 21_600, 86_400];
/** Buckets of one plot, at most. */
const BUCKETS_MAX = 200;

const widthFor = (ms) => STEPS.find((step) => ms / 1000 / step <= BUCKETS_MAX) ?? STEPS.at(-1);

/** A selector in PromQL of a field and labels, given as pairs. */
export const selector = (field, labels) =>
  `{${[JSON.stringify(field), ...labels.map(([name, value]) => `${JSON.stringify(name)}=${JSON.stringify(value)}`)]}}`;

/**
 * The buckets of `field` between two times (ms), with the statistics over all series with these labels. `width`: of a
 * bucket, in seconds.
 */
export async function bucketsOf(field, labels, { from, to }, signal, width = widthFor(to - from)) {
  const first = Math.floor(from / 1000 / width) * width;
  const last = Math.ceil(to / 1000 / width) * width;
  // The window of a bucket ends a millisecond before the next one.
  const times = { start: first + width - 0.001, end: last - 0.001, step: width };
  const over = `${selector(field, labels)}[${width}s]`;
  const parts = {
    min: `min(min_over_time(${over}))`,
    avg: `avg(avg_over_time(${over}))`,
    max: `max(max_over_time(${over}))`,
    count: `sum(count_over_time(${over}))`,
  };
  const answers = await Promise.all(Object.values(parts).map((query) => ranges(query, times, signal)));
  const buckets = new Map();
  Object.keys(parts).forEach((part, i) => {
    for (const [at, value] of answers[i][0]?.values ?? []) {
      if (!buckets.has(at)) buckets.set(at, {});
      buckets.get(at)[part] = Number(value);
    }
  });
  const iso = (seconds) => new Date(seconds * 1000).toISOString();
  return [...buckets].map(([at, statistics]) => {
    const end = Math.round(at + 0.001);
    const summary = Object.setPrototypeOf({ [field]: statistics }, null);
    return { bucket_start: iso(end - width), bucket_end: iso(end), last_ts: iso(end - 1), summary };
  });
}
