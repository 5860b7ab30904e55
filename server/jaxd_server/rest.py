"""A worker that nobody has needed for a while ends, and so gives its device back."""

from __future__ import annotations

from collections.abc import Callable

from jaxd_server.admission import Admission

__all__ = ["Rest"]


class Rest:
    """Looks whether this worker may go; its host starts another one when somebody connects.

    All that is compiled is on disk, and comes back without being traced or compiled. Arrays of
    clients are not, so that a worker which has any stays.

    Args:
        after_s: seconds without a call after which it goes; 0: never.
        admission: where calls are refused from then on, so that their clients repeat them.
        idle_s: seconds since the last call.
        has_values: whether there are arrays of clients.
        begin: called once: the worker is to be drained.
    """

    def __init__(
        self,
        after_s: float,
        admission: Admission,
        idle_s: Callable[[], float],
        has_values: Callable[[], bool],
        begin: Callable[[], None],
    ) -> None:
        self._after_s = after_s
        self._admission = admission
        self._idle_s = idle_s
        self._has_values = has_values
        self._begin = begin

    def look(self) -> None:
        """Has the worker go when it may; from one thread, several times a second."""
        if not self._after_s or self._admission.draining or self._admission.is_busy:
            return
        if self._idle_s() < self._after_s or self._has_values() or not self._admission.pause(0.0):
            return
        if self._has_values():  # they came just before the pause
            self._admission.resume()
            return
        self._admission.replace()  # who comes now is told to come again
        self._begin()
