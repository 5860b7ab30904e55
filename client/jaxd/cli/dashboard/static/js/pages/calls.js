/** Calls in flight. */

import { act } from "../actions.js";
import { make, section } from "../dom.js";
import { bareName, tile } from "../figures.js";
import { Table } from "../table.js";

export class Calls {
  constructor() {
    this.list = new Table({ table: "calls", label: "Calls now", sort: ["since", false],
      empty: "No call is in flight. Calls that take less than a twentieth of a second are not listed.",
      columns: [
        { field: "function", title: "Function", class: "wide" },
        { field: "phase", title: "Stage" },
        { field: "phase_since", title: "In it for", format: "age" },
        { field: "since", title: "For", format: "age" },
        { field: "behind", title: "Waits behind", class: "wide" },
        { field: "behind_since", title: "At work for", format: "age", about: "How long that has been worked on" },
        { field: "principal", title: "Of" },
        { field: "cancel", title: "Cancel", button: (key) => make("button", { type: "button", text: "Cancel…", click: () => this.#cancel(key) }) },
      ] });
    this.root = make("div", { class: "page" },
      make("h2", { text: "Calls now" }),
      make("dl", { class: "tiles" }, tile("In flight", "#/calls"), tile("Waiting", "#/calls/phase=waiting"),
        tile("Being built", "#/calls/phase=building"), tile("Running", "#/calls/phase=running"),
        tile("Left behind", "#/calls/phase=left behind", "count", "Nobody waits for them any more")),
      section("Calls", this.list.root));
  }

  update(view, now) {
    this.view = view;
    this.list.update(view, now);
  }

  #cancel(key) {
    const name = this.view.calls[key]?.function ?? "the call";
    act({ title: `Cancel the call of ${name}?`, verb: "Cancel it",
      text: "Its client gets an error. What runs on the device runs to its end." }, "cancel", { call: bareName(key) });
  }
}
