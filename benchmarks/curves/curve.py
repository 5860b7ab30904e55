"""One curve: figures at a few sizes, measured in turn, and the slope of each."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Report

Unit = Literal["s", "B", "/s", ""]
"""Of a line: seconds, bytes, so many in a second, or so many."""

Sample = Callable[[int], Mapping[str, float]]
"""Measures one round at a size and returns the figures by the names of their lines."""

_FITTED: Final = 3
"""So many of the largest sizes are what a slope is fitted to, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of a curve.

    Attributes:
        name: as in the table and in the samples.
        unit: of its figures.
        spans: the smallest and the largest size of each slope that is fitted.
    """

    name: str
    unit: Unit
    spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Curve:
    """What grows, and what is measured of it.

    Attributes:
        name: how the command line calls it.
        title: what grows, in words.
        each: one of it, as in "for each leaf".
        sizes: at which it is measured.
        quick_sizes: those that only show that everything runs.
        lines: its figures.
        start: gets the run and the largest size, and returns what measures a round.
        about: how it was measured, in sentences.
        bound: what the slopes come from, in sentences.
        each_size: how much larger the size is for each of them; a megabyte has more than one byte.
    """

    name: str
    title: str
    each: str
    sizes: tuple[int, ...]
    quick_sizes: tuple[int, ...]
    lines: tuple[Line, ...]
    start: Callable[[BenchmarkRun, int], Sample]
    about: str
    bound: str
    each_size: int = 1


@dataclass(frozen=True, slots=True)
class Slope:
    """How much a figure grows from one size to another, for each more.

    Attributes:
        first: the smallest size of the fit.
        last: the largest.
        value: in the unit of the line.
    """

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True)
class CurveResult:
    """What was measured: by line and size the figure of every round."""

    curve: Curve
    rounds: Mapping[str, Mapping[int, Sequence[float]]]

    def medians(self, line: Line) -> dict[int, float]:
        """The median of all rounds, by size; without sizes at which it cannot be measured."""
        found = self.rounds.get(line.name, {})
        return {size: statistics.median(figures) for size, figures in found.items()}

    def slopes(self, line: Line) -> Iterator[Slope]:
        """One for each span of the line of which two sizes were measured."""
        medians = self.medians(line)
        largest = sorted(medians)[-_FITTED:]
        for first, last in line.spans or ((largest[0], largest[-1]),) if largest else ():
            fitted = [size for size in sorted(medians) if first <= size <= last]
            if len(fitted) > 1:
                value = slope(fitted, [medians[size] for size in fitted])
                yield Slope(fitted[0], fitted[-1], value * self.curve.each_size)


def slope(sizes: Sequence[float], figures: Sequence[float]) -> float:
    """Of the straight line with the least squares, in the unit of the figures for each one more."""
    return float(np.polyfit(np.asarray(sizes, float), np.asarray(figures, float), 1)[0])


def measure_curve(
    curve: Curve,
    run: BenchmarkRun,
    rounds: int,
    sizes: Sequence[int],
    report: Report = lambda _: None,
) -> CurveResult:
    """All sizes in turn, then all again, for so many rounds; what was started is ended."""
    figures: dict[str, dict[int, list[float]]] = {line.name: {} for line in curve.lines}
    with run.fresh() as own:
        report(f"{curve.name}: starting")
        sample = curve.start(own, max(sizes))
        for turn in range(rounds):
            for size in sizes:
                report(f"{curve.name}: round {turn + 1} of {rounds}, {size}")
                for name, figure in sample(size).items():
                    figures[name].setdefault(size, []).append(figure)
    return CurveResult(curve, figures)
