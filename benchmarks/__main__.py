"""`python -m benchmarks`: measure the rows, print the table, write it down."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.accelerator import MARKDOWN, measure_accelerator
from benchmarks.benchmark_run import BenchmarkRun, Sizes
from benchmarks.chart import as_svg
from benchmarks.curves import CURVES
from benchmarks.curves import report as curves_report
from benchmarks.curves.curve import CurveResult, measure_curve
from benchmarks.facts import machine_facts
from benchmarks.harness import Row, RowResult, measure
from benchmarks.report import as_json, as_markdown
from benchmarks.rows import ROWS
from benchmarks.rows.accelerator import LIMITS as ACCELERATOR

_EXAMPLE = "example: python -m benchmarks --rows small,in-flight --rounds 9"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, epilog=_EXAMPLE)
    names = ", ".join(row.name for row in ROWS)
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up (5; quick: 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does everything run?")
    parser.add_argument(
        "--rows", default="", help=f"only these, with commas, or the beginning of some: {names}"
    )
    parser.add_argument("--peers", action="store_true", help="leave jaxd itself out")
    parser.add_argument("--ray", action="store_true", help="also a Ray actor, if installed")
    parser.add_argument("--dask", action="store_true", help="also Dask, if installed")
    parser.add_argument(
        "--accelerator",
        action="store_true",
        help="the rows for a GPU instead, each within its own time; those that --output has "
        "results of already are not measured again",
    )
    parser.add_argument(
        "--curves",
        nargs="*",
        choices=[curve.name for curve in CURVES],
        help="what a call costs as the work grows, instead of the rows: all curves, or these",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="directory for benchmarks.{md,json,svg}, or curves.{md,json,svg} (a whole run: docs; "
        "a part of one: none)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be 1 or more.")
    if chosen.accelerator:
        names = ", ".join(row.name for row in ACCELERATOR)
    for wanted in _split(chosen.rows):
        if not any(_is_one_of(row, [wanted]) for row in _rows(chosen)):
            parser.error(f"there is no row {wanted}; choose from {names}.")
    return chosen


def _is_one_of(row: Row, names: Sequence[str]) -> bool:
    """Whether a row is asked for by its name, or by that of several, as in `transfer`."""
    return any(row.name == name or row.name.startswith(f"{name}-") for name in names)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _rows(chosen: argparse.Namespace) -> Sequence[Row]:
    return tuple(ACCELERATOR) if chosen.accelerator else ROWS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status: 0 unless something broke.

    A missed target is a figure, not an error.
    """
    chosen = _parse(arguments)
    if chosen.curves is not None:
        return _main_of_curves(chosen)
    wanted = _split(chosen.rows)
    rows = [row for row in _rows(chosen) if not wanted or _is_one_of(row, wanted)]
    if chosen.accelerator:
        return _main_of_accelerator(rows, chosen)
    rounds = chosen.rounds or (2 if chosen.quick else 5)
    flags = frozenset(name for name in ("ray", "dask") if getattr(chosen, name))
    without = frozenset({"jaxd"} if chosen.peers else ())
    sizes = Sizes.quick() if chosen.quick else Sizes()
    with BenchmarkRun.open(sizes, flags, without) as run:
        results = _measure_all(rows, run, rounds)
    whole = not (wanted or chosen.quick or chosen.peers)
    output = chosen.output or (Path("docs") if whole else None)
    print(as_markdown(results, machine_facts(), rounds))
    if output is not None:
        write_reports(results, machine_facts(), rounds, output)
    return 0


def _main_of_curves(chosen: argparse.Namespace) -> int:
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    curves = [curve for curve in CURVES if not chosen.curves or curve.name in chosen.curves]
    whole = not (chosen.curves or chosen.quick)
    output, facts = chosen.output or (Path("docs") if whole else None), machine_facts()
    results = []
    with BenchmarkRun.open(Sizes.quick() if chosen.quick else Sizes()) as run:
        for curve in curves:
            sizes = curve.quick_sizes if chosen.quick else curve.sizes
            results.append(measure_curve(curve, run, rounds, sizes, _report))
            if output is not None:  # a run that is ended leaves the curves that it has
                _write_curves(results, facts, rounds, output)
    _report("")
    print(curves_report.page(results, facts, rounds))
    return 0


def _write_curves(
    results: Sequence[CurveResult], facts: dict[str, str], rounds: int, directory: Path
) -> None:
    contents = {
        "md": curves_report.page(results, facts, rounds),
        "svg": curves_report.chart(results),
        "json": _as_text(curves_report.as_data(results, facts, rounds)),
    }
    _write(directory, curves_report.PAGE, contents)


def _main_of_accelerator(rows: Sequence[Row], chosen: argparse.Namespace) -> int:
    """1 when a row broke.

    Server, client and plain jax are on the device at once, so each takes memory as it needs it.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    limits = {row: ACCELERATOR[row] for row in rows}
    sizes = replace(Sizes.quick(), blocks=1) if chosen.quick else Sizes.accelerator()
    rounds = chosen.rounds or (1 if chosen.quick else 3)
    output = chosen.output or Path("dist/accelerator")
    with BenchmarkRun.open(sizes) as run:
        warm_ups = 0 if chosen.quick else 1
        whole = measure_accelerator(limits, run, rounds, output, _report, warm_ups)
    _report("")
    print((output / MARKDOWN).read_text(encoding="utf-8"))
    return 0 if whole else 1


def _report(step: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)


def _measure_all(rows: Sequence[Row], run: BenchmarkRun, rounds: int) -> list[RowResult]:
    results = [measure(row, run, rounds, _report) for row in rows]
    _report("")
    return results


def write_reports(
    results: Sequence[RowResult], facts: dict[str, str], rounds: int, directory: Path
) -> None:
    """Writes `benchmarks.md`, `.json` and `.svg` into `directory`, which is made if missing."""
    contents = {"md": as_markdown(results, facts, rounds), "svg": as_svg(results)}
    contents["json"] = _as_text(as_json(results, facts, rounds))
    _write(directory, "benchmarks", contents)


def _as_text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _write(directory: Path, name: str, contents: Mapping[str, str]) -> None:
    """A file for each suffix, in a directory that is made if it is missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for suffix, text in contents.items():
        (directory / f"{name}.{suffix}").write_text(text, encoding="utf-8")


def _exit_on_sigterm(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)  # unwinds, so that every process that was started is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    sys.exit(main())
