/** What a function became: jaxpr, HLO, memory and cost of its programs, to read and to search. */

import { announce, make, setAttribute, setText } from "./dom.js";
import { areOfOneWorker, bareName } from "./figures.js";
import { count, duration, size } from "./format.js";
import { bringIntoSight, inSight } from "./virtual.js";

const LINE = 18; // pixels, as in the stylesheet
const STAGES = [["jaxpr", "jaxpr"], ["hlo", "HLO"], ["detail", "Memory, cost, advice"]];

export class Reader {
  constructor(key) {
    this.key = key;
    this.program = "";
    this.stage = "jaxpr";
    this.lines = [];
    this.found = [];
    this.at = -1;
    this.asked = 0;
    this.#build();
  }

  /** Lists the programs that can be read. */
  update(view) {
    const programs = Object.entries(view.programs)
      .filter(([key, row]) => row.state === "memory" && row.function === bareName(this.key) && areOfOneWorker(key, this.key));
    const keys = programs.map(([key]) => key).join();
    if (keys === this.keys) return;
    this.keys = keys;
    this.select.replaceChildren(...programs.map(([key, row]) => make("option", { value: key, text: row.arguments || "no arguments" })));
    if (!programs.some(([key]) => key === this.program)) this.program = programs[0]?.[0] ?? "";
    this.select.value = this.program;
    this.controls.hidden = !programs.length;
    this.none.hidden = Boolean(programs.length);
  }

  /** Reads another program. */
  choose(program) {
    this.program = program;
    this.select.value = program;
    this.root.scrollIntoView({ block: "nearest" });
    this.#read();
  }

  #build() {
    this.select = make("select", { id: "program", change: (event) => { this.program = event.target.value; this.#read(); } });
    this.buttons = STAGES.map(([stage, title]) => make("button", { type: "button", text: title, "aria-pressed": "false",
      click: () => { this.stage = stage; this.#read(); } }));
    this.needle = make("input", { type: "search", id: "needle", placeholder: "Search", autocomplete: "off", spellcheck: "false",
      input: () => this.#search(), keydown: (event) => event.key === "Enter" && this.#step(event.shiftKey ? -1 : 1) });
    this.place = make("span", { class: "dim" });
    this.scroller = make("div", { class: "lines", role: "region", tabindex: "0", "aria-label": "Text of the program",
      hidden: true, scroll: () => this.#show() });
    this.sheet = make("pre");
    this.scroller.append(this.sheet);
    this.facts = make("div", { class: "facts" });
    this.said = make("p", { class: "dim", text: "Choose what to read. A jaxpr is traced again for this." });
    this.finder = make("span", { class: "bar", hidden: true }, make("label", { for: "needle", class: "unseen", text: "Search in the text" }), this.needle,
      make("button", { type: "button", text: "Previous", click: () => this.#step(-1) }),
      make("button", { type: "button", text: "Next", click: () => this.#step(1) }), this.place);
    this.controls = make("p", { class: "bar" }, make("label", { for: "program", text: "Program" }), this.select, ...this.buttons, this.finder);
    this.none = make("p", { class: "empty", text: "No program of it is in memory. Its next call loads or compiles one.", hidden: true });
    this.root = make("div", { class: "reader" }, this.controls, this.none, this.said, this.facts, this.scroller);
  }

  async #read() {
    const asked = ++this.asked;
    for (const [index, [stage]] of STAGES.entries()) setAttribute(this.buttons[index], "aria-pressed", String(stage === this.stage));
    this.#clear("Reading …");
    const where = new URLSearchParams({ function: this.key, program: bareName(this.program), stage: this.stage });
    let answer;
    try {
      answer = await (await fetch(`${this.stage === "detail" ? "detail" : "text"}?${where}`)).json();
    } catch {
      answer = { error: "The dashboard does not answer." };
    }
    if (asked !== this.asked) return; // something else was chosen meanwhile
    if (answer.error) this.#clear(answer.error);
    else if (this.stage === "detail") this.#showFacts(answer);
    else this.#showText(answer.text);
  }

  #clear(text) {
    setText(this.said, text);
    this.said.hidden = !text;
    this.scroller.hidden = true;
    this.finder.hidden = true;
    this.facts.replaceChildren();
    this.lines = [];
  }

  // text ------------------------------------------------------------------------------------------

  #showText(text) {
    this.#clear("");
    this.lines = text.split("\n");
    this.scroller.hidden = false;
    this.finder.hidden = false;
    this.scroller.scrollTop = 0;
    this.sheet.style.height = `${this.lines.length * LINE}px`;
    this.sheet.style.minWidth = `${Math.max(...this.lines.map((line) => line.length), 1) + 8}ch`;
    this.#search();
    announce(`${count(this.lines.length)} lines`);
  }

  #search() {
    const needle = this.needle.value.toLowerCase();
    this.found = [];
    if (needle) for (const [index, line] of this.lines.entries()) if (line.toLowerCase().includes(needle)) this.found.push(index);
    this.at = -1;
    if (this.found.length) this.#step(1);
    else this.#show();
    setText(this.place, this.#placeText());
  }

  #step(by) {
    if (!this.found.length) return;
    this.at = (this.at + by + this.found.length) % this.found.length;
    bringIntoSight(this.scroller, this.found[this.at], LINE, 3 * LINE);
    setText(this.place, this.#placeText());
    announce(`${this.#placeText()}: ${this.lines[this.found[this.at]].trim().slice(0, 120)}`);
    this.#show();
  }

  #placeText() {
    if (!this.needle.value) return `${count(this.lines.length)} lines`;
    if (!this.found.length) return "not found";
    return `line ${count(this.found[this.at] + 1)}, ${count(this.at + 1)} of ${count(this.found.length)}`;
  }

  #show() {
    const { first, last } = inSight(this.scroller, this.lines.length, LINE);
    const needle = this.needle.value.toLowerCase();
    this.sheet.replaceChildren(...this.lines.slice(first, last).map((line, step) => {
      const index = first + step;
      const row = make("div", { class: index === this.found[this.at] ? "here" : "" },
        make("span", { class: "line-number", "aria-hidden": "true", text: String(index + 1).padStart(6) }), ...marked(line, needle));
      row.style.top = `${index * LINE}px`;
      return row;
    }));
  }

  // memory, cost, advice --------------------------------------------------------------------------

  #showFacts(detail) {
    this.#clear("");
    const program = detail.programs.find((one) => one.name === bareName(this.program));
    const advice = detail.advice.map((text) => make("li", { text }));
    this.facts.append(
      ...(advice.length ? [make("h4", { text: "What would make it compile less" }), make("ul", {}, ...advice)] : []),
      make("h4", { text: "Memory, as XLA says" }), numbers(program?.memory, () => size),
      make("h4", { text: "Cost of a run, as XLA expects" }), numbers(program?.cost, unitOf),
      make("h4", { text: "Why its programs were made" }), history(detail.history));
  }
}

function numbers(found, format) {
  const rows = Object.entries(found ?? {}).filter(([name, value]) => value && !name.includes("{")).sort();
  if (!rows.length) return make("p", { class: "dim", text: "XLA says nothing of this on this device." });
  return make("table", { class: "small" }, make("tbody", {}, ...rows.map(([name, value]) => make("tr", {},
    make("th", { scope: "row", text: name.replaceAll("_", " ") }), make("td", { class: "number", text: format(name)(value) })))));
}

function unitOf(name) {
  if (name.startsWith("bytes")) return size;
  if (name.includes("seconds")) return duration;
  return (value) => count(value);
}

function history(builds) {
  if (!builds.length) return make("p", { class: "dim", text: "Nothing is known of its builds." });
  return make("ul", {}, ...builds.map((build) => make("li", {},
    `${build.verdict}, ${duration(build.seconds ?? 0)}: ${build.reason}`,
    make("ul", {}, ...(build.differences ?? []).map((each) => make("li", { class: "dim", text: differenceText(each) }))))));
}

function differenceText(difference) {
  if (typeof difference === "string") return difference;
  return difference.text ?? Object.values(difference).filter((value) => typeof value === "string" && value).join(": ");
}

/** A line, with what was searched for marked. */
function marked(line, needle) {
  if (!needle) return [line];
  const pieces = [];
  const lower = line.toLowerCase();
  let at = 0;
  for (let next = lower.indexOf(needle); next >= 0; next = lower.indexOf(needle, at)) {
    pieces.push(line.slice(at, next), make("mark", { text: line.slice(next, next + needle.length) }));
    at = next + needle.length;
  }
  return [...pieces, line.slice(at)];
}
