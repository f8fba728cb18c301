// The plot of one field: a step with minimum, average and maximum for each bucket, overlaid with the readings.

import { h, text } from "./dom.js";
import { clock, count, moment, ms, value } from "./format.js";
import { joined, plot, stepped, timeLabels } from "./plot.js";

const HELP = "Drag to zoom, double click to reset. Keys: arrows move, plus and minus zoom, 0 resets.";

/** Calls `act.zoom(window)` and `act.move(share, scale, centre)` for actions of the user. */
export function band(act) {
  const readout = h("p", { class: "readout", "aria-live": "polite" }, "\u00a0");
  const box = h("div", {
    class: "plot band",
    tabindex: "0",
    role: "group",
    "aria-label": `Plot. ${HELP}`,
    title: HELP,
  });
  const key = h(
    "p",
    { class: "key", "aria-hidden": "true" },
    h("span", {}, h("i", { class: "swatch area" }), "min to max"),
    h("span", {}, h("i", { class: "swatch s1" }), "average"),
    h("span", {}, h("i", { class: "swatch dot" }), "reading"),
  );
  const element = h("div", {}, h("div", { class: "over" }, readout, key), box);
  let now = { from: Date.now() - 86_400_000, to: Date.now(), field: null, buckets: [], readings: null };
  let drawn = null;
  let cursor = null;

  const say = (at) => {
    cursor = at;
    text(readout, at == null ? "\u00a0" : describe(now, at));
  };
  const hooks = {
    setCursor: [(u) => say(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") * 1000 : null)],
    setSelect: [
      (u) => {
        const { left, width } = u.select;
        if (width < 4) return;
        const [from, to] = [left, left + width].map((x) => u.posToVal(x, "x") * 1000);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        act.zoom({ from, to });
      },
    ],
  };

  box.addEventListener("keydown", (event) => {
    const arrows = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in arrows) step(arrows[event.key]);
    else if (event.key === "+" || event.key === "=") act.move(0, 0.5, cursor);
    else if (event.key === "-") act.move(0, 2, cursor);
    else if (event.key === "0") act.zoom(null);
    else return;
    event.preventDefault();
  });

  /** Moves the cursor to the next bucket or reading. */
  function step(by) {
    const u = drawn.u;
    const stops = stopsOf(now);
    if (!stops.length) return;
    const at = cursor ?? (by > 0 ? -Infinity : Infinity);
    const near = by > 0 ? stops.find((s) => s > at + 1) : stops.findLast((s) => s < at - 1);
    const to = near ?? (by > 0 ? stops.at(-1) : stops[0]);
    u.setCursor({ left: u.valToPos(to / 1000, "x"), top: u.bbox.height / 2 / devicePixelRatio });
    // The position is rounded to pixels; the described time is exact.
    say(to);
  }

  const show = (next) => {
    now = next;
    const table = data(now);
    if (!drawn) drawn = plot(box, (colour) => options(colour, () => now, hooks, act), table);
    else drawn.set(table);
    if (cursor != null) say(cursor);
  };
  return { element, show, end: () => drawn?.destroy() };
}

const inside = ({ from, to }, at) => at >= from && at <= to;
const visibleBuckets = ({ buckets, field, from, to }) =>
  buckets.filter((b) => b.summary[field] && ms(b.bucket_end) > from && ms(b.bucket_start) < to);

function stopsOf(now) {
  if (now.readings?.length) return now.readings.map((r) => ms(r.ts)).filter((at) => inside(now, at));
  return visibleBuckets(now).map((b) =>
    Math.max((ms(b.bucket_start) + Math.min(ms(b.bucket_end), now.to)) / 2, now.from),
  );
}

/** A text that describes the bucket and the nearest reading at a time. */
function describe(now, at) {
  const bucket = visibleBuckets(now).find((b) => at >= ms(b.bucket_start) && at < ms(b.bucket_end));
  const words = [];
  if (bucket) {
    const { min, max, avg, count: n } = bucket.summary[now.field];
    const hour = `${moment(ms(bucket.bucket_start), false)}–${clock(ms(bucket.bucket_end), false)}`;
    words.push(`${hour}: min ${value(min)}, avg ${value(avg)}, max ${value(max)}, ${count(n)} readings`);
  } else words.push(`${moment(at, false)}: no readings`);
  const near = nearest(now, at);
  if (near) words.push(`at ${clock(ms(near.ts))} ${value(near.values[now.field])}`);
  return words.join("; ");
}

function nearest({ readings, field, from, to }, at) {
  let best = null;
  for (const r of readings ?? []) {
    if (r.values[field] == null) continue;
    if (!best || Math.abs(ms(r.ts) - at) < Math.abs(ms(best.ts) - at)) best = r;
  }
  return best && Math.abs(ms(best.ts) - at) <= (to - from) / 50 ? best : null;
}

const plotted = (v) => (typeof v === "number" ? v : typeof v === "boolean" ? Number(v) : null);

/** Columns for uPlot: time, minimum, maximum, average, reading. A step ends where its bucket ends. */
function data({ buckets, readings, field, more }) {
  const steps = [[], [], [], []];
  const push = (at, ...values) => [at / 1000, ...values].forEach((v, i) => steps[i].push(v));
  // Where the readings are drawn, the band would only repeat them. Those after the limit are not there.
  const drawnTo = readings?.length ? (more ? ms(readings.at(-1).ts) : Infinity) : -Infinity;
  const known = buckets.filter((b) => b.summary[field] && ms(b.bucket_end) > drawnTo);
  known.forEach((b, i) => {
    const { min, max, avg } = b.summary[field];
    push(ms(b.bucket_start), min, max, avg);
    const end = ms(b.bucket_end);
    if (i + 1 < known.length && ms(known[i + 1].bucket_start) === end) return;
    push(end, min, max, avg);
    push(end + 1, null, null, null);
  });
  const points = [[], []];
  for (const { ts, values } of readings ?? []) {
    const v = plotted(values[field]);
    if (v === null) continue;
    // Draws both of two readings of one millisecond: uPlot requires distinct times.
    points[0].push(Math.max(ms(ts) / 1000, (points[0].at(-1) ?? 0) + 1e-5));
    points[1].push(v);
  }
  if (!points[0].length) return [...steps, steps[0].map(() => null)];
  return steps[0].length
    ? joined([steps, points])
    : [points[0], ...[1, 2, 3].map(() => points[0].map(() => null)), points[1]];
}

function heights(now) {
  const seen = visibleBuckets(now).flatMap((b) => [b.summary[now.field].min, b.summary[now.field].max]);
  for (const { ts, values } of now.readings ?? []) {
    const v = plotted(values[now.field]);
    if (v !== null && inside(now, ms(ts))) seen.push(v);
  }
  if (!seen.length) return [0, 1];
  const low = seen.reduce((a, b) => Math.min(a, b));
  const high = seen.reduce((a, b) => Math.max(a, b));
  const room = (high - low || Math.abs(high) || 1) * 0.08;
  return [low - room, high + room];
}

function options(colour, now, hooks, act) {
  const edge = { stroke: colour("edge"), width: 1, paths: stepped, points: { show: false } };
  return {
    scales: {
      x: { time: true, range: () => [now().from / 1000, now().to / 1000] },
      y: { range: () => heights(now()) },
    },
    series: [
      {},
      edge,
      edge,
      { stroke: colour("s1"), width: 2, paths: stepped, points: { show: false } },
      { stroke: colour("dot"), paths: () => null, points: { show: true, size: 4, width: 0, fill: colour("dot") } },
    ],
    bands: [{ series: [2, 1], fill: colour("band") }],
    axes: [
      { values: timeLabels, size: 24, space: 64 },
      {
        values: (u, splits) => splits.map(value),
        size: (u, all) => 16 + 6.5 * Math.max(...(all ?? [""]).map((v) => v.length), 3),
        gap: 6,
      },
    ],
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => act.zoom(null) },
    },
    hooks,
    padding: [8, 8, 0, 0],
  };
}
