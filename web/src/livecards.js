// The four live cards at the top: throughput, freshness, acknowledgement, backlog. Each has a small table of figures, which
// is also the legend of its plot of the last minutes.

import { h, text } from "./dom.js";
import { NONE, bytes, clock, count, duration, rate } from "./format.js";
import { HISTORY_MS, live, subscribe, total } from "./live.js";
import { sum } from "./metrics.js";
import { plot } from "./plot.js";

// Allowed grid steps of a plot of bytes: powers of two up to 8 TiB.
const BINARY = Array.from({ length: 44 }, (_, i) => 2 ** i);

const MINUTES = [4, 3, 2, 1];

const CARDS = [
  {
    title: "Throughput",
    axis: rate,
    columns: ["per second", "since start"],
    lines: [
      ["accepted", "Accepted", "s1"],
      ["stored", "Stored", "s2"],
      ["duplicate", "Duplicate", "s3"],
      ["rejected", "Rejected", "s4"],
    ],
    cells: (key, point) => [point?.[key] == null ? NONE : `${rate(point[key])} /s`, count(total(key))],
  },
  {
    title: "Freshness",
    axis: duration,
    columns: ["now"],
    lines: [["oldest", "Oldest unstored", "s1"]],
    cells: (key, point) => [duration(point?.oldest)],
    more: [
      ["In flight", (p) => `${count(p?.inFlight)} readings`],
      ["Written after", (p) => duration(p?.age)],
    ],
  },
  {
    title: "Acknowledgement",
    axis: duration,
    columns: ["last minute"],
    lines: [
      ["ack50", "Latency p50", "s2"],
      ["ack99", "Latency p99", "s1"],
    ],
    cells: (key, point) => [duration(point?.[key])],
    more: [
      ["Pending now", (p) => count(p?.pending)],
      ["Journal sync p99", (p) => duration(p?.sync99)],
    ],
  },
  {
    title: "Backlog",
    axis: bytes,
    steps: BINARY,
    columns: ["now"],
    lines: [
      ["journal", "Unstored", "s1"],
      ["memory", "Memory", "s3"],
    ],
    cells: (key, point) => [bytes(point?.[key])],
    more: [
      ["Journal fill", (p) => share(p?.journal, sum(live.metrics ?? new Map(), "journal_max_bytes"))],
      ["Lasts for", lasts],
      ["Memory fill", (p) => share(p?.memory, sum(live.metrics ?? new Map(), "accumulate_max_bytes"))],
    ],
  },
];

/** How long the journal has room at the current rate, if MongoDB were away; unknown if no readings arrive. */
function lasts() {
  return duration(live.ready?.journal?.lasts_seconds);
}

function share(part, whole) {
  if (!whole || part == null) return NONE;
  const percent = (100 * part) / whole;
  return `${percent > 0 && percent < 0.1 ? "< 0.1" : percent.toFixed(1)} % of ${bytes(whole)}`;
}

/** The row of cards, and the function that removes their subscriptions and plots. */
export function liveCards() {
  const row = h("div", { class: "live" });
  const ends = CARDS.map((spec) => liveCard(row, spec));
  return { element: row, end: () => ends.forEach((end) => end()) };
}

function liveCard(row, spec) {
  const cells = new Map();
  const line = (name, label, swatch, n) => {
    const key = swatch && h("i", { class: `swatch ${swatch}`, "aria-hidden": "true" });
    const values = Array.from({ length: n }, () => h("td", { class: "num" }, NONE));
    cells.set(name, values);
    return h("tr", {}, h("th", { scope: "row" }, key, label), values);
  };
  const extra = spec.more ?? [];
  const rows = [
    ...spec.lines.map(([name, label, swatch]) => line(name, label, swatch, spec.columns.length)),
    ...extra.map(([label]) => line(label, label, null, 1)),
  ];
  const names = spec.columns.map((name) => h("th", { scope: "col", class: "num" }, name));
  // The last column of two is a total, whatever point the pointer is on.
  const ofPoint = names[0];
  const head = h("tr", {}, h("td", {}, h("h2", {}, spec.title)), names);
  const figures = h(
    "table",
    { class: "figures", "aria-label": spec.title },
    h("thead", {}, head),
    h("tbody", {}, rows),
  );
  const box = h("div", { class: "plot", "aria-hidden": "true" });
  row.append(h("section", { class: "card", "aria-label": spec.title }, figures, box));

  let hovered = null;
  const drawn = plot(box, (colour) => options(spec, colour, (index) => ((hovered = index), fillIn())), data(spec));
  const fillIn = () => {
    const pointed = live.history[hovered];
    const point = pointed ?? live.history.at(-1);
    text(ofPoint, pointed ? `at ${clock(pointed.at)}` : spec.columns[0]);
    for (const [name] of spec.lines) {
      spec.cells(name, point).forEach((value, i) => text(cells.get(name)[i], value));
    }
    for (const [label, value] of extra) text(cells.get(label)[0], value(point));
  };
  const end = subscribe(() => {
    if (!live.failure) drawn.set(data(spec));
    fillIn();
  });
  return () => {
    end();
    drawn.destroy();
  };
}

function data(spec) {
  const points = live.history;
  return [points.map((p) => p.at / 1000), ...spec.lines.map(([key]) => points.map((p) => p[key] ?? null))];
}

function options(spec, colour, hover) {
  const now = () => (live.at ?? Date.now()) / 1000;
  return {
    scales: {
      x: { time: true, range: () => [now() - HISTORY_MS / 1000, now()] },
      y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] },
    },
    series: [
      {},
      ...spec.lines.map(([, , swatch], i) => ({
        stroke: colour(swatch),
        width: 1.5,
        fill: i === 0 ? colour("fill") : undefined,
        points: { show: false },
      })),
    ],
    axes: [
      {
        splits: () => MINUTES.map((m) => now() - 60 * m),
        values: () => MINUTES.map((m) => (m % 2 ? "" : `−${m} min`)),
        size: 20,
        gap: 2,
      },
      {
        values: (u, splits) => splits.map(spec.axis),
        size: 58,
        gap: 4,
        space: 28,
        ...(spec.steps && { incrs: spec.steps }),
      },
    ],
    cursor: { y: false, points: { size: 5 }, drag: { x: false, y: false }, sync: { key: "live" } },
    hooks: { setCursor: [(u) => hover(u.cursor.idx)] },
    padding: [6, 4, 0, 0],
  };
}
