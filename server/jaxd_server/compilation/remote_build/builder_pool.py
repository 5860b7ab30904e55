"""The pool of a worker's builders: when each is started, to whom it is lent, and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_server.compilation.compiling.builds import check_not_abandoned
from jaxd_server.compilation.functions.table import DeadlyFunctions
from jaxd_server.compilation.remote_build.builder_process import BuilderProcess
from jaxd_server.compilation.remote_build.messages import SideEffects
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event

_MAX_KEYS: Final = 10_000
_MAX_FAILED_STARTS: Final = 3

_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 60.0
"""After that many another start is tried once a pause, each twice as long as the last one."""

_SPARE_AFTER_S: Final = 0.2
"""While a build takes no longer, the builder that has it is soon there for the next one."""


_LONG_S: Final = 2.0
"""A build that takes longer gives way to others: another start of a builder is little beside it."""


class Lifetime(NamedTuple):
    """When a builder is replaced or ended.

    Attributes:
        builds: how many it makes at most.
        resident: bytes of memory that it has at most; XLA gives nothing back of what it compiles.
        idle_s: seconds that it is kept while nobody needs it.
    """

    builds: int = 500
    resident: int = 1 << 30
    idle_s: float = 60.0


USUAL_LIFETIME: Final = Lifetime()


class _AnotherIsReady(Exception):
    """A builder that is ready came back while one that starts was waited for."""


class BuilderPool:
    """Starts, lends and replaces builders; records what they cannot build. Thread-safe.

    Args:
        counters: to which the counts of a builder are added.
        packages: to which the imports of a builder are added.
        deadly: functions that crash the process that builds them.
        start: starts a builder.
        lifetime: when one is replaced or ended.
        clock: seconds that only grow.

    Attributes:
        refused: functions that are never built in another process.
        deadly: the same.
    """

    def __init__(
        self,
        counters: Counters,
        packages: ImportedPackages,
        deadly: DeadlyFunctions,
        start: Callable[[], BuilderProcess],
        lifetime: Lifetime = USUAL_LIFETIME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refused = BoundedDict[bytes, None](_MAX_KEYS)
        self.deadly = deadly
        self._counters = counters
        self._packages = packages
        self._start = start
        self._lifetime = lifetime
        self._clock = clock
        self._idle: list[BuilderProcess] = []  # the one used last is at the end
        self._lent: list[BuilderProcess] = []
        self._new: list[BuilderProcess] = []  # whose start has not ended yet, well or not
        self._failed_starts = 0  # one after the other
        self._retry_at = 0.0  # when another one may be tried, if that are too many
        self._is_closed = False
        self._lock = threading.Lock()  # guards all of these

    def lend(self, fingerprint: bytes = b"", *, unused: bool = False) -> BuilderProcess | None:
        """A builder for the caller alone, once it has started; None: there is none now.

        Args:
            fingerprint: of a function; one that has its code is preferred.
            unused: whether it must not have built anything.

        Raises:
            Interrupted: when no call waits any longer for what this thread builds.
        """
        while True:
            builder = self._take(fingerprint, unused=unused)
            if builder is None:
                return None
            try:
                is_ready = builder.wait(lambda: self._check_wait(unused=unused))
            except _AnotherIsReady:
                self.give_back(builder)
                continue
            except BaseException:
                self.give_back(builder)
                raise
            if is_ready:
                builder.since = self._clock()
                self._have_long_ones_give_way(builder)
                return builder
            self.give_back(builder)

    def _check_wait(self, *, unused: bool) -> None:
        """Ends the wait for a builder that starts.

        Raises:
            Interrupted: when no call waits any longer for what this thread builds.
            _AnotherIsReady: when one came back meanwhile.
        """
        check_not_abandoned()
        with self._lock:
            if any(one.state == "ready" for one in self._suited(unused=unused)):
                raise _AnotherIsReady

    def _suited(self, *, unused: bool) -> list[BuilderProcess]:
        """Those that may be lent. The lock is held."""
        return [one for one in self._idle if not (unused and one.builds)]

    def _have_long_ones_give_way(self, newcomer: BuilderProcess) -> None:
        """A short build beside one of minutes takes hardly longer than alone."""
        before = self._clock() - _LONG_S
        with self._lock:
            long = [one for one in self._lent if one.since < before and not one.yields]
        for one in long:
            if one is not newcomer:
                one.give_way()

    def _take(self, fingerprint: bytes, *, unused: bool) -> BuilderProcess | None:
        with self._lock:
            if not self._may_lend():
                return None
            suited = self._suited(unused=unused)
            if self._starts_fail:
                suited = [one for one in suited if one.state == "ready"]
            best = max(
                suited,
                key=lambda one: (fingerprint in one.known, one.state == "ready"),
                default=None,
            )
            if best is not None:
                self._idle.remove(best)
            elif self._starts_fail:
                return None
            else:
                best = self._begin_start()
            best.since = self._clock()
            self._lent.append(best)
            return best

    def give_back(self, builder: BuilderProcess) -> None:
        """Takes a builder back; one that has built enough, has grown or gives way is ended."""
        builder.function = ""
        is_spent = builder.yields or builder.builds >= self._lifetime.builds
        if not is_spent and builder.state == "ready":
            is_spent = builder.resident() > self._lifetime.resident
        if is_spent:
            log_event("builder_replaced", pid=builder.pid, builds=builder.builds)
            builder.end()
        with self._lock:
            self._lent.remove(builder)
            if not is_spent and not self._is_closed:
                builder.since = self._clock()
                self._idle.append(builder)
            self._sort_out()

    def all(self) -> list[BuilderProcess]:
        """Those that there are, and those that start."""
        with self._lock:
            return [one for one in (*self._lent, *self._idle) if one.state != "ended"]

    def all_know(self, fingerprint: bytes) -> bool:
        """Whether whichever builder is lent next has the code of a function."""
        with self._lock:
            there = (*self._idle, *self._lent)
            return bool(there) and all(fingerprint in one.known for one in there)

    @property
    def is_ready(self) -> bool:
        """Whether one could begin at once."""
        with self._lock:
            return any(one.state == "ready" for one in self._idle)

    def can_lend(self) -> bool:
        """Whether a build may be given to a builder: not while they cannot be started.

        Then another start is tried now and then, which nobody waits for.
        """
        with self._lock:
            return self._may_lend()

    def start_spare(self, *, beside_others: bool = True) -> None:
        """Starts one if there is none, or none but such as have been at work for long.

        Args:
            beside_others: whether one is wanted beside those that work.
        """
        with self._lock:
            now = self._clock()
            if not self._may_lend() or self._starts_fail or self._idle:
                return
            if self._lent and not beside_others:
                return
            if all(
                one.state != "starting" and now - one.since > _SPARE_AFTER_S for one in self._lent
            ):
                self._idle.append(self._begin_start())

    def end_idle(self, keep: int) -> None:
        """Ends those that nobody has needed for long, but for the `keep` that were used last."""
        with self._lock:
            self._sort_out()
            before = self._clock() - self._lifetime.idle_s
            over = [one for one in self._idle[: len(self._idle) - keep] if one.since < before]
            self._idle = [one for one in self._idle if one not in over]
        for one in over:
            one.end()

    def _sort_out(self) -> None:
        """Forgets those that have ended, and learns which have started. The lock is held."""
        self._idle = [one for one in self._idle if one.state != "ended"]
        settled = [one for one in self._new if one.state != "starting"]
        self._new = [one for one in self._new if one not in settled]
        for one in settled:
            if one.was_ready and self._starts_fail:
                log_event("builders_start_again")
            if one.was_ready:
                self._failed_starts = 0
            elif one.has_failed:
                self._count_failed_start()

    def _count_failed_start(self) -> None:
        self._failed_starts += 1
        over = self._failed_starts - _MAX_FAILED_STARTS
        if over == 0:
            log_event("builders_do_not_start")
        if over >= 0:
            self._retry_at = self._clock() + min(_MAX_PAUSE_S, _PAUSE_S * 2 ** min(over, 10))

    @property
    def _starts_fail(self) -> bool:
        return self._failed_starts >= _MAX_FAILED_STARTS

    def _may_lend(self) -> bool:
        """See `can_lend`. The lock is held."""
        self._sort_out()
        if self._is_closed:
            return False
        if not self._starts_fail:
            return True
        if not self._new and self._clock() >= self._retry_at:
            self._idle.append(self._begin_start())
        return any(one.state == "ready" for one in self._idle)

    def _begin_start(self) -> BuilderProcess:
        """A builder that starts. The lock is held."""
        builder = self._start()
        builder.since = self._clock()
        self._new.append(builder)
        return builder

    def close(self) -> None:
        """Ends all builders; there are none after that."""
        with self._lock:
            self._is_closed = True
            left, self._idle = [*self._idle, *self._lent], []
        for one in left:
            one.end()
        for one in left:
            one.close()

    def apply_side_effects(self, side: SideEffects) -> None:
        """Applies counters and imports that a builder has reported."""
        self._counters.add(**side.counts)
        self._packages.adopt(side.packages)
