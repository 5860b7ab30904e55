from __future__ import annotations

import threading

import pytest

from jaxd_server.runtime.threads.executors import ThreadPerTask
from tests.server.staging import PATIENCE_S, until


def test_a_job_runs_in_a_thread_of_its_own() -> None:
    """Which is gone afterwards."""
    threads = ThreadPerTask(4, "test-job")
    name = threads.submit(lambda: threading.current_thread().name).result(PATIENCE_S)
    assert name == "test-job"
    until(lambda: all(thread.name != "test-job" for thread in threading.enumerate()))


def test_what_a_job_raises_is_in_its_future() -> None:
    """And the next one runs."""
    threads = ThreadPerTask(1, "test-job")
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 // 0).result(PATIENCE_S)
    assert threads.submit(lambda: 2).result(PATIENCE_S) == 2


def test_jobs_may_wait_for_each_other() -> None:
    """None stands behind another, up to the limit."""
    threads = ThreadPerTask(8, "test-job")
    barrier = threading.Barrier(8)
    futures = [threads.submit(barrier.wait, PATIENCE_S) for _ in range(8)]
    assert sorted(future.result(PATIENCE_S) for future in futures) == list(range(8))


def test_there_are_never_more_than_the_limit() -> None:
    """Whoever brings one more waits."""
    threads = ThreadPerTask(1, "test-job")
    release, begun = threading.Event(), threading.Event()
    threads.submit(release.wait, PATIENCE_S)
    late = threading.Thread(target=lambda: threads.submit(begun.set))
    late.start()
    assert not begun.is_set()
    release.set()
    late.join(PATIENCE_S)
    assert begun.wait(PATIENCE_S)


def test_after_the_end_no_job_is_taken() -> None:
    """Whoever brings one is told."""
    threads = ThreadPerTask(1, "test-job")
    threads.shutdown()
    with pytest.raises(RuntimeError, match="any more"):
        threads.submit(print)
