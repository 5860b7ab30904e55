/** Builds over time: how long each waited, for whom, and how long it took. */

import { focusedBox, keepFocus, walkable } from "./boxes.js";
import { draw, make, setText } from "./dom.js";
import { clock, duration } from "./format.js";

const ROW = 22;
const BAR = 12;
const TOP = 22;
const MOST = 60;

export class Gantt {
  constructor() {
    this.drawing = draw("svg", { class: "gantt", role: "list", "aria-label": "Builds over time" });
    this.reading = make("p", { class: "reading", text: "Point at a bar, or reach it with the Tab key." });
    this.root = make("div", { class: "drawing" }, this.drawing, this.reading);
    this.drawn = "";
    this.texts = new Map();
    walkable(this.drawing, (box) => setText(this.reading, this.texts.get(box.dataset.box) ?? ""));
  }

  /**
   * Draws the builds of the last `span` seconds.
   * @returns {number} how many there are
   */
  update(builds, now, span) {
    const rows = Object.entries(builds)
      .map(([id, row]) => ({ ...row, id, end: row.finished || now }))
      .filter((row) => row.end >= now - span)
      .sort((a, b) => a.queued - b.queued);
    const shown = rows.slice(-MOST);
    const width = this.root.clientWidth || 640;
    const lasts = shown.some((row) => !row.finished);
    const mark = JSON.stringify([width, span, lasts ? now : 0, shown]);
    if (mark === this.drawn) return rows.length;
    this.drawn = mark;
    if (!shown.length) return 0;
    this.#draw(shown, now, width);
    return rows.length;
  }

  #draw(rows, now, width) {
    const focused = focusedBox(this.drawing);
    const label = Math.min(200, width * 0.3);
    const begin = Math.min(...rows.map((row) => row.queued));
    const end = Math.max(...rows.map((row) => row.end), begin + 0.001);
    const place = (at) => label + ((at - begin) / (end - begin)) * (width - label - 8);
    const height = TOP + rows.length * ROW;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("height", height);
    const lanes = rows.map((row, index) => this.#lane(row, index, place, label, now));
    this.drawing.replaceChildren(...this.#axis(begin, end, place, height, width), ...this.#waits(rows, place), ...lanes);
    keepFocus(this.drawing, focused);
  }

  #axis(begin, end, place, height, width) {
    const shares = width < 560 ? [0, 1] : [0, 0.25, 0.5, 0.75, 1];
    const marks = shares.map((share) => begin + share * (end - begin));
    return marks.map((at, index) => draw("g", { "aria-hidden": "true", class: "axis" },
      draw("line", { x1: place(at), x2: place(at), y1: 16, y2: height }),
      draw("text", { x: place(at), y: 11, "text-anchor": index === marks.length - 1 ? "end" : index ? "middle" : "start" },
        index ? `+${duration(at - begin)}` : clock(at))));
  }

  #lane(row, index, place, label, now) {
    const y = TOP + index * ROW + (ROW - BAR) / 2;
    const worked = row.started || row.end;
    const bar = (from, to, name) => draw("rect", { class: name, x: place(from), y, height: BAR, width: Math.max(1.5, place(to) - place(from)) });
    const text = describe(row, now);
    this.texts.set(row.id, text);
    const lane = draw("g", { role: "listitem", "aria-label": text, "data-box": row.id, tabindex: "-1" },
      draw("rect", { class: "lane", x: 0, y: TOP + index * ROW, width: "100%", height: ROW }),
      draw("text", { x: 4, y: y + BAR - 2, class: "name" }, shorten(row.function, label)));
    if (worked > row.queued) lane.append(bar(row.queued, worked, "waited"));
    if (row.started) lane.append(bar(row.started, row.end, row.verdict));
    return lane;
  }

  /** A line from each build that waited to the one that it waited for. */
  #waits(rows, place) {
    return rows.flatMap((row, index) => {
      if (!row.behind) return [];
      const before = findBefore(rows, row, index);
      if (before < 0) return [];
      const [from, to] = [before, index].map((at) => TOP + at * ROW + ROW / 2);
      const x = place(Math.min(rows[before].end, row.started || row.end));
      return [draw("path", { class: "waits", "aria-hidden": "true", d: `M${x} ${from}V${to}` })];
    });
  }
}

/** The row of what a build waited for: it has that name, and was at work meanwhile. */
function findBefore(rows, row, index) {
  return rows.findLastIndex((other, at) => at !== index && other.function === row.behind
    && other.queued <= (row.started || row.end) && other.end >= row.queued);
}

/** A build in words. */
export function describe(row, now) {
  const waited = (row.started || row.finished || now) - row.queued;
  const parts = [];
  if (waited >= 0.001) parts.push(`waited ${duration(waited)}${row.behind ? ` for ${row.behind}` : ""}`);
  const took = row.started ? duration((row.finished || now) - row.started) : "";
  const did = { compile: "compiled in", load: "loaded from disk in", failed: "failed after", building: "is being built for" };
  if (took) parts.push(`${did[row.verdict] ?? row.verdict} ${took}`);
  return `${row.function}: ${parts.join(", ")}${row.reason ? `. ${row.reason}` : ""}`;
}

function shorten(name, width) {
  const most = Math.max(6, Math.floor(width / 7) - 1);
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}
