// Polls /metrics and /readyz every two seconds and keeps the history of the last minutes.
//
// Counters become rates over the last ten seconds, because the store's batches would otherwise appear as spikes. A
// counter that decreased means that the service restarted; its history starts again there, after a gap.

import { open } from "./api.js";
import { histogram, parse, quantile, sum } from "./metrics.js";

const EVERY_MS = 2_000;
const RETRY_MAX_MS = 30_000;
export const HISTORY_MS = 300_000;
const RATE_OVER_MS = 10_000;
const LATENCY_OVER_MS = 60_000;

export const live = {
  /** The last successful responses. */
  metrics: null,
  ready: null,
  at: null,
  /** The last answer of /v1/fleet; undefined before the first request, null after a failed one. */
  fleet: undefined,
  /** Since when, and why, requests fail; null while they succeed. */
  failure: null,
  /** The points of the plots, oldest first: `{ at, accepted, stored, … }`; null if unknown. */
  history: [],
};

const listeners = new Set();
let scrapes = [];
let timer = null;
let wait = EVERY_MS;

/** Calls `listener` now and after each poll. Returns the function that unsubscribes. */
export function subscribe(listener) {
  listeners.add(listener);
  listener();
  return () => listeners.delete(listener);
}

export function start() {
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    timer = null;
    if (!document.hidden) look();
  });
  if (!document.hidden) look();
}

/** Polls immediately instead of at the next interval. */
export function lookNow() {
  clearTimeout(timer);
  wait = EVERY_MS;
  look();
}

let running = false;

async function look() {
  if (running) return;
  running = true;
  try {
    const [metrics, ready] = await Promise.all([open("metrics"), open("readyz")]);
    if (metrics.status !== 200) throw new Error(`/metrics returned status ${metrics.status}`);
    take(parse(metrics.body), JSON.parse(ready.body));
    wait = EVERY_MS;
  } catch (error) {
    wait = Math.min(wait * 2, RETRY_MAX_MS);
    live.failure = { since: live.failure?.since ?? Date.now(), why: error.message, next: Date.now() + wait };
  } finally {
    running = false;
  }
  for (const listener of listeners) listener();
  clearTimeout(timer);
  timer = document.hidden ? null : setTimeout(look, wait);
}

const COUNTERS = {
  accepted: "readings_accepted_total",
  stored: "readings_stored_total",
  rejected: "readings_rejected_total",
  duplicate: "readings_duplicate_total",
};

function take(metrics, ready) {
  const at = Date.now();
  Object.assign(live, { metrics, ready, at, failure: null });
  const scrape = { at, syncs: histogram(metrics, "journal_sync_seconds") };
  for (const [key, name] of Object.entries(COUNTERS)) scrape[key] = sum(metrics, name) ?? 0;
  scrape.acks = histogram(metrics, "ack_seconds");

  const last = scrapes.at(-1);
  const restarted = last && Object.keys(COUNTERS).some((key) => scrape[key] < last[key]);
  const missed = last && at - last.at > RETRY_MAX_MS;
  if (restarted || missed) {
    scrapes = [];
    live.history.push({ at: last.at + 1 });
  }
  scrapes.push(scrape);
  scrapes = scrapes.filter((s) => s.at >= at - LATENCY_OVER_MS - EVERY_MS);
  live.history.push(point(metrics, scrape));
  live.history = live.history.filter((p) => p.at >= at - HISTORY_MS - EVERY_MS);
}

const within = (age, at) => scrapes.find((s) => s.at >= at - age - EVERY_MS / 2);

function point(metrics, now) {
  const seen = { at: now.at };
  const from = within(RATE_OVER_MS, now.at);
  for (const key of Object.keys(COUNTERS)) {
    seen[key] = from === now ? null : ((now[key] - from[key]) * 1000) / (now.at - from.at);
  }
  const since = within(LATENCY_OVER_MS, now.at);
  seen.ack50 = quantile(0.5, since.acks, now.acks);
  seen.ack99 = quantile(0.99, since.acks, now.acks);
  seen.sync99 = quantile(0.99, since.syncs, now.syncs);
  seen.pending = sum(metrics, "acks_pending");
  seen.oldest = sum(metrics, "oldest_unstored_seconds");
  seen.age = sum(metrics, "flush_age_seconds");
  seen.inFlight = sum(metrics, "readings_in_flight");
  seen.memory = sum(metrics, "accumulate_bytes");
  seen.journal = sum(metrics, "journal_unstored_bytes");
  return seen;
}

/** A total since the start of the service; null before the first response. */
export const total = (key) => scrapes.at(-1)?.[key] ?? null;
