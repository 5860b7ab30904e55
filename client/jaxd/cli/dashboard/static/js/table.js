/** A table that can be sorted and filtered, with few rows in the page however many there are. */

import { announce, make, setAttribute, setText } from "./dom.js";
import { fill, figure, pathOf } from "./figures.js";
import { bringIntoSight, inSight } from "./virtual.js";

const ROW = 28; // pixels, as in the stylesheet

/** The field of a column that shows by what name the row is known. */
export const KEY = "$key";

export class Table {
  /**
   * @param {Object} options
   *   table: name of the table of the view
   *   label: what a screen reader calls it
   *   columns: [{field, title, format, about, class, path, by, link, button}], see `#cell`
   *   sort: [field, descending]
   *   empty: what to say where there are no rows
   *   keep: (row, key) => boolean, of the rows to show
   */
  constructor(options) {
    Object.assign(this, options);
    this.columns = options.columns;
    this.order = [];
    this.rows = new Map();
    this.needle = "";
    this.isHeld = false;
    this.#build();
  }

  /** Shows the rows of a view. */
  update(view, now) {
    this.view = view;
    this.now = now;
    if (!this.#isInUse() || !this.order.length) this.#sort();
    else this.#keepOrder();
    this.#show();
  }

  /** Shows only rows in whose text columns this stands. */
  filter(needle) {
    this.needle = needle.trim().toLowerCase();
    this.scroller.scrollTop = 0;
    if (!this.view) return;
    this.#sort();
    this.#show();
  }

  get length() {
    return this.order.length;
  }

  #build() {
    this.head = make("tr", {}, ...this.columns.map((column) => this.#header(column)));
    this.body = make("tbody");
    this.above = make("tr", { class: "space", "aria-hidden": "true" }, make("td", { colspan: this.columns.length }));
    this.below = this.above.cloneNode(true);
    this.body.append(this.above, this.below);
    this.element = make("table", { "aria-label": this.label, data: this.keep ? {} : { table: this.table } }, make("thead", {}, this.head), this.body);
    this.scroller = make("div", { class: "scroller", role: "region", tabindex: "0", "aria-label": this.label,
      scroll: () => this.view && this.#show(), keydown: (event) => this.#onKey(event),
      pointerenter: (event) => { this.isHeld = event.pointerType === "mouse"; },
      pointerleave: () => { this.isHeld = false; } }, this.element);
    this.none = make("p", { class: "empty", text: this.empty, hidden: true });
    this.root = make("div", { class: "table" }, this.scroller, this.none);
  }

  #header(column) {
    const head = make("th", { scope: "col", class: `${column.class ?? ""} ${isText(column) ? "" : "number"}` });
    if (column.button) {
      head.append(make("span", { class: "unseen", text: column.title }));
      return head;
    }
    head.append(make("button", { type: "button", text: column.title, title: column.about ?? `Sort by ${column.title}`,
      click: () => this.#sortBy(column) }));
    return head;
  }

  #sortBy(column) {
    const [field, descending] = this.sort;
    this.sort = [column.field, field === column.field ? !descending : !isText(column)];
    this.#sort();
    this.#show();
    announce(`Sorted by ${column.title}, ${this.sort[1] ? "descending" : "ascending"}`);
  }

  /** While somebody points at a row or has it in focus, rows stay where they are. */
  #isInUse() {
    return this.isHeld || this.body.contains(document.activeElement);
  }

  #keepOrder() {
    const rows = this.view[this.table] ?? {};
    const known = new Set(this.order);
    this.order = this.order.filter((key) => key in rows && this.#isShown(rows[key], key));
    for (const key of Object.keys(rows)) {
      if (!known.has(key) && this.#isShown(rows[key], key)) this.order.push(key);
    }
  }

  #sort() {
    const rows = this.view[this.table] ?? {};
    const [field, descending] = this.sort;
    const column = this.columns.find((one) => one.field === field);
    const value = field === KEY ? (_, key) => key : column?.by ?? ((row) => row[field]);
    const sign = descending ? -1 : 1;
    const keyed = [];
    for (const key of Object.keys(rows)) {
      if (this.#isShown(rows[key], key)) keyed.push([value(rows[key], key), key]);
    }
    keyed.sort(([a, x], [b, y]) => (a < b ? -sign : a > b ? sign : x < y ? -1 : 1));
    this.order = keyed.map(([, key]) => key);
    for (const [index, head] of [...this.head.children].entries()) {
      const isThis = this.columns[index].field === field && !this.columns[index].button;
      setAttribute(head, "aria-sort", isThis ? (descending ? "descending" : "ascending") : "none");
    }
  }

  #isShown(row, key) {
    if (this.keep && !this.keep(row, key)) return false;
    if (!this.needle) return true;
    return this.columns.some((column) => isText(column) && String(row[column.field] ?? "").toLowerCase().includes(this.needle));
  }

  #show() {
    const { first, last } = inSight(this.scroller, this.order.length, ROW);
    const wanted = this.order.slice(first, last);
    const free = new Map(this.rows);
    for (const key of wanted) free.delete(key);
    for (const [key, row] of free) {
      row.remove();
      this.rows.delete(key);
    }
    let before = this.above;
    for (const [index, key] of wanted.entries()) {
      const row = this.rows.get(key) ?? this.#row(key);
      this.rows.set(key, row);
      setAttribute(row, "aria-rowindex", String(first + index + 2));
      if (before.nextSibling !== row) before.after(row);
      before = row;
    }
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.order.length - last) * ROW}px`;
    setAttribute(this.element, "aria-rowcount", String(this.order.length + 1));
    this.scroller.hidden = !this.order.length;
    this.none.hidden = Boolean(this.order.length);
    setText(this.none, this.needle ? `Nothing has “${this.needle}” in it. Clear the filter to see all.` : this.empty);
    fill(this.body, this.view, this.now);
    this.shown?.(this);
  }

  #row(key) {
    return make("tr", { data: { key } }, ...this.columns.map((column) => this.#cell(column, key)));
  }

  /** A cell: a figure of the row, as a link with `link(key)`, or a button with `button(key)`. */
  #cell(column, key) {
    const cell = make("td", { class: `${column.class ?? ""} ${isText(column) ? "" : "number"}` });
    if (column.button) {
      cell.append(column.button(key, this.view[this.table][key]) ?? "");
      return cell;
    }
    if (column.field === KEY) {
      cell.append(key);
      return cell;
    }
    const path = column.path?.(key) ?? pathOf(this.table, key, column.field);
    const shown = figure(path, column.format ?? "text");
    cell.append(column.link ? make("a", { href: column.link(key, this.view[this.table][key]) }, shown) : shown);
    return cell;
  }

  /** Arrows go from row to row; Home and End to the first and the last. */
  #onKey(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps) || !this.order.length) return;
    const row = document.activeElement.closest?.("tr[data-key]");
    const at = row ? this.order.indexOf(row.dataset.key) : -1;
    const next = Math.min(this.order.length - 1, Math.max(0, at + steps[event.key]));
    event.preventDefault();
    bringIntoSight(this.scroller, next, ROW, ROW);
    this.#show();
    this.rows.get(this.order[next])?.querySelector("a, button")?.focus();
  }
}

function isText(column) {
  return ["text", "clock", "level"].includes(column.format ?? "text");
}
