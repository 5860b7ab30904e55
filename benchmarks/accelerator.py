"""Measures the rows for an accelerator: each within its time, each written down when it is there.

A run that was ended goes on: a row that has a result in the folder is not measured again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.facts import machine_facts
from benchmarks.harness import Report, Row, RowResult, measure
from benchmarks.report import as_json, verdicts_and_medians

JSON: Final = "accelerator.json"
MARKDOWN: Final = "accelerator.md"


def measure_accelerator(
    limits: Mapping[Row, float],
    run: BenchmarkRun,
    rounds: int,
    output: Path,
    report: Report,
    warm_ups: int = 1,
) -> bool:
    """Measures what has no result in `output` yet; whether no row broke."""
    output.mkdir(parents=True, exist_ok=True)
    known = _rows_in(output / JSON)
    failed = False
    for row, limit_s in limits.items():
        if row.name in known:
            continue
        until = time.monotonic() + limit_s
        try:
            result = measure(row, run, rounds, report, partial(_is_before, until), warm_ups)
        except (RuntimeError, AssertionError) as error:
            failed = True
            words = " ".join(str(error).split())[-400:].replace("|", "/")
            result = RowResult(row, {}, dict.fromkeys((v.name for v in row.variants), words))
        if result.rounds:  # else the next run measures it
            known |= _data_of([result], rounds)
        _write_texts(output, [*known.values()], [result], rounds)
    return not failed


def _is_before(end: float) -> bool:
    return time.monotonic() < end


def _rows_in(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return {row["name"]: row for row in json.loads(path.read_text())["rows"]}


def _data_of(results: Sequence[RowResult], rounds: int) -> dict[str, Any]:
    return {row["name"]: row for row in as_json(results, {}, rounds)["rows"]}


def _write_texts(output: Path, rows: Sequence[Any], new: Sequence[RowResult], rounds: int) -> None:
    facts = machine_facts()
    data = {"machine": facts, "rounds": rounds, "rows": list(rows)}
    (output / JSON).write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    with (output / MARKDOWN).open("a", encoding="utf-8") as page:
        page.write(verdicts_and_medians(new))
        page.write("\n")
