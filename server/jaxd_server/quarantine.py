"""Functions that end workers: how often, and which of them are called no more.

The host keeps this, because a worker that ended remembers nothing. Which of them are called no more
it also finds again after a restart of its own, see `quarantine_file`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_server.black_box import Entry
from jaxd_server.logs import log_event
from jaxd_server.quarantine_file import Sentence

__all__ = ["MOST_STRIKES", "Kept", "Quarantine"]

MOST_STRIKES: Final = 2
"""A function that has ended so many workers while nothing else ran is called no more."""

_REMEMBERED_S: Final = 3600.0
"""A death that is longer ago counts no more, unless the function is in quarantine by then."""

_MOST_RECORDS: Final = 1000
_FEWEST_DIGITS: Final = 6


@dataclass(slots=True)
class _Record:
    """What is known of one function.

    Attributes:
        name: what people call it.
        ids: fingerprint and key; the key alone when a worker died before it knew more.
        deaths: when it ended a worker while nothing else ran.
        how: how the last of these ended.
        epoch: of the last worker that ended while a call of it was being repeated.
        ran_s: for how long one had been running when a worker ended, at most.
        noted: when that was last.
    """

    name: str
    ids: tuple[bytes, ...]
    deaths: list[float] = field(default_factory=list)
    how: str = ""
    epoch: int = 0
    ran_s: float = 0.0
    noted: float = 0.0

    @property
    def is_quarantined(self) -> bool:
        return len(self.deaths) >= MOST_STRIKES


class Kept(Protocol):
    """What is remembered over a restart of the host."""

    def load(self) -> Sequence[Sentence]:
        """The functions that were in quarantine before."""

    def save(self, sentences: Sequence[Sentence]) -> None:
        """Replaces them by those that are now."""


class Quarantine:
    """Counts what workers died of; for the thread of the host's event loop.

    Args:
        kept: where is kept what is called no more; None: nowhere.
        clock: seconds that only grow.
    """

    def __init__(
        self, kept: Kept | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._kept = kept
        self._records = BoundedDict[bytes, _Record](_MOST_RECORDS)
        for one in () if kept is None else kept.load():
            ago_s = max(0.0, time.time() - one.at)
            deaths = [clock() - ago_s] * one.deaths
            self._records[one.ids[0]] = _Record(one.name, one.ids, deaths, one.how)

    def _keep(self) -> None:
        if self._kept is None:
            return
        now, here = time.time(), self._clock()
        self._kept.save(
            [
                Sentence(one.name, one.ids, len(one.deaths), one.how, now - (here - one.deaths[-1]))
                for one in self._records.values()
                if one.is_quarantined
            ]
        )

    def died(self, entries: Iterable[Entry], epoch: int, how: str) -> None:
        """Takes in what a worker was doing when it died.

        Args:
            entries: the calls that were under way.
            epoch: of the worker.
            how: it ended, such as `SIGSEGV`.
        """
        self._forget_old()
        guilty = [entry for entry in entries if entry.is_repeated or entry.is_alone]
        found = [self._note(entry, epoch, how) for entry in guilty]
        if any(found):
            self._keep()

    def _note(self, entry: Entry, epoch: int, how: str) -> bool:
        """Whether its function is called no more because of that."""
        record = self._records.setdefault(entry.ids[0], _Record(entry.function, entry.ids))
        record.epoch, record.how, record.noted = epoch, how, self._clock()
        record.ran_s = max(record.ran_s, entry.seconds)
        if not entry.is_alone:
            return False
        record.deaths.append(self._clock())
        log_event(
            "function_quarantined" if record.is_quarantined else "function_suspected",
            level=logging.WARNING,
            function=record.name,
            fingerprint=record.ids[0].hex(),
            workers_ended=len(record.deaths),
            how=how,
        )
        return record.is_quarantined

    def _forget_old(self) -> None:
        since = self._clock() - _REMEMBERED_S
        for record in self._records.values():
            if not record.is_quarantined:
                record.deaths = [death for death in record.deaths if death >= since]
                record.ran_s = record.ran_s if record.noted >= since else 0.0

    def release(self, what: str) -> list[dict[str, Any]]:
        """Has functions called again; returns their rows.

        Args:
            what: a name, the first digits of a fingerprint, six of them at least, or `all`.
        """
        found = [
            one
            for one in self._records.values()
            if one.is_quarantined and (what in ("all", one.name) or _begins(one.ids, what))
        ]
        rows = [self._row(one) for one in found]
        for one in found:
            del self._records[one.ids[0]]
            log_event("function_released", function=one.name, fingerprint=one.ids[0].hex())
        if found:
            self._keep()
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """The functions that are called no more, for people."""
        return [self._row(one) for one in self._records.values() if one.is_quarantined]

    def _row(self, record: _Record) -> dict[str, Any]:
        return {
            "name": record.name,
            "fingerprint": record.ids[0].hex(),
            "workers_ended": len(record.deaths),
            "how": record.how,
            "ago_s": round(self._clock() - record.deaths[-1], 3),
        }

    def for_worker(self) -> list[dict[str, Any]]:
        """What the next worker is told, as JSON values; see `Suspects`."""
        return [
            {
                "name": record.name,
                "ids": [id_.hex() for id_ in record.ids],
                "deaths": len(record.deaths),
                "how": record.how,
                "epoch": record.epoch,
                "ran_s": record.ran_s,
                "quarantined": record.is_quarantined,
            }
            for record in self._records.values()
            if record.deaths or record.epoch
        ]


def _begins(ids: Iterable[bytes], digits: str) -> bool:
    return len(digits) >= _FEWEST_DIGITS and any(
        id_.hex().startswith(digits.lower()) for id_ in ids
    )
