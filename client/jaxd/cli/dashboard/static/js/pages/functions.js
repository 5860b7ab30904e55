/** All functions. */

import { make, setText } from "../dom.js";
import { count } from "../format.js";
import { Table } from "../table.js";
import { functionColumns } from "./overview.js";

export class Functions {
  constructor() {
    this.counted = make("span", { class: "dim" });
    this.list = new Table({ table: "functions", label: "Functions", sort: ["saved_s", true],
      empty: "No function was called yet. Decorate one with @persistent_call and call it.",
      columns: functionColumns(),
      shown: (list) => setText(this.counted, `${count(list.length)} shown`) });
    this.list.root.classList.add("tall");
    const filter = make("input", { type: "search", id: "filter", placeholder: "Filter by name or file (/)",
      autocomplete: "off", spellcheck: "false", input: (event) => this.list.filter(event.target.value) });
    this.root = make("div", { class: "page" },
      make("h2", { text: "Functions" }),
      make("p", { class: "bar" }, make("label", { for: "filter", class: "unseen", text: "Filter" }), filter, this.counted),
      this.list.root);
  }

  update(view, now) {
    this.list.update(view, now);
  }
}
