/** Starts the page: the stream of events, the pages by their addresses, the keys. */

import { show } from "./actions.js";
import { announce, make, setAttribute, setText } from "./dom.js";
import { fill, fillAges } from "./figures.js";
import { History } from "./history.js";
import { Builds } from "./pages/builds.js";
import { Calls } from "./pages/calls.js";
import { Errors } from "./pages/errors.js";
import { OneFunction } from "./pages/function.js";
import { Functions } from "./pages/functions.js";
import { Memory } from "./pages/memory.js";
import { Overview } from "./pages/overview.js";
import { Store } from "./store.js";
import { connect } from "./stream.js";
import { startTheme } from "./theme.js";

const PAGES = [
  ["overview", "Overview", Overview, null],
  ["functions", "Functions", Functions, "#/functions"],
  ["calls", "Calls now", Calls, "#/calls"],
  ["memory", "Memory", Memory, null],
  ["builds", "Builds", Builds, null],
  ["errors", "Errors", Errors, "#/events/level=error"],
];
const KEYS = [["1 to 6", "the pages"], ["/", "filter"], ["p", "hold the figures, and go on"], ["t", "light or dark"],
  ["Arrow keys, Home, End", "from row to row"], ["Enter", "open what is in focus"], ["?", "these keys"]];
const LEAST_MS = 100; // between two drawings

const store = new Store();
const history = new History();
const byId = (id) => document.getElementById(id);
let page = null;
let timer = 0;
let cost = 0;

function start() {
  startTheme(byId("theme"));
  byId("pause").addEventListener("click", pause);
  byId("keys").addEventListener("click", showKeys);
  document.querySelector("nav").append(...PAGES.map(([name, title, , badge], index) =>
    make("a", { href: `#/${name}`, title: `${title} (${index + 1})`, data: { page: name } }, title,
      ...(badge ? [" ", make("span", { class: "badge figure", data: { figure: badge, format: "count" } })] : []))));
  addEventListener("hashchange", open);
  addEventListener("keydown", onKey);
  addEventListener("pagehide", () => history.keep());
  setInterval(tick, 1000);
  open();
}

const stream = connect({
  view: (view) => { store.replace(view); afterRestart(); schedule(); },
  patch: (patch) => { store.patch(patch); afterRestart(); schedule(); },
  state: setState,
});

// what is drawn when -------------------------------------------------------------------------------

/** Draws soon; the longer a drawing takes, the longer the pause before it, for what people do. */
function schedule() {
  if (timer || store.paused) return;
  timer = setTimeout(() => requestAnimationFrame(render), Math.max(LEAST_MS, 4 * cost));
}

function render() {
  timer = 0;
  if (!store.view) return;
  const began = performance.now();
  const now = store.now();
  const { view } = store;
  history.note(view, now);
  setText(byId("address"), `${view.server.address} · jaxd ${view.server.version}`);
  page.update(view, now);
  fill(document.body, view, now);
  cost = performance.now() - began;
}

/** Once a second, also while nothing arrives: ages, and charts over time. */
function tick() {
  if (!store.view || store.paused || document.hidden) return;
  const now = store.now();
  history.note(store.view, now);
  page.tick?.(now);
  fillAges(document.body, store.view, now);
}

// pages --------------------------------------------------------------------------------------------

function open() {
  const [, name = "overview", key] = location.hash.split("/");
  const [found, title, Page] = PAGES.find(([each]) => each === name) ?? PAGES[0];
  page?.close?.();
  page = key && found === "functions" ? new OneFunction({ history }, decodeURIComponent(key)) : new Page({ history });
  const content = byId("content");
  content.replaceChildren(page.root);
  document.title = `${title} · jaxd`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === found) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.clientWidth / 3; // on a telephone
    } else link.removeAttribute("aria-current");
  }
  if (location.hash) content.focus({ preventScroll: true });
  scrollTo(0, 0);
  if (store.view) render();
  else page.root.prepend(make("p", { class: "waiting", text: "Waiting for the server." }));
}

// the connection -----------------------------------------------------------------------------------

const TEXTS = { live: "live", lost: "server away", away: "dashboard away", ended: "ended", connecting: "connecting" };
let last = "connecting";

function setState(state, text) {
  const shown = byId("connection");
  setAttribute(shown, "data-state", state);
  setText(shown, TEXTS[state]);
  const notice = byId("notice");
  notice.hidden = state === "live";
  const said = state === "lost" ? `The server is away, and the figures are the last ones: ${text}` : text;
  setText(notice, said);
  if (state !== last) announce(state === "live" ? "Connected to the server." : said);
  last = state;
  if (state === "live") page.root.querySelector(".waiting")?.remove();
}

let known = "";

/** Says so when the server is another process than before. */
function afterRestart() {
  if (!store.view) return;
  const { pid, since } = store.view.server;
  const process = pid ? `${pid} ${since}` : known;
  const isAnother = known && process !== known;
  known = process;
  if (isAnother) announce("The server was restarted. Its figures begin again.");
}

// keys ---------------------------------------------------------------------------------------------

function pause() {
  const button = byId("pause");
  if (store.paused) {
    if (!store.resume()) stream.again();
    schedule();
  } else store.pause();
  setAttribute(button, "aria-pressed", String(store.paused));
  setText(button, store.paused ? "Go on" : "Pause");
}

function showKeys() {
  show("Keys", make("dl", { class: "keys" }, ...KEYS.flatMap(([key, does]) =>
    [make("dt", {}, make("kbd", { text: key })), make("dd", { text: does })])));
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("dialog").open) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (/^[1-6]$/.test(event.key)) location.hash = `#/${PAGES[event.key - 1][0]}`;
  else if (event.key === "/") byId("filter")?.focus();
  else if (event.key === "p") pause();
  else if (event.key === "t") byId("theme").click();
  else if (event.key === "?") showKeys();
  else return;
  event.preventDefault();
}

start();
