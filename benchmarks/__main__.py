"""`python -m benchmarks`: measure the rows, print the table, write it down."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.benchmark_run import BenchmarkRun, Sizes
from benchmarks.chart import as_svg
from benchmarks.facts import machine_facts
from benchmarks.harness import Row, RowResult, measure
from benchmarks.report import as_json, as_markdown
from benchmarks.rows import ROWS

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
        "--output",
        type=Path,
        help="directory for benchmarks.{md,json,svg} (a whole run: docs; a part of one: none)",
    )
    chosen = parser.parse_args(arguments)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be 1 or more.")
    for wanted in _split(chosen.rows):
        if not any(_is_one_of(row, [wanted]) for row in ROWS):
            parser.error(f"there is no row {wanted}; choose from {names}.")
    return chosen


def _is_one_of(row: Row, names: Sequence[str]) -> bool:
    """Whether a row is asked for by its name, or by that of several, as in `transfer`."""
    return any(row.name == name or row.name.startswith(f"{name}-") for name in names)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status: 0 unless something broke.

    A missed target is a figure, not an error.
    """
    chosen = _parse(arguments)
    wanted = _split(chosen.rows)
    rows = [row for row in ROWS if not wanted or _is_one_of(row, wanted)]
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


def _measure_all(rows: Sequence[Row], run: BenchmarkRun, rounds: int) -> list[RowResult]:
    live = sys.stderr.isatty()

    def report(step: str) -> None:
        if live:
            print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)

    results = [measure(row, run, rounds, report) for row in rows]
    report("")
    return results


def write_reports(
    results: Sequence[RowResult], facts: dict[str, str], rounds: int, directory: Path
) -> None:
    """Writes `benchmarks.md`, `.json` and `.svg` into `directory`, which is made if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    data = json.dumps(as_json(results, facts, rounds), indent=2, ensure_ascii=False)
    contents = {"md": as_markdown(results, facts, rounds), "json": data + "\n"}
    contents["svg"] = as_svg(results)
    for suffix, text in contents.items():
        (directory / f"benchmarks.{suffix}").write_text(text, encoding="utf-8")


def _exit_on_sigterm(*_: object) -> None:
    sys.exit(128 + signal.SIGTERM)  # unwinds, so that every process that was started is ended


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_on_sigterm)
    sys.exit(main())
