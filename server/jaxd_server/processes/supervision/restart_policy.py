"""When a worker that ended unexpectedly is replaced: at once, after a delay, or never."""

from __future__ import annotations

MAX_FAILED_STARTS = 5
"""A worker that was never ready this often in a row will not be the next time either."""

_EARLY_DEATH_S = 10.0
_FIRST_DELAY_S = 0.2
_LONGEST_DELAY_S = 10.0


class RestartPolicy:
    """Counts the deaths of workers; not thread-safe."""

    def __init__(self) -> None:
        self._early_deaths = 0
        self._failed_starts = 0

    def delay_s(self, lived_s: float, *, was_ready: bool) -> float | None:
        """Seconds to wait before the next worker is started; None: give up.

        The first early death costs no time, so that callers notice it least; the next ones in a
        row wait ever longer, so that a broken machine is not kept busy with starts.
        """
        self._failed_starts = 0 if was_ready else self._failed_starts + 1
        self._early_deaths = 0 if lived_s >= _EARLY_DEATH_S else self._early_deaths + 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            return None
        if self._early_deaths <= 1:
            return 0.0
        exponent = min(self._early_deaths - 2, 16)  # 2 ** 1000 is no float
        return float(min(_FIRST_DELAY_S * 2**exponent, _LONGEST_DELAY_S))
