/** Light, dark, or as the system has it; and the colours, for what is painted on a canvas. */

const CHOICES = ["system", "light", "dark"];
const NAME = "jaxd-theme";

const listeners = new Set();

/** Calls back when the colours have changed. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Connects the switch. */
export function startTheme(button) {
  let chosen = localStorage.getItem(NAME);
  if (!CHOICES.includes(chosen)) chosen = "system";
  const apply = () => {
    document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
    for (const listener of listeners) listener();
  };
  button.addEventListener("click", () => {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    localStorage.setItem(NAME, chosen);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
  apply();
}

/** A colour of the stylesheet as a canvas takes it. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
