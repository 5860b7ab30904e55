"""The table as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.harness import Outcome, RowResult

_PREAMBLE = """\
# Benchmarks

Written by `make bench`. Every figure is a ratio of medians that were measured in turn
(A B C A B C …) in one run on one machine; the range is that of single rounds. A figure
of another run or another machine is not comparable, the ratios roughly are. What calls cost
as the work grows (clients, functions, leaves, values, bytes) is in [curves.md](curves.md).
"""


def format_seconds(seconds: float) -> str:
    """Three digits and the unit that suits: `412 ns`, `31.2 µs`, `12.4 ms`, `2.81 s`."""
    for scale, unit in ((1e-6, "ns"), (1e-3, "µs"), (1.0, "ms")):
        if seconds < scale:
            return f"{seconds / scale * 1e3:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_bytes(count: float) -> str:
    """Three digits and the unit that suits: `840 B`, `33.1 kB`, `6.4 MB`, `1.2 GB`."""
    for scale, unit in ((1e3, "B"), (1e6, "kB"), (1e9, "MB")):
        if count < scale:
            return f"{count / scale * 1e3:.3g} {unit}"
    return f"{count / 1e9:.3g} GB"


_SHOWN: Final = {"s": format_seconds, "B": format_bytes}


def as_markdown(results: Sequence[RowResult], facts: Mapping[str, str], rounds: int) -> str:
    """The whole page: verdicts, the medians behind them, and the machine."""
    parts = [_PREAMBLE]
    if any(outcome.ratio is not None for result in results for outcome in result.outcomes):
        parts.append("![Each ratio as a share of its target](benchmarks.svg)\n")
    parts.append(verdicts_and_medians(results))
    parts += ["## Machine\n", table(("what", "value"), [*facts.items(), ("rounds", str(rounds))])]
    return "\n".join(parts)


def verdicts_and_medians(results: Sequence[RowResult]) -> str:
    """The two tables of the page."""
    return "\n".join([_verdicts(results), "## Medians\n", _medians(results)])


def _verdicts(results: Iterable[RowResult]) -> str:
    lines = [
        ("" if place else result.row.title, *_outcome_cells(outcome))
        for result in results
        for place, outcome in enumerate(result.outcomes)
    ]
    return table(("row", "ratio", "measured", "range", "target", "verdict"), lines)


def _outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    text, target = outcome.comparison.text, str(outcome.comparison.target or "none")
    if outcome.ratio is None:
        return text, "", "", target, outcome.verdict
    spread = f"{outcome.lowest:.3g} to {outcome.highest:.3g}"
    return text, f"**{outcome.ratio:.3g}**", spread, target, outcome.verdict


def _medians(results: Iterable[RowResult]) -> str:
    lines = []
    for result in results:
        for variant in result.row.variants:
            figure = result.medians.get(variant.name)
            shown = "" if figure is None else _SHOWN[result.row.unit](figure)
            lines.append(
                (result.row.name, variant.name, shown, result.left_out.get(variant.name, ""))
            )
    return table(("row", "variant", "median", "left out because"), lines)


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def as_json(results: Sequence[RowResult], facts: Mapping[str, str], rounds: int) -> dict[str, Any]:
    """The same as plain data; times in seconds, sizes in bytes, every round kept."""
    return {
        "machine": dict(facts),
        "rounds": rounds,
        "rows": [_row_data(result) for result in results],
    }


def _row_data(result: RowResult) -> dict[str, Any]:
    return {
        "name": result.row.name,
        "title": result.row.title,
        "unit": result.row.unit,
        "median": result.medians,
        "rounds": {name: list(figures) for name, figures in result.rounds.items()},
        "left_out": dict(result.left_out),
        "ratios": [_outcome_data(outcome) for outcome in result.outcomes],
    }


def _outcome_data(outcome: Outcome) -> dict[str, Any]:
    target = outcome.comparison.target
    return {
        "ratio": outcome.comparison.text,
        "measured": outcome.ratio,
        "lowest": outcome.lowest,
        "highest": outcome.highest,
        "target": None if target is None else {"bound": target.bound, "value": target.value},
        "verdict": outcome.verdict,
    }
