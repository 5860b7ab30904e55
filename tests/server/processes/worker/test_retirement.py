from __future__ import annotations

import pytest

from jaxd_protocol.pytree import Leaf
from jaxd_server.execution.admission import Admission
from jaxd_server.processes.worker import retirement as giving_way
from jaxd_server.processes.worker.retirement import still_needed
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues, Value


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
    admission.acquire("step", None).started -= 70
    admission.acquire("other", None)
    assert still_needed(admission, ValueStore()) == "step has been running for 70 s"
    assert not admission.is_barred


def test_arrays_of_clients_keep_a_worker() -> None:
    """Their owners are named; new calls go on as well."""
    admission, values = Admission(), ValueStore()
    values.add(SessionValues("uid:7"), {1: Value(object(), Leaf("A", "uint8", (8,)), 8, "step")})
    words = "it holds arrays of uid:7 (jaxd values lists them)"
    assert still_needed(admission, values) == words
    assert not admission.is_barred
