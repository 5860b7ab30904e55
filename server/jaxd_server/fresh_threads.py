"""An executor with a thread for each job: for jobs that are rare, long, and wait for others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

__all__ = ["FreshThreads"]

P = ParamSpec("P")
T = TypeVar("T")


class FreshThreads(Executor):
    """Never makes a job wait for a thread of another, and keeps none when it is done.

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
