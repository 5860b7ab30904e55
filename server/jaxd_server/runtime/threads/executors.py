"""Executors: a fair thread pool for all sessions, a thread for each job, and one for jobs in order.

A `SerialExecutor` sends the output of a connection: a send may block for long, and a client that
does not read delays only itself. It also runs the ordered calls of a session. A `SingleFlight` has
one thread do what several want.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Final, Generic, ParamSpec, TypeVar

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.base.timers import TimerThread
from jaxd_protocol.errors import Busy, ConnectionLost, ProtocolError
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.threads.fairness import FairQueue

Job = Callable[[], None]
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def start_vital(target: Callable[[], None], name: str) -> None:
    """Starts a thread without which its process is of no use to anybody.

    The process ends when it raises anything, so that the host starts another one; else clients
    would wait for ever.

    Args:
        target: runs in the thread; it may return.
        name: of the thread.

    Raises:
        Busy: when the system has no thread for it.
    """
    start_daemon(name, _run_vital, target, name)


def _run_vital(target: Callable[[], None], name: str) -> None:
    try:
        target()
    except BaseException:  # noqa: BLE001  whatever it was, the thread is gone
        end_without(name)


def end_without(thread: str) -> None:
    """Ends this process in an `except` block, for want of a thread of that name."""
    log_event("vital_thread_ended", thread=thread)
    os._exit(_LOST_THREAD)


_LOST_THREAD: Final = 70
"""The exit code; EX_SOFTWARE of sysexits.h."""


class FairThreadPool:
    """Runs jobs, which must not raise. Thread-safe.

    Args:
        limit: of threads, which are started as they are needed, and stay.
        name: of the threads.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._limit = limit
        self._name = name
        self._waiting: FairQueue[Job] = FairQueue()
        self._changed = threading.Condition()  # guards all of these
        self._threads = 0
        self._idle = 0

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return len(self._waiting)

    def submit(self, owner: Hashable, job: Job) -> None:
        """Queues a job.

        Args:
            owner: whose job it is.
            job: is called in a thread of the pool.

        Raises:
            Busy: when the system has no thread for it.
        """
        with self._changed:
            self._waiting.put(owner, job)
            if self._idle >= len(self._waiting) or self._threads >= self._limit:
                self._changed.notify()
                return
            self._threads += 1
        try:
            start_daemon(self._name, self._work)
        except Busy:
            with self._changed:
                self._threads -= 1
                if self._threads or not self._waiting.remove(owner, job):
                    return  # another thread runs it
            raise

    def withdraw(self, owner: Hashable, job: Job) -> bool:
        """Removes a job that has not begun; returns whether that was so."""
        with self._changed:
            return self._waiting.remove(owner, job)

    def _work(self) -> None:
        while True:
            with self._changed:
                while (job := self._waiting.get()) is None:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
            job()
            del job  # it may hold large arrays, and this thread may wait


P = ParamSpec("P")
T = TypeVar("T")


class ThreadPerTask:
    """Runs each job in a thread of its own, which ends with the job.

    `ThreadPoolExecutor` loses count of its idle threads on Python 3.12 and later: a thread that
    takes its next job without having waited for it is never idle again, so that the pool grows.

    Args:
        limit: of threads at a time; `submit` waits while it is reached.
        name: of the threads.
    """

    def __init__(self, limit: int, name: str) -> None:
        self._room = threading.BoundedSemaphore(limit)
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Starts `fn(*args, **kwargs)` in a thread of its own.

        Raises:
            Busy: when the system has no thread for it.
        """
        future: Future[T] = Future()
        self._room.acquire()
        try:
            start_daemon(self._name, self._run, future, fn, args, kwargs)
        except BaseException:
            self._room.release()
            raise
        return future

    def _run(
        self, future: Future[Any], fn: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> None:
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001  raised again by `Future.result`
            future.set_exception(error)
        finally:
            self._room.release()


class SerialExecutor:
    """Runs jobs one after the other, in order. Thread-safe.

    A job that raises is logged. The thread is a daemon: only `flush` waits until all is done.

    Args:
        name: of the thread.
        linger_s: how long the thread waits for another job before it ends.
        is_vital: whether the process ends with a thread that ends by more than an `Exception`.

    Attributes:
        is_working: whether a thread runs jobs, or is about to.
    """

    def __init__(self, name: str, linger_s: float = 0.0, *, is_vital: bool = False) -> None:
        self._name = name
        self._is_vital = is_vital
        self._linger_s = linger_s
        self._waiting: deque[Job] = deque()
        self.is_working = False
        self._lingers = False  # whether an idle thread still waits for a job
        self._handed = False  # whether that thread has a job again
        self._changed = threading.Condition()  # guards all of the above

    def __len__(self) -> int:
        """The number of jobs that wait behind the running one."""
        return len(self._waiting)

    def put(self, job: Job) -> None:
        """Queues `job`; does not wait for it."""
        with self._changed:
            self._waiting.append(job)
            if self.is_working:
                return
            needs_thread = self._wake()
        if needs_thread:
            self._start()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Waits until all jobs so far have run; False when the timeout was over before."""
        if not self.is_working:
            return True
        done = threading.Event()
        self.put(done.set)
        return done.wait(timeout_s)

    def _wake(self) -> bool:
        """Wakes the idle thread; True when there is none and one has to be started."""
        self.is_working = True
        if self._lingers and not self._handed:
            self._handed = True
            self._changed.notify()
            return False
        return True

    def _start(self) -> None:
        try:
            start_daemon(self._name, self._run)
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
            except Exception:  # noqa: BLE001  the next jobs have to run all the same
                log_event("job_failed")
            except BaseException:
                if self._is_vital:
                    end_without(self._name)
                raise
            del job  # it may hold large arrays, and this thread may wait

    def _linger(self) -> bool:
        """Waits for another job; returns whether there is one. The lock is held."""
        self.is_working = False
        if not self._linger_s:
            return False
        self._lingers = True
        self._changed.wait_for(lambda: self._handed, self._linger_s)
        self._lingers = False
        was_handed, self._handed = self._handed, False
        return was_handed


process_timers: Final = TimerThread("jaxd-clock", lambda: log_event("alarm_failed"))


class SingleFlight(Generic[K, V]):
    """Joins concurrent requests for the same thing: the first one makes it, the others wait.

    Keeps nothing: a result belongs in the caller's own table, and a failure reaches all callers
    that waited for it, but is not kept.
    """

    def __init__(self) -> None:
        self._flights: dict[K, Future[V]] = {}
        self._lock = threading.Lock()  # guards _flights

    def run(self, key: K, find: Callable[[], V | None], make: Callable[[], V]) -> V:
        """The result of `find`, or of one caller's `make`.

        Args:
            key: of the result.
            find: looks in the caller's table; called again under the lock, so that a result
                that was just made is not made once more.
            make: makes it and puts it into the table.

        Raises:
            BaseException: the exception of `make`, in each caller that waited for it. But a
                failure of one client's connection is raised for that client only, and the next
                caller tries.
        """
        with self._lock:
            found = find()
            if found is not None:
                return found
            mine = key not in self._flights
            flight = self._flights.setdefault(key, Future())
        if mine:
            self._fly(key, flight, make)
            return flight.result()
        try:
            return flight.result()
        except (ConnectionLost, ProtocolError):  # of the client that made it; ours may be there
            return self.run(key, find, make)

    def _fly(self, key: K, flight: Future[V], make: Callable[[], V]) -> None:
        try:
            flight.set_result(make())
        except BaseException as error:  # noqa: BLE001  raised again by flight.result()
            flight.set_exception(error)
        finally:
            with self._lock:
                del self._flights[key]
