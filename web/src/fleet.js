// The first view: live figures, the state of the store and the brokers, rejects, and notable sensors.

import { read } from "./api.js";
import { attr, card, h, keyed, sensorLink, table, text, visible } from "./dom.js";
import { NONE, ago, count, duration, moment, ms, rate } from "./format.js";
import { live, subscribe } from "./live.js";
import { liveCards } from "./livecards.js";
import { by, series, sum } from "./metrics.js";
import { nothing, problem } from "./problem.js";
import { tailCard } from "./tail.js";

const LISTS_EVERY_MS = 10_000;
const SHORT = 6;

export function fleetView(view) {
  const cards = liveCards();
  const states = h("div", { class: "cards three" });
  const lists = h("div", { class: "cards two", "aria-live": "off" });
  const title = h("h1", { class: "sr" }, "Fleet");
  const active = h("p", { class: "quiet active" });
  const tail = tailCard();
  view.append(title, cards.element, states, active, lists, tail.element);

  const ends = [cards.end, tail.end, subscribe(stateCards(states)), subscribe(() => tellCommand(lists))];
  const stop = new AbortController();
  const load = async () => {
    try {
      const fleet = await read("fleet", {}, stop.signal);
      // The fleet covers only the last hour. The list of all sensors shows whether there were ever any.
      const quiet = fleet.sensors === 0 && fleet.rejected.length === 0;
      const isNew = quiet && (await read("sensors", { limit: 1 }, stop.signal)).sensors.length === 0;
      live.fleet = fleet;
      text(active, isNew ? "" : counted(fleet));
      attr(active, "class", `quiet active${fleet.half_away ? " warn" : ""}`);
      if (isNew) showFirst(lists, load);
      else show(lists, fleet);
    } catch (failed) {
      if (stop.signal.aborted) return;
      live.fleet = null;
      const asking = lists.querySelector("form.problem");
      if (!(failed.status === 401 && asking?.contains(document.activeElement))) fail(lists, failed, load);
    }
  };
  load();
  const timer = setInterval(() => !document.hidden && !lists.querySelector("form.problem") && load(), LISTS_EVERY_MS);
  return () => {
    stop.abort();
    clearInterval(timer);
    ends.forEach((end) => end());
  };
}

/** All sensors of the catalogue, and those that this process has heard: after a restart, only those that have sent since. */
function counted({ known, silent_total: silent, silent_after_seconds: after, late_total: late, heard, sensors }) {
  // 0 until the catalogue is read.
  const all = known ? `${count(known)} sensors known, ${count(silent)} of them silent for ${duration(after)}; ` : "";
  const started = sum(live.metrics ?? new Map(), "process_start_time_seconds", () => true, "");
  const since = started ? ` since the service started ${ago(started * 1000)}` : "";
  return `${all}${count(late)} late of ${count(heard)} heard${since}; ${count(sensors)} in memory`;
}

/** Names the rules of the list of late and silent sensors. */
const lateRule = ({ silent_after_seconds: after }) =>
  "Late: nothing has arrived for three times the sensor's usual interval, at least 5 min; for 1 h while its interval " +
  `is unknown. Silent: nothing for ${duration(after)} (sensors.silent_after), at any instance.`;

// ---- store or centre, brokers, rejects

function stateCards(parent) {
  const store = rowsCard("Store");
  const centre = rowsCard("Centre");
  const brokers = { body: h("div", { class: "scroll" }) };
  const refused = { body: h("div") };
  const outside = { body: h("div") };
  const since = (what) => h("p", { class: "quiet" }, `${what} since the service started.`);
  store.element.append(since("Means and counts"));
  centre.element.append(since("Counts"));
  parent.append(
    store.element,
    centre.element,
    card("MQTT brokers", brokers.body, since("Reconnects and full windows")),
    card("Refused", refused.body, outside.body, since("Counts")),
  );
  return () => {
    if (!live.metrics) return;
    const forwards = Boolean(live.ready.forward);
    store.element.hidden = forwards;
    centre.element.hidden = !forwards;
    if (forwards) centre.show(centreRows());
    else store.show(storeRows());
    showBrokers(brokers.body);
    showRefused(refused.body);
    showOutside(outside.body);
  };
}

/** A card of names and values. */
function rowsCard(title) {
  const list = h("dl", { class: "facts" });
  const make = ([name]) => h("div", {}, h("dt", {}, name), h("dd"));
  const update = (row, [, value, tone]) => {
    text(row.lastChild, value);
    attr(row.lastChild, "class", tone);
  };
  return { element: card(title, list), show: (rows) => keyed(list, rows, ([name]) => name, make, update) };
}

/** The kinds of statements that hold readings or their summaries; the others read, or keep something else. */
const WRITES = ["insert", "update", "measurement"];

/** The errors of a MongoDB that answers. */
const ANSWERED = /^(command|write_concern|unauthorized|not_prepared):/;

/** MongoDB may answer, and still refuse one kind of request: then it is not unreachable. */
function storeState({ ok, error, failing, last_ok: lastOk }) {
  if (ok) return "answers";
  const refused = failing.filter(
    (one) => ANSWERED.test(one.error) || (one.since && lastOk && ms(lastOk) > ms(one.since)),
  );
  if (refused.length) return `answers, but fails: ${refused.map(({ requests }) => requests).join(", ")}`;
  return error ? "unreachable" : "not reached yet";
}

function storeRows() {
  const { metrics, ready } = live;
  const errors = [...by(metrics, "store_errors_total", "kind")].filter(([, n]) => n > 0);
  const isWrite = (labels) => WRITES.includes(labels.kind);
  const statements = by(metrics, "store_statements_total", "kind");
  const holding = statements.get("measurement") || (statements.get("insert") ?? 0) + (statements.get("update") ?? 0);
  const stored = sum(metrics, "readings_stored_total");
  const writes = sum(metrics, "store_write_seconds_count", isWrite);
  const took = sum(metrics, "store_write_seconds_sum", isWrite);
  const state = storeState(ready.store);
  return [
    ["State", state, ready.store.ok ? "good" : "bad"],
    ...(ready.store.ok ? [] : [["Last answer", ready.store.last_ok ? ago(ms(ready.store.last_ok)) : "none yet"]]),
    ["MongoDB", ready.server_version ?? NONE],
    ["Mode", ready.mode ?? NONE],
    ["Write command, mean", duration(writes > 0 ? took / writes : null)],
    // In time-series mode a measurement statement has the readings, an insert or update their summary.
    ["Readings per statement", holding > 0 ? rate(stored / holding) : NONE],
    ["Conflicts", count(sum(metrics, "store_conflicts_total"))],
    ["Retries", count(sum(metrics, "store_retries_total"))],
    [
      "Errors",
      errors.length ? errors.map(([kind, n]) => `${kind} ${count(n)}`).join(", ") : "0",
      errors.length && "bad",
    ],
  ];
}

/** Of an instance that forwards its readings: the one that they go to. */
function centreRows() {
  const { metrics, ready } = live;
  const { url, ok, error, failing_seconds: failing, oldest_seconds: oldest } = ready.forward;
  const requests = [...by(metrics, "forward_requests_total", "result")].filter(([, n]) => n > 0);
  const failed = requests.filter(([result]) => !["ok", "too_large"].includes(result));
  const readings = sum(metrics, "forward_readings_total");
  const rejected = sum(metrics, "forward_rejected_total");
  const sent = sum(metrics, "forward_bytes_total");
  return [
    ["Address", url],
    ["State", ok ? "takes readings" : `takes none for ${duration(failing)}: ${error}`, ok ? "good" : "bad"],
    ["Oldest not forwarded", oldest == null ? NONE : duration(oldest)],
    ["Journal lasts", duration(ready.journal?.lasts_seconds)],
    ["Forwarded", count(readings)],
    ["Bytes a reading", readings > 0 ? rate(sent / readings) : NONE],
    ["Rejected", count(rejected), rejected > 0 && "bad"],
    ["Failed requests", failed.length ? failed.map(([result, n]) => `${result} ${count(n)}`).join(", ") : "0"],
  ];
}

function showBrokers(box) {
  const { metrics, ready } = live;
  const direct = sum(metrics, "mqtt_direct_connections");
  const of = (name, broker) => sum(metrics, name, (labels) => labels.broker === broker);
  if (!box.table) {
    const columns = [["Broker"], ["State"], ["Unacked", "num"], ["Oldest", "num"], ["Window full", "num"]];
    box.table = table("MQTT brokers", columns, "dense stack");
    box.none = nothing("No broker configured.");
    box.direct = h("p", { class: "quiet" });
    box.append(box.table.element, box.none, box.direct);
  }
  box.table.element.hidden = ready.mqtt.length === 0;
  box.none.hidden = ready.mqtt.length > 0;
  box.direct.hidden = !direct;
  text(box.direct, `${count(direct)} devices connected to the listener`);
  const make = ({ broker }) => {
    const cells = ["State", "Unacked", "Oldest", "Window full"].map((n, i) =>
      h("td", { "data-label": n, class: i && "num" }),
    );
    return h("tr", {}, h("th", { scope: "row", class: "id", title: broker }, visible(broker)), cells);
  };
  const update = (row, { broker, connected, detail }) => {
    const [, state, unacked, oldest, full] = row.children;
    const again = of("mqtt_reconnects_total", broker) ?? 0;
    text(state, `${connected ? "connected" : "disconnected"}${again ? `, ${count(again)} reconnects` : ""}`);
    attr(state, "class", connected ? "good" : "bad");
    attr(state, "title", detail);
    text(unacked, count(of("mqtt_unacked", broker)));
    text(oldest, duration(of("mqtt_oldest_unacked_seconds", broker)));
    text(full, duration(of("mqtt_window_full_seconds_total", broker) ?? 0));
  };
  keyed(box.table.body, ready.mqtt, ({ broker }) => broker, make, update);
}

function showRefused(box) {
  const letters = by(live.metrics, "dead_letters_total", "reason");
  const rejected = new Map();
  for (const { labels, value } of series(live.metrics, "readings_rejected_total")) {
    rejected.set(labels.reason, (rejected.get(labels.reason) ?? 0) + value);
  }
  const reasons = [...new Set([...rejected.keys(), ...letters.keys()])];
  const rows = reasons.map((reason) => [reason, rejected.get(reason) ?? 0, letters.get(reason) ?? 0]);
  const seen = rows.filter(([, a, b]) => a + b > 0).sort((a, b) => b[1] + b[2] - a[1] - a[2]);
  if (!box.table) {
    box.table = table(
      "Refused by reason, since start",
      [["Reason"], ["Rejected", "num"], ["Dead letters", "num"]],
      "dense",
    );
    box.none = nothing("No rejects or dead letters since start.");
    box.append(box.table.element, box.none);
  }
  box.table.element.hidden = seen.length === 0;
  box.none.hidden = seen.length > 0;
  const make = ([reason, , kept]) => {
    const name = kept ? h("a", { href: `#/letters?reason=${encodeURIComponent(reason)}` }, reason) : reason;
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "num" }), h("td", { class: "num" }));
  };
  keyed(
    box.table.body,
    seen,
    ([reason, , kept]) => `${reason} ${kept > 0}`,
    make,
    (row, [, a, b]) => {
      text(row.children[1], count(a));
      text(row.children[2], count(b));
    },
  );
}

/** What the entries of [[ranges]] have met. */
function showOutside(box) {
  const met = series(live.metrics, "values_out_of_range_total").filter(({ value }) => value > 0);
  if (!box.table) {
    const columns = [["Out of range"], ["Action"], ["Values", "num"]];
    box.table = table("Values outside of a range, since start", columns, "dense");
    box.append(box.table.element);
  }
  box.table.element.hidden = met.length === 0;
  keyed(
    box.table.body,
    met,
    ({ labels }) => `${labels.fields} ${labels.action}`,
    ({ labels }) =>
      h("tr", {}, h("th", { scope: "row" }, labels.fields), h("td", {}, labels.action), h("td", { class: "num" })),
    (row, { value }) => text(row.children[2], count(value)),
  );
}

// ---- the lists of /v1/fleet

const LISTS = [
  {
    key: "busiest",
    title: "Busiest",
    none: "No sensor sent readings recently.",
    columns: [["Sensor"], ["Per minute", "num"], ["Last reading", "num"]],
    cells: (s) => [rate(s.readings_per_minute), ago(ms(s.last_ts))],
  },
  {
    key: "silent",
    title: "Late or silent",
    none: "No late or silent sensors.",
    rule: lateRule,
    columns: [["Sensor"], ["Silent for", "num"], ["Last reading", "num"]],
    cells: (s) => [duration(s.silent_seconds), moment(ms(s.last_ts), false)],
  },
  {
    key: "newest",
    title: "Newest",
    none: "No sensors yet.",
    columns: [["Sensor"], ["First seen", "num"]],
    cells: (s) => [ago(ms(s.first_seen))],
  },
  {
    key: "rejected",
    title: "Rejected",
    none: "No rejected senders.",
    columns: [["Sender"], ["Reason"], ["Count", "num"], ["Last", "num"]],
    cells: (s) => [s.reason, count(s.count), ago(ms(s.last_at))],
    id: (s) => JSON.stringify([s.source, s.name, s.reason]),
    first: (s) => [
      h("span", { class: "id", title: s.name }, visible(s.name) || NONE),
      h("small", { title: s.detail }, `${s.source}: ${visible(s.detail)}`),
    ],
  },
];

function showFirst(box, again) {
  box.lists = null;
  if (!box.firstChild?.matches(".empty")) box.replaceChildren(firstReading(again));
  tellCommand(box);
}

function show(box, fleet) {
  if (!box.lists) {
    box.lists = LISTS.map(listCard);
    box.replaceChildren(...box.lists.map((list) => list.element));
  }
  for (const list of box.lists) list.show(fleet);
}

function fail(box, failed, again) {
  box.lists = null;
  box.replaceChildren(problem(failed, again));
}

function listCard({
  key,
  title,
  none,
  columns,
  cells,
  rule,
  id = (s) => s.sensor_id,
  first = (s) => sensorLink(s.sensor_id),
}) {
  const { element, body } = table(title, columns, "dense list");
  const empty = nothing(none);
  const more = h("button", { type: "button", class: "quiet", "aria-expanded": "false" });
  const words = rule && h("p", { class: "quiet" });
  let all = false;
  let last = null;
  const show = (fleet) => {
    last = fleet;
    if (rule) text(words, rule(fleet));
    const items = fleet[key] ?? [];
    const make = (item) => {
      const rest = columns.slice(1).map(([, name]) => h("td", { class: name }));
      return h("tr", {}, h("th", { scope: "row" }, first(item)), rest);
    };
    keyed(body, all ? items : items.slice(0, SHORT), id, make, (row, item) => {
      cells(item).forEach((value, i) => text(row.children[i + 1], value));
    });
    element.hidden = items.length === 0;
    empty.hidden = items.length > 0;
    more.hidden = items.length <= SHORT;
    text(more, all ? `First ${SHORT} only` : `All ${items.length}`);
    attr(more, "aria-expanded", String(all));
  };
  more.addEventListener("click", () => ((all = !all), show(last)));
  return { element: card(title, element, empty, more, words), show };
}

/** Before the first reading: how to send one. */
function firstReading(again) {
  return h(
    "section",
    { class: "card empty", "aria-label": "No readings yet" },
    h("h2", {}, "No readings yet"),
    h("p", {}, "Send the first one:"),
    h("pre", { tabindex: "0", "aria-label": "Command" }),
    h(
      "p",
      { class: "quiet" },
      'If http.tokens_file is set, add -H "Authorization: Bearer id.secret". A new sensor appears within seconds.',
    ),
    h("button", { type: "button", onclick: again }, "Check again"),
  );
}

/** Fills in the command as soon as the URL of HTTP ingest is known. */
function tellCommand(box) {
  const command = box.querySelector(".empty pre");
  const body = '{"sensor_id": "S1", "values": {"temp": 22.4, "humid": 60}}';
  if (command) text(command, `curl ${intake()}/v1/readings -H 'Content-Type: application/json' -d '${body}'`);
}

/** The URL of HTTP ingest, as this browser's host reaches it. */
function intake() {
  const listen = live.ready?.http;
  if (!listen) return `http://${location.hostname}:8080`;
  const url = new URL(listen);
  if (/^(0\.0\.0\.0|\[::\])$/.test(url.hostname)) url.hostname = location.hostname;
  return url.origin;
}
