"""Runs one build per key, in a thread of its own, for as long as a call waits for it.

The first call starts it, the others join. A call that is cancelled is released at once. With the
last one, a build that waits for its turn is dropped, a trace is interrupted, and a builder that
compiles is ended; a compilation in this process cannot be interrupted, so it goes on, and its
result is there for the next call. A few are built at a time, and short builds pass long ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import ConnectionLost, DeadlineExceeded, ProtocolError
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken, assigned
from jaxd_server.runtime.threads.executors import process_timers
from jaxd_server.runtime.threads.fairness import FairSemaphore
from jaxd_server.user_code.interrupt import Interrupted, Interruptible, may_interrupt


class Build:
    """One build in progress. Thread-safe.

    Args:
        owner: whom its turn is counted for.

    Attributes:
        name: the name of the function, once it has begun.
        owner: the same.
        future: its result.
        waiting: the cancel tokens of the calls that wait for it, each with what wakes its thread.
        begun: `time.monotonic()` when it had its turn; None before that.
        error: why no call may wait for it any longer; None as long as one may.
        ends_at: `time.monotonic()` until which a builder may go on with it then.
        is_abandoned: whether no call waits for it.
        interruptible: its trace.
        waits_in: where it waits for its turn; None before and after that.
        waited_for: the function that was built when it began to wait; empty when it did not wait.
        builder: the process that makes it; 0: this one.
    """

    def __init__(self, owner: object = None) -> None:
        self.name = ""
        self.owner = owner
        self.future: Future[Any] = Future()
        self.waiting: list[tuple[CancelToken, threading.Event]] = []
        self.begun: float | None = None
        self.error: DeadlineExceeded | None = None
        self.ends_at = 0.0
        self.is_abandoned = False
        self.interruptible = Interruptible()
        self.waits_in: BuildRoom | None = None
        self.waited_for = ""
        self.builder = 0
        self._hooks: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # guards _hooks

    def begin(self, name: str) -> None:
        """Marks the start of its turn.

        Raises:
            Interrupted: when no call waits for it any longer.
        """
        self.check()
        self.name = name
        self.begun = time.monotonic()
        for cancel_token, _ in list(self.waiting):
            cancel_token.set_phase("building")

    def waits_behind(self) -> tuple[str, object, float] | None:
        """What it waits for to have its turn, see `BuildRoom.longest`; None: it does not wait."""
        return None if self.waits_in is None else self.waits_in.longest()

    def check(self) -> None:
        """Checks that a call still waits for it.

        Raises:
            Interrupted: when none does.
        """
        if self.is_abandoned:
            raise Interrupted

    def grace_s(self) -> float:
        """Seconds that a builder may go on compiling it although no call waits for it."""
        return 0.0 if self.error is None else max(0.0, self.ends_at - time.monotonic())

    def notify(self) -> None:
        """Runs the hooks: no call waits for the build any longer."""
        with self._lock:
            hooks, self._hooks = self._hooks, []
        for hook in hooks:
            hook()

    @contextmanager
    def cancel_hook(self, hook: Callable[[], None]) -> Iterator[None]:
        """Within it, `hook` is called once no call waits any longer; at once if that is so."""
        with self._lock:
            self._hooks.append(hook)
        if self.is_abandoned:  # since before
            self.notify()
        try:
            yield
        finally:
            with self._lock:
                if hook in self._hooks:
                    self._hooks.remove(hook)


_current: ContextVar[Build | None] = ContextVar("current build", default=None)


def as_current_build(build: Build) -> AbstractContextManager[None]:
    """Within it, this is the current build of the thread."""
    return assigned(_current, build)


def current_build() -> Build | None:
    """The build that this thread works on; None outside of builds."""
    return _current.get()


def check_not_abandoned() -> None:
    """Checks that a call still waits for what this thread builds.

    Raises:
        Interrupted: when none does.
    """
    build = _current.get()
    if build is not None:
        build.check()


LONG_S: Final = 2.0
"""A build that has had its turn for so long lets another one begin beside it."""

LONG_ELSEWHERE_S: Final = 0.5
"""The same of one that a builder makes: it holds neither the interpreter nor a thread of XLA's."""


@dataclass(slots=True, eq=False)
class _Turn:
    """The turn of one build.

    Attributes:
        name: the name of the function.
        owner: whom it is counted for.
        begun: `time.monotonic()` when it began.
        is_passed: whether another build has begun in its place.
        is_over: whether it has ended.
    """

    name: str
    owner: object
    begun: float = field(default_factory=time.monotonic)
    is_passed: bool = False
    is_over: bool = False


class BuildRoom:
    """Lets a few builds go on at a time, one owner after the other. Thread-safe.

    XLA uses all cores for each build, and cannot be interrupted. So a build that takes long, or
    that no call waits for any longer, lets another one begin beside it: short ones do not wait for
    minutes. At most twice as many as `limit` go on then.

    Args:
        limit: how many at a time.
        long_s: seconds after which one is long.
    """

    def __init__(self, limit: int, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._places = FairSemaphore(limit)
        self._more = limit  # how many long ones may still let another one begin
        self._inside: list[_Turn] = []  # the oldest first
        self._lock = threading.Lock()  # guards _more, _inside and the turns

    def __len__(self) -> int:
        """The number of builds that wait for their turn."""
        return len(self._places)

    @contextmanager
    def turn(
        self,
        name: str,
        on_wait: Callable[[], None] = lambda: None,
        *,
        is_elsewhere: bool = False,
    ) -> Iterator[None]:
        """Within it, the build of this thread has its turn.

        Args:
            name: the name of the function.
            on_wait: called when it has to wait.
            is_elsewhere: whether another process makes it, which costs this one less.

        Raises:
            Interrupted: when no call waits for it any longer.
        """
        build = current_build() or Build()
        build.waits_in = self

        def waiting() -> None:
            first = self.longest()
            build.waited_for = first[0] if first else ""
            on_wait()

        if not self._places.enter(build.owner, build.cancel_hook, waiting):
            raise Interrupted
        build.waits_in = None
        turn = _Turn(name, build.owner)
        with self._lock:
            self._inside.append(turn)
        try:
            build.begin(name)
            long_s = min(self._long_s, LONG_ELSEWHERE_S) if is_elsewhere else self._long_s
            process_timers.after(long_s, lambda: self._let_pass(turn))
            with build.cancel_hook(lambda: self._let_pass(turn)):
                yield
        finally:
            self._end(turn)

    @property
    def running(self) -> int:
        """The number of builds that have their turn."""
        return len(self._inside)

    def longest(self) -> tuple[str, object, float] | None:
        """The build that has had its turn for the longest time.

        Returns:
            The name of its function, whom it is counted for, and the seconds; None: there is none.
        """
        with self._lock:
            if not self._inside:
                return None
            oldest = self._inside[0]
            return oldest.name, oldest.owner, time.monotonic() - oldest.begun

    def _let_pass(self, turn: _Turn) -> None:
        """Lets another build begin beside this one; tries again later where too many go on."""
        with self._lock:
            if turn.is_over or turn.is_passed:
                return
            turn.is_passed = self._more > 0
            self._more -= turn.is_passed
        if turn.is_passed:
            self._places.leave()
        else:
            process_timers.after(self._long_s, lambda: self._let_pass(turn))

    def _end(self, turn: _Turn) -> None:
        with self._lock:
            self._inside.remove(turn)
            turn.is_over = True
            self._more += turn.is_passed
        if not turn.is_passed:
            self._places.leave()


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_INTERRUPT_RETRY_S: Final = 0.05
"""An exception that was swallowed is sent again after that."""


OVERDUE_FACTOR: Final = 10
"""A builder compiles for so many times `--max-build-s`: calls do not wait, but may come again."""


class _Abandoned(Exception):
    """No call waited for a build any longer, so that there is no result."""


class Builds(Generic[K, V]):
    """The builds in progress, by key. Keeps no results. Thread-safe.

    Args:
        max_s: seconds that calls wait for a build once it has its turn; 0: any number.
        on_abandoned: called with each unfinished build that no call waits for any longer.
    """

    def __init__(
        self,
        max_s: float = 0.0,
        on_abandoned: Callable[[Build], None] = lambda build: None,
    ) -> None:
        self._max_s = max_s
        self._on_abandoned = on_abandoned
        self._builds: dict[K, Build] = {}
        self._lock = threading.Lock()  # guards _builds, and the calls that wait for each

    def run(
        self,
        key: K,
        find: Callable[[], V | None],
        make: Callable[[], V],
        cancel_token: CancelToken = NEVER_CANCELLED,
        owner: object = None,
    ) -> V:
        """What `find` has, or what one caller's `make` returns.

        Args:
            key: what is being made.
            find: looks in the caller's table; called again under the lock, so that a build that
                has just ended is not started once more.
            make: makes it and puts it into the table; runs in a thread of its own.
            cancel_token: of the call that it is for.
            owner: whom its turn is counted for.

        Raises:
            JaxdError: why the call is cancelled.
            DeadlineExceeded: when the build takes longer than builds may.
            BaseException: whatever `make` raised, in each caller that waited for it; but a
                failure of the starting client's connection is its own, and the next call tries.
        """
        while True:
            cancel_token.check()
            with self._lock:
                found = find()
                if found is not None:
                    return found
                build = self._builds.get(key)
                mine = build is None
                if build is None:
                    build = self._builds[key] = Build(owner)
                place = (cancel_token, threading.Event())
                build.waiting.append(place)
                build.is_abandoned = False
            try:
                if mine:
                    self._start(key, build, make)
                result: V = self._await(build, *place)
                return result
            except (_Abandoned, ConnectionLost, ProtocolError) as error:
                # the client of another call may have failed where this one's does not
                if mine and not isinstance(error, _Abandoned):
                    raise
            finally:
                self._stop_waiting(key, build, place)

    def _start(self, key: K, build: Build, make: Callable[[], V]) -> None:
        try:
            start_daemon("jaxd-make", self._make, key, build, make)
        except RuntimeError:  # the system has no more threads
            self._make(key, build, make)

    def _make(self, key: K, build: Build, make: Callable[[], V]) -> None:
        outcome: V | None = None
        error: BaseException | None = None
        try:
            if self._max_s:
                process_timers.after(self._max_s, lambda: self._release_overdue(build))
            with as_current_build(build), may_interrupt(build.interruptible):
                outcome = make()
        except BaseException as raised:  # noqa: BLE001  raised again in each waiting call
            error = _Abandoned() if isinstance(raised, Interrupted) else raised
        with self._lock:
            self._forget(key, build)
        if error is None:
            build.future.set_result(outcome)
        else:
            build.future.set_exception(error)

    def _await(self, build: Build, cancel_token: CancelToken, gate: threading.Event) -> Any:
        build.future.add_done_callback(lambda _: gate.set())
        if cancel_token is not NEVER_CANCELLED:  # which all such calls share
            cancel_token.waits_behind = build.waits_behind
        if build.begun is not None:
            cancel_token.set_phase("building")
        if build.error is None:
            with cancel_token.cancel_hook(gate.set):
                gate.wait()
        if build.future.done():
            return build.future.result()
        cancel_token.check()
        assert build.error is not None
        raise DeadlineExceeded(str(build.error))

    def _stop_waiting(
        self, key: K, build: Build, place: tuple[CancelToken, threading.Event]
    ) -> None:
        """Removes a waiting call; interrupts the build if it was the last one."""
        with self._lock:
            build.waiting = [one for one in build.waiting if one is not place]
            if build.waiting or build.future.done():
                return
            build.is_abandoned = True
            self._interrupt(key, build)
        build.notify()
        process_timers.after(_INTERRUPT_RETRY_S, lambda: self._interrupt_again(key, build))
        self._on_abandoned(build)

    def _interrupt_again(self, key: K, build: Build) -> None:
        """Interrupts a build again that still runs."""
        with self._lock:
            if build.future.done() or not build.is_abandoned:
                return
            self._interrupt(key, build)
        process_timers.after(_INTERRUPT_RETRY_S, lambda: self._interrupt_again(key, build))

    def _interrupt(self, key: K, build: Build) -> None:
        """Interrupts it where that is possible; no call may join it then. The lock is held."""
        if build.interruptible.interrupt():
            self._forget(key, build)

    def _forget(self, key: K, build: Build) -> None:
        if self._builds.get(key) is build:
            del self._builds[key]

    def _release_overdue(self, build: Build) -> None:
        """Releases the calls that wait for a build that takes too long."""
        if build.future.done():
            return
        since = time.monotonic() if build.begun is None else build.begun
        left_s = since + self._max_s - time.monotonic()
        if left_s > 0:
            process_timers.after(left_s, lambda: self._release_overdue(build))
            return
        longest_s = OVERDUE_FACTOR * self._max_s
        build.ends_at = since + longest_s
        build.error = DeadlineExceeded(
            f"{build.name} was being built for {self._max_s:g} s, which is as long as this server "
            "waits (--max-build-s). What is being compiled goes on, in a builder for up to "
            f"{longest_s:g} s, and is kept: call again later, or build it ahead with .warm() where "
            "there is no limit."
        )
        with self._lock:
            gates = [gate for _, gate in build.waiting]
        for gate in gates:
            gate.set()
