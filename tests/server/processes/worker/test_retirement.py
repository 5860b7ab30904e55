from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest

from jaxd_protocol.errors import Cancelled, WorkerReplaced
from jaxd_protocol.pytree import Leaf
from jaxd_server.compilation.compiling.builds import Build
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import retirement as giving_way
from jaxd_server.processes.worker.retirement import (
    AbandonedWork,
    IdleShutdown,
    PackageMonitor,
    Renewal,
    still_needed,
)
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.threads.cancellation import CancelToken
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues, Value
from tests.fake_packages import FakeSite
from tests.server.admitted import admitted
from tests.server.staging import join, start, until, waiting


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends meanwhile here."""
    monkeypatch.setattr(giving_way, "_PAUSE_S", 0.0)


def test_a_worker_without_work_may_go() -> None:
    """And until it does, whoever calls waits."""
    admission = Admission()
    assert still_needed(admission, ValueStore()) == ""
    assert admission.is_barred


def test_a_running_call_keeps_a_worker() -> None:
    """It is named, and new calls go on as if nothing had been asked."""
    admission = Admission()
    admitted(admission, "step").started -= 70
    admitted(admission, "other")
    assert still_needed(admission, ValueStore()) == "step has been running for 70 s"
    assert not admission.is_barred


def test_arrays_of_clients_keep_a_worker() -> None:
    """Their owners are named; new calls go on as well."""
    admission, values = Admission(), ValueStore()
    values.add(SessionValues("uid:7"), {1: Value(object(), Leaf("A", "uint8", (8,)), 8, "step")})
    words = "it holds arrays of uid:7 (jaxd values lists them)"
    assert still_needed(admission, values) == words
    assert not admission.is_barred


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
    """Not before its time, nor with arrays or a running call; who calls then is to come again."""
    worker = Worker()
    worker.rest.poll()
    worker.idle_s, worker.has_values = 10.0, True
    worker.rest.poll()
    worker.has_values, running = False, admitted(worker.admission, "f")
    worker.rest.poll()
    assert (worker.begun, worker.admission.draining) == (0, False)
    worker.admission.release(running)
    worker.rest.poll()
    worker.rest.poll()
    assert worker.begun == 1
    with pytest.raises(WorkerReplaced, match="it was idle"):
        admitted(worker.admission, "f")


def test_an_array_that_comes_at_the_last_moment_keeps_it() -> None:
    """Just when it was looked whether there are any; whoever comes then need not come again."""
    worker = Worker()
    worker.idle_s = 99.0
    looks: list[bool] = []

    def has_values() -> bool:
        looks.append(worker.has_values)
        if len(looks) == 1:
            with worker.admission.shared("(put)", leaves_values=True):
                worker.has_values = True
        return looks[-1]

    worker.rest._has_values = has_values
    worker.rest.poll()
    assert looks == [False, True]
    assert worker.begun == 0
    worker.admission.release(admitted(worker.admission, "f"))
    assert not worker.admission.is_barred


def test_an_array_that_comes_too_late_goes_to_the_next_one() -> None:
    """It waits while the worker looks, instead of being taken and lost."""
    worker = Worker()
    worker.idle_s = 99.0
    refused: list[BaseException] = []

    def put() -> None:
        with (
            pytest.raises(WorkerReplaced) as raised,
            worker.admission.shared("(put)", leaves_values=True),
        ):
            pass
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


def test_a_change_closes_the_doors_and_is_told(site: FakeSite) -> None:
    """The host once, and every call that comes across it."""
    site.install("renewed", "1", {"renewed.py": "1"})
    importlib.import_module("renewed")
    admission = Admission()
    begun: list[list[str]] = []
    events: list[tuple[str, dict[str, Any]]] = []
    package_monitor = PackageMonitor(
        ImportedPackages(), admission, Renewal(begun.append, None, 0.0)
    )
    package_monitor.record_imports()
    package_monitor.poll(lambda *event: events.append(event))
    assert (admission.draining, begun, events) == (False, [], [])
    site.install("renewed", "2", {"renewed.py": "22"})
    for _ in range(2):
        package_monitor.poll(lambda *event: events.append(event))
        with pytest.raises(WorkerReplaced):
            admitted(admission, "f")
    assert begun == [["renewed was changed from 1 to 2"]]
    assert len(events) == 2
    kind, content = events[0]
    assert (kind, content["package"], content["function"]) == ("warning", "renewed", "")
    assert content["text"] == (
        "renewed was changed from 1 to 2 where the server runs: the server's worker was restarted."
    )


def test_a_worker_is_replaced_when_all_is_installed_and_can_be_imported(site: FakeSite) -> None:
    """Another process tries it; what changes meanwhile is waited for anew."""
    site.install("renewed_slowly", "1", {"renewed_slowly.py": "1"})
    importlib.import_module("renewed_slowly")
    begun: list[list[str]] = []
    asked: list[None] = []
    admission = Admission()
    renewal = Renewal(begun.append, lambda: asked.append(None), 60.0)
    monitor = PackageMonitor(ImportedPackages(), admission, renewal)
    monitor.record_imports()
    monitor.allow()  # of something that is long over
    for number in (2, 3):
        site.install("renewed_slowly", str(number), {"renewed_slowly.py": "2" * number})
        monitor.poll()
        monitor._last_at -= 59.0
        monitor.poll()
        assert (len(asked), begun, admission.draining) == (number - 2, [], False)
        monitor._last_at -= 1.0
        monitor.poll()
        monitor.poll()
        assert (len(asked), begun, admission.draining) == (number - 1, [], False)
    monitor._asked_at = (monitor._asked_at or 0.0) - 31.0  # the other process could not
    monitor.poll()
    assert len(asked) == 3
    monitor.allow()
    monitor.poll()
    assert begun == [["renewed_slowly was changed from 1 to 3"]]
    assert admission.draining


def test_a_worker_that_holds_arrays_of_clients_is_not_replaced(site: FakeSite) -> None:
    """What depends on the change is dropped meanwhile; it is replaced when they are gone."""
    site.install("renewed_never", "1", {"renewed_never.py": "1"})
    importlib.import_module("renewed_never")
    begun: list[list[str]] = []
    texts: list[str] = []
    values = [object()]
    admission = Admission()
    outdated: list[None] = []
    package_monitor = PackageMonitor(
        ImportedPackages(),
        admission,
        Renewal(begun.append, None, 0.0),
        lambda: bool(values),
        lambda: outdated.append(None),
    )
    package_monitor.record_imports()
    site.install("renewed_never", "2", {"renewed_never.py": "22"})
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert (begun, admission.draining, texts, outdated) == ([], False, [], [None])
    values.clear()
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert begun == [["renewed_never was changed from 1 to 2"]]
    values.append(object())  # too late: it has begun
    package_monitor.poll(lambda _, content: texts.append(content["text"]))
    assert texts[0].endswith("the server's worker was restarted.")
    assert texts[1] == texts[0]
    assert outdated == [None]


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
            giving_way, "log_event", lambda event, **fields: self.logged.append(fields["reason"])
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


def test_a_build_that_is_left_again_while_it_is_looked_at_stays_known(scenario: Scenario) -> None:
    """Its last call was cancelled just after it was found to have one."""

    class LeftAgain(Build):
        looks = 0

        @property
        def is_abandoned(self) -> bool:
            self.looks += 1
            if self.looks == 1:
                scenario.left.add(self)
            return self.looks > 1

        @is_abandoned.setter
        def is_abandoned(self, _: bool) -> None: ...

    scenario.left.add(LeftAgain())
    scenario.poll(1.0)
    assert len(scenario.left.rows()) == 1


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
