/**
 * Figures on the page. Each is an element that names what of the view it shows, and how:
 *
 *   /functions/3f2a/hits      a value of the view, by its path
 *   #/calls                   how many rows a table has
 *   #/calls/phase=running     how many of them have this value
 *   +/values/nbytes           the sum of a field over a table
 *   -/builds/12/finished/started   how much more one field is than another, where both are known
 *   ~0.9/functions/3f2a/latency   below which time this share of the calls stayed
 *
 * One pass fills all of them from the same view, so that a page never shows two moments.
 */

import { make, setAttribute, setText } from "./dom.js";
import * as format from "./format.js";

/** An element that shows something of the view. */
export function figure(path, kind = "count", attributes = {}) {
  return make("span", { class: "figure", ...attributes, data: { figure: path, format: kind } });
}

/** A label above a figure. */
export function tile(label, path, kind = "count", title = "") {
  return make("div", { class: "tile", title }, make("dt", { text: label }), make("dd", {}, figure(path, kind)));
}

/** Path of a field of a row. */
export function pathOf(table, key, ...fields) {
  return ["", table, key.replaceAll("~", "~0").replaceAll("/", "~1"), ...fields].join("/");
}

/** A name without the principal before it, which names have where each has a worker. */
export function bareName(key) {
  return key.slice(key.lastIndexOf("/") + 1);
}

/** Whether two rows are of the same worker. */
export function areOfOneWorker(key, other) {
  return key.slice(0, key.lastIndexOf("/") + 1) === other.slice(0, other.lastIndexOf("/") + 1);
}

/** The value at a path. */
export function valueAt(view, path) {
  return walk(view, path.split("/").slice(1));
}

function walk(view, names) {
  let value = view;
  for (const name of names) {
    if (value === undefined || value === null) return undefined;
    value = value[name.replaceAll("~1", "/").replaceAll("~0", "~")];
  }
  return value;
}

/** The text of a figure. */
export function textOf(view, path, kind, now) {
  if (path[0] === "#") return format.count(counted(view, path));
  if (path[0] === "+") return format[kind](summed(view, path));
  if (path[0] === "-") return difference(view, path, kind);
  if (path[0] === "~") {
    const [share, ...names] = path.slice(1).split("/");
    return format.quantile(walk(view, names), Number(share));
  }
  const value = valueAt(view, path);
  if (value === undefined || value === null) return "–";
  if (kind === "age") return value ? format.duration(now - value) : "–";
  if (kind === "ago") return value ? `${format.duration(now - value)} ago` : "never";
  return format[kind](value);
}

function difference(view, path, kind) {
  const names = path.split("/").slice(1);
  const row = walk(view, names.slice(0, -2));
  const [more, less] = names.slice(-2).map((name) => row?.[name]);
  return more && less ? format[kind](Math.max(0, more - less)) : "–";
}

function counted(view, path) {
  const [, table, condition] = path.split("/");
  const rows = Object.values(view[table] ?? {});
  if (!condition) return rows.length;
  const [field, wanted] = condition.split("=");
  return rows.filter((row) => String(row[field]) === wanted).length;
}

function summed(view, path) {
  const [, table, field] = path.split("/");
  return Object.values(view[table] ?? {}).reduce((sum, row) => sum + row[field], 0);
}

/** Fills all figures below an element from one view. */
export function fill(root, view, now) {
  for (const element of root.querySelectorAll("[data-figure]")) {
    const { figure: path, format: kind } = element.dataset;
    const found = textOf(view, path, kind, now);
    setText(element, found);
    if (kind === "level") setAttribute(element, "data-level", found);
  }
}

/** Fills only what changes with the clock. */
export function fillAges(root, view, now) {
  for (const element of root.querySelectorAll('[data-format^="ag"]')) {
    setText(element, textOf(view, element.dataset.figure, element.dataset.format, now));
  }
}
