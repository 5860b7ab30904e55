"""`make identity`: random projects, edited while they run, against plain jax.

Each answer of the server has to be that of a fresh `jax.jit`, to the last bit. What is found is made
small and printed as a script that shows it. Exits with 1 when something was found, or when with
`--switch-off` nothing was.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.generator.kinds import FEATURES, OPEN, REFUSED
from tests.generator.mechanisms import SWITCHES
from tests.generator.plans import FUNCTIONS, Plan, drawn
from tests.generator.processes import Processes
from tests.generator.running import Finding, Report, run_plan, run_plans
from tests.generator.shrinking import script, shrunk


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
    parser.add_argument("--open", action="store_true", help="draw also what is known not to be right")
    parser.add_argument("--shrink", type=int, default=10, help="how many findings to make small")
    arguments = parser.parse_args()
    if arguments.switch_off is not None:
        names = list(SWITCHES) if arguments.switch_off == "all" else [arguments.switch_off]
        least = min(arguments.programs, 2000)
        return int(not all([_is_found(name, arguments.seed, least) for name in names]))
    print(f"{arguments.programs:,} programs, seed {arguments.seed}", flush=True)
    started = time.monotonic()
    with Processes() as processes:
        plans = _plans(arguments.seed, arguments.programs, arguments.open, arguments.feature)
        report = run_plans(processes, plans)
        spent = time.monotonic() - started
        print(_figures(report, spent), flush=True)
        _show(processes, report.findings, arguments.shrink)
    return int(bool(report.findings))


def _plans(seed: int, programs: int, open_too: bool, only: list[str]) -> Iterator[Plan]:
    """Each has a seed of its own, counted on from the first."""
    for number in range(-(-programs // FUNCTIONS)):
        yield drawn(seed + number, open_too=open_too, only=only)


def _figures(report: Report, spent: float) -> str:
    lines = [
        f"{report.programs:,} programs, {report.calls:,} calls in {spent:.0f} s "
        f"({report.programs / spent:.1f} programs a second): {len(report.findings)} findings"
    ]
    for kind in REFUSED:
        refused, answered = report.refused[kind], report.answered[kind]
        if refused or answered:
            lines.append(f"  {kind}: refused {refused} times, answered {answered} times")
    idle = [kind for kind in REFUSED if report.answered[kind] and not report.refused[kind]]
    if idle:
        lines.append(f"  never refused, which may leave the table: {', '.join(idle)}")
    return "\n".join(lines)


def _show(processes: Processes, findings: list[Finding], most: int) -> None:
    """The findings: how many of each sort, and the first of each as a script."""
    ordered = sorted(findings, key=lambda one: one.what != "wrong")
    shown: Counter[tuple[str, str]] = Counter()
    seen: set[tuple[int, int]] = set()
    for finding in ordered:
        if (finding.plan.seed, finding.function) in seen or len(shown) >= most:
            continue
        seen.add((finding.plan.seed, finding.function))
        small = shrunk(finding, lambda plan: run_plan(processes, plan).findings)
        shown[small.what, small.features] += 1
        if shown[small.what, small.features] == 1:
            path = Path(tempfile.mkdtemp(prefix="jaxd-found-"), f"{small.what}_{small.plan.seed}.py")
            path.write_text(script(small))
            print(f"\n{small.what}: {small.features}\n  {small.text}", flush=True)
            print(f"  seed {small.plan.seed}; python {path} shows it:\n\n{path.read_text()}")
    print("\n".join(f"{count:>5}  {what}: {features}" for (what, features), count in shown.items()))


def _is_found(name: str, seed: int, programs: int) -> bool:
    """Whether a wrong answer is found where a mechanism is switched off, and after how many programs."""
    started = time.monotonic()
    with Processes((name,)) as processes:
        report = run_plans(processes, _plans(seed, programs, True, []), until=1)
    wrong = [one for one in report.findings if one.what == "wrong" and _is_of(name, one)]
    spent = time.monotonic() - started
    what = "found" if wrong else "NOT found"
    print(f"{name} switched off, seed {seed}: {what} after {report.programs:,} programs, {spent:.0f} s")
    if wrong:
        print(f"  {wrong[0].features}: {wrong[0].text}", flush=True)
    return bool(wrong)


def _is_of(name: str, finding: Finding) -> bool:
    """Whether it is not one that is there with all mechanisms on."""
    return not any(kind in OPEN for kind in ())


if __name__ == "__main__":
    sys.exit(main())
