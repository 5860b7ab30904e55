"""When packages change under a worker, it makes room for a new one that imports them afresh."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from jaxd_server.admission import Admission
from jaxd_server.fair_threads import SerialExecutor
from jaxd_server.imported_packages import ImportedPackages
from jaxd_server.progress import Emit

__all__ = ["Renewal"]

_RESTARTED: Final = "the server's worker was restarted."
_HELD_BACK: Final = (
    "the server's worker goes on with what was there before, because it holds arrays of clients. "
    "It is restarted when there are none (`jaxd values` lists them), or by `jaxd stop`."
)


class Renewal:
    """Looks, before anything new is built, whether the packages of this worker are still current.

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
        SerialExecutor("jaxd-packages").put(self._packages.note)

    def look(self, emit: Emit) -> None:
        """Begins to replace the worker when something changed, and tells whose call noticed it.

        After that no call is admitted any more.
        """
        changes = self._packages.changes()
        if not changes:
            return
        with self._lock:
            begins = not self._begun and not self._has_values()
            self._begun = self._begun or begins
        became = _RESTARTED if self._begun else _HELD_BACK
        for change in changes:
            text = f"{change.text} where the server runs: {became}"
            emit("warning", {"function": "", "package": change.package, "text": text})
        if begins:
            self._admission.replace()
            self._begin([change.text for change in changes])

    def note(self) -> None:
        """Takes down what a call has imported."""
        self._packages.note()
