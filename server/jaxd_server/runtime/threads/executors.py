"""Executors: a fair thread pool for all sessions, a thread for each job, and one for jobs in order.

A `SerialExecutor` runs what a connection still has to send: a send may block for long, and a client
that does not read delays only itself. The calls of a session on its values are another use.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future
from typing import Any, Final, ParamSpec, TypeVar

from jaxd_protocol.base.timers import TimerThread
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.fairness import FairQueue

Job = Callable[[], None]


class FairThreadPool:
    """Runs jobs, which must not raise. Thread-safe.

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
                    return  # another thread does it
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
        while (job := self._waiting.get()) is None:
            if self._is_shut:
                return None
            self._idle += 1
            self._changed.wait()
            self._idle -= 1
        return job


P = ParamSpec("P")
T = TypeVar("T")


class ThreadPerTask(Executor):
    """Runs each job in a thread of its own, which ends with the job.

    `ThreadPoolExecutor` loses count of its idle threads on Python 3.12 and later: a thread that
    takes its next job without having waited for it is never idle again, so that the pool grows.

    Args:
        limit: threads at a time; `submit` waits when there are as many.
        name: what they are called.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._room = threading.BoundedSemaphore(limit)
        self._name = name
        self._is_shut = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Starts `fn(*args, **kwargs)` in a thread of its own.

        Raises:
            RuntimeError: after `shutdown`.
        """
        if self._is_shut:
            raise RuntimeError("no job is taken any more.")
        future: Future[T] = Future()
        self._room.acquire()
        try:
            work = (future, fn, args, kwargs)
            threading.Thread(target=self._run, args=work, name=self._name, daemon=True).start()
        except BaseException:
            self._room.release()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no job any more; those that run go on."""
        self._is_shut = True

    def _run(
        self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> None:
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  it belongs to whoever asks for the result
            future.set_exception(error)
        finally:
            self._room.release()


class SerialExecutor:
    """Does jobs in the order in which they came. Thread-safe.

    One that raises is logged. The thread is a daemon: `flush` is what makes sure that all is done.

    Args:
        name: what its thread is called.
        linger_s: how long the thread waits for another job before it ends.

    Attributes:
        is_working: whether some thread is in charge of what waits.
    """

    def __init__(self, name: str, linger_s: float = 0.0) -> None:
        self._name = name
        self._linger_s = linger_s
        self._waiting: deque[Job] = deque()
        self.is_working = False
        self._lingers = False  # whether a thread that has nothing to do is still there
        self._handed = False  # whether that one is in charge again
        self._changed = threading.Condition()  # guards all of the above

    def __len__(self) -> int:
        """How many wait behind the one that is being done."""
        return len(self._waiting)

    def put(self, job: Job) -> None:
        """Queues `job`; does not wait for it."""
        with self._changed:
            self._waiting.append(job)
            if self.is_working:
                return
            needs_thread = self._hand_on()
        if needs_thread:
            self._go_on()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Returns when all that was put before is done; False: not in that time."""
        if not self.is_working:
            return True
        done = threading.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    def _hand_on(self) -> bool:
        """Puts a thread in charge of what waits; whether that has to be a new one."""
        self.is_working = True
        if self._lingers and not self._handed:
            self._handed = True
            self._changed.notify()
            return False
        return True

    def _go_on(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._run()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._linger():
                    return
                job = self._waiting.popleft()
            try:
                job()
            except Exception:  # noqa: BLE001  the others have to be done all the same
                log_event("job_failed", level=logging.ERROR)
            del job  # it may hold large arrays, and this thread may wait

    def _linger(self) -> bool:
        """Waits for another job; whether there is one for this thread. The lock is held."""
        self.is_working = False
        if not self._linger_s:
            return False
        self._lingers = True
        self._changed.wait_for(lambda: self._handed, self._linger_s)
        self._lingers = False
        was_handed, self._handed = self._handed, False
        return was_handed


process_timers: Final = TimerThread(
    "jaxd-clock", lambda: log_event("alarm_failed", level=logging.ERROR)
)
