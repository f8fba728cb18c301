// Readings as they are accepted and rejects with their reason, while the reader wants them: the stream /v1/tail, which
// costs the service nothing unless someone watches.

import { follow } from "./api.js";
import { card, h, sensorLink, text, visible } from "./dom.js";
import { clock, count, ms, value } from "./format.js";
import { problem } from "./problem.js";

const LINES_MAX = 200;
/** The page shows lines at this interval, however fast they arrive. */
const EVERY_MS = 250;

export function tailCard() {
  const input = h("input", {
    name: "sensor",
    placeholder: "all sensors; * matches any characters",
    "aria-label": "Only these sensors",
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "1024",
  });
  const button = h("button", { type: "submit" }, "Watch");
  const state = h("span", { class: "quiet", role: "status" });
  const form = h("form", { class: "tailbar", onsubmit: submit }, input, button, state);
  const trouble = h("div");
  const lines = h("ol", { class: "tail", "aria-label": "Live readings" });
  const element = card("Live", form, trouble, lines);
  let stop = null;
  let waiting = [];
  let dropped = 0;
  let seen = 0;
  let timer = null;

  function submit(event) {
    event?.preventDefault();
    if (stop) return end();
    start();
  }

  async function start() {
    stop = new AbortController();
    const mine = stop;
    [waiting, dropped, seen] = [[], 0, 0];
    trouble.replaceChildren();
    lines.replaceChildren();
    text(button, "Stop");
    text(state, "waiting for readings …");
    timer = setInterval(draw, EVERY_MS);
    try {
      await follow("tail", { sensor: input.value.trim() }, take, mine.signal);
      if (!mine.signal.aborted) text(state, "the service has ended the stream");
    } catch (failed) {
      if (mine.signal.aborted) return;
      text(state, "");
      trouble.replaceChildren(problem(failed, () => submit()));
    }
    if (stop === mine) end();
  }

  function take(event) {
    if (event.dropped) dropped += event.dropped;
    else {
      seen += 1;
      waiting.push(event);
      if (waiting.length > LINES_MAX) waiting.shift();
    }
  }

  function draw() {
    if (!seen && !dropped) return;
    lines.prepend(...waiting.map(line).reverse());
    waiting = [];
    while (lines.childElementCount > LINES_MAX) lines.lastChild.remove();
    const lost = dropped ? `, ${count(dropped)} more were not sent here` : "";
    text(state, `${count(seen)} seen${lost}`);
  }

  function end() {
    clearInterval(timer);
    if (stop) draw();
    stop?.abort();
    stop = null;
    text(button, "Watch");
  }

  return { element, end };
}

function line(event) {
  if (event.reject) {
    const { at, source, name, reason, count: n, detail } = event.reject;
    return h(
      "li",
      { class: "rejected" },
      h("time", {}, clock(ms(at))),
      h("b", { class: "bad" }, n > 1 ? `${reason} (${count(n)})` : reason),
      h("span", {}, `${source} ${visible(name)}: ${visible(detail)}`),
    );
  }
  const pairs = Object.entries(event.values).map(([name, v]) => `${visible(name)} ${visible(value(v))}`);
  return h("li", {}, h("time", {}, clock(ms(event.ts))), sensorLink(event.sensor_id), h("span", {}, pairs.join(", ")));
}
