"""What a worker knows of functions that ended the workers before it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.errors import Quarantined, WorkerLost

__all__ = ["MOST_ALONE_S", "Suspects"]

MOST_ALONE_S: Final = 120.0
"""Others wait no longer than that, however long it takes until a worker dies of a function."""

_MARGIN: Final = 1.5
_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Suspect:
    """As `Quarantine` has it.

    Attributes:
        name: what people call the function.
        fingerprint: in hex digits; its key where no more is known.
        deaths: how many workers it ended while nothing else ran.
        how: the last of them ended.
        epoch: of the last worker that ended while a call of it was being repeated.
        quarantined: whether it is called no more.
        ran_s: for how long a call had been running when a worker ended.
    """

    name: str
    fingerprint: str
    deaths: int
    how: str
    epoch: int
    quarantined: bool
    ran_s: float = 0.0


class Suspects:
    """Decides which calls are run alone, and which not at all. Thread-safe.

    Args:
        rows: what `Quarantine.for_worker` says.
        epoch: of this worker.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), epoch: int = 1) -> None:
        self._epoch = epoch
        self._known: dict[bytes, _Suspect] = {}
        self._lock = threading.Lock()  # guards _known against releases
        for row in rows:
            values = {name: value for name, value in row.items() if name != "ids"}
            suspect = _Suspect(fingerprint=row["ids"][0], **values)
            self._known |= {bytes.fromhex(id_): suspect for id_ in row["ids"]}

    def release(self, fingerprint: str) -> None:
        """Has a function called again as if nothing had happened."""
        with self._lock:
            for id_ in [id_ for id_, one in self._known.items() if one.fingerprint == fingerprint]:
                del self._known[id_]

    def alone_s(self, *ids: bytes) -> float:
        """How long others should wait for a call that runs alone; 0: as for any.

        One that outlasts the time that others wait runs beside them, and what its worker dies of
        then is not known. So it is given more than it took the last time.

        Args:
            ids: key of its function, and the fingerprint when that is known.
        """
        ran_s = max((self._known[id_].ran_s for id_ in ids if id_ in self._known), default=0.0)
        return min(MOST_ALONE_S, ran_s * _MARGIN + _MARGIN_S) if ran_s else 0.0

    def judge(self, *ids: bytes, name: str, lost: int) -> bool:
        """Whether a call has to run alone.

        Args:
            ids: key of its function, and the fingerprint when that is known.
            name: what people call it.
            lost: how many workers have died during this call.

        Raises:
            Quarantined: when its function is called no more.
            WorkerLost: when it has been repeated, and the last worker died of that.
        """
        known = self._known
        suspect = next((known[id_] for id_ in ids if id_ in known), None) if known else None
        if suspect is None:
            return lost > 0
        if suspect.quarantined:
            raise _quarantined(suspect)
        if lost > 1 and suspect.epoch == self._epoch - 1:
            raise _lost(name or suspect.name, suspect)
        return lost > 0 or suspect.deaths > 0


def _quarantined(suspect: _Suspect) -> Quarantined:
    return Quarantined(
        f"{suspect.name} is in quarantine: it ended the server's worker {suspect.deaths} times "
        f"while nothing else ran ({suspect.how}). The server does not call it any more. Correct "
        "it, which makes another function of it; JAXD_INLINE=1 shows in your own process what "
        "happens. If it is not at fault, release it on the server's machine (jaxd functions "
        f"--release {suspect.fingerprint[:12]})."
    )


def _lost(name: str, suspect: _Suspect) -> WorkerLost:
    alone = " while nothing else ran" if suspect.deaths else ""
    return WorkerLost(
        f"the server's worker ended while it ran {name}, and again when the call was repeated"
        f"{alone} ({suspect.how}). The function may be what ends it: see the server's log, and try "
        "it with JAXD_INLINE=1."
    )
