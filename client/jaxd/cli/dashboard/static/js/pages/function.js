/** One function: what it cost, how long its calls took, why it was built, and what it became. */

import { act } from "../actions.js";
import { barChart } from "../chart.js";
import { make, section } from "../dom.js";
import { areOfOneWorker, bareName, figure, pathOf, tile } from "../figures.js";
import { bound, count, quantile } from "../format.js";
import { Reader } from "../reader.js";
import { Table } from "../table.js";

export class OneFunction {
  constructor(_, key) {
    this.key = key;
    const path = (field) => pathOf("functions", key, field);
    this.chart = barChart("Calls by time in the server", bound, (calls) => `${count(calls)} calls`, describe);
    this.builds = builds((row, build) => row.key === bareName(key) && areOfOneWorker(build, key));
    this.programs = programs(key, (program) => this.reader.choose(program));
    this.reader = new Reader(key);
    this.gone = make("p", { class: "empty", hidden: true, text: "The server does not know this function (any more). See the list of functions." });
    this.content = make("div", { class: "content" },
      make("p", { class: "dim" }, figure(path("where"), "text"), " · key ", make("code", { text: bareName(key) })),
      make("p", { class: "bar" }, make("button", { type: "button", text: "Clear…", click: () => this.#clear() })),
      make("dl", { class: "tiles" },
        tile("Saved", path("saved_s"), "duration"), tile("Spent", path("built_s"), "duration"),
        tile("Hits", path("hits")), tile("Ran", path("run_s"), "duration"),
        tile("Half of the calls", `~0.5${path("latency")}`, "quantile"), tile("99 of 100", `~0.99${path("latency")}`, "quantile"),
        tile("Compiled", path("compiled")), tile("Loaded", path("loaded")), tile("In memory", path("programs"), "count", "Programs in memory")),
      this.chart.root, this.#asTable(path("latency")),
      section("Why it was built", this.builds.root),
      section("Programs and their memory", this.programs.root),
      section("What it became", this.reader.root));
    this.root = make("div", { class: "page" },
      make("p", {}, make("a", { href: "#/functions", text: "Functions" })),
      make("h2", {}, figure(path("name"), "text")), this.gone, this.content);
  }

  update(view, now) {
    const row = view.functions[this.key];
    this.gone.hidden = Boolean(row);
    this.content.hidden = !row;
    if (!row) return;
    this.name = row.name;
    document.title = `${row.name} · jaxd`;
    this.builds.update(view, now);
    this.programs.update(view, now);
    this.reader.update(view);
    this.chart.set(inUse(row.latency));
  }

  close() {
    this.chart.close();
  }

  #asTable(path) {
    const rows = Array.from({ length: 25 }, (_, index) => make("tr", {},
      make("td", { text: bound(index) }), make("td", { class: "number" }, figure(`${path}/${index}`, "count"))));
    const head = make("tr", {}, make("th", { scope: "col", text: "Time" }), make("th", { scope: "col", class: "number", text: "Calls" }));
    return make("details", {}, make("summary", { text: "As a table" }),
      make("table", { class: "small", "aria-label": "Calls by time in the server" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  #clear() {
    act({ title: `Clear ${this.name}?`, verb: "Clear it",
      text: "Its programs are removed from memory and from disk. Its next call compiles again, for everybody who calls it." },
    "clear", { key: this.key });
  }
}

/** The classes from the first to the last that have a call. */
function inUse(classes) {
  const used = classes.map((calls, index) => (calls ? index : -1)).filter((index) => index >= 0);
  const [first, last] = used.length ? [used[0], used.at(-1)] : [0, 0];
  const places = Array.from({ length: last - first + 1 }, (_, step) => first + step);
  return [places, places.map((place) => classes[place] ?? 0)];
}

function describe([places, values]) {
  const classes = [];
  for (const [at, place] of places.entries()) classes[place] = values[at];
  const all = Array.from(classes, (calls) => calls ?? 0);
  return `Calls by time in the server: half of them ${quantile(all, 0.5)}, 99 of 100 ${quantile(all, 0.99)}`;
}

/** A table of builds. */
export function builds(keep) {
  return new Table({ table: "builds", label: "Builds", sort: ["queued", true], keep,
    empty: "Nothing was built since the server started.",
    columns: [
      { field: "queued", title: "When", format: "clock" },
      { field: "function", title: "Function" },
      { field: "verdict", title: "How" },
      { field: "took", title: "Took", format: "duration", path: (key) => `-${pathOf("builds", key, "finished", "started")}`,
        by: (row) => row.finished - row.started },
      { field: "waited", title: "Waited", format: "duration", path: (key) => `-${pathOf("builds", key, "started", "queued")}`,
        by: (row) => row.started - row.queued },
      { field: "reason", title: "Why", class: "wide" },
      { field: "arguments", title: "Arguments", class: "wide" },
      { field: "behind", title: "Waited for" },
      { field: "principal", title: "For" },
    ] });
}

function programs(key, read) {
  return new Table({ table: "programs", label: "Programs", sort: ["last_use", true], keep: (row, program) => row.function === bareName(key) && areOfOneWorker(program, key),
    empty: "It has no program, neither in memory nor on disk.",
    columns: [
      { field: "arguments", title: "Arguments", class: "wide" },
      { field: "state", title: "Where" },
      { field: "calls", title: "Calls", format: "count" },
      { field: "build_s", title: "Built in", format: "duration" },
      { field: "load_s", title: "Loaded in", format: "duration" },
      { field: "saved_s", title: "Saved", format: "duration" },
      { field: "host_bytes", title: "Host", format: "size" },
      { field: "device_bytes", title: "Device", format: "size" },
      { field: "disk_bytes", title: "Disk", format: "size" },
      { field: "last_use", title: "Last call", format: "ago" },
      { field: "read", title: "Read", button: (program, row) => (row.state === "memory" ? make("button", { type: "button", text: "Read", click: () => read(program) }) : null) },
    ] });
}
