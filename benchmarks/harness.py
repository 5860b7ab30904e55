"""Rows, variants and ratios: what is measured, in turn, and how medians become verdicts."""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.processes import NotMeasurable

Sampler = Callable[[], float]
"""Measures one round and returns its figure: a p50, or a mean per call, in the unit of its row."""

Report = Callable[[str], None]
"""Called with what is about to be measured."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a ratio has to reach: `at most 1.3` or `at least 10`."""

    bound: Literal["at most", "at least"]
    value: float

    def is_met_by(self, ratio: float) -> bool:
        """Whether the ratio reaches the target; the bound itself does."""
        return ratio <= self.value if self.bound == "at most" else ratio >= self.value

    def share_used(self, ratio: float) -> float:
        """How much of the target a ratio uses: 1.0 is just met, less is better."""
        return ratio / self.value if self.bound == "at most" else self.value / ratio

    def __str__(self) -> str:
        return f"{'≤' if self.bound == 'at most' else '≥'} {self.value:g}"


_SAMPLES_OF_A_START: Final = 5
"""Ray needs 11 ms for a call with 64 MB, or 40 ms, for ten calls on end: it depends on whether the
memory has been touched before."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do a row's work.

    Attributes:
        name: how tables and comparisons call it.
        start: brings it to the point where it can be measured again and again.
        needs: importable modules without which it is left out.
        flag: the command line flag without which it is left out, if any.
        is_restless: whether it has processes that work while nobody asks them; it is started anew
            for each round, so that they take no processor time from what is measured beside it.
    """

    name: str
    start: Callable[[BenchmarkRun], Sampler]
    needs: tuple[str, ...] = ()
    flag: str | None = None
    is_restless: bool = False

    def missing(self, run: BenchmarkRun) -> str | None:
        """Why this variant cannot be measured here, or None when it can."""
        if self.flag and self.flag not in run.flags:
            return f"asked for by --{self.flag}"
        for module in self.needs:
            if module in run.without or importlib.util.find_spec(module) is None:
                return f"{module} is left out" if module in run.without else f"no {module} here"
        return None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A ratio: the sum of the `over` figures by that of the `under` ones and an allowance.

    Attributes:
        text: the ratio in words, `a / b`.
        over: names of variants.
        under: names of variants.
        target: what to reach; None for a ratio that is only reported.
        allowance: seconds, or bytes, that are added below the line.
    """

    text: str
    over: tuple[str, ...]
    under: tuple[str, ...]
    target: Target | None
    allowance: float = 0.0

    def ratio(self, figures: Mapping[str, float]) -> float:
        """The ratio for one set of figures, by variant name."""
        below = sum(figures[name] for name in self.under) + self.allowance
        return sum(figures[name] for name in self.over) / below


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: variants measured in turn, and the ratios between them.

    Attributes:
        name: how the command line calls it, alone or with others that begin alike.
        title: the row in words.
        variants: what is measured.
        comparisons: the ratios.
        unit: of its figures: seconds, or bytes.
    """

    name: str
    title: str
    variants: tuple[Variant, ...]
    comparisons: tuple[Comparison, ...]
    unit: Literal["s", "B"] = "s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One comparison with what came out.

    Attributes:
        ratio: of the medians; None when a variant was left out.
        lowest: the lowest ratio of any single round.
        highest: the highest one.
    """

    comparison: Comparison
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None

    @property
    def verdict(self) -> Literal["pass", "miss", "not measured", "no target"]:
        """The word for the table."""
        if self.ratio is None:
            return "not measured"
        if self.comparison.target is None:
            return "no target"
        return "pass" if self.comparison.target.is_met_by(self.ratio) else "miss"


@dataclass(frozen=True, slots=True)
class RowResult:
    """What one row gave: every round's figures by variant, and why others were left out."""

    row: Row
    rounds: Mapping[str, Sequence[float]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def medians(self) -> dict[str, float]:
        """The median over all rounds, by variant."""
        return {name: statistics.median(figures) for name, figures in self.rounds.items()}

    @property
    def outcomes(self) -> list[Outcome]:
        """Every comparison of the row, measured or not, in the order of the row."""
        return [self._outcome(comparison) for comparison in self.row.comparisons]

    def _outcome(self, comparison: Comparison) -> Outcome:
        names = comparison.over + comparison.under
        if any(name not in self.rounds for name in names):
            return Outcome(comparison)
        by_round = zip(*(self.rounds[name] for name in names), strict=True)
        single = [comparison.ratio(dict(zip(names, one, strict=True))) for one in by_round]
        return Outcome(comparison, comparison.ratio(self.medians), min(single), max(single))


def measure(
    row: Row,
    run: BenchmarkRun,
    rounds: int,
    report: Report = lambda _: None,
    has_time: Callable[[], bool] = lambda: True,
    warm_ups: int = 1,
) -> RowResult:
    """What every variant that can run here takes, sampled in turn: A B C A B C.

    A warm-up round comes first and is thrown away. No round begins once `has_time` says no.
    Whatever the variants started is ended before this returns.
    """
    left_out = {v.name: why for v in row.variants if (why := v.missing(run)) is not None}
    present = [variant for variant in row.variants if variant.name not in left_out]
    with run.fresh() as own:
        report(f"{row.name}: starting")
        samplers = {}
        for variant in present:
            try:
                samplers[variant.name] = _start_variant(variant, own)
            except NotMeasurable as why:
                left_out[variant.name] = str(why)
        figures = interleave(
            samplers, rounds, lambda step: report(f"{row.name}: {step}"), has_time, warm_ups
        )
    if samplers and not all(figures.values()):
        left_out |= dict.fromkeys(samplers, "no time was left")
        figures = {}
    return RowResult(row, figures, left_out)


def _start_variant(variant: Variant, run: BenchmarkRun) -> Sampler:
    if not variant.is_restless:
        return variant.start(run)

    def sample() -> float:
        with run.fresh() as own:
            sampler = variant.start(own)
            sampler()  # a warm-up, as the others have had
            return statistics.median(sampler() for _ in range(_SAMPLES_OF_A_START))

    return sample


def interleave(
    samplers: Mapping[str, Sampler],
    rounds: int,
    report: Report = lambda _: None,
    has_time: Callable[[], bool] = lambda: True,
    warm_ups: int = 1,
) -> dict[str, list[float]]:
    """Samples each in turn, `rounds` times after the discarded warm-up round, or fewer.

    Fewer where `has_time` is false before a round.
    """
    figures: dict[str, list[float]] = {name: [] for name in samplers}
    for step in range(1 - warm_ups, rounds + 1):
        if not has_time():
            break
        for name, sample in samplers.items():
            report(f"{'warm-up' if step < 1 else f'round {step} of {rounds}'}, {name}")
            figure = sample()
            if step > 0:
                figures[name].append(figure)
    return figures
