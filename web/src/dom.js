// Creates and changes elements. Data from the fleet (ids, tags, payloads, errors) is untrusted: it enters the page only
// as text nodes and attribute values, never as markup. The page's policy also forbids innerHTML.

/** An element: `h("td", { class: "num" }, text, child)`. `on*` are listeners; null and false are skipped. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

/** Sets the text only if it differs, which avoids needless layout and screen-reader output. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function attr(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value === true ? "" : value);
}

/**
 * Synchronizes the children of `parent` with `items`, in order. A known item keeps its element, and so the focus.
 * `make(item)` returns an element; `update(element, item)` fills it.
 */
export function keyed(parent, items, key, make, update = () => {}) {
  const known = (parent.known ??= new Map());
  const kept = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const id = key(item);
    if (kept.has(id)) continue;
    kept.add(id);
    let element = known.get(id);
    if (!element) known.set(id, (element = make(item)));
    update(element, item);
    if (element === at) at = at.nextElementSibling;
    else parent.insertBefore(element, at);
  }
  for (const [id, element] of known) {
    if (!kept.has(id)) {
      element.remove();
      known.delete(id);
    }
  }
}

/** A table with a head; columns are `[title, class]`. Returns the table and its body. */
export function table(label, columns, className = "") {
  const body = h("tbody");
  const head = columns.map(([title, name]) => h("th", { scope: "col", class: name }, title));
  return {
    element: h("table", { "aria-label": label, class: className }, h("thead", {}, h("tr", {}, head)), body),
    body,
  };
}

/** A card with a heading. */
export function card(title, ...children) {
  const heading = h("h2", {}, title);
  return h("section", { class: "card", "aria-label": title }, heading, ...children);
}

export const sensorHref = (id, query = "") => `#/sensor/${encodeURIComponent(id)}${query && `?${query}`}`;

/** A sensor id as a link. The style cuts long ids; the title has the whole id. */
export const sensorLink = (id) => h("a", { class: "id", href: sensorHref(id), title: id }, visible(id));

/** Escapes control characters and those that change the text direction: an id must not look like another. */
export function visible(string) {
  return string.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) => {
    return `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
