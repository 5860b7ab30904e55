"""A few threads for the calls of all, taken in turn from each session that has some waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable

from jaxd_server.fair_queue import FairQueue

__all__ = ["FairThreads", "Job"]

Job = Callable[[], None]


class FairThreads:
    """Does jobs, which must not raise. Thread-safe.

    Args:
        limit: how many at a time; as many threads are started as are needed, and stay.
        name: what they are called.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._waiting: FairQueue[Job] = FairQueue()
        self._changed = threading.Condition()  # guards all of these
        self._threads = 0
        self._idle = 0
        self._is_shut = False

    def __len__(self) -> int:
        """How many jobs wait."""
        return len(self._waiting)

    def submit(self, owner: Hashable, job: Job) -> None:
        """Has a job done.

        Args:
            owner: for whom.
            job: what to do.

        Raises:
            RuntimeError: after `shutdown`, and when the system has no thread.
        """
        with self._changed:
            if self._is_shut:
                raise RuntimeError("no job is taken any more.")
            self._waiting.put(owner, job)
            if self._idle >= len(self._waiting) or self._threads >= self._limit:
                self._changed.notify()
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            with self._changed:
                self._threads -= 1
                if self._threads or not self._waiting.remove(owner, job):
                    return  # somebody else does it
            raise

    def withdraw(self, owner: Hashable, job: Job) -> bool:
        """Takes back a job that is not begun; whether it is not."""
        with self._changed:
            return self._waiting.remove(owner, job)

    def shutdown(self) -> None:
        """Takes no job any more; those that wait are still done."""
        with self._changed:
            self._is_shut = True
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                job = self._next()
            if job is None:
                return
            job()
            del job  # it may hold large arrays, and this thread may wait

    def _next(self) -> Job | None:
        """The next job, when there is one; None when there will be none. The lock is held."""
        while (job := self._waiting.take()) is None:
            if self._is_shut:
                return None
            self._idle += 1
            self._changed.wait()
            self._idle -= 1
        return job
