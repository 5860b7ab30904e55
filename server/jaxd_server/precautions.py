"""Calls that could end this worker: written down before they run, and run alone or not at all."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from jaxd_server.admission import Admission, Running
from jaxd_server.suspects import Suspects

if TYPE_CHECKING:
    from jaxd_server.black_box import BlackBox
    from jaxd_server.call import Call
    from jaxd_server.function import Function

__all__ = ["Precautions", "Suspected"]


class Suspected(Exception):
    """A call that was admitted among others has to run alone."""


class Precautions:
    """Admits the calls of which not all is known. Thread-safe.

    Args:
        admission: where they are counted.
        suspects: which functions have ended earlier workers; by default none.
        box: where the host reads what runs; None where nobody does.
    """

    def __init__(
        self,
        admission: Admission,
        suspects: Suspects | None = None,
        box: BlackBox | None = None,
    ) -> None:
        self.suspects = Suspects() if suspects is None else suspects
        self._admission = admission
        self._box = box

    def admit(self, call: Call) -> Running:
        """Admits a call: alone when it was under way while a worker died.

        Raises:
            Quarantined, WorkerLost: see `Suspects.judge`.
            JaxdError: as `Admission.enter`.
        """
        if self.suspects.judge(call.key, name="", lost=call.lost):
            return self.admit_alone(call)
        running = self._admission.enter(
            "(unknown function)", call.deadline, call.interest, inside=call.inside
        )
        self.write_down(running, call)
        return running

    def admit_alone(self, call: Call) -> Running:
        """Admits a call that runs beside no other, if that is possible without a long wait.

        Raises:
            JaxdError: as `Admission.enter`.
        """
        company: list[None] = []
        place = -1

        def on_company() -> None:
            company.append(None)
            if self._box is not None:
                self._box.has_company(place)

        running, is_alone = self._admission.enter_alone(
            "(unknown function)",
            call.deadline,
            on_company,
            call.interest,
            alone_s=self.suspects.alone_s(call.key),
        )
        if self._box is not None:
            place = self._begin(running, call, is_alone=is_alone)
            if company:
                self._box.has_company(place)
        return running

    def write_down(self, running: Running, call: Call) -> None:
        """Enters an admitted call, which others run beside, in the box."""
        if self._box is not None and running.place < 0:
            place = self._begin(running, call, is_alone=False)
            self._box.identify(place, b"", running.function)

    def _begin(self, running: Running, call: Call, *, is_alone: bool) -> int:
        assert self._box is not None
        principal, is_repeated = call.session.principal, call.lost > 0
        place = self._box.begin(call.key, principal, is_repeated=is_repeated, is_alone=is_alone)
        running.place = place
        running.leaves = [*(running.leaves or ()), partial(self._box.end, place)]
        return place

    def examine(self, running: Running, call: Call, function: Function) -> None:
        """Looks at the function of a call that `admit` has returned, once it is known.

        Raises:
            Suspected: when the call has to leave, and to be admitted alone.
            Quarantined, WorkerLost: see `Suspects.judge`.
        """
        fingerprint = function.described.fingerprint
        running.function = function.name
        if self._box is not None:
            self._box.identify(running.place, fingerprint, function.name)
        suspected = self.suspects.judge(fingerprint, call.key, name=function.name, lost=call.lost)
        if suspected and not running.is_suspect:
            raise Suspected
