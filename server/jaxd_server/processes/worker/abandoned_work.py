"""Work whose calls were all cancelled: it gets some time to end, then it is ended or reported.

A trace that swallows its interrupts or hangs in C, and a program that runs for ever, can be ended
only with their process. In the tracer's that harms nobody: what else it traces is traced again. The
worker is replaced only where no array is lost by it that its client has nowhere else; otherwise the
operator learns of it, from the log and from `jaxd status`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxd_server.compilation.compiling.builds import Build
from jaxd_server.execution.admission import Admission, AdmittedCall
from jaxd_server.runtime.logs import log_event


class AbandonedWork:
    """Looks after what was given up and is not over. Thread-safe.

    Args:
        admission: knows the calls.
        grace_s: seconds that they, and builds, have to end; 0: as many as they like.
        has_values: whether there are arrays that would be lost with the worker.
        replace: begins to replace the worker, told why.
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
        self._builds: dict[Build, float] = {}
        self._reported: set[Build | AdmittedCall] = set()
        self._lock = threading.Lock()  # guards _builds

    def add(self, build: Build) -> None:
        """Nobody waits for a build any more, and it goes on."""
        with self._lock:
            self._builds[build] = time.monotonic()

    def rows(self) -> list[dict[str, Any]]:
        """What goes on now, for the status page."""
        builds = [
            {"function": one.name or "(waiting for its turn)", "seconds": round(age, 3)} | _BUILDING
            for one, age in self._left_builds()
        ]
        return [*self._admission.running(left=True), *builds]

    def _left_builds(self) -> list[tuple[Build, float]]:
        now = time.monotonic()
        with self._lock:
            for one in [one for one in self._builds if one.future.done() or not one.is_abandoned]:
                del self._builds[one]
            return [(one, now - since) for one, since in self._builds.items()]

    def poll(self) -> None:
        """Handles what is overdue; from one thread, several times a second."""
        builds, calls = self._left_builds(), self._admission.left()
        self._reported &= {*(one for one, _ in builds), *calls}
        if not self._grace_s:
            return
        for build, age in builds:
            if age > self._grace_s and build not in self._reported:
                self._reported.add(build)
                self._handle_overdue(build, age)
        for call in calls:
            age = call.cancel_token.cancelled_s
            if (
                age > self._grace_s
                and call not in self._reported
                and call.cancel_token.phase == "running"
            ):
                self._reported.add(call)
                self._stuck(call.function, "runs", age)

    def _handle_overdue(self, build: Build, age: float) -> None:
        force = build.end_by_force
        if force is not None:
            _log(build.name, "is being traced", age, "the process that traces it is ended")
            force()
        elif build.interruptible.is_running:
            self._stuck(build.name, "is being traced", age)
        else:
            _log(build.name, "is being compiled", age, "it goes on, and is kept")

    def _stuck(self, name: str, does: str, age: float) -> None:
        """Reports a build that only the end of this process can end."""
        if self._replace is None or self._admission.draining:
            return
        if self._has_values():
            _log(name, does, age, "the worker holds arrays, which `jaxd values` lists, and stays")
            return
        _log(name, does, age, "the worker is replaced")
        self._admission.replace()
        self._replace([f"{name} {does} although nobody waits for it"])


_BUILDING = {"phase": "building", "waited_s": 0.0}


def _log(name: str, does: str, age: float, done: str) -> None:
    log_event(
        "left_behind",
        level=logging.WARNING,
        function=name,
        reason=f"it {does} although nobody has waited for it for {age:.0f} s: {done}",
    )
