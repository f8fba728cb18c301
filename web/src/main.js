// Routes (`#/`, `#/sensors`, `#/sensor/ID`, `#/letters`), the state of the service at the top, and the keyboard.

import { read, token } from "./api.js";
import { attr, h, keyed, text, visible } from "./dom.js";
import { clock, count, zone } from "./format.js";
import { fleetView } from "./fleet.js";
import { lettersView } from "./letters.js";
import { live, lookNow, start, subscribe } from "./live.js";
import { series } from "./metrics.js";
import { sensorView } from "./sensor.js";
import { listHref, sensorsView } from "./sensors.js";
import { startTheme } from "./theme.js";

const id = (name) => document.getElementById(name);
const find = id("find");
const FLEET_EVERY_MS = 10_000;

// ---- routes

let end = () => {};
/** The last list of sensors, to which Esc returns. */
let list = "#/sensors";

function route(event) {
  const [path, search = ""] = splitOnce(location.hash.replace(/^#/, "") || "/", "?");
  const query = new URLSearchParams(search);
  const [, name = "", encoded] = path.split("/");
  let view = { "": fleetView, sensors: sensorsView, letters: lettersView }[name];
  let title = { sensors: "Sensors", letters: "Dead letters" }[name];
  if (name === "sensor" && encoded) {
    const sensor = decode(path.slice("/sensor/".length));
    view = (box) => sensorView(box, sensor, query);
    title = visible(sensor);
  }
  end();
  const box = id("view");
  box.replaceChildren();
  end = (view ?? nowhere)(box, query) ?? (() => {});
  document.title = title ? `${title} – hourbucket` : "hourbucket";
  const current = name === "sensor" ? "sensors" : name || "fleet";
  if (name === "sensors") list = location.hash;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    attr(link, "aria-current", link.dataset.view === current && "page");
  }
  if (document.activeElement !== find) find.value = query.get("search") ?? "";
  if (event && document.activeElement !== find) {
    scrollTo(0, 0);
    id("main").focus({ preventScroll: true });
  }
}

const nowhere = (box) => box.append(h("h1", {}, "Page not found"), h("a", { href: "#/" }, "Go to the fleet"));

function splitOnce(string, at) {
  const i = string.indexOf(at);
  return i < 0 ? [string] : [string.slice(0, i), string.slice(i + 1)];
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// ---- the state of the service

function showState() {
  const { ready, failure } = live;
  const [word, tone] = failure
    ? ["no answer", "bad"]
    : !ready
      ? ["connecting", ""]
      : !ready.ready
        ? ["not ready", "bad"]
        : ready.reasons.length
          ? ["degraded", "warn"]
          : live.fleet?.half_away
            ? ["sensors late", "warn"]
            : ["ready", "good"];
  text(id("state"), word);
  attr(id("state"), "class", `pill ${tone}`);
  attr(document.body, "data-stale", failure && "yes");
  notices(failure, ready);
  const version = series(live.metrics ?? new Map(), "build_info")[0]?.labels.version;
  text(id("instance"), `${location.host}${version ? `, hourbucket ${version}` : ""}`);
  text(id("zone"), `times in ${zone()}`);
  id("forget").hidden = token.get() === null;
}

function notices(failure, ready) {
  const box = id("notices");
  const reasons = failure ? [] : (ready?.reasons ?? []);
  const sentence = failure
    ? `The service has not answered since ${clock(failure.since)} (${failure.why}). The data shown is older.`
    : (ready?.summary ?? reasons[0] ?? halfAway());
  const tone = failure || (ready && !ready.ready) ? "bad" : "warn";
  const wanted = JSON.stringify([tone, failure ? failure.since : reasons.length, !sentence]);
  if (box.shown !== wanted) {
    box.shown = wanted;
    box.replaceChildren();
    if (!sentence) return;
    const again = failure && h("button", { type: "button", onclick: lookNow }, "Try now");
    const details = reasons.length > 0 && h("details", {}, h("summary", {}, "Details"), h("ul"));
    box.append(
      h("div", { class: `notice ${tone}` }, h("div", {}, h("p", { class: "sentence", role: "alert" }), details), again),
    );
  }
  if (!sentence) return;
  // The sentence and the details change while the reader has them open.
  text(box.querySelector(".sentence"), visible(sentence));
  const list = box.querySelector("ul");
  if (list) keyed(list, reasons, (line) => line, (line) => h("li", {}, visible(line)));
}

/** The service is ready, but hardly any sensor sends. */
function halfAway() {
  if (!live.fleet?.half_away) return null;
  const { late_total: late, heard, silent_total: silent, known } = live.fleet;
  const all = known ? `; ${count(silent)} of ${count(known)} known sensors are silent` : "";
  return `Half of the fleet has stopped sending: ${count(late)} of ${count(heard)} sensors heard are late${all}.`;
}

/** Reads the fleet for the views other than its own, until it is refused. */
async function lookAtFleet() {
  const isFleet = !location.hash.replace(/^#\/?/, "");
  if (document.hidden || isFleet || live.fleet === null) return;
  try {
    live.fleet = await read("fleet");
  } catch {
    live.fleet = null;
  }
}

// ---- keyboard and search

let typing = null;

function search() {
  clearTimeout(typing);
  const wanted = listHref(location.hash.startsWith("#/sensors") ? location.hash : "", { search: find.value });
  if (location.hash === wanted) return;
  // A search is one step of the history, not one per keystroke.
  if (location.hash.startsWith("#/sensors")) {
    history.replaceState(null, "", wanted);
    route();
  } else location.hash = wanted;
}

const inList = () => [...document.querySelectorAll("table.list tbody th a")];

function arrows(event) {
  const links = inList();
  const at = links.indexOf(document.activeElement);
  if (at < 0 && document.activeElement !== find) return;
  const next = event.key === "ArrowDown" ? at + 1 : at - 1;
  if (at >= 0 && next < 0) find.focus();
  links[next]?.focus();
  event.preventDefault();
}

function escape() {
  if (document.activeElement === find) find.blur();
  else if (location.hash.startsWith("#/sensor/")) location.hash = list;
  else if (/^#\/(sensors|letters)/.test(location.hash)) location.hash = "#/";
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const writes = event.target.matches?.("input, textarea, select") && event.target !== find;
  if (writes) return;
  if (event.key === "/" && event.target !== find) {
    event.preventDefault();
    find.focus();
    find.select();
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") arrows(event);
  else if (event.key === "Escape") {
    // A search field would be cleared.
    event.preventDefault();
    escape();
  }
}

id("search").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
  inList()[0]?.focus();
});
find.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(search, 150);
});
id("forget").addEventListener("click", () => {
  token.forget();
  showState();
  route();
});
addEventListener("keydown", keys);
addEventListener("hashchange", route);
startTheme(id("theme"));
subscribe(showState);
start();
route();
lookAtFleet();
setInterval(lookAtFleet, FLEET_EVERY_MS);
