"""When a worker ends because nobody needs it."""

from __future__ import annotations

import pytest

from jaxd_protocol.errors import WorkerReplaced
from jaxd_server.admission import Admission
from jaxd_server.rest import Rest


class Worker:
    """Idle for as long as a test says, with or without arrays of clients."""

    def __init__(self, after_s: float = 10.0) -> None:
        self.admission = Admission()
        self.idle_s = 0.0
        self.has_values = False
        self.begun = 0
        self.rest = Rest(
            after_s, self.admission, lambda: self.idle_s, lambda: self.has_values, self._begin
        )

    def _begin(self) -> None:
        self.begun += 1


def test_an_idle_worker_goes_once() -> None:
    """Not before its time; whoever calls then is told to come again."""
    worker = Worker()
    worker.rest.look()
    assert not worker.admission.draining
    worker.idle_s = 10.0
    worker.rest.look()
    worker.rest.look()
    assert worker.begun == 1
    with pytest.raises(WorkerReplaced, match="it was idle"):
        worker.admission.enter("f", None)


def test_arrays_of_clients_keep_it() -> None:
    """They would be gone: they are not on disk."""
    worker = Worker()
    worker.idle_s, worker.has_values = 99.0, True
    worker.rest.look()
    assert worker.begun == 0
    worker.has_values = False
    worker.rest.look()
    assert worker.begun == 1


def test_a_running_call_keeps_it() -> None:
    """However long ago it began."""
    worker = Worker()
    running = worker.admission.enter("f", None)
    worker.idle_s = 99.0
    worker.rest.look()
    assert worker.begun == 0
    worker.admission.leave(running)
    worker.rest.look()
    assert worker.begun == 1


def test_a_worker_that_may_not_go_stays() -> None:
    """And one that is told to stop is not told twice."""
    forever = Worker(0.0)
    forever.idle_s = 1e9
    forever.rest.look()
    stopping = Worker()
    stopping.idle_s = 99.0
    stopping.admission.drain()
    stopping.rest.look()
    assert (forever.begun, stopping.begun) == (0, 0)
