from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd_server.said import Said, heard, tell_once
from jaxd_server.sessions import Session
from jaxd_server.user_output import Relay
from tests.server import builds
from tests.server.in_process import Kitchen, Source

X = np.arange(3, dtype=np.float32)
LINE = ("print", {"stream": "stdout", "text": "traced\n", "flush": False})


def speak(x: Any) -> Any:
    """Logs something, which is heard however streams are set."""
    logging.getLogger("of_a_user").warning("traced")
    return x + 1


def texts(events: list[tuple[str, Any]]) -> list[tuple[str, int]]:
    """Text and number of what was printed."""
    return [
        (content["text"], content["at"]) for kind, content in events if kind in ("print", "logged")
    ]


def test_events_are_numbered_and_kept() -> None:
    """Stages of the build are neither."""
    events: list[tuple[str, Any]] = []
    said = Said("name", lambda *event: events.append(event))
    said.emit("stage", {"stage": "trace"})
    said.emit(*LINE)
    said.emit("warned", {"text": "w"})
    assert [content.get("at") for _, content in events] == [None, 0, 1]
    assert {content["of"] for _, content in events[1:]} == {"name"}
    kept = said.end()
    said.emit(*LINE)
    assert events[-1] == LINE
    assert kept.count("traced") == 1


def test_a_second_attempt_in_the_same_build_has_the_same_numbers() -> None:
    """The client has heard them already."""
    events: list[tuple[str, Any]] = []
    said = Said("name", lambda *event: events.append(event))
    said.emit(*LINE)
    said.begin_again()
    said.emit(*LINE)
    assert events[0] == events[1]


def test_nothing_said_is_nothing_kept() -> None:
    """As of most functions."""
    said = Said("name")
    assert said.end() == ""
    said.failed()


def test_too_much_is_said_and_not_kept() -> None:
    """A program that prints megabytes while it is traced does not fill the disk."""
    events: list[tuple[str, Any]] = []
    said = Said("name", lambda *event: events.append(event))
    for _ in range(30):
        said.emit("print", {"text": "x" * 50_000})
    assert len(events) == 30
    assert len(said.end()) < 1 << 20


def _print_and_fail(call: Any) -> None:
    call.emit(*LINE)
    raise KeyError


def test_a_failed_build_is_unsaid() -> None:
    """The next attempt is heard again."""
    events: list[tuple[str, Any]] = []
    call = Source(speak).call((X,))
    call.emit = emit = lambda *event: events.append(event)
    with pytest.raises(KeyError), heard(call):
        _print_and_fail(call)
    assert [kind for kind, _ in events] == ["print", "unsaid"]
    assert events[0][1]["of"] == events[1][1]["of"]
    assert call.emit is emit


def test_each_session_is_told_once() -> None:
    """Not the one that has heard it live."""
    executable = builds.executable()
    events: list[tuple[str, Any]] = []
    executable.said = '[["print", {"text": "traced", "of": "n", "at": 0}]]'
    call = Source(speak).call((X,))
    call.emit = lambda *event: events.append(event)
    call.session = Session("one", "")
    tell_once(call, executable, has_heard=True)
    tell_once(call, executable)
    assert not events
    call.session = Session("two", "")
    tell_once(call, executable)
    tell_once(call, executable)
    assert texts(events) == [("traced", 0)]


def test_it_is_kept_on_disk(
    open_kitchen: Callable[..., Kitchen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later process says it, with the same name, and traces nothing."""
    monkeypatch.setattr(logging.getLogger("of_a_user"), "handlers", [Relay()])
    found = []
    for _ in range(2):
        kitchen = open_kitchen()
        events: list[tuple[str, Any]] = []
        call = Source(speak).call((X,))
        call.session = Session("s", "")
        call.emit = lambda *event, to=events: to.append(event)
        assert kitchen.pipeline.answer(call)[0][0] == 0
        assert texts(events) == [("traced", 0)]
        found.append([content["of"] for kind, content in events if kind == "logged"])
        traces = kitchen.counters.snapshot()["traces"]
    assert found[0] == found[1]
    assert traces == 0
