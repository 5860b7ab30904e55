"""The page of the curves: for each its chart, its table, its slopes and what they come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.chart import Panel, curves_as_svg
from benchmarks.curves.curve import Curve, CurveResult, Line, Unit
from benchmarks.report import format_bytes, format_seconds, table

PAGE: Final = "curves"

_PREAMBLE = """\
# What a call costs as the work grows

Written by `make bench BENCH_ARGS="--curves"`. Each figure is the median of {rounds} rounds, in
which all sizes of a curve were measured in turn; in brackets the range of the rounds. Slopes are
those of a straight line, fitted by least squares to the medians of the largest three sizes, or of
those that stand with it. A small call has an array of 64 bytes and returns one. The clients have no
jax, and speak with the server over its Unix socket where nothing else is said. What a call takes
that can be counted (messages, bytes, functions, allocations) has limits, which a test checks
(`tests/end_to_end/test_counted_work.py`).

![Each figure over its size]({page}.svg)
"""


def _count(figure: float) -> str:
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{round(figure, 6):.3g}"


_FORMATS: Final[dict[Unit, Callable[[float], str]]] = {
    "s": format_seconds,
    "B": format_bytes,
    "/s": _count,
    "": _count,
}


def _shown(figure: float, unit: Unit) -> str:
    text = _FORMATS[unit](abs(figure))
    return f"-{text}" if figure < 0 and text != "0" else text


def page(results: Sequence[CurveResult], facts: Mapping[str, str], rounds: int) -> str:
    """All of it as Markdown."""
    parts = [_PREAMBLE.format(rounds=rounds, page=PAGE)]
    parts += [_section(result) for result in results]
    machine = [*facts.items(), ("rounds", str(rounds))]
    return "\n".join([*parts, "## Machine\n", table(("what", "value"), machine)])


def _section(result: CurveResult) -> str:
    curve = result.curve
    sizes = sorted({size for line in curve.lines for size in result.medians(line)})
    rows = [_row(result, line, sizes) for line in curve.lines]
    head = ("", *(size_text(curve, size) for size in sizes), f"for each {curve.each}")
    parts = [f"## {curve.title}\n", f"{curve.about}\n", table(head, rows)]
    parts.append(f"**What bounds it.** {curve.bound}\n")
    return "\n".join(parts)


def _row(result: CurveResult, line: Line, sizes: Sequence[int]) -> list[str]:
    medians, show = result.medians(line), partial(_shown, unit=line.unit)
    cells = [line.name]
    for size in sizes:
        figures = result.rounds[line.name].get(size, ())
        spread = f" ({show(min(figures))} to {show(max(figures))})" if len(figures) > 1 else ""
        cells.append(f"{show(medians[size])}{spread}" if figures else "")
    return [*cells, "; ".join(_slopes(result, line))]


def _slopes(result: CurveResult, line: Line) -> Iterator[str]:
    """Not of a rate, which is no sum of what each one adds."""
    if line.unit == "/s":
        return
    for slope in result.slopes(line):
        span = " to ".join(size_text(result.curve, size) for size in (slope.first, slope.last))
        suffix = f" ({span})" if line.spans else ""
        yield f"{_shown(slope.value, line.unit)}{suffix}"


def size_text(curve: Curve, size: int) -> str:
    """A size as it stands in tables: `2,000`, `64 kB`."""
    if curve.each_size == 1:
        return f"{size:,}"
    for scale, unit in ((2**10, "kB"), (2**20, "MB")):
        if size < scale * 2**10:
            return f"{size // scale} {unit}"
    return f"{size // 2**30} GB"


def chart(results: Sequence[CurveResult]) -> str:
    """A panel for the times of each curve, and one for its memory."""
    return curves_as_svg([panel for result in results for panel in _panels(result)])


def _panels(result: CurveResult) -> Iterator[Panel]:
    curve = result.curve
    for unit, what in (("s", "time"), ("B", "memory")):
        lines = {x.name: result.medians(x) for x in curve.lines if x.unit == unit}
        if lines:
            yield Panel(
                f"{curve.title}: {what}",
                lines,
                lambda size: size_text(curve, size),
                format_seconds if unit == "s" else format_bytes,
            )


def as_data(
    results: Sequence[CurveResult], facts: Mapping[str, str], rounds: int
) -> dict[str, Any]:
    """The same as plain data: seconds, bytes and counts, every round kept."""
    return {
        "machine": dict(facts),
        "rounds": rounds,
        "curves": [
            {
                "name": result.curve.name,
                "lines": [
                    {
                        "name": line.name,
                        "unit": line.unit,
                        "rounds": {str(k): list(v) for k, v in result.rounds[line.name].items()},
                        "slopes": [
                            {"from": s.first, "to": s.last, "for each": s.value}
                            for s in result.slopes(line)
                        ],
                    }
                    for line in result.curve.lines
                ],
            }
            for result in results
        ],
    }
