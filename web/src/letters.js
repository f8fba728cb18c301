// Dead letters, newest first, grouped by reason and sender, with their payloads.

import { read } from "./api.js";
import { h, text, visible } from "./dom.js";
import { NONE, ago, bytes, moment, ms } from "./format.js";
import { nothing, problem } from "./problem.js";

const PAGE = 100;

/** `query` may hold `reason`. */
export function lettersView(view, query) {
  const stop = new AbortController();
  const reason = query.get("reason") ?? "";
  const list = h("div", { class: "letters" });
  const groups = new Map();
  const foot = h("div", { class: "pager" });
  const head = reason
    ? h("p", {}, "Only with the reason ", h("b", {}, visible(reason)), ". ", h("a", { href: "#/letters" }, "Show all"))
    : h(
        "p",
        { class: "quiet" },
        "Messages and readings that could not be decoded or stored, unchanged. ",
        h("code", {}, "hourbucket dead-letters replay"),
        " processes them again.",
      );
  const loading = nothing("Loading …");
  view.append(h("h1", {}, "Dead letters"), head, loading, list, foot);

  const load = async (before) => {
    foot.replaceChildren();
    try {
      const { letters, next } = await read("dead-letters", { limit: PAGE, before, reason }, stop.signal);
      for (const one of letters) into(groups, list, one);
      if (!list.firstChild) list.append(nothing("No dead letters."));
      if (next != null) foot.append(h("button", { type: "button", onclick: () => load(next) }, "Older dead letters"));
    } catch (failed) {
      if (!stop.signal.aborted) foot.append(problem(failed, () => load(before)));
    }
    loading.remove();
  };
  load();
  return () => stop.abort();
}

/** Adds a dead letter to the group of its reason and sender; groups are in the order of their newest one. */
function into(groups, list, one) {
  const key = JSON.stringify([one.reason, one.source, one.topic]);
  let group = groups.get(key);
  if (!group) {
    const n = h("b", { class: "num" });
    const title = h(
      "summary",
      {},
      h("b", { class: "reason" }, one.reason),
      h("span", { class: "id", title: one.topic }, one.source, one.topic ? ` ${visible(one.topic)}` : ""),
      n,
      h("time", { datetime: one.received_at, title: moment(ms(one.received_at)) }, `newest ${ago(ms(one.received_at))}`),
      h("span", { class: "quiet detail" }, visible(one.detail || NONE)),
    );
    group = { n, count: 0, body: h("div", { class: "letters" }) };
    groups.set(key, group);
    const element = h("details", { class: "card kind" }, title, group.body);
    list.append(element);
    // The only one is shown.
    element.open = groups.size === 1;
  }
  group.count += 1;
  text(group.n, `${group.count} shown`);
  group.body.append(letter(one));
}

function letter({ received_at, detail, payload_bytes, payload_text, payload_base64 }) {
  const at = ms(received_at);
  return h(
    "article",
    { class: "letter" },
    h(
      "header",
      {},
      h("time", { datetime: received_at, title: moment(at) }, `${moment(at)}, ${ago(at)}`),
    ),
    h("p", {}, visible(detail || NONE)),
    payload(payload_bytes, payload_text, payload_base64),
  );
}

function payload(size, plain, base64) {
  if (size === 0) return h("p", { class: "quiet" }, "The payload is empty.");
  const [name, shown] = plain != null ? ["Text", plain] : ["Bytes", hex(base64 ?? "")];
  return h(
    "figure",
    {},
    h("figcaption", { class: "quiet" }, `${name}, ${bytes(size)}`),
    h("pre", { tabindex: "0" }, shown),
  );
}

/** Lines of sixteen bytes: offset, hex, and printable characters. */
function hex(base64) {
  const raw = atob(base64);
  const lines = [];
  for (let at = 0; at < raw.length; at += 16) {
    const part = [...raw.slice(at, at + 16)];
    const codes = part.map((c) => c.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    lines.push(
      `${at.toString(16).padStart(6, "0")}  ${codes.padEnd(47)}  ${part.map((c) => (/[ -~]/.test(c) ? c : ".")).join("")}`,
    );
  }
  return lines.join("\n");
}
