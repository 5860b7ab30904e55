"""Releases values that this process no longer holds: with the next call, or soon after."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from jaxd_protocol.messages.data_locations import pack_ids, unpack_ids

_MAX_SENT: Final = 4096
_BATCH_S: Final = 0.05
"""How long ids may wait for a call that carries them."""


class ReleaseQueue:
    """A queue of ids of values to release. Thread-safe.

    Args:
        send: sends the ids to the server in a message of their own; False when the session has
            ended.

    Attributes:
        pending: the ids that are not sent yet.
    """

    def __init__(self, send: Callable[[bytes], bool]) -> None:
        self._send = send
        self.pending: deque[int] = deque()
        self._sent: deque[int] = deque(maxlen=_MAX_SENT)
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._is_woken = False
        self._thread: threading.Thread | None = None
        self._is_needed = False  # whether the thread was ever started
        self._is_stopped = False
        self._lock = threading.Lock()  # guards the thread; `add` must not take it

    def add(self, id: int) -> None:  # noqa: A002
        """Adds an id, from any thread and during garbage collection: takes no lock."""
        self.pending.append(id)
        self._wake_thread()

    def _wake_thread(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._wake.put(True)  # written in C: a collection in between does no harm

    def take_all(self) -> bytes:
        """The ids to send with a call; removes them from the queue."""
        return pack_ids(self._drain()) if self.pending else b""

    def requeue(self, ids: bytes) -> None:
        """Puts ids back that could not be sent."""
        self.pending.extend(unpack_ids(ids))
        if threading.current_thread() is not self._thread:  # which would only try again at once
            self._wake_thread()

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
        wake: SimpleQueue[bool] = SimpleQueue()
        thread = threading.Thread(target=self._run, args=(wake,), name="jaxd-drops", daemon=True)
        with suppress(RuntimeError):  # the system has no more threads: calls carry the ids
            thread.start()
            self._wake, self._is_woken, self._thread = wake, False, thread

    def retry(self) -> None:
        """Sends again what could not be sent before."""
        if self.pending:
            self._wake_thread()

    def stop(self) -> None:
        """Stops the sending thread, until there is another connection."""
        with self._lock:
            self._is_stopped = True
            thread, self._thread = self._thread, None
            if thread is not None:
                self._wake.put(False)

    def abandon(self) -> None:
        """Drops all ids, in the child of a fork: the values and the thread are the parent's."""
        self.pending = deque(maxlen=0)
        self._is_woken = True
        self._lock = threading.Lock()

    def _drain(self) -> list[int]:
        found: list[int] = []
        with suppress(IndexError):
            while True:
                found.append(self.pending.popleft())
        self._sent.extend(found)
        return found

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

    def _run(self, wake: SimpleQueue[bool]) -> None:
        while wake.get():
            time.sleep(_BATCH_S)
            self._is_woken = False
            ids = self._drain()
            if ids and not self._send(pack_ids(ids)):
                return
