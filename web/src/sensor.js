// One sensor: its tags, its last values, and one field over time as a band from the hourly summaries. In a window of a few
// hours, or when zoomed in, the readings are drawn too.

import { own, read } from "./api.js";
import { attr, card, h, keyed, sensorHref, table, text, visible } from "./dom.js";
import { NONE, ago, count, decimals, fixed, moment, ms, value } from "./format.js";
import { band } from "./band.js";
import { bucketsOf } from "./bands.js";
import { nothing, problem } from "./problem.js";
import { tagList } from "./sensors.js";

const HOUR = 3_600_000;
const SPANS = { "1h": HOUR, "6h": 6 * HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR };
const RAW_SPAN = 6 * HOUR;
const RAW_MAX = 5_000;
const ROWS_MAX = 200;
const NARROWEST = 10_000;
const EVERY_MS = 10_000;
/** The end of the last year that the read API understands. */
const TIME_MAX = Date.UTC(10_000, 0) - 1;
/** Browsers remove these from the path of a URL, also if they are escaped. */
const NOT_IN_PATHS = [".", ".."];

export function sensorView(box, id, query) {
  const state = {
    id,
    span: Object.hasOwn(SPANS, query.get("span")) ? query.get("span") : "24h",
    field: query.get("field"),
    buckets: [],
    states: [],
    readings: null,
    more: false,
    complete: true,
  };
  // Without a time in the address, the page opens on the last data, however old.
  state.end = null;
  state.base = latest(state.span);
  state.zoom = zoomOf(query, state.base);
  const parts = build(state, { field, span, zoom, move });
  box.append(...parts.elements);
  let stop = new AbortController();
  let asked = 0;

  const view = () => state.zoom ?? state.base;

  async function load() {
    const turn = ++asked;
    if (!state.zoom) state.base = latest(state.span, state.end);
    const { from, to } = view();
    const base = { from: iso(state.base.from), to: iso(state.base.to) };
    const path = `sensors/${encodeURIComponent(id)}`;
    const inPath = !NOT_IN_PATHS.includes(id);
    const wantsRaw = inPath && (state.zoom || to - from <= RAW_SPAN);
    const raw = { from: iso(from), to: iso(to), limit: RAW_MAX };
    try {
      const [known, hourly, readings] = await Promise.all([
        read("sensors", { prefix: id, limit: 1 }, stop.signal),
        inPath ? read(`${path}/hourly`, base, stop.signal) : { buckets: [], complete: true },
        wantsRaw ? read(`${path}/readings`, raw, stop.signal) : null,
      ]);
      if (turn !== asked) return;
      state.about = known.sensors.find((s) => s.sensor_id === id) ?? null;
      own(state.about?.last);
      for (const { summary } of hourly.buckets) own(summary);
      for (const { values } of readings?.readings ?? []) own(values);
      const last = state.about?.last_ts && ms(state.about.last_ts);
      const end = last && last < Date.now() - SPANS[state.span] ? last + 1000 : null;
      if (!state.zoom && end !== state.end) {
        state.end = end;
        return load();
      }
      state.buckets = hourly.buckets;
      state.readings = readings?.readings ?? null;
      state.more = readings?.next != null;
      state.complete = hourly.complete && (readings?.complete ?? true);
      choose(state);
      await loadStates();
      if (turn !== asked) return;
      parts.failed(null);
      parts.show(view());
    } catch (failed) {
      if (!stop.signal.aborted && turn === asked) parts.failed(problem(failed, load));
    }
  }

  /** A boolean has no hourly summary: its band is computed from the readings. */
  async function loadStates() {
    const { field } = state;
    state.states = [];
    const isBoolean = typeof state.about?.last?.[field]?.value === "boolean";
    if (!isBoolean || state.buckets.some((b) => b.summary[field])) return;
    state.states = await bucketsOf(field, [["sensor_id", id]], state.base, stop.signal, HOUR / 1000);
  }

  async function field(name) {
    state.field = name;
    remember();
    try {
      await loadStates();
      if (state.field === name) parts.show(view());
    } catch (failed) {
      if (!stop.signal.aborted) parts.failed(problem(failed, load));
    }
  }

  function span(name) {
    state.span = name;
    zoom(null);
  }

  /** Shows a part of the base window; null shows all of it. */
  function zoom(window) {
    state.zoom = window && within(window, state.base);
    state.readings = null;
    remember();
    load();
  }

  /** Moves and scales the window: by a share of its width, to a multiple of it around `centre`. */
  function move(share, scale, centre) {
    const { from, to } = view();
    const width = Math.max((to - from) * scale, NARROWEST);
    // Zooming in without a place leads to the newest data.
    const newest = scale < 1 && !state.zoom ? Math.min(lastOf(state) ?? to, to) - width * 0.45 : null;
    const middle = (centre ?? newest ?? (from + to) / 2) + share * (to - from);
    if (width >= state.base.to - state.base.from) return zoom(null);
    zoom({ from: middle - width / 2, to: middle + width / 2 });
  }

  function remember() {
    const kept = new URLSearchParams();
    if (state.field) kept.set("field", state.field);
    if (state.span !== "24h") kept.set("span", state.span);
    if (state.zoom) {
      kept.set("from", Math.round(state.zoom.from));
      kept.set("to", Math.round(state.zoom.to));
    }
    history.replaceState(null, "", sensorHref(id, kept.toString()));
  }

  load();
  const again = () => !document.hidden && !state.zoom && !box.querySelector("form.problem") && load();
  const timer = setInterval(again, EVERY_MS);
  return () => {
    stop.abort();
    clearInterval(timer);
    parts.end();
  };
}

const iso = (at) => new Date(at).toISOString();
/** The span up to now, or to `end`, the last data of a sensor that is silent for longer than the span. */
const latest = (span, end) => ({ from: (end ?? Date.now()) - SPANS[span], to: end ?? Date.now() });

/** Moves a window into the base and keeps its width. */
function within({ from, to }, base) {
  const width = Math.min(to - from, base.to - base.from);
  const start = Math.max(base.from, Math.min(from, base.to - width));
  return { from: start, to: start + width };
}

/** The window of a deep link. If it is older than the span, the base becomes the span up to its end. */
function zoomOf(query, base) {
  const [from, to] = [Number(query.get("from")), Number(query.get("to"))];
  if (!(from > 0 && to - from >= NARROWEST && to <= TIME_MAX)) return null;
  if (from < base.from || to > base.to) {
    const width = Math.max(base.to - base.from, to - from);
    Object.assign(base, { from: to - width, to });
  }
  return { from, to };
}

/** The time of the newest data in view. */
function lastOf({ buckets, readings, field }) {
  if (readings?.length) return ms(readings.at(-1).ts);
  const known = buckets.filter((b) => b.summary[field]);
  return known.length ? ms(known.at(-1).last_ts ?? known.at(-1).bucket_end) : null;
}

/** Sorts the fields by name, numeric ones first, and selects an existing field: the most recent one. */
function choose(state) {
  const summaries = state.buckets.flatMap((b) => Object.keys(b.summary));
  const names = [...new Set([...summaries, ...Object.keys(state.about?.last ?? {})])];
  const numeric = new Set(summaries);
  state.fields = names.sort((a, b) => numeric.has(b) - numeric.has(a) || (a < b ? -1 : 1));
  if (state.fields.includes(state.field)) return;
  const at = (name) => ms(state.about?.last?.[name]?.ts ?? 0) || 0;
  const latest = (names) => names.reduce((best, name) => (at(name) > at(best) ? name : best), names[0]);
  state.field = latest(state.fields.filter((name) => numeric.has(name))) ?? latest(state.fields) ?? null;
}

// ---- elements

function build(state, act) {
  const about = h("div", { class: "about" });
  const trouble = h("div");
  const fields = fieldTable(act.field);
  const tools = toolbar(act);
  const chart = band(act);
  const note = h("p", { class: "quiet note", role: "status" });
  const hours = table(
    "Hourly summaries",
    [["From"], ["Readings", "num"], ["Min", "num"], ["Avg", "num"], ["Max", "num"]],
    "dense even",
  );
  const rows = table("Readings", [["Time"], ["Values"]], "dense timed");
  const hourCard = card(
    "Hourly summaries",
    h("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Rows" }, hours.element),
  );
  const rowCard = card(
    "Readings",
    h("div", { class: "scroll tall", tabindex: "0", role: "group", "aria-label": "Rows" }, rows.element),
  );
  const chartCard = card("Last values over time", tools.element, chart.element, note);
  const title = chartCard.querySelector("h2");

  function show(view) {
    const { field } = state;
    const buckets = state.states.length ? state.states : state.buckets;
    showAbout(about, state);
    fields.show(state);
    tools.show(state);
    text(title, field ? visible(field) : "No fields yet");
    chart.show({ ...view, field, buckets, readings: state.readings, more: state.more });
    text(note, notes(state));
    const known = buckets.filter((b) => b.summary[field]);
    const digits = decimals(known.flatMap(({ summary }) => [summary[field].min, summary[field].max]));
    // An average has more decimals than its values.
    const means = Math.min(Math.max(digits + 1, Math.min(decimals(known.map((b) => b.summary[field].avg)), 2)), 5);
    keyed(
      hours.body,
      known.toReversed(),
      (b) => `${field} ${b.bucket_start}`,
      hourRow,
      (row, b) => fillHour(row, b.bucket_start, b.bucket_end, b.summary[field], [digits, means]),
    );
    const shown = state.readings?.slice(0, ROWS_MAX) ?? [];
    rowCard.hidden = !state.readings;
    rows.body.replaceChildren(...shown.map(readingRow));
  }
  const failed = (element) => {
    trouble.replaceChildren(...(element ? [element] : []));
    chartCard.parentElement.hidden = element?.tagName === "FORM";
  };
  rowCard.hidden = true;
  const main = h("div", { class: "sensor" }, fields.element, chartCard, hourCard, rowCard);
  return {
    elements: [h("h1", { class: "id" }, visible(state.id)), about, trouble, main],
    show,
    failed,
    end: chart.end,
  };
}

function showAbout(box, { about, buckets }) {
  const last = about?.last_ts ?? buckets.at(-1)?.last_ts;
  const seen = last
    ? h("span", { title: moment(ms(last)) }, `Last reading ${ago(ms(last))}`)
    : h("span", {}, "No readings of this sensor.");
  const former = about?.former_ids?.length
    ? [h("span", {}, `Formerly ${about.former_ids.map(visible).join(", ")}`)]
    : [];
  box.replaceChildren(seen, ...former, tagList(about?.tags));
}

function fieldTable(chosen) {
  const columns = [["Field"], ["Last value", "num"], ["At", "num"]];
  const { element, body } = table("Fields", columns, "dense fields");
  const make = (name) => {
    const radio = h("input", { type: "radio", name: "field", onchange: () => chosen(name) });
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("label", { title: name }, radio, h("span", { class: "id" }, visible(name)))),
      h("td", { class: "num" }),
      h("td", { class: "num" }),
    );
  };
  const show = ({ fields, field, about }) => {
    keyed(
      body,
      fields,
      (name) => name,
      make,
      (row, name) => {
        const last = about?.last?.[name];
        row.querySelector("input").checked = name === field;
        text(row.children[1], last ? visible(value(last.value)) : NONE);
        attr(row.children[1], "title", last ? String(last.value) : null);
        text(row.children[2], last ? ago(ms(last.ts)) : NONE);
      },
    );
  };
  return { element: card("Fields", element), show };
}

function toolbar({ span, zoom, move }) {
  const button = (label, title, onclick) => h("button", { type: "button", title, "aria-label": title, onclick }, label);
  const spans = Object.keys(SPANS).map((name) =>
    h("button", { type: "button", "data-span": name, onclick: () => span(name) }, name.replace(/\D/, " $&")),
  );
  const reset = h("button", { type: "button", onclick: () => zoom(null) }, "Reset zoom");
  const zooms = [
    button("‹", "Earlier", () => move(-0.5, 1)),
    button("−", "Zoom out", () => move(0, 2)),
    button("+", "Zoom in", () => move(0, 0.5)),
    button("›", "Later", () => move(0.5, 1)),
    reset,
  ];
  const element = h(
    "div",
    { class: "tools" },
    h("div", { class: "group", role: "group", "aria-label": "Span" }, spans),
    h("div", { class: "group", role: "group", "aria-label": "Zoom" }, zooms),
  );
  const show = (state) => {
    for (const b of spans) attr(b, "aria-pressed", String(b.dataset.span === state.span));
    reset.disabled = zooms[0].disabled = zooms[1].disabled = zooms[3].disabled = !state.zoom;
  };
  return { element, show };
}

function notes({ id, readings, more, complete, fields, field, buckets, states }) {
  if (NOT_IN_PATHS.includes(id)) return "A browser cannot request the hours and readings of a sensor with this name.";
  const said = [];
  if (!fields.length) said.push("No readings in this time range.");
  else if (states.length) said.push("1 is true: the average is the share of readings that are true.");
  else if (!buckets.some((b) => b.summary[field]))
    said.push("This field has no numbers in this time range, so there is no band.");
  if (readings) {
    said.push(
      more
        ? `The first ${count(readings.length)} readings of this window; there are more, so zoom in to see them.`
        : `${count(readings.length)} readings in this window.`,
    );
    if (readings.length > ROWS_MAX) said.push(`The table below has the first ${ROWS_MAX}.`);
  } else if (buckets.length) said.push("Drag over the plot to zoom in on the readings.");
  if (!complete) said.push("Incomplete: the journal has acknowledged readings that are not included yet.");
  return said.join(" ");
}

const hourRow = () =>
  h(
    "tr",
    {},
    h("th", { scope: "row" }),
    [0, 1, 2, 3].map(() => h("td", { class: "num" })),
  );

function fillHour(row, start, end, { min, max, avg, count: n }, [digits, means]) {
  text(row.children[0], moment(ms(start), false).slice(5));
  attr(row.children[0], "title", `${start} to ${end}`);
  [count(n), fixed(min, digits), fixed(avg, means), fixed(max, digits)].forEach((v, i) => text(row.children[i + 1], v));
}

function readingRow({ ts, values }) {
  const at = ms(ts);
  const pairs = Object.entries(values).map(([name, v]) =>
    h("span", { class: "pair" }, h("i", {}, visible(name)), " ", h("b", {}, visible(value(v)))),
  );
  return h(
    "tr",
    {},
    h("th", { scope: "row", title: ts }, `${moment(at)}.${String(at % 1000).padStart(3, "0")}`),
    h("td", {}, h("div", { class: "pairs" }, pairs)),
  );
}
