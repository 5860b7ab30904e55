"""The spans of traced connections, without a server."""

from __future__ import annotations

import threading
from typing import Any

import pytest  # noqa: TC002 - a fixture is a test's argument

from jaxd_server.runtime import call_trace
from jaxd_server.runtime.call_trace import ConnectionTrace, TraceLogs


def taken(logs: TraceLogs, principal: str = "a") -> list[list[Any]]:
    """The spans of its trace since the last time."""
    spans: list[list[Any]] = logs.take(principal, b"t")["spans"]
    return spans


def test_a_stage_ends_where_the_next_begins() -> None:
    """Whichever thread begins it; the call ends last, and says what is known of it."""
    logs = TraceLogs()
    call = ConnectionTrace(logs.open("a", b"t"), "7.1").call(5)
    call.stage("arguments")
    other = threading.Thread(target=call.stage, args=("run",))
    other.start()
    other.join()
    call.end(function="f", id="")
    spans = taken(logs)
    assert [span[:3] for span in spans] == [
        ["7.1", 5, name] for name in ("receive", "arguments", "run", "call")
    ]
    (_, _, _, started, ended, thread, _), run = spans[1], spans[2]
    assert started <= ended <= run[3] <= run[4]
    assert thread == threading.get_native_id() != run[5]
    assert spans[3][6] == {"function": "f"}


def test_a_build_has_stages_of_its_own() -> None:
    """Of the thread that builds, as its events say, with what it waited behind; passed on too."""
    logs, events = TraceLogs(), []
    call = ConnectionTrace(logs.open("a", b"t"), "7.1").call(5)
    emit = call.emitting(lambda kind, content: events.append((kind, content)))
    emit("stage", {"stage": "queued", "function": "f"})  # the call waits for it
    stages: list[dict[str, Any]] = [
        {"stage": "queued", "behind": "g", "behind_s": 0.5},
        {"stage": "trace", "builder": 12},
        {"stage": "run"},
    ]
    building = threading.Thread(target=lambda: [emit("stage", each) for each in stages])
    building.start()
    building.join()
    call.stage("run")
    call.end()
    spans = {span[2]: span for span in taken(logs)}
    assert list(spans) == ["receive", "queued", "trace", "build", "run", "call"]
    assert spans["queued"][6] == {"behind": "g", "behind_s": 0.5}
    assert spans["trace"][6] == {"builder": 12}
    assert spans["build"][3] <= spans["queued"][3]
    assert spans["trace"][4] <= spans["build"][4]
    assert len(events) == 4


def test_a_trace_is_its_principals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else's, nor the next one's of that name; of what nobody fetches."""
    logs = TraceLogs()
    ConnectionTrace(logs.open("a", b"t"), "7.1").add(1, "send", 0)
    assert taken(logs, "b") == []
    logs.forget("a")
    assert taken(logs) == []
    monkeypatch.setattr(call_trace, "_MAX_SPANS", 3)
    logs = TraceLogs()
    trace = ConnectionTrace(logs.open("a", b"t"), "7.1")
    for number in range(5):
        trace.add(number, "send", 0)
    found = logs.take("a", b"t")
    assert ([span[1] for span in found["spans"]], found["left_out"]) == ([2, 3, 4], 2)


def test_too_many_traces_cost_only_their_principal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those without spans go first; what was dropped, or comes after that, is counted."""
    monkeypatch.setattr(call_trace, "_MAX_TRACES", 2)
    logs = TraceLogs()
    trace = ConnectionTrace(logs.open("a", b"t"), "7.1")
    trace.add(1, "send", 0)
    for number in range(9):
        logs.open("b", bytes([number]))
        logs.open("a", bytes([number]))
    assert len(taken(logs)) == 1
    trace.add(2, "send", 0)
    for name in (b"u", b"v"):
        ConnectionTrace(logs.open("a", name), "7.2").add(1, "send", 0)
    trace.add(3, "send", 0)
    found = logs.take("a", b"t")
    assert (found["spans"], found["left_out"]) == ([], 2)
    trace.add(4, "send", 0)  # there is no room for it yet
    logs.take("a", b"u")
    assert logs.take("a", b"t")["left_out"] == 1
    trace.add(5, "send", 0)  # there is now
    found = logs.take("a", b"t")
    assert (len(found["spans"]), found["left_out"]) == (1, 0)
    assert len(logs.take("a", b"v")["spans"]) == 1
    monkeypatch.setattr(call_trace, "_MAX_TRACES", 2)
    monkeypatch.setattr(call_trace, "_MAX_NAMES", 5)
    logs = TraceLogs()
    for number in range(20):
        ConnectionTrace(logs.open("a", bytes([number])), "7.1").add(1, "send", 0)
    known = [logs.take("a", bytes([number])) for number in range(20)]
    assert sum(bool(found["spans"]) for found in known) == 2
    assert sum(found["left_out"] for found in known) == 3
