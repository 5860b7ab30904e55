"""The right to read a connection, and its handoff to another thread when a call takes long.

A thread that reads a warm call runs it itself: handing it to another thread would cost more than
everything else together. While it runs, nobody reads. For a call that takes longer than it used
to, the watchdog puts another thread in charge of reading, and the first one leaves when it is done.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STALL_S = 0.005
"""Longest time for which a call that used to be short may keep a connection from being read."""

_IDLE_S = 0.25


class ReaderHandoff:
    """The right to read one connection; exactly one thread has it.

    Args:
        read_one: reads and handles one message; raises EOFError at the end.
        on_end: called once, when the connection ended.
    """

    def __init__(self, read_one: Callable[[], None], on_end: Callable[[Exception], None]) -> None:
        self._read_one = read_one
        self._on_end = on_end
        self._lock = threading.Lock()  # guards _turn, _ended and busy_since
        self._turn = 0
        self._ended = False
        self.busy_since: float | None = None

    def run(self) -> None:
        """Reads until the connection ends or another thread was put in charge."""
        turn = self._turn
        try:
            while turn == self._turn:
                self._read_one()
        except Exception as error:  # noqa: BLE001  handed to on_end
            with self._lock:
                first, self._ended = not self._ended, True
                self._turn += 1
            if first:  # a thread that was replaced may see it before the one in charge
                self._on_end(error)

    def begin_inline(self) -> int:
        """The reading thread is about to run a call itself; returns what `end_inline` needs."""
        turn = self._turn  # first: once we are busy, another thread may be put in charge
        self.busy_since = time.monotonic()
        return turn

    def end_inline(self, turn: int) -> None:
        """It is done with that, perhaps long after another thread was put in charge."""
        with self._lock:
            if turn == self._turn:
                self.busy_since = None

    def replace_if_stuck(self, now: float) -> None:
        """Puts a new thread in charge when the present one has been running a call for too long."""
        with self._lock:
            if self.busy_since is None or now - self.busy_since < STALL_S:
                return
            since, self.busy_since = self.busy_since, None
            self._turn += 1
            try:
                threading.Thread(target=self.run, name="jaxd-reader", daemon=True).start()
            except RuntimeError:  # the system has no more threads: the present one reads on later
                self._turn -= 1
                self.busy_since = since


class StallWatchdog:
    """Replaces readers that are stuck in a call; sleeps while no calls run."""

    def __init__(self) -> None:
        self._watched: set[ReaderHandoff] = set()
        self._awake = threading.Event()
        self._idle = True
        self._stopped = False
        threading.Thread(target=self._watch, name="jaxd-sentry", daemon=True).start()

    def watch(self, reader_handoff: ReaderHandoff) -> None:
        """Begins to look after a connection."""
        self._watched.add(reader_handoff)

    def unwatch(self, reader_handoff: ReaderHandoff) -> None:
        """Forgets a connection that ended."""
        self._watched.discard(reader_handoff)

    def wake(self) -> None:
        """Some reading thread is about to run a call: cheap while the watchdog is awake anyway."""
        if self._idle:
            self._awake.set()

    def stop(self) -> None:
        """Ends the watchdog's thread."""
        self._stopped = True
        self._awake.set()

    def _watch(self) -> None:
        while not self._stopped:
            self._idle = True
            # a reader marks itself busy before it asks whether we doze: one of us notices
            if not any(reader_handoff.busy_since for reader_handoff in list(self._watched)):
                self._awake.wait()
            self._awake.clear()
            self._idle = False
            self._check_all()

    def _check_all(self) -> None:
        """Looks at every connection once per `STALL_S` until all have been quiet for a while."""
        last_busy = time.monotonic()
        while not self._stopped and time.monotonic() - last_busy < _IDLE_S:
            time.sleep(STALL_S)
            now = time.monotonic()
            for reader_handoff in list(self._watched):
                if reader_handoff.busy_since is not None:
                    last_busy = now
                    reader_handoff.replace_if_stuck(now)
