"""Admits calls to execution: none while the server drains, one at a time for exclusive calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

from jaxd_protocol.errors import DeadlineExceeded, ServerDraining, WorkerReplaced
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken


@dataclass(slots=True, eq=False, kw_only=True)
class Operation:
    """What is admitted: a call, or another request that a draining server waits for.

    Attributes:
        name: for the status page: that of its function, once it is known.
        deadline: `time.monotonic()` after which its client does not wait; None: never.
        inside: whether a callback of a running call makes it.
        cancel_token: whether a client still waits for it.
        started: `time.monotonic()` when it was admitted.
        is_exclusive: whether it was admitted to run alone.
        on_release: called once when it is over.
    """

    name: str = "(unknown function)"
    deadline: float | None = None
    inside: bool = False
    cancel_token: CancelToken = NEVER_CANCELLED
    started: float = 0.0
    is_exclusive: bool = False
    on_release: Callable[[], None] | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether it was cancelled, and its client was told."""
        return self.cancel_token.is_client_notified

    def row(self) -> dict[str, str | float]:
        """Its row on the status page."""
        seconds = round(time.monotonic() - self.started, 3)
        row: dict[str, str | float] = {"function": self.name, "seconds": seconds}
        if self.cancel_token is NEVER_CANCELLED:
            return row
        waited_s = self.cancel_token.spent()["waiting"]
        row |= {"phase": self.cancel_token.phase, "waited_s": round(waited_s, 3)}
        first = self.cancel_token.waits_behind()
        if first is not None:
            row |= {"behind": first[0], "behind_s": round(first[2], 3)}
        return row


PATIENCE_S: Final = 5.0
"""How long an exclusive call holds back new calls while it waits for the running ones."""

ALONE_S: Final = 10.0
"""How long it holds them back while it runs. After that they run beside it."""


class Admission:
    """Counts running operations and admits new ones. Thread-safe.

    Args:
        patience_s, alone_s: see `PATIENCE_S` and `ALONE_S`.

    Attributes:
        draining: whether new calls are refused.
        is_barred: whether a new call may have to wait.
    """

    def __init__(self, patience_s: float = PATIENCE_S, alone_s: float = ALONE_S) -> None:
        self._max_wait_s = patience_s
        self._alone_s = alone_s
        self._running: set[Operation] = set()
        self._changed = threading.Condition()  # guards all of these
        self.draining = False
        self._replacing = False
        self._is_followed = False
        self._paused = 0  # number of pauses
        self._exclusive: list[Operation] = []  # the first one runs, or is next
        self._bar_until = 0.0
        self._on_concurrent: Callable[[], None] | None = None  # of the one that runs alone
        self.is_barred = False

    @property
    def is_busy(self) -> bool:
        """Whether operations are running whose clients wait for them."""
        return bool(self._running) and self._has_waiting()

    def _has_waiting(self) -> bool:
        return not all(one.is_abandoned for one in list(self._running))

    def acquire(self, call: Operation) -> None:
        """Admits a call; `release` ends it.

        Raises:
            ServerDraining: when the server is stopping.
            WorkerReplaced: when another worker will answer; only after the running calls are
                done, because until then the new one does not start.
            DeadlineExceeded: when the deadline passed while the call waited its turn.
        """
        call.started = time.monotonic()
        if call.deadline is not None and call.started > call.deadline:
            raise _too_late()
        with self._changed:
            if self.is_barred:
                self._wait(call)
            self._running.add(call)

    def _wait(self, call: Operation) -> None:
        """Returns when no exclusive call keeps this one waiting. The lock is held.

        One from inside of a callback waits for nothing: a call that runs waits for it, also while
        the server drains.
        """
        if call.inside:
            return
        while not self.draining and (self._exclusive or self._paused):
            now = time.monotonic()
            if not self._paused and now >= self._bar_until:
                self._end_bar()
                return
            self._wait_for_change(now + self._max_wait_s if self._paused else self._bar_until, call)
        if self.draining:
            self._refuse()

    @contextmanager
    def shared(self, name: str, *, leaves_values: bool = False) -> Iterator[None]:
        """Within it, a request that is no call is admitted; it waits only during a `pause`.

        Args:
            name: for the status page.
            leaves_values: whether it leaves values here that its client goes on to use. Then it is
                refused as calls are; what reads or ends something is answered until the end.

        Raises:
            ServerDraining, WorkerReplaced: as `acquire`.
        """
        request = Operation(name=name, started=time.monotonic())
        with self._changed:
            self._changed.wait_for(lambda: not self._paused or self.draining)
            if leaves_values and self.draining:
                self._refuse()
            self._running.add(request)
        try:
            yield
        finally:
            self.release(request)

    def _wait_for_change(self, until: float, call: Operation) -> None:
        """Waits for a change, until that time at the latest. The lock is held."""
        now = time.monotonic()
        if call.deadline is not None:
            if now > call.deadline:
                raise _too_late()
            until = min(until, call.deadline)
        self._changed.wait(max(0.001, until - now))

    def _end_bar(self) -> None:
        """Calls run beside an exclusive one from now on. The lock is held."""
        self.is_barred = self.draining or bool(self._paused)  # or the next exclusive call sets it
        if self._on_concurrent is not None:
            self._on_concurrent()
            self._on_concurrent = None

    def acquire_exclusive(
        self, call: Operation, on_concurrent: Callable[[], None], *, alone_s: float = 0.0
    ) -> bool:
        """Admits a call that runs while no other does; `release` ends it.

        One such call after the other. New calls wait for it, but not for ever: after a few seconds
        they are let in.

        Args:
            call: what is to be admitted.
            on_concurrent: called, under a lock, when others run beside it after all.
            alone_s: how long others wait while it runs, when that is longer than usual.

        Returns:
            Whether it is alone: not where an earlier call takes too long.

        Raises:
            ServerDraining, WorkerReplaced, DeadlineExceeded: as `acquire`.
        """
        with self._changed:
            if not self._exclusive:
                self._bar_until = time.monotonic() + self._max_wait_s
            self._exclusive.append(call)
            self.is_barred = True
            try:
                is_alone = self._wait_alone(call)
            except BaseException:
                self._end_exclusive(call)
                raise
            call.started = time.monotonic()
            self._bar_until = call.started + (max(self._alone_s, alone_s) if is_alone else 0.0)
            self._on_concurrent = on_concurrent if is_alone else None
            call.is_exclusive = True
            self._running.add(call)
        return is_alone

    def _wait_alone(self, call: Operation) -> bool:
        """Returns when it is this one's turn; whether no other runs. The lock is held."""
        while True:
            if self.draining:
                self._refuse()
            now = time.monotonic()
            is_next = not self._paused and self._exclusive[0] is call
            if is_next and (not self._running or now >= self._bar_until):
                return not self._running
            self._wait_for_change(self._bar_until if is_next else now + self._max_wait_s, call)

    def _end_exclusive(self, call: Operation) -> None:
        """An exclusive call ended, or was refused. The lock is held."""
        if self._exclusive[0] is call:
            self._on_concurrent = None
            self._bar_until = time.monotonic() + self._max_wait_s  # for the next one
        self._exclusive.remove(call)
        self._notify_waiters()

    def _notify_waiters(self) -> None:
        """Something changed that others may wait for. The lock is held."""
        self.is_barred = self.draining or bool(self._paused or self._exclusive)
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

    def release(self, operation: Operation) -> None:
        """Ends an admitted operation; does nothing when it has ended."""
        with self._changed:
            self._running.discard(operation)
            if operation.is_exclusive:
                operation.is_exclusive = False
                self._end_exclusive(operation)
            if operation.on_release is not None:
                on_release, operation.on_release = operation.on_release, None
                on_release()
            if self.is_barred:
                self._changed.notify_all()

    def poll(self) -> None:
        """A call was cancelled that may run on."""
        with self._changed:
            self._changed.notify_all()

    def pause(self, patience_s: float) -> bool:
        """Has new calls wait until `resume` or `replace`, and waits for the running ones.

        Returns:
            Whether none runs now that a client waits for; else the new ones run as if there had
            been no pause.
        """
        with self._changed:
            self._paused += 1
            self.is_barred = True
            if self._changed.wait_for(lambda: not self._has_waiting(), patience_s):
                return True
        self.resume()
        return False

    def resume(self) -> None:
        """Lets calls in again, unless there is another pause."""
        with self._changed:
            self._paused -= 1
            self._notify_waiters()

    def replace(self, *, is_followed: bool = False) -> None:
        """Refuses new calls from now on in such a way that their clients repeat them.

        Args:
            is_followed: whether the next worker is there already; else the calls are refused only
                when the running ones are done.
        """
        with self._changed:
            self.draining = self._replacing = True
            self._is_followed = is_followed
            self._notify_waiters()

    def drain(self) -> None:
        """Refuses new calls from now on and waits until the running ones are done."""
        with self._changed:
            self.draining = True
            self._notify_waiters()
            self._changed.wait_for(lambda: not self._has_waiting())

    def operations(self) -> list[Operation]:
        """All that runs, cancelled or not; the oldest first."""
        if not self._running:
            return []
        with self._changed:
            return sorted(self._running, key=lambda one: one.started)

    def abandoned(self) -> list[Operation]:
        """What still runs although it was cancelled; the oldest first."""
        return [one for one in self.operations() if one.is_abandoned]

    def running(self) -> list[dict[str, str | float]]:
        """Of all else that runs its function, age and waiting time in seconds; the oldest first."""
        return [one.row() for one in self.operations() if not one.is_abandoned]


def _too_late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the call's timeout_s passed before it could start. Give it more time, or raise "
        "the server's --threads."
    )
