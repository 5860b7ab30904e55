"""Counters of the whole worker, and of each principal that may only see its own."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from jaxd_protocol.wire import BulkChannel


@dataclass(slots=True)
class Counts:
    """The counts of one principal, or of all; see `jaxd.Statistics`."""

    calls: int = 0
    traces: int = 0
    lowers: int = 0
    compiles: int = 0
    executable_hits: int = 0
    executable_loads: int = 0
    programs_shared: int = 0
    xla_cache_hits: int = 0
    failed_calls: int = 0
    cancelled_calls: int = 0
    late_calls: int = 0
    fallback_calls: int = 0
    fallback_functions: int = 0
    verified_programs: int = 0
    stale_programs: int = 0
    incomparable_programs: int = 0
    waited_s: float = 0.0
    run_s: float = 0.0
    trace_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    saved_s: float = 0.0


@dataclass(slots=True)
class SessionUse:
    """What one client process has had of the server.

    Attributes:
        calls: calls that were answered with a result.
        compiled: executables that were traced and compiled for one of them.
        loaded: executables that were loaded from disk for one of them.
        found: executables that were there when it used them first.
        saved_s: seconds of tracing and compiling that `loaded` and `found` have spared it.
    """

    calls: int = 0
    compiled: int = 0
    loaded: int = 0
    found: int = 0
    saved_s: float = 0.0

    def to_report(self) -> dict[str, float]:
        """The counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class Counters:
    """Counts what the worker did since it started; safe from any thread."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._own: dict[str, Counts] = {}
        self._lock = threading.Lock()  # guards all counts
        self._behalf = threading.local()
        self._started = time.monotonic()
        self._last_activity = self._started

    def of(self, principal: str) -> Counts:
        """The counts of one principal, since the first call of this for it."""
        with self._lock:
            return self._own.setdefault(principal, Counts())

    def forget(self, principal: str) -> None:
        """Drops the counts of a principal, whose next holder may be another person."""
        with self._lock:
            self._own.pop(principal, None)

    @contextmanager
    def on_behalf_of(self, own: Counts | None) -> Iterator[None]:
        """Counts of this thread during the block count for a principal as well."""
        before = getattr(self._behalf, "own", None)
        self._behalf.own = own
        try:
            yield
        finally:
            self._behalf.own = before

    def add(self, own: Counts | None = None, /, **amounts: float) -> None:
        """Adds to the named counters.

        Args:
            own: further counts; None: those of `on_behalf_of`, if any.
            amounts: by the names of the counters.
        """
        own = own or getattr(self._behalf, "own", None)
        with self._lock:
            self._last_activity = time.monotonic()
            for counts in (self._counts,) if own is None else (self._counts, own):
                for name, amount in amounts.items():
                    setattr(counts, name, getattr(counts, name) + amount)

    def hit(
        self, run_s: float = 0.0, own: Counts | None = None, use: SessionUse | None = None
    ) -> None:
        """Counts one call that a ready executable answered: all that the warm path counts.

        Args:
            run_s: seconds that it ran.
            own: the counts of its principal, if there are any.
            use: of its session.
        """
        with self._lock:
            self._last_activity = time.monotonic()
            self._counts.calls += 1
            self._counts.executable_hits += 1
            self._counts.run_s += run_s
            if use is not None:
                use.calls += 1
            if own is not None:
                own.calls += 1
                own.executable_hits += 1
                own.run_s += run_s

    @property
    def idle_s(self) -> float:
        """Seconds since anything was counted."""
        return time.monotonic() - self._last_activity

    @property
    def has_answered(self) -> bool:
        """Whether a call was answered."""
        return self._counts.calls > 0

    def snapshot(self, own: Counts | None = None) -> dict[str, float]:
        """All counters by name, of one principal or of all, with `uptime_s` in seconds."""
        counts = self._counts if own is None else own
        with self._lock:
            found = {name: getattr(counts, name) for name in Counts.__slots__}
        return {**found, "uptime_s": round(time.monotonic() - self._started, 3)}


_REVOKED: Final = "-"
"""Stands for all revoked principals; no principal has this name."""


class Traffic:
    """Adds up what each channel counts for itself. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[BulkChannel, str] = {}
        self._received: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards all of the above

    def add(self, channel: BulkChannel, principal: str = "") -> None:
        """Begins to count a connection of a principal."""
        with self._lock:
            self._open[channel] = principal

    def remove(self, channel: BulkChannel) -> None:
        """Ends a connection; its bytes still count."""
        with self._lock:
            principal = self._open.pop(channel)
            self._received[principal] += channel.reader.bytes_received
            self._sent[principal] += channel.writer.bytes_sent

    def send_held(self) -> None:
        """Has each connection send the replies that wait for the next one."""
        with self._lock:
            channels = list(self._open)
        for channel in channels:
            with suppress(EOFError):
                channel.writer.send_held()

    def forget(self, principal: str) -> None:
        """Resets the counts of a principal; in the sum of all principals they still count.

        The rest of its connections, which are about to end, counts in that sum only.
        """
        with self._lock:
            for channel in [one for one, whose in self._open.items() if whose == principal]:
                self._open[channel] = _REVOKED
            for counted in (self._received, self._sent):
                counted[_REVOKED] += counted.pop(principal, 0)

    def totals(self, principal: str | None = None) -> dict[str, int]:
        """`bytes_received` and `bytes_sent` since the worker started, of one or of all."""
        with self._lock:
            received, sent = self._received.copy(), self._sent.copy()
            for channel, whose in self._open.items():
                received[whose] += channel.reader.bytes_received
                sent[whose] += channel.writer.bytes_sent
        if principal is None:
            return {"bytes_received": received.total(), "bytes_sent": sent.total()}
        return {"bytes_received": received[principal], "bytes_sent": sent[principal]}
