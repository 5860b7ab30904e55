from __future__ import annotations

from typing import TYPE_CHECKING

from tests.server.staging import until

if TYPE_CHECKING:
    import pytest

    from tests.server.in_process import InProcessServer


def test_a_fresh_worker_holds_nothing(shop: InProcessServer) -> None:
    """Every figure is there from the start."""
    status = shop.parts.status.now()
    assert status.pop("idle_s") >= 0
    for name in ("running", "left_behind", "principals"):
        assert status.pop(name) == []
    assert set(status.values()) == {0}
    assert {"executables", "functions", "connections", "sessions", "running_calls"} <= set(status)


def test_the_status_follows_what_is_done(shop: InProcessServer) -> None:
    """Functions, executables, bytes and connections."""
    client = shop.client()
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    double(1)
    status = shop.parts.status.now()
    assert (status["functions"], status["executables"], status["connections"]) == (1, 2, 1)
    assert status["bytes_received"] > 0
    assert status["bytes_sent"] > 0


def test_a_server_is_not_idle_at_once_when_a_client_leaves(
    shop: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that client had not called."""
    monkeypatch.setattr(type(shop.counters), "idle_s", 5_000.0)
    monkeypatch.setattr(type(shop.parts._sessions), "quiet_s", 7_000.0)
    assert shop.parts.status.now()["idle_s"] == 5_000.0
    monkeypatch.undo()
    monkeypatch.setattr(type(shop.counters), "idle_s", 5_000.0)
    client = shop.client()
    client.statistics()
    client.close()
    until(lambda: not shop.parts.status.now()["connections"])
    assert shop.parts.status.now()["idle_s"] < 1_000


def test_a_principal_is_shown_nothing_of_others(shop: InProcessServer) -> None:
    """What the server's own user has done is neither counted nor listed for somebody else."""
    shop.client().persistent_call(lambda x: x * 2)(1.0)
    everything = {
        **shop.counters.snapshot(),
        **shop.parts.status.now(),
        "epoch": 1,
        "phase": "ready",
    }
    (row,) = everything["principals"]
    assert shop.parts.status.shown(everything, row["principal"]) == everything
    shown = shop.parts.status.shown(everything, "account:alice")
    for name in ("calls", "compiles", "executables", "programs", "functions", "connections"):
        assert (bool(everything[name]), shown[name]) == (True, 0)
    assert shown["principals"] == shown["running"] == []
    assert shown["bytes_received"] == shown["value_bytes"] == 0
    assert shown["epoch"] == 1


def test_a_principal_is_shown_what_is_its_own(shop: InProcessServer) -> None:
    """Its connections are counted, and not those of others."""
    alices = {"principal": "account:alice", "connections": 2, "sessions": 1}
    others = {"principal": "account:bob", "connections": 3, "sessions": 3}
    everything = {**shop.parts.status.now(), "epoch": 1, "phase": "ready"}
    everything["principals"] = [alices, others]
    shown = shop.parts.status.shown(everything, "account:alice")
    assert shown["principals"] == [alices]
    assert (shown["connections"], shown["sessions"]) == (2, 1)
