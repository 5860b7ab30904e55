"""Whether what a client was told is what docs/errors.md and docs/reliability.md promise."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

ENDS_WORKER: Final = ("worker killed", "restart forced", "server killed")
CUTS: Final = ("connection cut", "connections cut", *ENDS_WORKER)

NEVER_REPEATED: Final = ("calling_back", "in_flight")
"""Turns whose calls may have had effects, or large arguments that have changed since."""

NEEDS_NOTHING: Final = "name"
"""A turn that sends what is new, and so has nothing to lose with a worker."""

_BUSY_S: Final = 55.0
"""Clients come again for about as long before they are told."""


class Fault(NamedTuple):
    """What was broken, and until when all was as before.

    Attributes:
        what: it was.
        began, ended: by the monotonic clock, which all processes share.
    """

    what: str
    began: float
    ended: float


class Faults:
    """All that was broken so far. Thread-safe."""

    def __init__(self) -> None:
        self._all: list[Fault] = []
        self._lock = threading.Lock()  # guards _all

    @contextmanager
    def going_on(self, what: str, clock: Any) -> Iterator[None]:
        """Something is broken inside of the block; it counts at once, until the end of it."""
        fault = Fault(what, clock(), float("inf"))
        with self._lock:
            self._all.append(fault)
        try:
            yield
        finally:
            with self._lock:
                self._all[self._all.index(fault)] = fault._replace(ended=clock())

    def all(self) -> list[Fault]:
        """A copy."""
        with self._lock:
            return list(self._all)

    def between(self, began: float, ended: float, *what: str) -> list[Fault]:
        """Those that were going on at some time of an interval; of some kinds, or of all."""
        return [
            one
            for one in self.all()
            if one.began <= ended and one.ended >= began and (not what or one.what in what)
        ]


def explanation(line: Mapping[str, Any], faults: Faults) -> str | None:
    """Why a client was told an error; None: it should not have been.

    Args:
        line: what the client says of its turn.
        faults: that were going on.
    """
    names, began, ended = line["error"], line["called"], line["ended"]
    deaths = faults.between(began, ended, *ENDS_WORKER)
    is_down = bool(faults.between(began, ended, "server killed"))
    if "ValuesLost" in names and line["kind"] != NEEDS_NOTHING:
        lost = faults.between(line["since"], ended, *ENDS_WORKER)
        return "its values were on a worker that was ended" if lost else None
    if "Quarantined" in names:
        before = faults.between(0.0, ended, "worker killed")
        return "workers were killed while it ran alone" if len(before) >= 2 else None
    if "WorkerLost" in names:
        return "two workers were ended during it" if len(deaths) >= 2 else None
    if "NoServer" in names:
        return "the server was down" if is_down else None
    if "ConnectionLost" in names or "ProtocolError" in names:
        # only the next call finds out that its connection was cut before it
        cuts = faults.between(line["answered"], ended, *CUTS)
        return _of_cuts(line, len(cuts), is_down=is_down)
    if "Busy" in names:
        return "no worker for a minute" if deaths and ended - began > _BUSY_S else None
    return None


def _of_cuts(line: Mapping[str, Any], cuts: int, *, is_down: bool) -> str | None:
    if "ProtocolError" in line["error"]:
        is_first = line["kind"] == "connect" and cuts
        return "its first connection was cut in the handshake" if is_first else None
    if line["kind"] in NEVER_REPEATED and cuts:
        return "its connection was cut, and it may not be repeated"
    if is_down:
        return "the server was down"
    return "its connection was cut twice" if cuts >= 2 else None
