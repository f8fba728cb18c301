// What stands where figures should: nothing yet, no token, no answer.

import { token } from "./api.js";
import { h } from "./dom.js";

/** A block that says what is wrong and offers what can be done: a token, or another try. */
export function problem(failed, again) {
  if (failed.status === 401) return tokenForm(failed, again);
  const words = {
    0: "The service does not answer.",
    403: "This service does not show readings here.",
    404: "There is nothing of that name.",
    503: "The store is away.",
  };
  const retry = h("button", { type: "button", onclick: again }, "Try again");
  const title = words[failed.status] ?? `The question failed with status ${failed.status}.`;
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
    if (!/^[\x21-\x7e]+$/.test(given)) return input.setCustomValidity("a token is id.secret, without spaces");
    token.set(given);
    again();
  };
  input.addEventListener("input", () => input.setCustomValidity(""));
  const refused = token.get() !== null;
  return h(
    "form",
    { class: "problem", onsubmit: submit, "aria-label": "Token" },
    h("strong", {}, refused ? "The token was not taken." : "Readings are shown to holders of a token."),
    h("p", {}, failed.message),
    h("p", {}, "A token of http.tokens_file, as id.secret. It is kept in this tab only, until it is closed."),
    h("div", { class: "line" }, input, h("button", { type: "submit" }, "Use the token")),
  );
}

/** A quiet sentence in place of an empty list. */
export const nothing = (words) => h("p", { class: "nothing" }, words);
