/** What the page has seen: a few figures, once a second, for a quarter of an hour. */

const LENGTH = 900;
const NAME = "jaxd-history";

export class History {
  constructor() {
    this.samples = [];
    this.server = "";
  }

  /** Notes the figures of a view: at most once a second. */
  note(view, now) {
    const since = `${view.server.address} ${view.server.since}`;
    if (since !== this.server) this.#begin(since);
    const last = this.samples.at(-1);
    if (last && now - last.at < 1) return false;
    const { saved_s = 0, calls = 0 } = view.counters;
    const inUse = sum(view.devices, "in_use");
    const resident = sum(view.workers, "resident_bytes");
    this.samples.push({ at: now, saved: saved_s, calls, inUse, resident });
    this.samples.splice(0, Math.max(0, this.samples.length - LENGTH));
    return true;
  }

  /** Times and values of one figure. */
  line(name) {
    return [this.samples.map((one) => one.at), this.samples.map((one) => one[name])];
  }

  /** Times and how much a figure grew in a second. */
  rate(name) {
    const values = this.samples.map((one, index) => {
      const before = this.samples[index - 1];
      return before ? Math.max(0, (one[name] - before[name]) / (one.at - before.at)) : null;
    });
    return [this.samples.map((one) => one.at), values];
  }

  /** Keeps it for the same page, loaded again. */
  keep() {
    sessionStorage.setItem(NAME, JSON.stringify({ server: this.server, samples: this.samples }));
  }

  #begin(server) {
    const kept = JSON.parse(sessionStorage.getItem(NAME) ?? "{}");
    this.samples = kept.server === server ? kept.samples : [];
    this.server = server;
  }
}

function sum(table, field) {
  return Object.values(table).reduce((all, row) => all + row[field], 0);
}
