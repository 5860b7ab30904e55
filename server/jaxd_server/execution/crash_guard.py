"""Calls that could crash this worker: recorded before they run, and run alone or refused."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jaxd_protocol.errors import Quarantined, WorkerLost
from jaxd_server.compilation.functions.function import Function
from jaxd_server.execution.admission import Admission
from jaxd_server.execution.call import Call
from jaxd_server.runtime.flight_recorder import FlightRecorder

MAX_ALONE_S: Final = 120.0
"""The longest time that other calls wait for an exclusive one, however long it took to crash."""

_MARGIN: Final = 1.5
_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Suspect:
    """As `Quarantine` has it.

    Attributes:
        name: of the function.
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


class CrashSuspects:
    """Decides which calls run alone, and which are refused. Thread-safe.

    Args:
        rows: what `Quarantine.for_worker` returns.
        epoch: of this worker.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), epoch: int = 1) -> None:
        self._epoch = epoch
        self._known: dict[bytes, _Suspect] = {}  # replaced as a whole: readers need no lock
        for row in rows:
            values = {name: value for name, value in row.items() if name != "ids"}
            suspect = _Suspect(fingerprint=row["ids"][0], **values)
            self._known |= {bytes.fromhex(id_): suspect for id_ in row["ids"]}

    def release(self, fingerprint: str) -> None:
        """Removes a function from the suspects; for the thread that reads the host's orders."""
        left = {id_: one for id_, one in self._known.items() if one.fingerprint != fingerprint}
        self._known = left

    def alone_s(self, *ids: bytes) -> float:
        """How long others should wait for a call that runs alone; 0: as for any.

        A call that outlasts this time runs beside others, and the cause of a crash is then unknown.
        So it gets more time than it took until the last crash.

        Args:
            ids: key of its function, and the fingerprint when that is known.
        """
        known = self._known
        ran_s = max((known[id_].ran_s for id_ in ids if id_ in known), default=0.0)
        return min(MAX_ALONE_S, ran_s * _MARGIN + _MARGIN_S) if ran_s else 0.0

    def judge(self, *ids: bytes, name: str, lost: int) -> bool:
        """Whether a call has to run alone.

        Args:
            ids: key of its function, and the fingerprint when that is known.
            name: of the function.
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


class MustRunAlone(Exception):
    """A call that was admitted beside others has to run alone."""


class CrashGuard:
    """Admits calls whose function may crash the worker. Thread-safe.

    Args:
        admission: admits them.
        suspects: which functions have ended earlier workers; by default none.
        recorder: where the host reads which calls run; None where there is no host.
    """

    def __init__(
        self,
        admission: Admission,
        suspects: CrashSuspects | None = None,
        recorder: FlightRecorder | None = None,
    ) -> None:
        self.suspects = CrashSuspects() if suspects is None else suspects
        self._admission = admission
        self._recorder = recorder

    def admit(self, call: Call) -> None:
        """Admits a call: alone when it was under way while a worker died.

        Raises:
            Quarantined, WorkerLost: see `CrashSuspects.judge`.
            JaxdError: as `Admission.acquire`.
        """
        is_suspect = self.suspects.judge(call.key, name="", lost=call.lost)
        if is_suspect and not call.inside:  # else it belongs to one that runs
            self.admit_alone(call)
        else:
            self._admission.acquire(call)
            self.record(call)

    def admit_alone(self, call: Call) -> None:
        """Admits a call that runs beside no other, if that is possible without a long wait.

        Raises:
            JaxdError: as `Admission.acquire_exclusive`.
        """
        is_beside_others = threading.Event()

        def on_concurrent() -> None:
            is_beside_others.set()
            if self._recorder is not None:
                self._recorder.clear_alone(call.place)

        is_alone = self._admission.acquire_exclusive(
            call, on_concurrent, alone_s=self.suspects.alone_s(call.key)
        )
        if self._recorder is not None:
            self._begin(call, self._recorder, is_alone=is_alone)
            if is_beside_others.is_set():
                self._recorder.clear_alone(call.place)

    def record(self, call: Call) -> None:
        """Enters an admitted call, which others run beside, in the flight recorder."""
        if self._recorder is not None and call.place < 0:
            self._begin(call, self._recorder, is_alone=False)
            self._recorder.identify(call.place, b"", call.name)

    def _begin(self, call: Call, recorder: FlightRecorder, *, is_alone: bool) -> None:
        principal, is_repeated = call.session.principal, call.lost > 0

        def end() -> None:
            recorder.end(call.place)
            call.place = -1

        call.place = recorder.begin(call.key, principal, is_repeated=is_repeated, is_alone=is_alone)
        call.on_release = end

    def examine(self, call: Call, function: Function) -> None:
        """Judges an admitted call by its function, once that is known.

        Raises:
            MustRunAlone: when the call has to be released, and to be admitted alone.
            Quarantined, WorkerLost: see `CrashSuspects.judge`.
        """
        fingerprint = function.described.fingerprint
        call.name = function.name
        if self._recorder is not None:
            self._recorder.identify(call.place, fingerprint, function.name)
        suspected = self.suspects.judge(fingerprint, call.key, name=function.name, lost=call.lost)
        if suspected and not (call.is_exclusive or call.inside):
            raise MustRunAlone
