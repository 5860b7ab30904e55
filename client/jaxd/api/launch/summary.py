"""What jaxd has done for a program that was not changed, in all of its processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from jaxd.dispatch.caller import default_callers
from jaxd.interop.local_programs import calls_here
from jaxd_protocol.network.local_server import make_private_directory, runtime_dir


class Summary(NamedTuple):
    """Counts, which can be added up.

    Attributes:
        calls: calls that a server, or its program in the process, has answered.
        here: of these, the ones that ran in the process.
        compiled: of all, the ones for which a program was traced and compiled.
        spared: programs that were found, so that nothing was traced or compiled.
        fell_back: calls that ran under plain `jax.jit` here because the server could not run them.
        watched: calls that ran so because a debugger or a coverage tool looks at the process.
        left: functions that were left to plain `jax.jit` from the beginning.
        saved_s: seconds of tracing and compiling that were spared.
        reasons: why functions, as `name: reason`, ran here, with the number of calls; and of those
            that never were persistent, with the number of functions.
    """

    calls: int = 0
    here: int = 0
    compiled: int = 0
    spared: int = 0
    fell_back: int = 0
    watched: int = 0
    left: int = 0
    saved_s: float = 0.0
    reasons: Mapping[str, int] = {}

    @classmethod
    def of_this_process(
        cls, watched: int = 0, not_served: Mapping[str, int] | None = None
    ) -> Summary:
        """What is known in this process; asks the servers that it is connected to.

        Args:
            watched: see above.
            not_served: why functions were left to plain `jax.jit`, and how many.
        """
        used = Counter[str]()
        for caller in default_callers():
            used.update(caller.session.use())
        fallback = sys.modules.get("jaxd.tracing.fallback")
        here = [] if fallback is None else list(fallback.ran_here.values())
        reasons = Counter[str]()
        for each in here:
            reasons[f"{each.name}: {each.reason}"] += each.calls
        for reason, functions in (not_served or {}).items():
            reasons[f"left to jax.jit: {reason}"] += functions
        return cls(
            int(used["calls"]) + calls_here.count,
            calls_here.count,
            int(used["compiled"]),
            int(used["loaded"] + used["found"]),
            sum(each.calls for each in here),
            watched,
            sum((not_served or {}).values()),
            float(used["saved_s"]),
            dict(reasons),
        )

    @classmethod
    def total(cls, parts: Iterable[Summary]) -> Summary:
        """The sum."""
        reasons = Counter[str]()
        counts = [0.0] * 8
        for part in parts:
            counts = [a + b for a, b in zip(counts, part[:8], strict=True)]
            reasons.update(part.reasons)
        calls, here, compiled, spared, fell_back, watched, left = map(int, counts[:7])
        counted = calls, here, compiled, spared, fell_back, watched, left
        return cls(*counted, counts[7], dict(reasons))

    @classmethod
    def read(cls, text: str | bytes) -> Summary:
        """One that another process has written.

        Raises:
            ValueError, TypeError: when it is none.
        """
        return cls(**json.loads(text))

    def written(self) -> str:
        """As text, for another process."""
        return json.dumps(self._asdict())

    def line(self, *, programs: bool = False) -> str:
        """In one line.

        Args:
            programs: with the number of programs for which nothing was traced and compiled.
        """
        words = [
            f"{self.calls:,} calls",
            f"{self.compiled:,} compiled",
            f"{max(0, self.calls - self.compiled):,} warm",
            *([f"{self.here:,} run here"] if self.here else []),
            *([f"{self.spared:,} traces and compiles saved"] if programs else []),
            f"{self.fell_back:,} fell back",
            *([f"{self.watched:,} under a debugger or coverage"] if self.watched else []),
            *([f"{self.left:,} functions left to jax.jit"] if self.left else []),
            f"{self.saved_s:.{0 if self.saved_s >= 10 else 1}f} s saved",
        ]
        return f"jaxd: {', '.join(words)}"

    def reasons_text(self) -> Iterator[str]:
        """Why functions ran here, a line each, the most calls first."""
        for reason, count in sorted(self.reasons.items(), key=lambda row: -row[1]):
            yield f"  {count:,} x {' '.join(reason.split())}"


# other processes of the same program --------------------------------------------------------------


def _folder(main: int) -> str:
    return os.path.join(runtime_dir(), f"run-{main}")


def leave(summary: Summary, main: int) -> None:
    """Writes what this process has counted, for the main process of the program."""
    with suppress(Exception):  # no room, or nobody is there any more: nothing depends on it
        folder = make_private_directory(_folder(main))
        with open(os.path.join(folder, f"{os.getpid()}.json"), "w", encoding="utf-8") as file:
            file.write(summary.written())


def left_for(main: int) -> list[Summary]:
    """What other processes have left for this one, once."""
    folder, found = _folder(main), []
    with suppress(OSError):
        for name in os.listdir(folder):
            with (
                suppress(OSError, TypeError, ValueError),
                open(os.path.join(folder, name), "rb") as file,
            ):
                found.append(Summary.read(file.read()))
    shutil.rmtree(folder, ignore_errors=True)
    return found


# comparisons with what this process's jax makes -------------------------------------------------


class VerificationReport:
    """What processes with `variables` in their environment have compared; see docs/verify.md.

    Attributes:
        variables: of the environment of these processes.
    """

    def __init__(self) -> None:
        from jaxd.tracing.verification import REPORT_VARIABLE

        self._folder = tempfile.TemporaryDirectory(prefix="jaxd-verify-")
        self._file = os.path.join(self._folder.name, "report")
        self.variables = {"JAXD_VERIFY": "1", REPORT_VARIABLE: self._file}

    def summary(self) -> dict[str, Any]:
        """How many comparisons ended how; to be asked once."""
        lines: list[str] = []
        with suppress(FileNotFoundError), open(self._file, encoding="utf-8") as file:
            lines = file.readlines()
        self._folder.cleanup()
        return summary_of([json.loads(line) for line in lines])


def summary_of(found: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """How many comparisons ended how, and why some could not be made."""
    outcomes = Counter(each["outcome"] for each in found)
    reasons = Counter(each["reason"] for each in found if each["outcome"] == "incomparable")
    stale = [dict(each) for each in found if each["outcome"] == "stale"]
    return {
        "verified": outcomes["verified"],
        "mismatches": outcomes["stale"],
        "not_comparable": outcomes["incomparable"],
        "reasons": dict(reasons.most_common()),
        "stale": [{"function": each["function"], "difference": each["reason"]} for each in stale],
    }


def described(summary: Mapping[str, Any], *, is_hooked: bool = False) -> str:
    """The summary in a line, and one more for each reason and each mismatch.

    Args:
        summary: of a report.
        is_hooked: whether what was given to `jax.jit` would have been compared.
    """
    counts = [summary[name] for name in ("verified", "mismatches", "not_comparable")]
    if is_hooked and not any(counts):
        return "nothing was compared: a server answered no function of these tests"
    if not any(counts):
        return (
            "nothing was compared: a server answered no persistent function of this program. "
            "What a program gives to jax.jit is compared by: jaxd verify -- jaxd run PROGRAM, "
            "and a test suite by: jaxd verify -- pytest --jaxd"
        )
    text = "{} verified, {} mismatches, {} not comparable".format(*counts)
    lines = [f"  not comparable, {count}: {why}" for why, count in summary["reasons"].items()]
    lines += [f"  {each['function']}: {each['difference']}" for each in summary["stale"]]
    return "\n".join([text, *lines])
