"""What the demo found: judged, and laid out as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jaxd.demo.runs import Run

__all__ = ["COUNTERS", "LEAST_ACCURACY", "Report"]

COUNTERS = ("calls", "traces", "compiles", "executable_hits", "executables")
"""The counters of the server that the demo shows."""

LEAST_ACCURACY = 0.9
"""Below this the network has not learned to read digits, and the demo fails."""

_NOTE = """\
ready         from the start of the process until numpy and scikit-learn (and, with jax.jit, jax)
              are imported and the images are loaded
first call    from there until the first loss is a number
first result  the two together: what the user waits for
whole run     until the process has ended"""


@dataclass(frozen=True, slots=True)
class Report:
    """The demo's findings.

    Attributes:
        cold: the first process on a new server.
        second: the second process, on the same server.
        plain: the same script on `jax.jit`.
        disk: the same on `jax.jit` with jax's own disk cache filled by an earlier run.
        before: the server's counters before the second process.
        after: the server's counters after it.
        plot: the path of the plot that was written.
    """

    cold: Run
    second: Run
    plain: Run
    disk: Run
    before: Mapping[str, int]
    after: Mapping[str, int]
    plot: str

    @property
    def runs(self) -> tuple[Run, ...]:
        """All four, in the order of the table."""
        return (self.cold, self.second, self.plain, self.disk)

    def spent(self, counter: str) -> int:
        """By how much the second process raised `counter`."""
        return self.after[counter] - self.before[counter]

    @property
    def complaints(self) -> tuple[str, ...]:
        """What did not go as promised; empty when the demo has succeeded."""
        found = [
            f"the second process caused {self.spent(counter)} {counter}; there should be none."
            for counter in ("traces", "compiles")
            if self.spent(counter)
        ]
        found += [
            f"{run.label}: {run.accuracy:.1%} of the test digits were read rightly, "
            f"less than {LEAST_ACCURACY:.0%}. Train for more epochs (--epochs)."
            for run in self.runs
            if run.accuracy < LEAST_ACCURACY
        ]
        if self.cold.jax_imported or self.second.jax_imported:
            found.append("a client process imported jax; it should have no need of it.")
        return tuple(found)

    def as_json(self) -> dict[str, Any]:
        """The same facts, for a program."""
        names = ("cold", "second", "plain", "disk")
        return {
            "runs": {name: asdict(run) for name, run in zip(names, self.runs, strict=True)},
            "counters": {
                "before": dict(self.before),
                "after": dict(self.after),
                "second_process": {name: self.spent(name) for name in COUNTERS},
            },
            "plot": self.plot,
            "complaints": list(self.complaints),
        }

    def as_text(self) -> str:
        """The table, the accuracy, the counters and where the plot is."""
        parts = [_times(self.runs), _NOTE, _counters(self), f"plot: {self.plot}"]
        return "\n\n".join([*parts, *self.complaints])


def _times(runs: tuple[Run, ...]) -> str:
    heads = ("", "ready", "first call", "first result", "whole run", "accuracy", "jax imported")
    rows = [
        (
            run.label,
            *(
                f"{seconds:.2f} s"
                for seconds in (run.ready_s, run.first_call_s, run.first_result_s, run.total_s)
            ),
            f"{run.accuracy:.1%}",
            "yes" if run.jax_imported else "no",
        )
        for run in runs
    ]
    return _table([heads, *rows])


def _counters(report: Report) -> str:
    heads = ("server's counters", "before the second process", "after it", "so it needed")
    rows = [
        (
            name.replace("_", " "),
            str(report.before[name]),
            str(report.after[name]),
            str(report.spent(name)),
        )
        for name in COUNTERS
    ]
    return _table([heads, *rows])


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
