"""When a worker ends by itself: packages changed on disk, long idle, or another one takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from jaxd_server.execution.admission import Admission
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.threads.executors import SerialExecutor

if TYPE_CHECKING:
    from jaxd_server.execution.admission import Admission
    from jaxd_server.values.store import ValueStore


_RESTARTED: Final = "the server's worker was restarted."
_KEPT_RUNNING: Final = (
    "the server's worker goes on with what was there before, because it holds arrays of clients. "
    "It is restarted when there are none (`jaxd values` lists them), or by `jaxd stop`."
)


class PackageMonitor:
    """Checks before each build whether the imported packages are still current.

    What is built already stays right: its key names the packages that it was built with. A worker
    that holds arrays of clients is not replaced: they would be gone, and not only for whose call it
    is.

    Args:
        packages: what this process has imported.
        admission: where calls are refused from then on, so that their clients repeat them.
        begin: called once, with what changed: the worker is to be drained and replaced.
        has_values: whether there are arrays of clients.
    """

    def __init__(
        self,
        packages: ImportedPackages,
        admission: Admission,
        begin: Callable[[list[str]], None],
        has_values: Callable[[], bool] = lambda: False,
    ) -> None:
        self._packages = packages
        self._admission = admission
        self._begin = begin
        self._has_values = has_values
        self._begun = False
        self._lock = threading.Lock()  # guards _begun
        # Takes some 20 ms, for which the first call need not wait.
        SerialExecutor("jaxd-packages").put(self._packages.record)

    def poll(self, emit: Emit) -> None:
        """Begins to replace the worker when something changed, and tells whose call noticed it.

        After that no call is admitted any more.
        """
        changes = self._packages.changes()
        if not changes:
            return
        with self._lock:
            begins = not self._begun and not self._has_values()
            self._begun = self._begun or begins
        became = _RESTARTED if self._begun else _KEPT_RUNNING
        for change in changes:
            text = f"{change.text} where the server runs: {became}"
            emit("warning", {"function": "", "package": change.package, "text": text})
        if begins:
            self._admission.replace()
            self._begin([change.text for change in changes])

    def record_imports(self) -> None:
        """Takes down what a call has imported."""
        self._packages.record()


class IdleShutdown:
    """Decides whether an idle worker ends; its host starts another one when a client connects.

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

    def poll(self) -> None:
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


_PAUSE_S: Final = 0.5
"""How long new calls wait while a worker looks whether it may end."""


def still_needed(admission: Admission, values: ValueStore) -> str:
    """Why a worker should not end now, in words; empty when it may.

    Then no call runs any more: new ones wait until it gives way.

    Args:
        admission: knows which calls are running.
        values: arrays of clients.
    """
    if not admission.pause(_PAUSE_S):
        longest = next(iter(admission.running()), None)
        return (
            "calls are running"
            if longest is None
            else f"{longest['function']} has been running for {longest['seconds']:.0f} s"
        )
    if values.has_only_copies():
        admission.resume()
        owners = ", ".join(values.owners())
        return f"it holds arrays of {owners} (jaxd values lists them)"
    return ""
