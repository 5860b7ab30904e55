"""What the runs of one program say together: is it right, is it served, does it trace again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.corpus.running import HASH_SEEDS

_VARIES = re.compile(r"0x[0-9a-f]+|/tmp/jaxd-\w+/\w+|(?<=\bin )\d+\.\d+(?= s)")
"""What is new in each process: addresses, folders of a run, and times such as `in 0.02 sec`."""

Run = Mapping[str, Any]


def summary(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What is reported of a program that `jaxd run` has run twice.

    Args:
        runs: `plain`, `plain_again` and `plain_warm`, by `python`; `cold` and `warm`.
    """
    if runs["plain"]["status"] != 0 or runs["plain_again"]["status"] != 0:
        return {"verdict": "fails in plain jax", "error": last_line(runs["plain"]["stderr"])}
    both = {kind: runs[kind] for kind in ("cold", "warm")}
    failed = next((run for run in both.values() if run["status"] != 0), None)
    found = {
        "completes": failed is None,
        "error": f"{failed['status']}: {last_line(failed['stderr'])}" if failed else "",
        "output": {kind: output_agreement(runs, run) for kind, run in both.items()},
        "said": {kind: report_of(run) for kind, run in both.items()},
        "traces": {kind: run["server"]["traces"] for kind, run in both.items()},
        "worker_restarts": sum(run["worker_restarts"] for run in both.values()),
        **{
            each: {
                kind: round(run[each] + (run.get("cpu_server_s", 0) if each == "cpu_s" else 0), 1)
                for kind, run in runs.items()
            }
            for each in ("cpu_s", "wall_s")
        },
    }
    return {**found, "verdict": _verdict(found)}


def _verdict(found: Mapping[str, Any]) -> str:
    if not found["completes"]:
        return "fails"
    if any(output["missing"] for output in found["output"].values()):
        return "differs"
    reports = found["said"].values()
    return "fell back" if any(" 0 fell back" not in said[:1][0] for said in reports) else "served"


def report_of(run: Run) -> list[str]:
    """What `jaxd run --report` has printed at its end, at least one line."""
    lines = run["stderr"].splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("jaxd: ")), len(lines))
    return lines[first:] or [""]


def verified_summary(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What is reported of a program whose compiled programs were compared.

    Args:
        runs: `cold`, and one for each hash seed.
    """
    failed = next((run for run in runs.values() if run["status"] != 0), None)
    found = {
        "verification": _together([runs[name]["verification"] for name in HASH_SEEDS]),
        "traces": {kind: run["server"]["traces"] for kind, run in runs.items()},
    }
    if failed:
        return {
            **found,
            "verdict": "fails",
            "error": f"{failed['status']}: {last_line(failed['stderr'])}",
        }
    return {**found, "verdict": "stale" if found["verification"]["mismatches"] else "compared"}


def verification_of_all(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How the comparisons of all these programs ended, together."""
    return _together([each["verification"] for each in summaries if each.get("verification")])


def _together(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    reasons: Counter[str] = sum((Counter(one["reasons"]) for one in each), Counter())
    counts = ("verified", "mismatches", "not_comparable")
    return {
        **{name: sum(one[name] for one in each) for name in counts},
        "reasons": dict(reasons.most_common()),
        "stale": [stale for one in each for stale in one["stale"]],
    }


def output_agreement(runs: Mapping[str, Run], run: Run) -> dict[str, Any]:
    """How many printed lines are those of plain jax, of the lines that it prints each time."""
    first, second = (lines_of(runs[name]) for name in ("plain", "plain_again"))
    here = lines_of(run)
    steady = [line for line, other in zip(first, second, strict=False) if line == other]
    missing = [line for line in steady if line not in set(here)]
    return {
        "lines": len(steady),
        "missing": len(missing),
        "example": missing[0][:200] if missing else "",
    }


def lines_of(run: Run) -> list[str]:
    """What it printed, without what is new in each process."""
    return [_VARIES.sub("", line).rstrip() for line in run["stdout"].splitlines()]


def last_line(text: str) -> str:
    """The line of a traceback that says what went wrong."""
    lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
    errors = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception|Lost|Busy|Mismatch)", line)
    ]
    return (errors or lines or [""])[-1][:300]
