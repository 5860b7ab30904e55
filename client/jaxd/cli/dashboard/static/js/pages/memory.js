/** Devices, and what takes their memory. */

import { act, tell } from "../actions.js";
import { make, section, setAttribute } from "../dom.js";
import { figure, pathOf, tile } from "../figures.js";
import { MemoryMap } from "../memory_map.js";
import { Table } from "../table.js";

export class Memory {
  constructor() {
    this.map = new MemoryMap();
    this.none = make("p", { class: "empty", text: "No arrays stay on the server. A result of more than 64 kB does, and what jaxd.put sends." });
    this.devices = make("div", { class: "devices" });
    this.list = new Table({ table: "values", label: "Values", sort: ["nbytes", true],
      empty: "No arrays stay on the server.",
      columns: [
        { field: "holder", title: "Holder", class: "wide" },
        { field: "kind", title: "Kind" },
        { field: "principal", title: "Of" },
        { field: "count", title: "Arrays", format: "count" },
        { field: "nbytes", title: "Size", format: "size" },
        { field: "largest", title: "Largest", class: "wide" },
        { field: "release", title: "Release", button: (key, row) => (row.kind === "name" ? make("button", { type: "button", text: "Release…", click: () => this.#release(key) }) : null) },
      ] });
    this.root = make("div", { class: "page" },
      make("h2", { text: "Memory" }),
      make("dl", { class: "tiles" }, tile("Values", "+/values/nbytes", "size", "Arrays that stay on the server"),
        tile("Arrays", "+/values/count"), tile("Programs, host", "+/programs/host_bytes", "size"),
        tile("Programs, device", "+/programs/device_bytes", "size"), tile("Programs, disk", "+/programs/disk_bytes", "size")),
      section("Devices", this.devices),
      section("What takes it", this.map.root, this.none),
      section("Values by holder", this.list.root));
    this.observer = new ResizeObserver(() => this.view && this.map.update(this.view));
    this.observer.observe(this.map.root);
  }

  update(view, now) {
    this.view = view;
    this.none.hidden = this.map.update(view) > 0;
    this.map.root.hidden = !this.none.hidden;
    this.#showDevices(view.devices);
    this.list.update(view, now);
  }

  close() {
    this.observer.disconnect();
  }

  #showDevices(devices) {
    const keys = Object.keys(devices);
    if (!keys.length) {
      if (!this.devices.querySelector(".empty")) {
        this.devices.replaceChildren(make("p", { class: "empty", text: "No worker has named its devices yet." }));
      }
      return;
    }
    if (keys.join() !== this.keys) {
      this.keys = keys.join();
      this.devices.replaceChildren(...keys.map(deviceRow));
    }
    for (const [index, key] of keys.entries()) {
      const meter = this.devices.children[index].querySelector("meter");
      const { in_use: inUse, limit, peak } = devices[key];
      const [, , says, silent] = this.devices.children[index].children;
      meter.hidden = says.hidden = !peak;
      silent.hidden = Boolean(peak);
      setAttribute(meter, "max", String(limit || Math.max(peak, 1)));
      setAttribute(meter, "value", String(inUse));
    }
  }

  #release(key) {
    const row = this.view.values[key];
    const same = Object.values(this.view.values).filter((other) => other.kind === "name" && other.holder === row?.holder);
    if (same.length !== 1) { // each of us releases the own ones, and may see those of others
      tell("Several have arrays under this name. Release yours from a program: jaxd.forget");
      return;
    }
    act({ title: `Release the arrays under the name ${row.holder}?`, verb: "Release them",
      text: "They are removed from the server. Whoever uses one of them gets the error ValueDeleted." }, "forget", { name: row.holder });
  }
}

function deviceRow(key) {
  const path = (field) => pathOf("devices", key, field);
  const name = make("span", { id: `device-${key}` }, figure(path("name"), "text"));
  return make("p", { class: "device" }, name, make("meter", { "aria-labelledby": `device-${key}`, min: "0" }),
    make("span", {}, figure(path("in_use"), "size"), " in use, ", figure(path("peak"), "size"), " at most, of ", figure(path("limit"), "limit")),
    make("span", { class: "dim", text: "does not say how much of its memory is in use" }));
}
