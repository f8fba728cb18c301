// A chart of one field of all sensors that have the tags of a filter: minimum, mean and maximum over the sensors.

import { band } from "./band.js";
import { bucketsOf } from "./bands.js";
import { card, h, text, visible } from "./dom.js";
import { nothing, problem } from "./problem.js";

const HOUR = 3_600_000;
const SPANS = { "6h": 6 * HOUR, "24h": 24 * HOUR, "7d": 168 * HOUR, "30d": 720 * HOUR };
const NARROWEST = 600_000;

/** `sensors`: some of those that have the tags, pairs of name and value. */
export function tagChart(tags, sensors) {
  const isPlotted = (kinds) => kinds.includes("number") || kinds.includes("bool");
  const all = sensors.flatMap(({ fields }) => Object.entries(fields ?? {}));
  const fields = [...new Set(all.filter(([, kinds]) => isPlotted(kinds)).map(([name]) => name))].sort();
  const title = `All sensors with ${tags.map(([name, value]) => `${visible(name)} ${visible(value)}`).join(", ")}`;
  const box = h("div");
  const element = card(title, box);
  if (!fields.length) {
    box.append(nothing("Their readings have no numbers."));
    return { element, end: () => {} };
  }
  let stop = new AbortController();
  let span = "24h";
  let window = null;
  const view = () => window ?? { from: Date.now() - SPANS[span], to: Date.now() };
  const chooser = h(
    "select",
    { "aria-label": "Field", onchange: () => load() },
    fields.map((name) => h("option", { value: name }, visible(name))),
  );
  const spans = Object.keys(SPANS).map((name) =>
    h("button", { type: "button", "data-span": name, onclick: () => zoom(null, name) }, name.replace(/\D/, " $&")),
  );
  const chart = band({ zoom: (to) => zoom(to), move });
  const note = h("p", { class: "quiet note", role: "status" });
  const trouble = h("div");
  const tools = h(
    "div",
    { class: "tools" },
    chooser,
    h("div", { class: "group", role: "group", "aria-label": "Span" }, spans),
  );
  box.append(tools, trouble, chart.element, note);

  async function load() {
    stop.abort();
    const mine = (stop = new AbortController());
    const field = chooser.value;
    const shown = view();
    for (const button of spans) button.setAttribute("aria-pressed", String(!window && button.dataset.span === span));
    try {
      const buckets = await bucketsOf(field, tags, shown, mine.signal);
      trouble.replaceChildren();
      chart.show({ ...shown, field, buckets, readings: null });
      text(note, buckets.length ? "Over all these sensors." : "No readings in this time range.");
    } catch (failed) {
      if (!mine.signal.aborted) trouble.replaceChildren(problem(failed, load));
    }
  }

  function zoom(to, name = span) {
    [window, span] = [to, name];
    load();
  }

  /** Moves and scales the window, as in the view of one sensor. */
  function move(share, scale, centre) {
    const { from, to } = view();
    const width = Math.max((to - from) * scale, NARROWEST);
    const middle = (centre ?? (from + to) / 2) + share * (to - from);
    zoom(width > SPANS["30d"] ? null : { from: middle - width / 2, to: middle + width / 2 });
  }

  load();
  return {
    element,
    end: () => {
      stop.abort();
      chart.end();
    },
  };
}
