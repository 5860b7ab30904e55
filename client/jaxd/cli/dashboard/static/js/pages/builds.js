/** Builds: who waited for whom, and why each was made. */

import { make, section, setText } from "../dom.js";
import { Gantt } from "../gantt.js";
import { count } from "../format.js";
import { builds } from "./function.js";

const SPANS = [["1 minute", 60], ["10 minutes", 600], ["1 hour", 3600], ["all", Infinity]];

export class Builds {
  constructor() {
    this.span = Infinity;
    this.chart = new Gantt();
    this.list = builds();
    this.none = make("p", { class: "empty", text: "Nothing was built in this time. Choose a longer one, or call a function that is new." });
    this.shown = make("span", { class: "dim" });
    const choice = make("select", { id: "span", change: (event) => this.#choose(Number(event.target.value)) },
      ...SPANS.map(([name, span]) => make("option", { value: span, text: name, selected: span === Infinity })));
    const legend = make("ul", { class: "legend" }, ...["waited", "compile", "load", "building", "failed"].map((name) =>
      make("li", {}, make("i", { class: name }), NAMES[name])));
    this.root = make("div", { class: "page" },
      make("h2", { text: "Builds" }),
      make("p", { class: "bar" }, make("label", { for: "span", text: "The last" }), choice, this.shown),
      legend, this.chart.root, this.none, section("All builds", this.list.root));
    this.observer = new ResizeObserver(() => this.view && this.#draw());
    this.observer.observe(this.chart.root);
  }

  update(view, now) {
    this.view = view;
    this.now = now;
    this.#draw();
    this.list.update(view, now);
  }

  /** Bars of what is being built grow. */
  tick(now) {
    this.now = now;
    if (this.view) this.#draw();
  }

  close() {
    this.observer.disconnect();
  }

  #choose(span) {
    this.span = span;
    this.#draw();
  }

  #draw() {
    const found = this.chart.update(this.view.builds, this.now, this.span);
    this.none.hidden = found > 0;
    this.chart.root.hidden = !found;
    setText(this.shown, found > 60 ? `the last 60 of ${count(found)}` : "");
  }
}

const NAMES = { waited: "waited", compile: "traced and compiled", load: "loaded from disk", building: "being built", failed: "failed" };
