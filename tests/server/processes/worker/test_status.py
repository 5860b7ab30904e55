from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.staging import until

if TYPE_CHECKING:
    import pytest

    from tests.server.in_process import InProcessServer


def test_a_fresh_worker_holds_nothing(in_process_server: InProcessServer) -> None:
    """Every figure is there from the start."""
    status = in_process_server.parts.status.now()
    assert status.pop("idle_s") >= 0
    for name in ("running", "left_behind", "principals"):
        assert status.pop(name) == []
    assert status.pop("store") is None
    assert set(status.values()) == {0}
    assert {"executables", "functions", "connections", "sessions", "running_calls"} <= set(status)


def test_the_status_follows_what_is_done(in_process_server: InProcessServer) -> None:
    """Functions, executables, bytes and connections."""
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    double(1)
    status = in_process_server.parts.status.now()
    assert (status["functions"], status["executables"], status["connections"]) == (1, 2, 1)
    assert status["bytes_received"] > 0
    assert status["bytes_sent"] > 0


def test_a_server_is_not_idle_at_once_when_a_client_leaves(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that client had not called."""
    monkeypatch.setattr(type(in_process_server.counters), "idle_s", 5_000.0)
    monkeypatch.setattr(type(in_process_server.parts._sessions), "quiet_s", 7_000.0)
    assert in_process_server.parts.status.now()["idle_s"] == 5_000.0
    monkeypatch.undo()
    monkeypatch.setattr(type(in_process_server.counters), "idle_s", 5_000.0)
    client = in_process_server.client()
    client.statistics()
    client.close()
    until(lambda: not in_process_server.parts.status.now()["connections"])
    assert in_process_server.parts.status.now()["idle_s"] < 1_000


def test_a_principal_is_shown_nothing_of_others(in_process_server: InProcessServer) -> None:
    """What the server's own user has done is neither counted nor listed for somebody else."""
    in_process_server.client().persistent_call(lambda x: x * 2)(1.0)
    everything = {
        **in_process_server.counters.snapshot(),
        **in_process_server.parts.status.now(),
        "epoch": 1,
        "phase": "ready",
    }
    (row,) = everything["principals"]
    assert in_process_server.parts.status.shown(everything, row["principal"]) == everything
    shown = in_process_server.parts.status.shown(everything, "account:alice")
    for name in ("calls", "compiles", "executables", "programs", "functions", "connections"):
        assert (bool(everything[name]), shown[name]) == (True, 0)
    assert shown["principals"] == shown["running"] == []
    assert shown["bytes_received"] == shown["value_bytes"] == 0
    assert shown["epoch"] == 1


def test_a_principal_is_shown_what_is_its_own(in_process_server: InProcessServer) -> None:
    """Its connections are counted, and not those of others."""
    alices = {"principal": "account:alice", "connections": 2, "sessions": 1}
    others = {"principal": "account:bob", "connections": 3, "sessions": 3}
    everything = {**in_process_server.parts.status.now(), "epoch": 1, "phase": "ready"}
    everything["principals"] = [alices, others]
    shown = in_process_server.parts.status.shown(everything, "account:alice")
    assert shown["principals"] == [alices]
    assert (shown["connections"], shown["sessions"]) == (2, 1)
