"""What a soak has found, for people and for programs."""

from __future__ import annotations

import os
import platform
import statistics
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tests.soak.crew import Line
from tests.soak.judging import Fault, Faults, explanation

_BEGIN: Final = "<!-- written by make soak -->"
_END: Final = "<!-- end of what make soak has written -->"

SETTLES_S: Final = 1.0
"""How long a fault still counts as going on when it is over: what has waited is made up for."""


class SoakFindings:
    """Takes the lines of all clients, judges them, and adds up. Thread-safe.

    Args:
        faults: by which they are judged.

    Attributes:
        bad: answers that were wrong, and errors that nothing explains.
    """

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._lock = threading.Lock()  # guards all that follows
        self._turns: Counter[str] = Counter()
        self._explained: Counter[str] = Counter()
        self._times: list[tuple[float, float]] = []
        self._sums: Counter[str] = Counter()
        self._errors: list[tuple[str, Line]] = []
        self._told: list[dict[str, Any]] = []
        self.bad: list[str] = []

    def take(self, client: str, line: Line) -> None:
        """A line that a client has said."""
        with self._lock:
            self._turns[line["kind"]] += 1
            for name in ("calls", "edits"):
                self._sums[name] += line.get(name, 0)
            self._times += map(tuple, line.get("times", ()))
            if line["outcome"] == "wrong":
                self._sums["wrong"] += 1
                self.bad.append(f"{client}, {line['kind']}: WRONG\n{line['message']}")
            if line["outcome"] == "error":
                self._errors.append((client, line))

    def judge(self) -> None:
        """Looks at the errors; once all faults are known."""
        with self._lock:
            errors, self._errors = self._errors, []
        for client, line in errors:
            why = explanation(line, self._faults)
            if why is None:
                near = self._faults.between(line["since"] - 2, line["ended"] + 2)
                self._sums["unexplained"] += 1
                self.bad.append(
                    f"{client}, {line['kind']} from {line['began']:.3f} (since "
                    f"{line['since']:.3f}, call {line['called']:.3f}, answer before it "
                    f"{line['answered']:.3f}) to {line['ended']:.3f}: UNEXPLAINED\n"
                    f"{line['traceback']}faults near: {near}"
                )
            else:
                self._sums["lost"] += "ValuesLost" in line["error"]
                self._explained[f"{line['error'][0]}: {why}"] += 1
                times = {name: line[name] for name in ("since", "called", "ended")}
                self._told.append(
                    {"client": client, "error": line["error"][0], "why": why, **times}
                )

    def figures(self) -> dict[str, Any]:
        """The sums, as JSON values."""
        calm, disturbed = _apart(self._times, self._faults.all())
        return {
            "calls": self._sums["calls"],
            "edits": self._sums["edits"],
            "turns": dict(self._turns),
            "wrong_answers": self._sums["wrong"],
            "unexplained_errors": self._sums["unexplained"],
            "lost_handles_explained": self._sums["lost"],
            "explained_errors": dict(self._explained),
            "told": self._told,
            "broken": self._faults.all(),
            "small_calls": {"calm": _latency(calm), "during faults": _latency(disturbed)},
        }


def _apart(
    times: Iterable[tuple[float, float]], faults: Iterable[Fault]
) -> tuple[list[float], list[float]]:
    """The seconds of calls beside which nothing was broken, and of the others."""
    intervals = sorted((one.began, one.ended + SETTLES_S) for one in faults)
    calm: list[float] = []
    disturbed: list[float] = []
    first = 0
    for began, took in sorted(times):
        while first < len(intervals) and intervals[first][1] < began:
            first += 1
        is_disturbed = any(a <= began + took and b >= began for a, b in intervals[first:][:50])
        (disturbed if is_disturbed else calm).append(took)
    return calm, disturbed


def _latency(times: list[float]) -> dict[str, float]:
    if len(times) < 2:
        return {"count": len(times)}
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {
        "count": len(times),
        "p50_ms": round(1e3 * cuts[49], 3),
        "p99_ms": round(1e3 * cuts[98], 3),
        "longest_ms": round(1e3 * max(times), 1),
    }


def text(report: Mapping[str, Any]) -> str:
    """The report as it stands in the documents."""
    cores = len(os.sched_getaffinity(0))
    where = f"{cores} cores, Python {platform.python_version()}, jax {metadata.version('jax')}"
    faults = ", ".join(f"{what} {count}" for what, count in sorted(report["faults"].items()))
    clients = ", ".join(f"{how} {count}" for how, count in report["clients_ended"].items())
    rows = [
        (f"{report['minutes']:.0f} minutes", where),
        ("calls compared with jax", f"{report['calls']:,}"),
        ("**wrong answers**", f"**{report['wrong_answers']}**"),
        ("errors that nothing explains", f"{report['unexplained_errors']}"),
        ("edits", f"{report['edits']:,}, each followed by calls that had to be of the new text"),
        ("faults", faults),
        ("client processes", clients),
        ("arrays lost with a worker that was ended", f"{report['lost_handles_explained']}"),
        ("functions released from quarantine", f"{report['released']}"),
        *((f"told {why}", f"{n}") for why, n in sorted(report["explained_errors"].items())),
        *((f"small calls, {when}", _times(one)) for when, one in report["small_calls"].items()),
        *((f"the {whose} took", took) for whose, took in report["levels"].items()),
    ]
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _times(one: Mapping[str, float]) -> str:
    if "p50_ms" not in one:
        return "none"
    return (
        f"{one['count']:,.0f}: p50 {one['p50_ms']:.1f} ms, p99 {one['p99_ms']:.0f} ms, "
        f"longest {one['longest_ms'] / 1e3:.1f} s"
    )


def write_into(path: Path, what: str) -> None:
    """Puts the text between the two lines of a document that say so."""
    before, _, rest = path.read_text().partition(_BEGIN)
    after = rest.partition(_END)[2]
    path.write_text(f"{before}{_BEGIN}\n\n{what}\n\n{_END}{after}")
