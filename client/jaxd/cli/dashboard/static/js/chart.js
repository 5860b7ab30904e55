/** Charts, drawn by uPlot: lines over time, and bars. */

import { make, setAttribute, setText } from "./dom.js";
import { clock } from "./format.js";
import { colour, onTheme } from "./theme.js";

const HEIGHT = 128;

class Chart {
  /** `options(colours)` are those of uPlot; `label(data)` says in words what is drawn. */
  constructor(title, options, label, read) {
    this.options = options;
    this.label = label;
    this.read = read;
    this.caption = make("span", { class: "reading" });
    this.box = make("div", { role: "img", class: "chart" });
    this.root = make("figure", {}, make("figcaption", {}, make("span", { text: title }), this.caption), this.box);
    this.data = null;
    this.plot = null;
    this.stopTheme = onTheme(() => this.#remake());
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.box);
  }

  /** Draws other data: as uPlot takes it. */
  set(data) {
    this.data = data;
    setAttribute(this.box, "aria-label", this.label(data));
    if (this.plot) this.plot.setData(data);
    else this.#remake();
    if (this.plot && this.plot.cursor.idx == null) setText(this.caption, this.read(data, data[0].length - 1));
  }

  close() {
    this.stopTheme();
    this.observer.disconnect();
    this.plot?.destroy();
  }

  #resize() {
    if (this.plot) this.plot.setSize({ width: this.box.clientWidth, height: HEIGHT });
    else this.#remake();
  }

  #remake() {
    this.plot?.destroy();
    this.plot = null;
    if (!this.data || !this.box.clientWidth) return;
    const names = ["accent", "accent-soft", "dim", "line"];
    const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
    const options = this.options(colours);
    const common = { width: this.box.clientWidth, height: HEIGHT, legend: { show: false },
      cursor: { y: false, drag: { x: false } },
      hooks: { setCursor: [(plot) => setText(this.caption, this.read(this.data, plot.cursor.idx ?? this.data[0].length - 1))] } };
    this.plot = new uPlot({ ...common, ...options }, this.data, this.box);
  }
}

function axes(colours, formatX, formatY, moreX = {}) {
  const common = { stroke: colours.dim, font: "11px system-ui", ticks: { show: false }, grid: { stroke: colours.line, width: 1 } };
  return [
    { ...common, grid: { show: false }, size: 24, values: (_, at) => at.map(formatX), ...moreX },
    { ...common, size: 76, values: (_, at) => at.map((value) => (value === null ? "" : formatY(value))) },
  ];
}

/** A line over time: data is [times, values]; `beside` formats what stands beside the axis. */
export function timeChart(title, format, beside = format) {
  const line = (colours) => ({
    axes: axes(colours, clock, beside, { space: 80, incrs: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600] }),
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.1 : 1] } },
    series: [{}, { stroke: colours.accent, width: 1.5, fill: colours["accent-soft"], points: { show: false } }],
  });
  const read = ([times, values], index) =>
    (values[index] === undefined || values[index] === null ? "" : `${format(values[index])} at ${clock(times[index])}`);
  const label = ([times, values]) => {
    const known = values.filter((value) => value !== null);
    if (!known.length) return `${title}: nothing was seen yet`;
    return `${title}: now ${format(known.at(-1))}, highest ${format(Math.max(...known))}, since ${clock(times[0])}`;
  };
  return new Chart(title, line, label, read);
}

/** Bars side by side: data is [places, values]; `name(place)` is what stands below each. */
export function barChart(title, name, format, label) {
  const bars = (colours) => ({
    axes: axes(colours, (place) => (Number.isInteger(place) ? name(place) : ""), format, { space: 70, incrs: [1, 2, 3, 4, 6, 8] }),
    scales: { x: { time: false, range: (_, low, high) => [low - 0.6, high + 0.6] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    series: [{}, { stroke: colours.accent, fill: colours.accent, points: { show: false }, paths: uPlot.paths.bars({ size: [0.8, 40] }) }],
  });
  const read = ([places, values], index) => (values[index] === undefined ? "" : `${name(places[index])}: ${format(values[index])}`);
  return new Chart(title, bars, label, read);
}
