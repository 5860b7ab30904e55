"""Releases values that this process no longer holds: with the next call, or soon after.

What a call returned is held until the next call is sent, or for a moment: most of what a loop
returns is given to that call for good, and need not be watched. The rest is, by weak references.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from jaxd_protocol.messages.data_locations import call_number_of, pack_spans, unpack_spans

_MAX_SENT: Final = 4096
_PAUSE_S: Final = 0.02
"""How long ids may wait for a call that carries them, and new arrays to be watched."""


class Releasable(Protocol):
    """Arrays of one call, which are released one by one when nobody holds them."""

    def watch(self, noticed: Callable[[Any], object]) -> bool:
        """Holds them no longer; whether there are any to watch.

        Args:
            noticed: called for each that goes, in whatever thread, and during garbage collection.
        """

    def take_gone(self) -> tuple[list[range], bool]:
        """The ids of those that went since the last time, and whether there are others."""


def _are_of_one_call(ids: range, others: range) -> bool:
    return call_number_of(ids.start) == call_number_of(others.start)


class ReleaseQueue:
    """A queue of ids of values to release. Thread-safe.

    Args:
        send: sends the ids to the server in a message of their own; False when the session has
            ended.
        also: called by the thread whenever it was woken.

    Attributes:
        pending: the ids that are not sent yet.
        young: what calls returned, and is not watched yet.
    """

    def __init__(
        self, send: Callable[[bytes], bool], also: Callable[[], object] = lambda: None
    ) -> None:
        self._send, self._also = send, also
        self.pending: deque[range] = deque()
        self._sent: deque[range] = deque(maxlen=_MAX_SENT)
        self.young: deque[Releasable] = deque()
        self._watched: dict[int, Releasable] = {}
        """Held here, or the weak references would go together with their arrays, unnoticed."""
        self._noticed: SimpleQueue[Releasable | None] = SimpleQueue()
        self._is_woken = False
        self._thread: threading.Thread | None = None
        self._is_needed = False  # whether the thread was ever started
        self._is_stopped = False
        self._lock = threading.Lock()  # guards the thread; `add` must not take it
        self._watching = threading.Lock()  # held while arrays go from `young` to `_watched`

    @property
    def is_holding(self) -> bool:
        """Whether somebody holds arrays, or did until just now; cheap to ask."""
        return bool(self.young or self._watched)

    def track(self, arrays: Releasable) -> None:
        """Holds what a call returned, for a moment, and then watches it."""
        self.young.append(arrays)
        self.wake()

    def add(self, ids: range) -> None:
        """Adds ids, from any thread and during garbage collection: takes no lock."""
        self.pending.append(ids)
        self.wake()

    def wake(self) -> None:
        """Wakes the thread, from any other and during garbage collection: takes no lock."""
        if not self._is_woken:
            self._is_woken = True
            self._noticed.put(None)  # written in C: a collection in between does no harm

    def take_all(self) -> bytes:
        """The ids to send with a call; removes them from the queue."""
        if not self._noticed.empty():
            self._collect()
        if self.young:
            self._watch_young()
        if not self._noticed.empty():  # of those just now
            self._collect()
            if self._thread is None:
                self._noticed.put(None)  # one that was stopped may wait for it
        return pack_spans(self._drain()) if self.pending else b""

    def requeue(self, ids: bytes) -> None:
        """Puts ids back that could not be sent."""
        self.pending.extend(unpack_spans(ids))
        if threading.current_thread() is not self._thread:  # which would only try again at once
            self.wake()

    def start(self) -> None:
        """Starts the thread that sends ids which no call carries, while connected."""
        if self._thread is not None:
            return
        with self._lock:
            self._is_needed = True
            self._start_thread()
        self.retry()

    def _start_thread(self) -> None:
        """The lock is held."""
        if self._thread is not None or self._is_stopped:
            return
        thread = threading.Thread(target=self._run, name="jaxd-drops", daemon=True)
        with suppress(RuntimeError):  # the system has no more threads: calls carry the ids
            self._is_woken, self._thread = False, thread
            try:
                thread.start()
            except RuntimeError:
                self._thread = None
                raise

    def retry(self) -> None:
        """Sends again what could not be sent before."""
        if self.pending or self.young:
            self.wake()

    def stop(self) -> None:
        """Stops the sending thread, until there is another connection."""
        with self._lock:
            self._is_stopped = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._noticed.put(None)

    def abandon(self) -> None:
        """Drops all ids, in the child of a fork: the values and the thread are the parent's."""
        self.pending = deque(maxlen=0)
        self.young = deque(maxlen=0)
        self._watched.clear()
        self._is_woken = True
        self._lock = threading.Lock()
        self._watching = threading.Lock()

    def _watch_young(self) -> None:
        with suppress(IndexError), self._watching:
            while True:
                arrays = self.young.popleft()
                self._watched[id(arrays)] = arrays
                if not arrays.watch(partial(self._noticed.put, arrays)):
                    self._watched.pop(id(arrays), None)

    def _collect(self) -> None:
        """Adds the ids of what has gone; whoever calls this looks for all else after that."""
        gone: dict[int, Releasable] = {}
        with suppress(Empty):
            while True:
                arrays = self._noticed.get_nowait()
                if arrays is None:
                    self._is_woken = False
                else:
                    gone[id(arrays)] = arrays
        for arrays in gone.values():
            self._add_gone(arrays)

    def _add_gone(self, arrays: Releasable) -> None:
        spans, are_others = arrays.take_gone()
        self.pending.extend(spans)
        if not are_others:
            self._watched.pop(id(arrays), None)

    def _drain(self) -> list[range]:
        found: list[range] = []
        with suppress(IndexError):
            while True:
                ids = self.pending.popleft()
                if found and found[-1].stop == ids.start and _are_of_one_call(found[-1], ids):
                    found[-1] = range(found[-1].start, ids.stop)
                else:
                    found.append(ids)
        self._sent.extend(found)
        return found

    def forget_sent(self, but: Container[int] = ()) -> None:
        """Forgets what was sent: the server has none of it any more.

        Args:
            but: numbers of calls that are sent again, and make theirs once more.
        """
        sent = [each for each in self._sent if call_number_of(each.start) in but]
        self._sent.clear()
        self._sent.extend(sent)

    def held(self) -> list[Releasable]:
        """The arrays of calls, of which somebody holds some or did until just now."""
        self._watch_young()
        with self._watching:
            return [*self.young, *self._watched.values()]

    def resend(self) -> None:
        """Sends the ids of the last connection again over a new one.

        A second release of a value does no harm: no id is used twice.
        """
        sent = list(self._sent)
        self._sent.clear()
        for each in sent:
            self.add(each)
        self._is_stopped = False
        if self._is_needed:
            self.start()

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            first = self._noticed.get()
            if self._thread is not me:
                if first is not None:
                    self._noticed.put(first)
                return
            time.sleep(_PAUSE_S)
            self._is_woken = False
            if first is not None:
                self._add_gone(first)
            self._collect()
            self._watch_young()
            self._collect()  # of those just now
            self._also()
            ids = self._drain()
            if ids and not self._send(pack_spans(ids)):
                return
