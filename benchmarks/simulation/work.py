"""What a pool is asked to do: functions, how often each is called, and when by whom."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist
from typing import Final

import numpy as np

from benchmarks.simulation.parameters import Parameters

_CHUNK: Final = 8192
_GOLDEN: Final = (5**0.5 - 1) / 2
"""Steps of this size fill the interval from 0 to 1 evenly, however many there are."""


class Work:
    """The functions of a pool by their rank, the first one the most popular.

    Durations follow from the rank, so that the few functions that make up most calls are no matter
    of luck: the first one takes the median, and those after it are spread over the whole range.

    Attributes:
        functions: how many there are.
        clients: how many processes call them.
        run_s: the run of each.
        compile_s: tracing and compiling each.
        load_s: loading each.
        rate: calls in a second.
        shares: of the calls, by function.
    """

    def __init__(self, members: int, parameters: Parameters, seed: int) -> None:
        self.functions = members * parameters.functions_of_a_member
        self.clients = members * parameters.clients_of_a_member
        places = np.arange(self.functions) * _GOLDEN % 1
        self.run_s = _lognormal((places + 0.5) % 1, parameters.run_median_s, parameters.run_sigma)
        self.compile_s = _lognormal(
            (places * 7 + 0.5) % 1, parameters.compile_median_s, parameters.compile_sigma
        )
        grown = self.compile_s / parameters.load_of_s
        self.load_s = parameters.load_least_s * np.maximum(1, grown) ** parameters.load_power
        weights = np.arange(1, self.functions + 1) ** -parameters.zipf
        self.shares = weights / weights.sum()
        self.rate = parameters.busy * members / float(self.shares @ self.run_s)
        most = max(parameters.run_calls, round(parameters.run_s * self.rate))
        self.calls = min(most, members * parameters.member_calls)
        self._edits = self.functions * parameters.edits_an_hour / 3600
        self._past, self._calling, self._editing = np.random.default_rng(seed).spawn(3)
        self._sums = np.cumsum(self.shares)

    @property
    def seconds(self) -> float:
        """How long its calls take to arrive, roughly."""
        return self.calls / self.rate

    def drawn(self, count: int) -> list[int]:
        """Functions of so many calls in the past."""
        return self._drawn(self._past, count)

    def _drawn(self, chance: np.random.Generator, count: int) -> list[int]:
        found = np.searchsorted(self._sums, chance.random(count))
        drawn: list[int] = np.minimum(found, self.functions - 1).tolist()
        return drawn

    def arrivals(self) -> Iterator[tuple[float, int, int]]:
        """When which client calls which function, in the order of time."""
        now, chance = 0.0, self._calling
        for first in range(0, self.calls, _CHUNK):
            count = min(_CHUNK, self.calls - first)
            times = now + np.cumsum(chance.exponential(1 / self.rate, count))
            now = float(times[-1])
            clients = chance.integers(0, self.clients, count)
            yield from zip(
                times.tolist(), clients.tolist(), self._drawn(chance, count), strict=True
            )

    def edits(self) -> Iterator[tuple[float, int]]:
        """When which function is edited; each is as often."""
        now = 0.0
        while self._edits:
            now += float(self._editing.exponential(1 / self._edits))
            yield now, int(self._editing.integers(0, self.functions))


def _lognormal(shares: np.ndarray, median: float, sigma: float) -> np.ndarray:
    """The durations below which these shares of all lie."""
    normal = NormalDist()
    quantiles = [normal.inv_cdf(share) for share in np.clip(shares, 1e-9, 1 - 1e-9)]
    return median * np.exp(sigma * np.asarray(quantiles))
