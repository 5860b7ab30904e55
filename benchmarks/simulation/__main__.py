"""`python -m benchmarks.simulation`: pools of up to 1,000 members as discrete events.

Prints what comes out, with its seeds. `--output docs` writes the page, its chart and its data
there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.simulation import report
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.run import VARIANTS, Outcome
from benchmarks.simulation.studies import (
    SIZES,
    STUDIES,
    Run,
    Study,
    added,
    simulate,
    simulate_sizes,
    simulate_study,
)

_EXAMPLE = "example: python -m benchmarks.simulation --members 16 64 --studies bound --seeds 1 2"
_QUICK_SIZES = (2, 6)
_QUICK = {"functions_of_a_member": 20, "member_calls": 150, "programs": 40}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks.simulation", description=__doc__, epilog=_EXAMPLE)
    parser.add_argument("--members", type=int, nargs="+", help="sizes of the pool")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="a run for each (1 2 3)"
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=[variant.name for variant in VARIANTS],
        metavar="NAME",
        help=f"ways to route: all (none given), or these of {[each.name for each in VARIANTS]}",
    )
    parser.add_argument(
        "--studies",
        nargs="*",
        choices=[study.name for study in STUDIES],
        help="what is varied beside the size: all (none given), or these; without names: nothing",
    )
    parser.add_argument("--processes", type=int, help="at the same time (cores; quick: 1)")
    parser.add_argument("--quick", action="store_true", help="small: does everything run?")
    parser.add_argument("--output", type=Path, help="folder for scale.{md,json,svg}")
    parser.add_argument(
        "--add", action="store_true", help="keep what the page in --output has of other runs"
    )
    chosen = parser.parse_args(arguments)
    if chosen.add and not chosen.output:
        parser.error("--add is for a page that there is: name its folder with --output.")
    if any(members < 1 for members in chosen.members or ()):
        parser.error("--members must be 1 or more.")
    return chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulates, prints and writes; returns the exit status, 0."""
    chosen = _parse(arguments)
    sizes = chosen.members or (_QUICK_SIZES if chosen.quick else SIZES)
    parameters = replace(Parameters(), **_QUICK) if chosen.quick else Parameters()
    names = chosen.variants or [each.name for each in VARIANTS]
    variants = [each for each in VARIANTS if each.name in names]
    with ExitStack() as ends:
        run = _runner(chosen, ends)
        before, studies = _read(chosen.output) if chosen.add else ([], {})
        now = simulate_sizes(sizes, chosen.seeds, parameters, run, variants)
        outcomes = added(before, now)
        page = _write(outcomes, studies, parameters, chosen)
        for study in STUDIES:
            if chosen.studies is None or study.name in chosen.studies:
                measured = _sizes_of(study, chosen)
                seeds = chosen.seeds[:1]
                studies[study.name] = simulate_study(study, measured, seeds, parameters, run)
                page = _write(outcomes, studies, parameters, chosen)
    print(page)
    return 0


def _read(folder: Path) -> tuple[list[Outcome], dict[str, dict[str, list[Outcome]]]]:
    """What the page in a folder was made of: sizes and studies."""
    data = json.loads((folder / f"{report.PAGE}.json").read_text(encoding="utf-8"))
    studies = {
        name: {setting: [Outcome(**row) for row in rows] for setting, rows in study.items()}
        for name, study in data["studies"].items()
    }
    return [Outcome(**row) for row in data["sizes"]], studies


def _write(
    outcomes: Sequence[Outcome],
    studies: Mapping[str, Mapping[str, Sequence[Outcome]]],
    parameters: Parameters,
    chosen: argparse.Namespace,
) -> str:
    """Writes what there is so far, if it is to be written; the page."""
    seeds = sorted({each.seed for each in outcomes})
    page = report.page(outcomes, studies, parameters, seeds)
    if chosen.output:
        chosen.output.mkdir(parents=True, exist_ok=True)
        contents = {
            "md": page,
            "svg": report.chart(outcomes, studies.get("stale", {})),
            "json": json.dumps(report.as_data(outcomes, studies), indent=1) + "\n",
        }
        for suffix, text in contents.items():
            (chosen.output / f"{report.PAGE}.{suffix}").write_text(text, encoding="utf-8")
    return page


def _sizes_of(study: Study, chosen: argparse.Namespace) -> Sequence[int]:
    sizes: Sequence[int] = chosen.members or (_QUICK_SIZES if chosen.quick else study.members)
    return sizes


def _runner(chosen: argparse.Namespace, ends: ExitStack) -> Run:
    """Which processes simulate; each keeps the orders of the keys that it has seen."""
    count = chosen.processes or (1 if chosen.quick else len(os.sched_getaffinity(0)))
    if count == 1:
        return lambda tasks: map(_tell, map(simulate, tasks))
    processes = ends.enter_context(ProcessPoolExecutor(count))
    return lambda tasks: map(_tell, processes.map(simulate, tasks))


def _tell(outcome: Outcome) -> Outcome:
    print(
        f"{outcome.members} members, {outcome.functions} functions, {outcome.calls} calls in "
        f"{outcome.seconds:.0f} s, {outcome.variant}, seed {outcome.seed}: "
        f"{100 * outcome.warm:.2f} % warm, p99 {outcome.p99:.3f} s",
        file=sys.stderr,
        flush=True,
    )
    return outcome


if __name__ == "__main__":
    sys.exit(main())
