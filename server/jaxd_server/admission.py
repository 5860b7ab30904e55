"""May this call run now? The doors close when the server drains."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import NoReturn

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining, WorkerReplaced

__all__ = ["Admission", "Running"]


@dataclass(slots=True, eq=False)
class Running:
    """A call that was admitted.

    Attributes:
        function: what people call its function.
        started: `time.monotonic()` when it was admitted.
    """

    function: str
    started: float = field(default_factory=time.monotonic)


class Admission:
    """Counts running calls and closes the doors. Thread-safe."""

    def __init__(self) -> None:
        self._running: set[Running] = set()
        self._changed = threading.Condition()  # guards all of these
        self._draining = False
        self._replacing = False

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._draining

    @property
    def is_busy(self) -> bool:
        """Whether calls are running."""
        return bool(self._running)

    def enter(self, function: str, deadline: float | None) -> Running:
        """Admits a call; `leave` ends it.

        Args:
            function: for the status page.
            deadline: `time.monotonic()` after which nobody waits for the result.

        Raises:
            ServerDraining: when the server is stopping.
            WorkerReplaced: when another worker will answer; only after the running calls are
                done, because until then the new one does not start.
            DeadlineExceeded: when the deadline passed while the call waited its turn.
        """
        running = Running(function)
        if deadline is not None and running.started > deadline:
            raise DeadlineExceeded(
                "the call's timeout_s passed before it could start. Give it more time, or raise "
                "the server's --threads."
            )
        with self._changed:
            if self._draining:
                self._refuse()
            self._running.add(running)
        return running

    def _refuse(self) -> NoReturn:
        if not self._replacing:
            raise ServerDraining(
                "the server is stopping and takes no new calls. Repeat the call: a restarted "
                "server answers at the same address."
            )
        self._changed.wait_for(lambda: not self._running)
        raise WorkerReplaced(
            "the server's worker is being replaced: packages that it runs have changed on disk, or "
            "it was idle. Repeat the call: a new worker answers at the same address."
        )

    def leave(self, running: Running) -> None:
        """Ends an admitted call."""
        with self._changed:
            self._running.discard(running)
            if self._draining:
                self._changed.notify_all()

    def replace(self) -> None:
        """Refuses new calls from now on in such a way that their clients repeat them."""
        with self._changed:
            self._draining = self._replacing = True

    def drain(self) -> None:
        """Refuses new calls from now on and waits until the running ones are done."""
        with self._changed:
            self._draining = True
            self._changed.wait_for(lambda: not self._running)

    def running(self) -> list[dict[str, str | float]]:
        """Function and age in seconds of each running call, the oldest first."""
        with self._changed:
            calls = sorted(self._running, key=lambda call: call.started)
        now = time.monotonic()
        return [{"function": c.function, "seconds": round(now - c.started, 3)} for c in calls]
