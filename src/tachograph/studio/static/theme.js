/** Light or dark, and the colours that canvases are drawn with: both come from the style sheet. */

const KEPT = "tachograph.theme";
const CHOICES = ["auto", "light", "dark"];
const NAMES = { auto: "Auto", light: "Light", dark: "Dark" };
const dark = matchMedia("(prefers-color-scheme: dark)");
const followers = new Set();
let known = null;

function kept() {
  try {
    const found = localStorage.getItem(KEPT);
    return CHOICES.includes(found) ? found : "auto";
  } catch {
    return "auto"; // a browser that keeps nothing
  }
}

let choice = kept();

function apply() {
  const which = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
  document.documentElement.dataset.theme = which;
  known = null;
  for (const follower of followers) follower();
}

/** Call `follower` when the colours have changed; returns what ends that. */
export function follow(follower) {
  followers.add(follower);
  return () => followers.delete(follower);
}

export const isDark = () => document.documentElement.dataset.theme === "dark";

/** Return the colours: those of curves, and of what is around them. */
export function colours() {
  if (!known) {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    known = {
      curves: Array.from({ length: 10 }, (_, place) => read(`--curve-${place}`)),
      text: read("--text"),
      quiet: read("--quiet"),
      bad: read("--bad"),
      accent: read("--accent"),
      grid: read("--grid"),
      line: read("--line"),
      surface: read("--surface"),
    };
  }
  return known;
}

/** Let a button choose: as the system has it, light, dark. */
export function choose(button) {
  const show = () => {
    button.textContent = NAMES[choice];
    button.setAttribute("aria-label", `Colors: ${NAMES[choice].toLowerCase()}`);
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEPT, choice);
    } catch {
      // it holds for this page only
    }
    apply();
    show();
  });
  show();
}

dark.addEventListener("change", apply);
apply();
