from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import Cancelled
from jaxd_server.compilation.compiling.builds import Build
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import retirement as module
from jaxd_server.processes.worker.retirement import AbandonedWork
from jaxd_server.runtime.threads.cancellation import CancelToken
from tests.server.admitted import admitted


class Scenario:
    """AbandonedWork of a worker, and what they do about them."""

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
            "jaxd_server.processes.worker.retirement.time.monotonic", lambda: self.now
        )

    def call(self, phase: Any = "running") -> Any:
        """One that was given up."""
        cancel_token = CancelToken(clock=lambda: self.now)
        running = admitted(self.admission, "step", cancel_token=cancel_token)
        cancel_token.set_phase(phase)
        cancel_token.cancel(Cancelled("not wanted."))
        cancel_token.is_client_notified = True
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
def scenario(monkeypatch: pytest.MonkeyPatch) -> Scenario:
    """A worker without values."""
    return Scenario(monkeypatch)


def test_a_program_that_does_not_end_costs_the_worker(scenario: Scenario) -> None:
    """After the time that it has; and new calls are told to come again."""
    scenario.call()
    scenario.poll(4.0)
    assert (scenario.replaced, scenario.admission.draining) == ([], False)
    scenario.poll(6.0)
    assert scenario.replaced == [["step runs although it was cancelled"]]
    assert scenario.admission.draining
    assert "the worker is replaced" in scenario.logged[0]
    scenario.poll(7.0)
    assert len(scenario.logged) == 1


def test_not_where_arrays_would_be_lost(scenario: Scenario) -> None:
    """The operator is told, once."""
    scenario.has_values = True
    scenario.call()
    scenario.poll(6.0)
    scenario.poll(7.0)
    assert scenario.replaced == []
    (line,) = scenario.logged
    assert "jaxd values" in line
    (row,) = scenario.left.rows()
    assert (row["function"], row["phase"]) == ("step", "running")


def test_one_that_ends_in_time_is_forgotten(scenario: Scenario) -> None:
    """As is one that waits for its client."""
    scenario.admission.release(scenario.call())
    scenario.call("waiting")
    scenario.poll(6.0)
    assert (scenario.replaced, scenario.logged) == ([], [])


def test_a_compilation_goes_on(scenario: Scenario) -> None:
    """Only said."""
    build = scenario.build()
    scenario.poll(6.0)
    assert scenario.replaced == []
    assert "it goes on, and is kept" in scenario.logged[0]
    assert [row["function"] for row in scenario.left.rows()] == ["step"]
    build.is_abandoned = False  # somebody wants it again
    assert scenario.left.rows() == []


def test_a_trace_that_cannot_be_interrupted_costs_the_worker(scenario: Scenario) -> None:
    """Where it is traced in the worker itself."""
    build = scenario.build()
    build.interruptible._is_closed = False
    scenario.poll(6.0)
    assert scenario.replaced == [["step is being traced although it was cancelled"]]


def test_without_a_limit_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only listed."""
    scenario = Scenario(monkeypatch, grace_s=0.0)
    scenario.call()
    scenario.poll(1e6)
    assert (scenario.replaced, len(scenario.left.rows())) == ([], 1)
