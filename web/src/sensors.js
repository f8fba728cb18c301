// All sensors, or those that a search or tags select, in pages, with their last values.

import { read } from "./api.js";
import { h, sensorLink, table, text, visible } from "./dom.js";
import { NONE, ago, count, moment, ms, value } from "./format.js";
import { nothing, problem } from "./problem.js";
import { tagChart } from "./tagchart.js";

const PAGE = 50;
const FIELDS = 6;
/** A search looks at so many sensors in one request that it may find none; then it is continued. */
const ROUNDS_MAX = 20;
const SORTS = {
  "": "by id",
  "-id": "by id, last first",
  "-last_arrival": "latest arrival first",
  last_arrival: "longest silent first",
  "-first_ts": "newest first",
  first_ts: "oldest first",
};

/** The address of the list with other values of some parameters; the first page of it, unless they name another. */
export function listHref(hash, changes) {
  const query = new URLSearchParams(hash.split("?").slice(1).join("?"));
  for (const place of ["after", "before"]) query.delete(place);
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const one of [value].flat()) if (one) query.append(name, one);
  }
  const rest = query.toString();
  return `#/sensors${rest && `?${rest}`}`;
}

/** `query` holds `search`, `tag`, `sort`, `silent`, `after` and `before`. */
export function sensorsView(view, query) {
  const stop = new AbortController();
  const asked = { limit: PAGE, tag: query.getAll("tag") };
  for (const name of ["search", "sort", "silent", "after", "before"]) asked[name] = query.get(name) ?? "";
  const box = h("div", { "aria-busy": "true" }, nothing("Loading …"));
  const name = asked.search ? `Sensors with “${visible(asked.search)}”` : "Sensors";
  view.append(h("h1", {}, name), filters(asked), box);
  let chart = null;

  const load = async () => {
    try {
      const page = await pages(asked, stop.signal);
      box.replaceChildren(...show(page, asked));
      const pairs = asked.tag.map((tag) => tag.split(/=(.*)/s).slice(0, 2));
      if (pairs.length && page.sensors.length && !chart) {
        chart = tagChart(pairs, page.sensors);
        view.insertBefore(chart.element, box);
      }
    } catch (failed) {
      if (!stop.signal.aborted) box.replaceChildren(problem(failed, load));
    }
    box.removeAttribute("aria-busy");
  };
  load();
  return () => {
    stop.abort();
    chart?.end();
  };
}

/** A page of the list, filled from several answers if the first ones end early. */
async function pages(asked, signal) {
  const page = await read("sensors", asked, signal);
  const goesOn = () => asked.search && !asked.before && page.next != null && page.sensors.length < PAGE;
  for (let round = 1; round < ROUNDS_MAX && goesOn(); round++) {
    const rest = { ...asked, after: page.next, limit: PAGE - page.sensors.length };
    const { sensors, next } = await read("sensors", rest, signal);
    page.sensors.push(...sensors);
    page.next = next;
  }
  return page;
}

function filters({ sort, silent, tag }) {
  const go = (changes) => (location.hash = listHref(location.hash, changes));
  const order = h(
    "select",
    { "aria-label": "Order", onchange: () => go({ sort: order.value }) },
    Object.entries(SORTS).map(([key, label]) => h("option", { value: key, selected: key === sort }, label)),
  );
  const only = h("input", { type: "checkbox", checked: silent === "true", onchange: () => go({ silent: only.checked && "true" }) });
  const chosen = tag.map((one) => {
    const rest = tag.filter((other) => other !== one);
    const label = `Without ${visible(one)}`;
    return h("a", { class: "button", href: listHref(location.hash, { tag: rest }), "aria-label": label }, `${visible(one)} ×`);
  });
  return h("div", { class: "tools filters" }, order, h("label", {}, only, " only silent"), chosen);
}

function show({ sensors, next, previous }, asked) {
  const isFiltered = asked.search || asked.tag.length || asked.silent;
  if (sensors.length === 0 && next == null) {
    return [
      nothing(isFiltered ? "No sensor matches." : asked.after || asked.before ? "No more sensors." : "No sensors yet."),
    ];
  }
  const columns = [["Sensor"], ["Last reading", "num"], ["Last values"], ["Tags"]];
  const { element, body } = table("Sensors", columns, "list wide stack");
  body.append(...sensors.map(row));
  const link = (label, changes, rel) =>
    h("a", { class: "button", rel, href: listHref(location.hash, changes) }, label);
  const said = h("span", { class: "quiet", role: "status" });
  text(said, `${count(sensors.length)} shown, ${SORTS[asked.sort] ?? "ordered"}`);
  const pager = h(
    "nav",
    { class: "pager", "aria-label": "Pages" },
    (asked.after || asked.before) && link("First page", {}, "first"),
    previous != null && link("Previous page", { before: previous }, "prev"),
    next != null && link("Next page", { after: next }, "next"),
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

/** Each tag leads to the sensors that have it. */
export function tagList(tags) {
  const link = ([name, v]) =>
    h(
      "a",
      { class: "pair", href: listHref("", { tag: `${name}=${v}` }), title: "All sensors with this tag" },
      h("i", {}, visible(name)),
      " ",
      h("b", {}, visible(String(v))),
    );
  return h("div", { class: "pairs" }, Object.entries(tags ?? {}).map(link));
}
