// Placeholders for missing data: empty list, token required, no answer.

import { token } from "./api.js";
import { h } from "./dom.js";

/** A block that names the problem and offers an action: entering a token, or a retry. */
export function problem(failed, again) {
  if (failed.status === 401) return tokenForm(failed, again);
  const words = {
    0: "The service does not answer.",
    403: "Access to readings denied.",
    404: "Not found.",
    503: "The data is not available now.",
  };
  const retry = h("button", { type: "button", onclick: again }, "Try again");
  const title = words[failed.status] ?? `The request failed with status ${failed.status}.`;
  return h("div", { class: "problem", role: "alert" }, h("strong", {}, title), h("p", {}, failed.message), retry);
}

function tokenForm(failed, again) {
  const input = h("input", {
    type: "password",
    name: "token",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "id.secret",
    "aria-label": "Token",
    required: true,
  });
  const submit = (event) => {
    event.preventDefault();
    const given = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(given)) return input.setCustomValidity("expected a token of the form id.secret, without spaces");
    token.set(given);
    again();
  };
  input.addEventListener("input", () => input.setCustomValidity(""));
  const refused = token.get() !== null;
  return h(
    "form",
    { class: "problem", onsubmit: submit, "aria-label": "Token" },
    h("strong", {}, refused ? "Token rejected." : "Reading requires a token."),
    h("p", {}, failed.message),
    h("p", {}, "Enter a token of http.tokens_file, as id.secret. Only this tab keeps it, until it is closed."),
    h("div", { class: "line" }, input, h("button", { type: "submit" }, "Use the token")),
  );
}

/** A sentence in place of an empty list. */
export const nothing = (words) => h("p", { class: "nothing" }, words);
