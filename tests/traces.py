"""Checks a trace in Chrome's JSON format, as its readers take it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read_trace(path: Path) -> list[Event]:
    """The events of a trace that was written, and that can be read."""
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    assert faults(events) == []
    return events


def faults(events: list[Event]) -> list[str]:
    """What is wrong with the events.

    Slices of a row are in order, none has a negative time, and one that begins in another ends
    in it; each row and process has a name; each arrow begins and ends at a slice.
    """
    found: list[str] = []
    slices = [event for event in events if event["ph"] == "X" and event["pid"] < OF_XLA]
    named = {(e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    rows: dict[tuple[int, int], list[Event]] = {}
    for event in slices:
        rows.setdefault((event["pid"], event["tid"]), []).append(event)
        if event["ts"] < 0 or event["dur"] <= 0:
            found.append(f"a time that cannot be: {event}")
    for (pid, tid), row in rows.items():
        if ("thread_name", pid, tid) not in named or ("process_name", pid, 0) not in named:
            found.append(f"row {pid} {tid} has no name")
        found += _overlaps(row)
    starts = {(event["pid"], event["tid"], event["ts"]) for event in slices}
    arrows: dict[int, list[Event]] = {}
    for event in events:
        if event["ph"] in "stf":
            arrows.setdefault(event["id"], []).append(event)
            if (event["pid"], event["tid"], event["ts"]) not in starts:
                found.append(f"an arrow at no slice: {event}")
    for arrow in arrows.values():
        phases = Counter(event["ph"] for event in arrow)
        if phases["s"] != 1 or phases["f"] != 1 or arrow[0]["ph"] != "s" or arrow[-1]["ph"] != "f":
            found.append(f"an arrow without an end: {arrow}")
    return found


OF_XLA = 1 << 28
"""Processes from this number on are XLA's, whose slices are as XLA writes them."""


def _overlaps(row: list[Event]) -> list[str]:
    found: list[str] = []
    ends: list[float] = []
    last = 0.0
    for event in row:
        end = event["ts"] + event["dur"]
        if event["ts"] < last:
            found.append(f"not in the order of time: {event}")
        last = event["ts"]
        while ends and ends[-1] <= event["ts"] + _ROUNDING:
            ends.pop()
        if ends and end > ends[-1] + _ROUNDING:
            found.append(f"begins in another one and ends outside: {event}")
        ends.append(end)
    return found


_ROUNDING = 0.0015
"""Microseconds: times are whole nanoseconds, written as a fraction."""


def names(events: list[Event], category: str) -> set[str]:
    """The names of the slices of a category."""
    return {e["name"] for e in events if e["ph"] == "X" and e.get("cat") == category}
