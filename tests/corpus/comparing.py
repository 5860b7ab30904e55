"""What the runs of one program say together: is it right, is it served, does it trace again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.corpus.running import HASH_SEEDS

_CLOSE = 1e-4
_VARIES = re.compile(r"0x[0-9a-f]+|/tmp/jaxd-\w+/\w+|(?<=\bin )\d+\.\d+(?= s)")
"""What is new in each process: addresses, folders of a run, and times such as `in 0.02 sec`."""

Run = Mapping[str, Any]


def summary(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What is reported of a program.

    Args:
        runs: `plain`, `plain_again`, `plain_warm`, `cold` and `warm`, and those that compare, which
            runs of before did not have.
    """
    if runs["plain"]["status"] != 0 or runs["plain_again"]["status"] != 0:
        return {"verdict": "fails in plain jax", "error": last_line(runs["plain"]["stderr"])}
    cold, warm = runs["cold"], runs["warm"]
    functions = functions_of(cold)
    calls = {name: sum(f[name] for f in functions.values()) for name in ("served", "local")}
    found = {
        "completes": cold["status"] == 0 and warm["status"] == 0,
        "functions": len(functions),
        "functions_served": sum(not f["local"] for f in functions.values()),
        "not_served": not_served_of(cold),
        "calls": calls,
        "local_reasons": {
            f"{label}: {reason}"
            for label, f in (*functions.items(), *functions_of(warm).items())
            for reason in f["reasons"]
        },
        "results": {kind: agreement(runs, runs[kind]) for kind in ("cold", "warm")},
        "output": {kind: output_agreement(runs, runs[kind]) for kind in ("cold", "warm")},
        "traces": {kind: runs[kind]["server"]["traces"] for kind in ("cold", "warm")},
        "events": {
            kind: {
                "client": run["events"],
                "server": run.get("server_events"),
            }
            for kind, run in runs.items()
        },
        "cpu_s": {
            kind: round(run["cpu_s"] + run.get("cpu_server_s", 0), 1) for kind, run in runs.items()
        },
        "verification": verification(runs),
        "traces_reseeded": runs.get("verified_reseeded", {}).get("server", {}).get("traces"),
        "worker_restarts": cold["worker_restarts"] + warm["worker_restarts"],
    }
    found["local_reasons"] = sorted(found["local_reasons"])
    found["verdict"] = verdict(found)
    if not found["completes"]:
        failed = cold if cold["status"] != 0 else warm
        found["error"] = f"{failed['status']}: {last_line(failed['stderr'])}"
    return found


def verification(runs: Mapping[str, Run]) -> dict[str, Any] | None:
    """How the comparisons of all runs ended, together; None where nothing was compared."""
    each = [runs[name]["verification"] for name in HASH_SEEDS if name in runs]
    return _together(each) if each else None


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


def run_summary(runs: Mapping[str, Run]) -> dict[str, Any]:
    """What is reported of a program that `jaxd run` has run twice.

    Args:
        runs: `plain`, `plain_again` and `plain_warm`, in which nothing is hooked; `cold` and
            `warm`.
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
    return {**found, "verdict": _run_verdict(found)}


def _run_verdict(found: Mapping[str, Any]) -> str:
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
    """What is reported of a program that was only compared."""
    failed = next((run for run in runs.values() if run["status"] != 0), None)
    found = {
        "verification": verification(runs),
        "traces": {kind: run["server"]["traces"] for kind, run in runs.items()},
    }
    if failed:
        return {
            **found,
            "verdict": "fails",
            "error": f"{failed['status']}: {last_line(failed['stderr'])}",
        }
    mismatches = (found["verification"] or {}).get("mismatches")
    return {**found, "verdict": "stale" if mismatches else "compared"}


def verdict(found: Mapping[str, Any]) -> str:
    """One word for a program."""
    if not found["completes"]:
        return "fails"
    if "differs" in (r["worst"] for r in found["results"].values()):
        return "differs"
    if (found["verification"] or {}).get("mismatches"):
        return "stale"
    if found["functions_served"] < found["functions"] or found["not_served"]:
        return "fell back"
    return "served" if found["functions"] else "nothing to serve"


def functions_of(run: Run) -> dict[str, Any]:
    """The functions of a run that were called from outside of jax, by where they were written."""
    return {
        label: function
        for record in run["records"]
        for label, function in record["functions"].items()
        if function["served"] + function["local"] + function["raised"]
    }


def not_served_of(run: Run) -> dict[str, int]:
    """Why functions were given to plain jax when they were made."""
    found: dict[str, int] = {}
    for record in run["records"]:
        for reason, count in record["not_served"].items():
            found[reason] = found.get(reason, 0) + count
    return found


def agreement(runs: Mapping[str, Run], run: Run) -> dict[str, Any]:
    """How the results of a run stand beside those of plain jax, which was run three times.

    Returns:
        How many are `same` (all bits), `close` (plain jax does not give the same bits each time, or
        the sums agree to four digits), `differs` and `missing`; the worst, and where that was.
    """
    plain = [functions_of(runs[name]) for name in ("plain", "plain_again", "plain_warm")]
    here = functions_of(run)
    counts = {"same": 0, "close": 0, "unsteady": 0, "differs": 0, "missing": 0}
    where: dict[str, str] = {}
    for label, function in plain[0].items():
        for number, expected in function["results"].items():
            others = [_result(each, label, number) for each in plain]
            kind = _kind(_result(here, label, number), expected, others)
            counts[kind] += 1
            where.setdefault(kind, f"{label} call {number}")
    order = ("differs", "missing", "close", "unsteady", "same")
    worst = next((kind for kind in order if counts[kind]), "none")
    return {**counts, "worst": worst, "where": where.get(worst, "")}


def _result(functions: Mapping[str, Any], label: str, number: str) -> Any:
    return functions.get(label, {"results": {}})["results"].get(number)


def _kind(found: Any, expected: Any, plain: list[Any]) -> str:
    if found is None:
        return "missing"
    if any(other is not None and found[0] == other[0] for other in plain):
        return "same"
    if any(other is None or other[0] != expected[0] for other in plain):
        return "unsteady"  # plain jax itself gives other bits each time
    return "close" if _are_close(found[1], expected[1]) else "differs"


def _are_close(found: list[float], expected: list[float]) -> bool:
    if len(found) != len(expected) or not expected:
        return False
    return all(
        a == b or (a != a and b != b) or abs(a - b) <= _CLOSE * max(abs(a), abs(b))  # noqa: PLR0124
        for a, b in zip(found, expected, strict=True)
    )


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
