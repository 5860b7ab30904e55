from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest

from jaxd_protocol.errors import WorkerReplaced
from jaxd_protocol.pytree import Leaf
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import retirement as giving_way
from jaxd_server.processes.worker.retirement import (
    IdleShutdown,
    PackageMonitor,
    Renewal,
    still_needed,
)
from jaxd_server.runtime.imported_packages import ImportedPackages
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
    """Not before its time; whoever calls then is told to come again."""
    worker = Worker()
    worker.rest.poll()
    assert not worker.admission.draining
    worker.idle_s = 10.0
    worker.rest.poll()
    worker.rest.poll()
    assert worker.begun == 1
    with pytest.raises(WorkerReplaced, match="it was idle"):
        admitted(worker.admission, "f")


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
    running = admitted(worker.admission, "f")
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


def test_what_a_call_imports_is_watched_too(site: FakeSite) -> None:
    """From the end of that call."""
    begun: list[list[str]] = []
    package_monitor = PackageMonitor(
        ImportedPackages(), Admission(), Renewal(begun.append, None, 0.0)
    )
    site.install("renewed_later", "1", {"renewed_later.py": "1"})
    importlib.import_module("renewed_later")
    package_monitor.record_imports()
    site.install("renewed_later", "2", {"renewed_later.py": "22"})
    package_monitor.poll(lambda *_: None)
    assert begun == [["renewed_later was changed from 1 to 2"]]


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
