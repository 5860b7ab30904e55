"""Admits calls to execution: none while the server drains, one at a time for exclusive calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining, WorkerReplaced
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken


@dataclass(slots=True, eq=False)
class AdmittedCall:
    """A call that was admitted.

    Attributes:
        function: what people call its function.
        started: `time.monotonic()` when it was admitted.
        is_suspect: whether it was to run alone.
        place: where it stands in the black box; -1: nowhere.
        leaves: called when it is over.
        cancel_token: whether anybody still waits for it.
    """

    function: str
    started: float = field(default_factory=time.monotonic)
    is_suspect: bool = False
    place: int = -1
    leaves: list[Callable[[], None]] | None = None
    cancel_token: CancelToken = NEVER_CANCELLED

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits for it any more, and its client was told."""
        return self.cancel_token.is_client_notified

    def row(self) -> dict[str, str | float]:
        """The same for the status page."""
        seconds = round(time.monotonic() - self.started, 3)
        row: dict[str, str | float] = {"function": self.function, "seconds": seconds}
        if self.cancel_token is NEVER_CANCELLED:
            return row
        waited_s = self.cancel_token.spent()["waiting"]
        return {**row, "phase": self.cancel_token.phase, "waited_s": round(waited_s, 3)}


PATIENCE_S: Final = 5.0
"""How long a call that is to run alone keeps new ones waiting while those before it are running."""

ALONE_S: Final = 10.0
"""How long it keeps them waiting while it runs. After that it is not alone any more."""


class Admission:
    """Counts running calls and admits new ones. Thread-safe.

    Args:
        patience_s, alone_s: see `PATIENCE_S` and `ALONE_S`.

    Attributes:
        is_barred: whether a new call may have to wait.
    """

    def __init__(self, patience_s: float = PATIENCE_S, alone_s: float = ALONE_S) -> None:
        self._max_wait_s = patience_s
        self._alone_s = alone_s
        self._running: set[AdmittedCall] = set()
        self._changed = threading.Condition()  # guards all of these
        self._draining = False
        self._replacing = False
        self._is_followed = False
        self._paused = 0  # by how many
        self._suspects: list[object] = []  # the first one runs, or is next
        self._bar_until = 0.0
        self._on_concurrent: Callable[[], None] | None = None  # of the one that runs alone
        self.is_barred = False

    @property
    def draining(self) -> bool:
        """Whether new calls are refused."""
        return self._draining

    @property
    def is_busy(self) -> bool:
        """Whether calls are running for which somebody waits."""
        return bool(self._running) and self._has_waiting()

    def _has_waiting(self) -> bool:
        return not all(one.is_abandoned for one in list(self._running))

    def acquire(
        self,
        function: str,
        deadline: float | None,
        cancel_token: CancelToken = NEVER_CANCELLED,
        *,
        inside: bool = False,
    ) -> AdmittedCall:
        """Admits a call; `release` ends it.

        Args:
            function: for the status page.
            deadline: `time.monotonic()` after which nobody waits for the result.
            cancel_token: whether anybody does.
            inside: whether a call that runs waits for this one.

        Raises:
            ServerDraining: when the server is stopping.
            WorkerReplaced: when another worker will answer; only after the running calls are
                done, because until then the new one does not start.
            DeadlineExceeded: when the deadline passed while the call waited its turn.
        """
        running = AdmittedCall(function, cancel_token=cancel_token)
        if deadline is not None and running.started > deadline:
            raise _too_late()
        with self._changed:
            if self.is_barred:
                self._wait(deadline, inside=inside)
            self._running.add(running)
        return running

    def _wait(self, deadline: float | None, *, inside: bool) -> None:
        """Returns when nobody runs alone. The lock is held."""
        while not self._draining and not inside and (self._suspects or self._paused):
            now = time.monotonic()
            if self._paused:
                self._wait_for_change(now + self._max_wait_s, deadline)
            elif now >= self._bar_until:
                self._has_concurrent()
                return
            else:
                self._wait_for_change(self._bar_until, deadline)
        if self._draining:
            self._refuse()

    def acquire_shared(self, what: str, *, leaves_values: bool = False) -> AdmittedCall:
        """As `acquire`, of what is no call: it waits only during a `pause`.

        Args:
            what: for the status page.
            leaves_values: whether clients go on to use what it leaves here. It is refused as calls
                are then; what reads or ends something here is answered until the end.

        Raises:
            ServerDraining, WorkerReplaced: as `acquire`.
        """
        running = AdmittedCall(what)
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or self._draining)
            if leaves_values and self._draining:
                self._refuse()
            self._running.add(running)
        return running

    def _wait_for_change(self, until: float, deadline: float | None) -> None:
        """Waits for a change, for so long at most. The lock is held."""
        now = time.monotonic()
        if deadline is not None:
            if now > deadline:
                raise _too_late()
            until = min(until, deadline)
        self._changed.wait(max(0.001, until - now))

    def _has_concurrent(self) -> None:
        """Others run beside a call that was to be alone. The lock is held."""
        self.is_barred = self._draining or bool(
            self._paused
        )  # unless another one wants to be alone
        if self._on_concurrent is not None:
            self._on_concurrent()
            self._on_concurrent = None

    def enter_exclusive(
        self,
        function: str,
        deadline: float | None,
        on_company: Callable[[], None],
        cancel_token: CancelToken = NEVER_CANCELLED,
        *,
        alone_s: float = 0.0,
    ) -> tuple[AdmittedCall, bool]:
        """Admits a call that runs while no other does; `release` ends it.

        One such call after the other. Others wait for it, but not for ever: after a few seconds
        they are let in.

        Args:
            function: for the status page.
            deadline: `time.monotonic()` after which nobody waits for the result.
            on_company: called, under a lock, when others run beside it after all.
            cancel_token: whether anybody waits for the result.
            alone_s: how long others wait while it runs, when that is longer than usual.

        Returns:
            The call, and whether it is alone: not where an earlier call takes too long.

        Raises:
            ServerDraining, WorkerReplaced, DeadlineExceeded: as `acquire`.
        """
        mark = object()
        with self._changed:
            if not self._suspects:
                self._bar_until = time.monotonic() + self._max_wait_s
            self._suspects.append(mark)
            self.is_barred = True
            try:
                is_alone = self._wait_alone(mark, deadline)
            except BaseException:
                self._end_exclusive(mark)
                raise
            alone_s = max(self._alone_s, alone_s) if is_alone else 0.0
            self._bar_until = time.monotonic() + alone_s
            self._on_concurrent = on_company if is_alone else None
            leaves = [lambda: self._end_exclusive(mark)]
            running = AdmittedCall(
                function, is_suspect=True, leaves=leaves, cancel_token=cancel_token
            )
            self._running.add(running)
        return running, is_alone

    def _wait_alone(self, mark: object, deadline: float | None) -> bool:
        """Returns when it is this one's turn; whether nobody else runs. The lock is held."""
        while True:
            if self._draining:
                self._refuse()
            now = time.monotonic()
            if self._paused or self._suspects[0] is not mark:
                self._wait_for_change(now + self._max_wait_s, deadline)
            elif not self._running:
                return True
            elif now >= self._bar_until:
                return False
            else:
                self._wait_for_change(self._bar_until, deadline)

    def _end_exclusive(self, mark: object) -> None:
        """A call that was to run alone is over, one way or the other. The lock is held."""
        if self._suspects[0] is mark:
            self._on_concurrent = None
            self._bar_until = time.monotonic() + self._max_wait_s  # for the next one
        self._suspects.remove(mark)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Something changed that others may wait for. The lock is held."""
        self.is_barred = self._draining or bool(self._paused or self._suspects)
        self._changed.notify_all()

    def _refuse(self) -> NoReturn:
        if not self._replacing:
            raise ServerDraining(
                "the server is stopping and takes no new calls. Repeat the call: a restarted "
                "server answers at the same address."
            )
        self._changed.wait_for(lambda: self._is_followed or not self._has_waiting())
        raise WorkerReplaced(
            "the server's worker is being replaced: packages that it runs have changed on disk, it "
            "was idle, could not stop a call that nobody waits for, or somebody asked for it. "
            "Repeat the call: a new worker answers at the same address."
        )

    def release(self, running: AdmittedCall) -> None:
        """Ends an admitted call."""
        with self._changed:
            self._running.discard(running)
            if running.leaves is not None:
                leaves, running.leaves = running.leaves, None
                for leave in leaves:
                    leave()
            if self.is_barred:
                self._changed.notify_all()

    def poll(self) -> None:
        """Nobody waits any more for some call that may run on."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, patience_s: float) -> bool:
        """Has new calls wait until `resume` or `replace`, and waits for those that run.

        Returns:
            Whether none runs now for which somebody waits; else the new ones run as if nothing had
            been.
        """
        with self._changed:
            self._paused += 1
            self.is_barred = True
            if self._changed.wait_for(lambda: not self._has_waiting(), patience_s):
                return True
        self.resume()
        return False

    def resume(self) -> None:
        """Lets calls in again, unless somebody else has paused them as well."""
        with self._changed:
            self._paused -= 1
            self._notify_waiters()

    def replace(self, *, is_followed: bool = False) -> None:
        """Refuses new calls from now on in such a way that their clients repeat them.

        Args:
            is_followed: whether the next worker is there already; else they are told so only when
                the running calls are done.
        """
        with self._changed:
            self._draining = self._replacing = True
            self._is_followed = is_followed
            self._notify_waiters()

    def drain(self) -> None:
        """Refuses new calls from now on and waits until the running ones are done."""
        with self._changed:
            self._draining = True
            self._notify_waiters()
            self._changed.wait_for(lambda: not self._has_waiting())

    def left(self) -> list[AdmittedCall]:
        """The calls that run although nobody waits for them."""
        if not self._running:
            return []
        with self._changed:
            return [call for call in self._running if call.is_abandoned]

    def running(self, *, left: bool = False) -> list[dict[str, str | float]]:
        """Of each running call its function, age and waiting time in seconds; the oldest first.

        Args:
            left: those instead that nobody waits for any more.
        """
        with self._changed:
            calls = sorted(self._running, key=lambda call: call.started)
        return [call.row() for call in calls if call.is_abandoned == left]


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the call's timeout_s passed before it could start. Give it more time, or raise "
        "the server's --threads."
    )
