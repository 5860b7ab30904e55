"""When a worker ends because nobody needs it."""

from __future__ import annotations

import threading

import pytest

from jaxd_protocol.errors import WorkerReplaced
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker.retirement import IdleShutdown
from tests.server.staging import join, start, until, waiting


class Worker:
    """Idle for as long as a test says, with or without arrays of clients."""

    def __init__(self, after_s: float = 10.0) -> None:
        self.admission = Admission()
        self.idle_s = 0.0
        self.has_values = False
        self.begun = 0
        self.rest = IdleShutdown(
            after_s, self.admission, lambda: self.idle_s, lambda: self.has_values, self._begin
        )

    def _begin(self) -> None:
        self.begun += 1


def test_an_idle_worker_goes_once() -> None:
    """Not before its time; whoever calls then is told to come again."""
    worker = Worker()
    worker.rest.poll()
    assert not worker.admission.draining
    worker.idle_s = 10.0
    worker.rest.poll()
    worker.rest.poll()
    assert worker.begun == 1
    with pytest.raises(WorkerReplaced, match="it was idle"):
        worker.admission.acquire("f", None)


def test_arrays_of_clients_keep_it() -> None:
    """They would be gone: they are not on disk."""
    worker = Worker()
    worker.idle_s, worker.has_values = 99.0, True
    worker.rest.poll()
    assert worker.begun == 0
    worker.has_values = False
    worker.rest.poll()
    assert worker.begun == 1


def test_a_running_call_keeps_it() -> None:
    """However long ago it began."""
    worker = Worker()
    running = worker.admission.acquire("f", None)
    worker.idle_s = 99.0
    worker.rest.poll()
    assert worker.begun == 0
    worker.admission.release(running)
    worker.rest.poll()
    assert worker.begun == 1


def test_an_array_that_comes_at_the_last_moment_keeps_it() -> None:
    """Just when it was looked whether there are any; whoever comes then need not come again."""
    worker = Worker()
    worker.idle_s = 99.0
    looks: list[bool] = []

    def has_values() -> bool:
        looks.append(worker.has_values)
        if len(looks) == 1:
            worker.admission.release(worker.admission.acquire_shared("(put)", leaves_values=True))
            worker.has_values = True
        return looks[-1]

    worker.rest._has_values = has_values
    worker.rest.poll()
    assert looks == [False, True]
    assert worker.begun == 0
    worker.admission.release(worker.admission.acquire("f", None))
    assert not worker.admission.is_barred


def test_an_array_that_comes_too_late_goes_to_the_next_one() -> None:
    """It waits while the worker looks, instead of being taken and lost."""
    worker = Worker()
    worker.idle_s = 99.0
    refused: list[BaseException] = []

    def put() -> None:
        with pytest.raises(WorkerReplaced) as raised:
            worker.admission.acquire_shared("(put)", leaves_values=True)
        refused.append(raised.value)

    threads: list[threading.Thread] = []

    def has_values() -> bool:
        if worker.admission.is_barred:
            threads.append(start(put))
            until(lambda: waiting(worker.admission._changed))
        return False

    worker.rest._has_values = has_values
    worker.rest.poll()
    join(threads)
    assert (len(refused), worker.begun) == (1, 1)


def test_a_worker_that_may_not_go_stays() -> None:
    """And one that is told to stop is not told twice."""
    forever = Worker(0.0)
    forever.idle_s = 1e9
    forever.rest.poll()
    stopping = Worker()
    stopping.idle_s = 99.0
    stopping.admission.drain()
    stopping.rest.poll()
    assert (forever.begun, stopping.begun) == (0, 0)
