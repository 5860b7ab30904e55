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


def test_a_trace_is_its_principals() -> None:
    """Another one with the same name for it finds nothing; nor does the next of that name."""
    logs = TraceLogs()
    ConnectionTrace(logs.open("a", b"t"), "7.1").add(1, "send", 0)
    assert taken(logs, "b") == []
    logs.forget("a")
    assert taken(logs) == []


def test_what_nobody_fetches_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest spans of a trace go, which is counted; and so do the oldest traces."""
    monkeypatch.setattr(call_trace, "_MAX_SPANS", 3)
    monkeypatch.setattr(call_trace, "_MAX_TRACES", 2)
    logs = TraceLogs()
    trace = ConnectionTrace(logs.open("a", b"t"), "7.1")
    for number in range(5):
        trace.add(number, "send", 0)
    found = logs.take("a", b"t")
    assert ([span[1] for span in found["spans"]], found["left_out"]) == ([2, 3, 4], 2)
    trace.add(9, "send", 0)
    logs.open("a", b"u")
    logs.open("b", b"v")
    assert taken(logs) == []
