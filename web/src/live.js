// What the service says about itself every two seconds: /metrics and /readyz, and the history of the last minutes.
//
// Counters become rates over the last ten seconds, since batches of the store would otherwise be drawn as needles. A
// counter that has gone back means that the service was restarted; its history begins anew there, with a gap.

import { open } from "./api.js";
import { histogram, parse, quantile, sum } from "./metrics.js";

const EVERY_MS = 2_000;
const RETRY_MAX_MS = 30_000;
export const HISTORY_MS = 300_000;
const RATE_OVER_MS = 10_000;
const LATENCY_OVER_MS = 60_000;

// Senders' requests only: hooks and writes too, but no others of that port.
const isIntake = (labels) => /^\/(v1|write|api)/.test(labels.route ?? "");

export const live = {
  /** The last good answers. */
  metrics: null,
  ready: null,
  at: null,
  /** Since when, and why, there is none; null while there is. */
  failure: null,
  /** What is drawn, oldest first: `{ at, accepted, stored, … }`; null where unknown. */
  history: [],
};

const listeners = new Set();
let scrapes = [];
let timer = null;
let wait = EVERY_MS;

/** Calls `listener` after each look, and gives the function that ends that. */
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

/** Looks now, instead of when it is time. */
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
    if (metrics.status !== 200) throw new Error(`/metrics answers with the status ${metrics.status}`);
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
  // The service's own histogram of acknowledgements where it has one; else the time of its HTTP answers.
  const own = histogram(metrics, "ack_seconds");
  scrape.acks = own.size ? own : histogram(metrics, "http_request_seconds", isIntake);

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
  seen.inFlight = sum(metrics, "readings_in_flight");
  seen.memory = sum(metrics, "accumulate_bytes");
  seen.journal = sum(metrics, "journal_bytes");
  return seen;
}

/** A total since the start of the service; null before the first answer. */
export const total = (key) => scrapes.at(-1)?.[key] ?? null;
