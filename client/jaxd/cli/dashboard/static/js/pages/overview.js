/** The first page: what was saved, what the server is, and what it does. */

import { timeChart } from "../chart.js";
import { make, section } from "../dom.js";
import { figure, tile } from "../figures.js";
import { rate, seconds, size, wholeSeconds } from "../format.js";
import { KEY, Table } from "../table.js";

const TILES = [
  ["Calls", "/counters/calls", "count", "Calls that were answered, the failed ones included"],
  ["From memory", "/counters/executable_hits", "count", "Calls that needed no trace, compile or load"],
  ["From disk", "/counters/executable_loads", "count", "Programs that were loaded from disk"],
  ["Compiled", "/counters/compiles", "count", "How often XLA compiled a program"],
  ["Failed calls", "/counters/failed_calls", "count", "Calls that ended in an exception"],
  ["In flight", "#/calls", "count", "Calls that have no answer yet"],
  ["Functions", "#/functions", "count", "Functions that are known"],
  ["Programs", "/counters/programs", "count", "Compiled programs in memory"],
  ["Values", "/counters/values", "count", "Arrays that stay on the server"],
  ["Connections", "/counters/connections", "count", "Open connections of clients"],
  ["Received", "/counters/bytes_received", "size", "From clients"],
  ["Sent", "/counters/bytes_sent", "size", "To clients"],
  ["On disk", "/counters/disk_bytes", "size", "What is kept on disk"],
  ["Errors", "#/events/level=error", "count", "Errors among the last events of the log"],
];

export class Overview {
  constructor({ history }) {
    this.history = history;
    this.charts = [
      [timeChart("Saved over time", seconds, wholeSeconds), () => history.line("saved")],
      [timeChart("Calls", rate), () => history.rate("calls")],
      [timeChart("Memory of the workers", size), () => history.line("resident")],
      [timeChart("Device memory in use", size), () => history.line("inUse")],
    ];
    this.tables = [workers(), top(), sessions(), queues(), builders()];
    const [saved, calls, memory, devices] = this.charts.map(([chart]) => chart.root);
    const [workerTable, topTable, sessionTable, queueTable, builderTable] = this.tables.map((table) => table.root);
    this.root = make("div", { class: "page" },
      make("h2", { text: "Overview" }),
      make("div", { class: "front" }, hero(), saved),
      make("dl", { class: "tiles" }, ...TILES.map((each) => tile(...each))),
      make("div", { class: "two" }, calls, memory, devices),
      section("Functions that saved most", topTable),
      section("Workers", workerTable),
      make("div", { class: "two" }, section("Queues", queueTable), section("Builders", builderTable)),
      section("Sessions", sessionTable));
  }

  update(view, now) {
    for (const table of this.tables) table.update(view, now);
    this.charts.at(-1)[0].root.hidden = !Object.values(view.devices).some((device) => device.limit);
    this.tick();
  }

  /** Once a second: charts go on also while nothing happens. */
  tick() {
    if (!this.history.samples.length) return;
    for (const [chart, data] of this.charts) chart.set(data());
  }

  close() {
    for (const [chart] of this.charts) chart.close();
  }
}

function hero() {
  return make("section", { class: "hero", "aria-labelledby": "saved-title" },
    make("h3", { id: "saved-title", text: "Seconds saved" }),
    make("p", { class: "large" }, figure("/counters/saved_s", "seconds")),
    make("p", {}, figure("/counters/saved_s", "atLength"), "Tracing and compiling that processes of clients were spared, since the worker started."),
    make("p", { class: "dim" }, "Spent: ", figure("/counters/trace_s", "duration"), " tracing, ",
      figure("/counters/compile_s", "duration"), " compiling, ", figure("/counters/load_s", "duration"), " loading."));
}

function workers() {
  return new Table({ table: "workers", label: "Workers", sort: ["epoch", true],
    empty: "No worker has started. The first call starts one.",
    columns: [
      { field: "epoch", title: "Worker", format: "count", about: "Its number: rises with each replacement" },
      { field: "state", title: "State" },
      { field: "principal", title: "Of" },
      { field: "pid", title: "Process", format: "text", class: "number" },
      { field: "restarts", title: "Replaced", format: "count" },
      { field: "resident_bytes", title: "Memory", format: "size" },
      { field: "why", title: "Why", class: "wide" },
    ] });
}

function top() {
  return new Table({ table: "functions", label: "Functions that saved most", sort: ["saved_s", true],
    empty: "No function was called yet. Decorate one with @persistent_call and call it.",
    columns: functionColumns() });
}

/** The columns of lists of functions. */
export function functionColumns() {
  return [
    { field: "name", title: "Function", class: "wide", link: (key) => `#/functions/${encodeURIComponent(key)}` },
    { field: "where", title: "Where", class: "wide dim" },
    { field: "saved_s", title: "Saved", format: "duration" },
    { field: "built_s", title: "Spent", format: "duration", about: "Time of tracing and compiling" },
    { field: "hits", title: "Hits", format: "count", about: "Calls that a program in memory answered" },
    { field: "run_s", title: "Ran", format: "duration", about: "Time of these calls in the server" },
    { field: "compiled", title: "Compiled", format: "count" },
    { field: "loaded", title: "Loaded", format: "count", about: "Programs that came from disk" },
    { field: "programs", title: "In memory", format: "count", about: "Programs in memory" },
    { field: "last_use", title: "Last call", format: "ago" },
  ];
}

function sessions() {
  return new Table({ table: "sessions", label: "Sessions", sort: ["since", true],
    empty: "No client is connected.",
    columns: [
      { field: "process", title: "Process", class: "wide" },
      { field: "principal", title: "Of" },
      { field: "since", title: "For", format: "age" },
      { field: "connections", title: "Connections", format: "count" },
      { field: "calls", title: "Calls", format: "count" },
      { field: "found", title: "Found", format: "count", about: "Programs that were in memory when it used them first" },
      { field: "loaded", title: "Loaded", format: "count" },
      { field: "compiled", title: "Compiled", format: "count" },
      { field: "saved_s", title: "Saved", format: "duration" },
    ] });
}

function queues() {
  return new Table({ table: "queues", label: "Queues", sort: ["length", true],
    empty: "Nothing waits in this server.",
    columns: [
      { field: KEY, title: "Queue", class: "wide" },
      { field: "running", title: "Running", format: "count" },
      { field: "length", title: "Waiting", format: "count" },
      { field: "limit", title: "At once", format: "count", about: "How many may run at once; 0: no limit" },
    ] });
}

function builders() {
  return new Table({ table: "builders", label: "Builders", sort: ["pid", false],
    empty: "No builder runs. One starts while several clients are connected.",
    columns: [
      { field: "pid", title: "Process", format: "text", class: "number" },
      { field: "function", title: "Makes", class: "wide" },
      { field: "since", title: "For", format: "age" },
    ] });
}
