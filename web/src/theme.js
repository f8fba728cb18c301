// The theme: dark, light, or that of the system. Resolves its colours for plots on a canvas.

const KEY = "hourbucket-theme";
const NAMES = { auto: "Theme: auto", light: "Theme: light", dark: "Theme: dark" };
const listeners = new Set();

export function startTheme(button) {
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    for (const listener of listeners) listener();
  };
  const stored = () => (localStorage.getItem(KEY) in NAMES ? localStorage.getItem(KEY) : "auto");
  button.addEventListener("click", () => {
    const all = Object.keys(NAMES);
    const next = all[(all.indexOf(stored()) + 1) % all.length];
    localStorage.setItem(KEY, next);
    apply(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(stored()));
  apply(stored());
}

/** Calls `listener` when colours change. Returns the function that unsubscribes. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** The colour of a custom property in the current theme. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
