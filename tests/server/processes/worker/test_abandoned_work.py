from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import Cancelled
from jaxd_server.compilation.compiling.builds import Build
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import abandoned_work as module
from jaxd_server.processes.worker.abandoned_work import AbandonedWork
from jaxd_server.runtime.threads.cancellation import CancelToken


class Scene:
    """Leftovers of a worker, and what they do about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, grace_s: float = 5.0) -> None:
        self.admission = Admission()
        self.logged: list[str] = []
        self.replaced: list[list[str]] = []
        self.has_values = False
        self.now = 0.0
        self.left = AbandonedWork(
            self.admission, grace_s, lambda: self.has_values, self.replaced.append
        )
        monkeypatch.setattr(
            module, "log_event", lambda event, **fields: self.logged.append(fields["reason"])
        )
        monkeypatch.setattr(
            "jaxd_server.processes.worker.abandoned_work.time.monotonic", lambda: self.now
        )

    def call(self, phase: Any = "running") -> Any:
        """One that was given up."""
        interest = CancelToken(clock=lambda: self.now)
        running = self.admission.enter("step", None, interest)
        interest.enter(phase)
        interest.give_up(Cancelled("not wanted."))
        interest.is_client_notified = True
        return running

    def build(self) -> Build:
        """One that was left."""
        build = Build()
        build.name, build.is_abandoned = "step", True
        self.left.add(build)
        return build

    def poll(self, now: float) -> None:
        """At this time."""
        self.now = now
        self.left.poll()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A worker without values."""
    return Scene(monkeypatch)


def test_a_program_that_does_not_end_costs_the_worker(scene: Scene) -> None:
    """After the time that it has; and new calls are told to come again."""
    scene.call()
    scene.poll(4.0)
    assert (scene.replaced, scene.admission.draining) == ([], False)
    scene.poll(6.0)
    assert scene.replaced == [["step runs although nobody waits for it"]]
    assert scene.admission.draining
    assert "the worker is replaced" in scene.logged[0]
    scene.poll(7.0)
    assert len(scene.logged) == 1


def test_not_where_arrays_would_be_lost(scene: Scene) -> None:
    """The operator is told, once."""
    scene.has_values = True
    scene.call()
    scene.poll(6.0)
    scene.poll(7.0)
    assert scene.replaced == []
    (line,) = scene.logged
    assert "jaxd values" in line
    (row,) = scene.left.rows()
    assert (row["function"], row["phase"]) == ("step", "running")


def test_one_that_ends_in_time_is_forgotten(scene: Scene) -> None:
    """As is one that waits for its client."""
    scene.admission.leave(scene.call())
    scene.call("waiting")
    scene.poll(6.0)
    assert (scene.replaced, scene.logged) == ([], [])


def test_a_compilation_goes_on(scene: Scene) -> None:
    """Only said."""
    build = scene.build()
    scene.poll(6.0)
    assert scene.replaced == []
    assert "it goes on, and is kept" in scene.logged[0]
    assert [row["function"] for row in scene.left.rows()] == ["step"]
    build.is_abandoned = False  # somebody wants it again
    assert scene.left.rows() == []


def test_a_trace_that_cannot_be_interrupted_costs_the_worker(scene: Scene) -> None:
    """Where it is traced in the worker itself."""
    build = scene.build()
    build.interruptible._is_closed = False
    scene.poll(6.0)
    assert scene.replaced == [["step is being traced although nobody waits for it"]]


def test_a_trace_elsewhere_costs_only_that_process(scene: Scene) -> None:
    """Whatever values the worker holds."""
    scene.has_values = True
    ended: list[bool] = []
    scene.build().end_by_force = lambda: ended.append(True)
    scene.poll(6.0)
    assert (ended, scene.replaced) == ([True], [])


def test_without_a_limit_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only listed."""
    scene = Scene(monkeypatch, grace_s=0.0)
    scene.call()
    scene.poll(1e6)
    assert (scene.replaced, len(scene.left.rows())) == ([], 1)
