"""`make identity`: random projects, edited while they run, against plain jax.

Each answer of the server has to be that of a fresh `jax.jit`, to the last bit. What is found is
made small and printed as a script that shows it. Exits with 1 when something was found, or when
with `--switch-off` nothing was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.generator.kinds import FEATURES, REFUSED
from tests.generator.mechanisms import SWITCHES
from tests.generator.plans import FUNCTIONS, Plan, drawn
from tests.generator.processes import Processes
from tests.generator.running import Finding, Report, run_plan, run_plans
from tests.generator.shrinking import script, shrunk

_PRINTED: Final = 2
"""Scripts that are printed whole; all are written into files."""


def main() -> int:
    """1 when something is not as it has to be."""
    parser = argparse.ArgumentParser(prog="python -m tests.generator", description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--programs", type=int, default=5000, help="(default: 5000)")
    parser.add_argument(
        "--switch-off",
        choices=[*SWITCHES, "all"],
        help="take a mechanism away at both ends, and find what it is for, within 2,000 programs",
    )
    parser.add_argument("--feature", nargs="+", choices=list(FEATURES), default=[], metavar="NAME")
    parser.add_argument("--shrink", type=int, default=10, help="how many findings to make small")
    arguments = parser.parse_args()
    if arguments.switch_off is not None:
        names = list(SWITCHES) if arguments.switch_off == "all" else [arguments.switch_off]
        least = min(arguments.programs, 2000)
        found = [_is_found(name, arguments.seed, least) for name in names]
        return int(not all(found))
    print(f"{arguments.programs:,} programs, seed {arguments.seed}", flush=True)
    started = time.monotonic()
    with Processes() as processes:
        plans = _plans(arguments.seed, arguments.programs, arguments.feature)
        report = run_plans(processes, plans)
        spent = time.monotonic() - started
        print(_figures(report, spent), flush=True)
        _show(processes, report.findings, arguments.shrink)
    return int(bool(report.findings))


def _plans(seed: int, programs: int, only: list[str]) -> Iterator[Plan]:
    """Each has a seed of its own, counted on from the first."""
    for number in range(-(-programs // FUNCTIONS)):
        yield drawn(seed + number, only=only)


def _figures(report: Report, spent: float) -> str:
    rate = f"{report.programs / spent:.1f} programs a second"
    seen = f"{report.programs:,} programs, {report.calls:,} calls in {spent:.0f} s ({rate})"
    lines = [f"{seen}: {len(report.findings)} findings"]
    for kind in REFUSED:
        refused, answered = report.refused[kind], report.answered[kind]
        if refused or answered:
            lines.append(f"  {kind}: refused {refused} times, answered {answered} times")
    idle = [kind for kind in REFUSED if report.answered[kind] and not report.refused[kind]]
    if idle:
        lines.append(f"  never refused, which may leave the table: {', '.join(idle)}")
    return "\n".join(lines)


def _show(processes: Processes, findings: list[Finding], most: int) -> None:
    """The findings, made small: each sort once, as a script, and how many are like it."""
    shown: dict[tuple[str, frozenset[str]], int] = {}
    scripts = Path(tempfile.mkdtemp(prefix="jaxd-found-"))
    for finding in findings:
        print(f"  {finding.what}, seed {finding.plan.seed}: {finding.text}", flush=True)
    for finding in sorted(findings, key=lambda one: one.what != "wrong"):
        like = [sort for sort in shown if sort[0] == finding.what and sort[1] <= finding.pieces]
        if like:
            shown[like[0]] += 1
        elif len(shown) < most:
            small = shrunk(finding, lambda plan: run_plan(processes, plan).findings)
            shown[small.what, small.pieces] = 1
            path = scripts / f"{small.what}_{small.plan.seed}_{len(shown)}.py"
            path.write_text(script(small))
            print(f"\n{small.what}: {small.features}\n  {small.text}", flush=True)
            print(f"  seed {small.plan.seed}; {path} shows it", flush=True)
            if len(shown) <= _PRINTED:
                print(f"\n{path.read_text()}", flush=True)
    for (what, pieces), count in shown.items():
        print(f"{count:>5}  {what}: {', '.join(sorted(pieces))}")


def _is_found(name: str, seed: int, programs: int) -> bool:
    """Whether without a mechanism a wrong answer is found that is right with all of them."""
    started = time.monotonic()
    with Processes((name,)) as processes, Processes() as sound:

        def shows(finding: Finding) -> bool:
            if finding.what != "wrong":
                return False
            return all(one.what != "wrong" for one in run_plan(sound, finding.plan).findings)

        report = run_plans(processes, _plans(seed, programs, []), until=shows)
    spent = time.monotonic() - started
    what = "found" if report.shown else "NOT found"
    print(
        f"{name} switched off, seed {seed}: {what} after {report.programs:,} programs, "
        f"{spent:.0f} s",
        flush=True,
    )
    if report.shown:
        print(f"  {report.shown.features}: {report.shown.text}", flush=True)
    return report.shown is not None


if __name__ == "__main__":
    sys.exit(main())
