// All sensors, or those whose id has a prefix, in pages, with their last values.

import { read } from "./api.js";
import { h, sensorLink, table, text, visible } from "./dom.js";
import { NONE, ago, count, moment, ms, value } from "./format.js";
import { nothing, problem } from "./problem.js";

const PAGE = 50;
const FIELDS = 6;

/** `query` holds `prefix` and `after`. */
export function sensorsView(view, query) {
  const stop = new AbortController();
  const prefix = query.get("prefix") ?? "";
  const after = query.get("after") ?? "";
  const box = h("div", { "aria-busy": "true" }, nothing("Loading …"));
  const name = prefix ? `Sensors that begin with “${visible(prefix)}”` : "Sensors";
  view.append(h("h1", {}, name), box);

  const load = async () => {
    try {
      const page = await read("sensors", { prefix, after, limit: PAGE }, stop.signal);
      box.replaceChildren(...show(page, prefix, after));
    } catch (failed) {
      if (!stop.signal.aborted) box.replaceChildren(problem(failed, load));
    }
    box.removeAttribute("aria-busy");
  };
  load();
  return () => stop.abort();
}

function show({ sensors, next }, prefix, after) {
  if (sensors.length === 0) {
    return [
      nothing(prefix ? "No sensor id has this prefix." : after ? "No more sensors." : "No sensors yet."),
    ];
  }
  const columns = [["Sensor"], ["Last reading", "num"], ["Last values"], ["Tags"]];
  const { element, body } = table("Sensors", columns, "list wide stack");
  body.append(...sensors.map(row));
  const link = (label, cursor, rel) => {
    const query = new URLSearchParams([
      ...(prefix ? [["prefix", prefix]] : []),
      ...(cursor ? [["after", cursor]] : []),
    ]);
    const rest = query.toString();
    return h("a", { class: "button", rel, href: `#/sensors${rest && `?${rest}`}` }, label);
  };
  const said = h("span", { class: "quiet", role: "status" });
  text(said, `${count(sensors.length)} shown, ordered by id`);
  const pager = h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    after && link("First page", "", "first"),
    next != null && link("Next page", next, "next"),
    said,
  );
  return [h("section", { class: "card", "aria-label": "Sensors" }, element, pager)];
}

function row({ sensor_id, last_ts, tags, last }) {
  const fields = Object.entries(last ?? {});
  const shown = fields.slice(0, FIELDS).map(([field, { value: v }]) => pair(field, value(v)));
  if (fields.length > FIELDS) shown.push(h("span", { class: "quiet" }, `and ${fields.length - FIELDS} more`));
  const at = last_ts ? ms(last_ts) : null;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, sensorLink(sensor_id)),
    h("td", { class: "num", "data-label": "Last reading", title: at && moment(at) }, at ? ago(at) : NONE),
    h("td", {}, h("div", { class: "pairs" }, shown)),
    h("td", { "data-label": Object.keys(tags ?? {}).length > 0 && "Tags" }, tagList(tags)),
  );
}

export const pair = (name, v) => h("span", { class: "pair" }, h("i", {}, visible(name)), " ", h("b", {}, visible(v)));

export function tagList(tags) {
  return h(
    "div",
    { class: "pairs" },
    Object.entries(tags ?? {}).map(([name, v]) => pair(name, String(v))),
  );
}
