/** The server's view as this page has it: one object, changed in place by the patches that arrive. */

/** Patches that are held while the page is paused; with more, the view is asked for again. */
const MOST_HELD = 20_000;

export class Store {
  constructor() {
    this.view = null;
    this.paused = false;
    this.overflowed = false;
    this.held = [];
    this.offset = 0; // of the server's clock to this one's, seconds
  }

  /** Takes a whole view. */
  replace(view) {
    if (this.paused) {
      this.held = [{ whole: view }];
      return;
    }
    this.view = view;
    this.offset = Math.max(0, view.at - Date.now() / 1000); // it may have stood for long
  }

  /** Applies a merge patch (RFC 7386), which was received at a time of this clock. */
  patch(patch, received = Date.now() / 1000) {
    if (this.paused) {
      if (this.held.length < MOST_HELD) this.held.push({ patch, received });
      else this.overflowed = true;
      return;
    }
    if (this.view === null) return;
    merge(this.view, patch);
    this.offset = this.view.at - received;
  }

  /** Holds the view as it is. */
  pause() {
    this.paused = true;
  }

  /** Goes on; false when too much was held, so that the view has to be asked for again. */
  resume() {
    this.paused = false;
    const held = this.held.splice(0);
    for (const { whole, patch, received } of held) whole ? this.replace(whole) : this.patch(patch, received);
    const complete = !this.overflowed;
    this.overflowed = false;
    return complete;
  }

  /** The server's time, in seconds; the time of the view while it is paused. */
  now() {
    return this.paused ? this.view.at : Date.now() / 1000 + this.offset;
  }
}

/** Merges a patch into an object, in place: null removes. What is called __proto__ is left out. */
export function merge(target, patch) {
  for (const [name, value] of Object.entries(patch)) {
    if (name === "__proto__") continue; // JSON has it as a name, an assignment would not
    if (value === null) delete target[name];
    else if (isObject(value)) {
      if (!isObject(target[name])) target[name] = {};
      merge(target[name], value);
    } else target[name] = value;
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
