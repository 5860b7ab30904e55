/** What takes memory, as a treemap: values by holder, programs by function. */

import { focusedBox, keepFocus, walkable } from "./boxes.js";
import { draw, make, setText } from "./dom.js";
import { size } from "./format.js";
import { squarify } from "./treemap.js";

const HEIGHT = 300;
const HEAD = 16;
const MOST_PROGRAMS = 40;

export class MemoryMap {
  constructor() {
    this.drawing = draw("svg", { class: "treemap", role: "list", "aria-label": "What takes memory" });
    this.reading = make("p", { class: "reading", text: "Point at a box, or reach it with the Tab key." });
    this.root = make("div", { class: "drawing" }, this.drawing, this.reading);
    this.texts = new Map();
    this.drawn = "";
    walkable(this.drawing, (box) => setText(this.reading, this.texts.get(box.dataset.box) ?? ""));
  }

  /** Draws a view; how many boxes there are. */
  update(view) {
    const groups = [...valueGroups(view.values), programGroup(view.programs)].filter((group) => group.value > 0);
    const width = this.root.clientWidth || 640;
    const mark = JSON.stringify([width, groups]);
    if (mark !== this.drawn) {
      this.drawn = mark;
      this.#draw(groups, width);
    }
    return groups.length;
  }

  #draw(groups, width) {
    const focused = focusedBox(this.drawing);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("height", groups.length ? HEIGHT : 0);
    const boxes = squarify(groups, { x: 0, y: 0, width, height: HEIGHT });
    this.drawing.replaceChildren(...boxes.flatMap((box) => this.#group(box)));
    keepFocus(this.drawing, focused);
  }

  #group({ item, x, y, width, height }) {
    const inner = { x: x + 2, y: y + HEAD, width: width - 4, height: height - HEAD - 2 };
    const isWhole = item.parts.length < 2 || inner.width < 24 || inner.height < 12;
    const whole = this.#box(item.key, `${item.label}: ${size(item.value)}`, item.kind, { x, y, width, height }, item.label, isWhole && item.value);
    if (isWhole) return [whole];
    const parts = squarify(item.parts, inner).map((box) => this.#box(
      box.item.key, `${box.item.label}, ${size(box.item.value)}, of ${item.label}`, `${item.kind} part`, box, box.item.label, box.item.value));
    return [whole, ...parts];
  }

  #box(key, text, kind, { x, y, width, height }, label, bytes) {
    this.texts.set(key, text);
    const group = draw("g", { role: "listitem", "aria-label": text, "data-box": key, tabindex: "-1", class: kind },
      draw("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(0, width - 1), height: Math.max(0, height - 1) }));
    const fitting = Math.floor((width - 8) / 6.6);
    if (fitting >= Math.min(9, label.length) && height >= 14) {
      const short = label.length > fitting ? `${label.slice(0, fitting - 1)}…` : label;
      group.append(draw("text", { x: x + 4, y: y + 12 }, short));
      if (bytes && height >= 30) group.append(draw("text", { x: x + 4, y: y + 26, class: "bytes" }, size(bytes)));
    }
    return group;
  }
}

/** A group for each holder: its largest arrays, and the rest of them. */
function valueGroups(values) {
  const principals = new Set(Object.values(values ?? {}).map((row) => row.principal));
  return Object.entries(values ?? {}).map(([key, row]) => {
    const parts = row.largest.map((name, index) => ({ key: `${key}/${index}`, label: name, value: row.largest_nbytes[index] ?? 0 }));
    const rest = row.nbytes - parts.reduce((sum, part) => sum + part.value, 0);
    if (rest > 0) parts.push({ key: `${key}/rest`, label: "other arrays", value: rest });
    const who = principals.size > 1 ? `${row.principal} ` : "";
    const label = row.kind === "name" ? `${who}“${row.holder}”` : `${who}session ${row.holder}`;
    return { key, label, value: row.nbytes, kind: row.kind, parts };
  });
}

/** One group for all programs in memory. */
function programGroup(programs) {
  const parts = Object.entries(programs ?? {})
    .filter(([, row]) => row.state === "memory" && row.device_bytes + row.host_bytes > 0)
    .map(([key, row]) => ({ key: `program/${key}`, label: row.name, value: row.device_bytes + row.host_bytes }))
    .sort((a, b) => b.value - a.value);
  const rest = parts.splice(MOST_PROGRAMS);
  if (rest.length) parts.push({ key: "program/rest", label: `${rest.length} other programs`, value: rest.reduce((sum, part) => sum + part.value, 0) });
  const value = parts.reduce((sum, part) => sum + part.value, 0);
  return { key: "programs", label: "programs", value, kind: "program", parts };
}
