/** The Studio: which page the address asks for, and what surrounds it. */

import { takeToken } from "./api.js";
import { ComparisonPage } from "./compare.js";
import { listen } from "./keys.js";
import { linkTo, read, state } from "./route.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";
import { shared } from "./shared.js";
import { Sidebar } from "./sidebar.js";
import { choose } from "./theme.js";

const main = document.getElementById("main");
const banner = document.getElementById("banner");
const PAGES = { runs: RunsPage, run: RunPage, comparison: ComparisonPage };
const sidebar = shared ? null : new Sidebar(document.getElementById("sidebar"), document.getElementById("unfold"));
let page = null;

const shell = {
  main,
  head: document.getElementById("head"), // beside the brand: what the page is about
  /** Say something about the whole page; nothing takes it away. */
  banner(words) {
    banner.hidden = words === "";
    if (banner.textContent !== words) banner.textContent = words;
  },
};

/** Take the token of the printed link, and leave it neither in the address nor in the history. */
function unlock() {
  const found = /^#token=([^&]+)$/.exec(location.hash);
  if (!found) return;
  takeToken(decodeURIComponent(found[1]));
  history.replaceState(null, "", `${location.pathname}#/`);
}

function open() {
  unlock();
  const route = read(location.hash);
  if (page && state.moved()) { // the page itself follows
    sidebar?.show(route);
    return;
  }
  page?.close();
  state.moved();
  shell.banner("");
  page = new PAGES[route.page](route, shell);
  sidebar?.show(route);
  scrollTo(0, 0);
}

choose(document.getElementById("theme"));
listen(document.getElementById("keys"), document.getElementById("help"));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the page's address
  main.focus();
});
addEventListener("hashchange", open);
if (shared && location.hash.length < 3) history.replaceState(null, "", linkTo(shared.id)); // a file has one run
window.__studio = Object.freeze({ drawn: () => page.drawn() });
open();
