"""Reasons for a worker to end: changed packages, long idleness, a successor, abandoned work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd_server.compilation.compiling.builds import Build
from jaxd_server.execution.admission import Admission, Operation
from jaxd_server.runtime.events import SILENT, Emit
from jaxd_server.runtime.imported_packages import Change, Dependencies, ImportedPackages
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.executors import SerialExecutor

if TYPE_CHECKING:
    from jaxd_server.values.store import ValueStore


class Renewal(NamedTuple):
    """How a worker whose packages have changed is replaced.

    Attributes:
        begin: called once, with the changes: drains and replaces the worker.
        prepare: has another process import the packages, so that it is known that they can be;
            then `PackageMonitor.allow` is called. None: nothing is prepared.
        still_s: how long nothing may have changed before that, since an installation of several
            packages takes its time.
    """

    begin: Callable[[list[str]], None]
    prepare: Callable[[], None] | None = None
    still_s: float = 3.0


_ASK_AGAIN_S: Final = 30.0
"""After so long it is tried again to import packages that could not be imported."""


class PackageMonitor:
    """Checks whether the imported packages are still current, and replaces the worker if not.

    That is before each build, when a client process uses a program for the first time, and several
    times a second. The key of an executable names the packages that its function names, but not
    those that these import in turn. A worker is not replaced while it holds arrays of clients,
    which would be lost, nor before what is being installed is complete and can be imported.

    Args:
        packages: those that this process has imported.
        admission: refuses calls from then on, so that their clients repeat them.
        renewal: how the worker is replaced.
        has_values: whether there are arrays of clients.
        outdate: drops the executables that depend on what has changed, as the worker stays.
    """

    def __init__(
        self,
        packages: ImportedPackages,
        admission: Admission,
        renewal: Renewal,
        has_values: Callable[[], bool] = lambda: False,
        outdate: Callable[[], None] = lambda: None,
    ) -> None:
        self._packages = packages
        self._admission = admission
        self._renewal = renewal
        self._has_values = has_values
        self._outdate = outdate
        self._begun = False
        self._last: list[Change] = []
        self._last_at = 0.0  # when they became these
        self._asked_at: float | None = None  # since then
        self._is_allowed = False
        self._lock = threading.Lock()  # guards all but the first five
        # In the background: it takes some 20 ms.
        SerialExecutor("jaxd-packages").put(self._packages.record)

    def poll(self, emit: Emit = SILENT) -> None:
        """Begins to replace the worker if a package has changed, and warns the client of the call.

        No call is admitted after that.
        """
        changes = self._packages.changes()
        if not changes and not self._packages.have_changed:
            return
        with self._lock:
            begins = not self._begun and self._is_due(changes)
            self._begun = self._begun or begins
        if not self._begun:
            self._outdate()  # also where they are back, which programs of others may not suit
            return
        for change in changes:
            text = f"{change.text} where the server runs: the server's worker was restarted."
            emit("warning", {"function": "", "package": change.old.name, "text": text})
        if begins:
            self._admission.replace()
            self._renewal.begin([change.text for change in changes])

    def _is_due(self, changes: list[Change]) -> bool:
        """Whether the worker is to be replaced now; asks for what that needs. The lock is held."""
        now = time.monotonic()
        if changes != self._last:
            self._last, self._last_at = changes, now
            self._asked_at, self._is_allowed = None, False
        if not changes or self._has_values() or now - self._last_at < self._renewal.still_s:
            return False
        prepare = self._renewal.prepare
        if prepare is None or self._is_allowed:
            return True
        if self._asked_at is None or now - self._asked_at > _ASK_AGAIN_S:
            self._asked_at = now
            prepare()
        return False

    def allow(self) -> None:
        """Another process has imported the packages as they are now."""
        with self._lock:
            self._is_allowed = self._asked_at is not None

    def changes_of(self, dependencies: Dependencies) -> list[Change]:
        """What has become of some packages, as far as `poll` has noticed."""
        return self._packages.changes_of(dependencies)

    def record_imports(self) -> None:
        """Records the imports of a call."""
        self._packages.record()


class IdleShutdown:
    """Ends an idle worker; its host starts another one when a client connects.

    Compiled programs are on disk, and are loaded without tracing or compiling. Arrays of clients
    are not, so a worker that has any does not end.

    Args:
        after_s: seconds without a call after which it ends; 0: never.
        admission: refuses calls from then on, so that their clients repeat them.
        idle_s: seconds since the last call.
        has_values: whether there are arrays of clients.
        begin: called once: drains the worker.
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
        """Ends the worker when it is idle; from one thread, several times a second."""
        if not self._after_s or self._admission.draining or self._admission.is_busy:
            return
        if self._idle_s() < self._after_s or self._has_values() or not self._admission.pause(0.0):
            return
        if self._has_values():  # stored just before the pause
            self._admission.resume()
            return
        self._admission.replace()  # new calls are repeated at the next worker
        self._begin()


_PAUSE_S: Final = 0.5
"""How long new calls wait while a worker checks whether it may end."""


def still_needed(admission: Admission, values: ValueStore) -> str:
    """Why a worker should not end now; empty when it may.

    When it may, no call is running, and new ones wait until it ends.

    Args:
        admission: of the calls.
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


class AbandonedWork:
    """Tracks work that was cancelled and has not ended. Thread-safe.

    Args:
        admission: of the calls.
        grace_s: seconds that calls and builds have to end; 0: no limit.
        has_values: whether there are arrays that would be lost with the worker.
        replace: begins to replace the worker, for these reasons.
    """

    def __init__(
        self,
        admission: Admission,
        grace_s: float,
        has_values: Callable[[], bool] = lambda: False,
        replace: Callable[[list[str]], None] | None = None,
    ) -> None:
        self._admission = admission
        self._grace_s = grace_s
        self._has_values = has_values
        self._replace = replace
        self._builds: dict[Build, float] = {}  # each step on it is atomic
        self._reported: set[Build | Operation] = set()

    def add(self, build: Build) -> None:
        """Adds a build whose calls were all cancelled, and which still runs."""
        self._builds[build] = time.monotonic()

    def rows(self) -> list[dict[str, Any]]:
        """The work that still runs, as rows of the status."""
        builds = [
            {"function": one.name or "(waiting for its turn)", "seconds": round(age, 3)} | _BUILDING
            for one, age in self._left_builds()
        ]
        return [*(call.row() for call in self._admission.abandoned()), *builds]

    def _left_builds(self) -> list[tuple[Build, float]]:
        now, left = time.monotonic(), []
        for one, since in self._builds.copy().items():
            if _is_left(one):
                left.append((one, now - since))
                continue
            self._builds.pop(one, None)
            if _is_left(one):  # again, and it may have been added before that
                self._builds.setdefault(one, now)
        return left

    def poll(self) -> None:
        """Handles overdue work; from one thread, several times a second."""
        builds, calls = self._left_builds(), self._admission.abandoned()
        self._reported &= {*(one for one, _ in builds), *calls}
        for build, age in builds:
            if self._report_overdue(build, age):
                self._handle_overdue(build, age)
        for call in calls:
            age = call.cancel_token.cancelled_s
            if call.cancel_token.phase == "running" and self._report_overdue(call, age):
                self._stuck(call.name, "runs", age)

    def _report_overdue(self, work: Build | Operation, age: float) -> bool:
        """Whether work is overdue; True only once."""
        is_new = 0 < self._grace_s < age and work not in self._reported
        if is_new:
            self._reported.add(work)
        return is_new

    def _handle_overdue(self, build: Build, age: float) -> None:
        if build.interruptible.is_running:
            self._stuck(build.name, "is being traced", age)
        else:
            _log(build.name, "is being compiled", age, "it goes on, and is kept")

    def _stuck(self, name: str, does: str, age: float) -> None:
        """Replaces this process, which alone can end a call or build; logs why if it cannot."""
        if self._replace is None or self._admission.draining:
            return
        if self._has_values():
            _log(name, does, age, "the worker holds arrays, which `jaxd values` lists, and stays")
            return
        _log(name, does, age, "the worker is replaced")
        self._admission.replace()
        self._replace([f"{name} {does} although it was cancelled"])


def _is_left(build: Build) -> bool:
    return build.is_abandoned and not build.future.done()


_BUILDING = {"phase": "building", "waited_s": 0.0}


def _log(name: str, does: str, age: float, done: str) -> None:
    log_event(
        "left_behind",
        function=name,
        reason=f"it {does} although it was cancelled {age:.0f} s ago: {done}",
    )
