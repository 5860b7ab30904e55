/** Errors and other events of the log. */

import { act } from "../actions.js";
import { make, section } from "../dom.js";
import { tile } from "../figures.js";
import { Table } from "../table.js";

const FAILURES = ["call_failed"]; // in the log for the one who called, so no error of the server
const CHOICES = {
  "what went wrong": (row) => row.level !== "info" || FAILURES.includes(row.name),
  "errors": (row) => row.level === "error",
  "all events": () => true,
};

export class Errors {
  constructor() {
    this.isShown = CHOICES["what went wrong"];
    this.list = new Table({ table: "events", label: "Events", sort: ["at", true],
      keep: (row) => this.isShown(row),
      empty: "Nothing of this kind was logged. jaxd logs has what is older.",
      columns: [
        { field: "at", title: "When", format: "clock" },
        { field: "level", title: "Level", format: "level" },
        { field: "name", title: "Event" },
        { field: "function", title: "Function" },
        { field: "text", title: "What", class: "wide" },
        { field: "call", title: "Call", about: "As in the client's error; jaxd logs --call ID shows all of it" },
        { field: "principal", title: "Of" },
      ] });
    this.list.root.classList.add("tall");
    const choice = make("select", { id: "levels", change: (event) => this.#choose(event.target.value) },
      ...Object.keys(CHOICES).map((name) => make("option", { text: name })));
    const filter = make("input", { type: "search", id: "filter", placeholder: "Filter (/)", autocomplete: "off",
      input: (event) => this.list.filter(event.target.value) });
    this.quarantine = make("p", { class: "bar", hidden: true },
      make("button", { type: "button", text: "Release from quarantine…", click: release }),
      make("span", { class: "dim" }, "jaxd functions --quarantined lists them."));
    this.root = make("div", { class: "page" },
      make("h2", { text: "Errors" }),
      make("dl", { class: "tiles" }, tile("Errors", "#/events/level=error"), tile("Warnings", "#/events/level=warning"),
        tile("Failed calls", "/counters/failed_calls"), tile("Cancelled calls", "/counters/cancelled_calls"),
        tile("Late calls", "/counters/late_calls"), tile("In quarantine", "/server/quarantined", "count", "Functions that are refused because they ended workers")),
      this.quarantine,
      make("p", { class: "bar" }, make("label", { for: "levels", text: "Show" }), choice,
        make("label", { for: "filter", class: "unseen", text: "Filter" }), filter),
      section("The last events of the log", this.list.root));
  }

  update(view, now) {
    this.view = view;
    this.now = now;
    this.quarantine.hidden = !view.server.quarantined;
    this.list.update(view, now);
  }

  #choose(name) {
    this.isShown = CHOICES[name];
    this.list.update(this.view, this.now);
  }
}

function release() {
  act({ title: "Release all functions from quarantine?", verb: "Release them",
    text: "Their calls are answered again. They were refused because they had ended workers repeatedly." },
  "release", { what: "all" });
}
