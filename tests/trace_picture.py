"""`python -m tests.trace_picture TRACE docs/trace.svg`: draws two calls of a trace.

The first, and the shortest of the others, for docs/trace.md; `jaxd trace` has written the trace.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

Event = dict[str, Any]

COLORS = {"client": "#2a6f9e", "server": "#2a7f62", "builder": "#c9893a"}
"""By category; those with others in them are lighter."""

_LEAST_SHARE = 0.005
"""Of the width that a slice must have for its row to be drawn."""

_SHARE_WITH_NAME = 0.05
"""Of the width that a slice must have for its name to be written into it."""


def draw(axes: Any, events: list[Event], call: Event, title: str) -> None:
    """What happened while a call was open, in the rows of its two processes."""
    begin, end = call["ts"], call["ts"] + call["dur"]
    within = [
        event
        for event in events
        if event["ph"] == "X" and event["ts"] < end and event["ts"] + event["dur"] > begin
    ]
    rows = sorted(
        {
            (event["pid"] != call["pid"], event["pid"], event["tid"])
            for event in within
            if event["dur"] > _LEAST_SHARE * call["dur"]
        }
    )
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    scale, unit = (1000, "ms") if call["dur"] > 5000 else (1, "µs")
    places: dict[tuple[int, int, float], int] = {}
    labels: list[str] = []
    for is_server, pid, tid in rows:
        own = [event for event in within if (event["pid"], event["tid"]) == (pid, tid)]
        depths = _depths(own)
        for event, depth in zip(own, depths, strict=True):
            first, last = max(begin, event["ts"]), min(end, event["ts"] + event["dur"])
            left, width = (first - begin) / scale, (last - first) / scale
            y = places[pid, tid, event["ts"]] = len(labels) + depth
            color = COLORS[event["cat"]]
            axes.barh(y, width, left=left, height=0.9, color=color, edgecolor="white", alpha=0.85)
            if last - first > _SHARE_WITH_NAME * call["dur"]:
                axes.text(
                    left + width / 2, y, event["name"], ha="center", va="center", size=7, color="w"
                )
        where = "server" if is_server else "client"
        labels += [f"{where}: {named[pid, tid].rstrip('0123456789 ')}"] + [""] * max(depths)
    _draw_arrows(axes, [e for e in events if e["ph"] in "stf"], places, (begin, scale))
    axes.set_yticks(range(len(labels)), labels, size=8)
    axes.set_xlim(0, call["dur"] / scale)
    axes.invert_yaxis()
    axes.set_xlabel(unit, size=8)
    axes.set_title(title, size=9, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _depths(row: list[Event]) -> list[int]:
    found: list[int] = []
    ends: list[float] = []
    for event in row:
        while ends and ends[-1] <= event["ts"] + 0.002:
            ends.pop()
        found.append(len(ends))
        ends.append(event["ts"] + event["dur"])
    return found


def _draw_arrows(
    axes: Any,
    arrows: list[Event],
    places: dict[tuple[int, int, float], int],
    shown: tuple[float, int],
) -> None:
    begin, scale = shown
    for first, second in itertools.pairwise(arrows):
        keys = [(event["pid"], event["tid"], event["ts"]) for event in (second, first)]
        if first["id"] == second["id"] and all(key in places for key in keys):
            ends = [((key[2] - begin) / scale, places[key]) for key in keys]
            style = {"arrowstyle": "->", "color": "#444444", "lw": 0.8}
            axes.annotate("", *ends, arrowprops=style)


def main(source: str, target: str) -> None:
    """Draws both calls."""
    events: list[Event] = json.loads(Path(source).read_text())["traceEvents"]
    calls = [e for e in events if e["ph"] == "X" and e["name"].startswith("call ")]
    calls.sort(key=lambda event: float(event["ts"]))
    mpl.rcParams["svg.hashsalt"] = "jaxd"
    figure, axes = plt.subplots(2, 1, figsize=(9.5, 6.5))
    draw(axes[0], events, calls[0], "the first call compiles")
    warm = min(calls[1:], key=lambda event: float(event["dur"]))
    draw(axes[1], events, warm, "a later call is warm")
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(*sys.argv[1:])
