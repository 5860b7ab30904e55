from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd_server.user_code.output import (
    MAX_TEXT,
    CallOutput,
    add_caller,
    as_default_output,
    current_output,
    output_to,
    output_to_sole_caller,
    remove_caller,
)

Events = list[tuple[str, Any]]


@pytest.fixture
def events() -> Events:
    """What the call output has emitted."""
    return []


@pytest.fixture
def call_output(events: Events) -> CallOutput:
    """Its."""
    return CallOutput(lambda kind, content: events.append((kind, content)))


def printed(events: Events) -> list[str]:
    """The texts."""
    return [content["text"] for kind, content in events if kind == "print"]


def test_lines_are_sent_when_they_end(call_output: CallOutput, events: Events) -> None:
    """`print` writes a line in pieces."""
    for text in ("a", " ", "b", "\n", "c\nd\ne"):
        call_output.write("stdout", text)
    assert printed(events) == ["a b\n", "c\nd\n"]
    call_output.end()
    assert printed(events)[2:] == ["e"]
    call_output.end()
    assert len(events) == 3


def test_streams_do_not_mix(call_output: CallOutput, events: Events) -> None:
    """What has no end on one of them does not become a part of the other."""
    call_output.write("stdout", "out")
    call_output.write("stderr", "err\n")
    call_output.flush("stdout")
    assert [(c["stream"], c["text"], c["flush"]) for _, c in events] == [
        ("stderr", "err\n", False),
        ("stdout", "out", True),
    ]


def test_what_has_been_sent_is_flushed_once(call_output: CallOutput, events: Events) -> None:
    """`print(..., flush=True)` writes a whole line before it flushes."""
    call_output.flush("stdout")
    for stream in ("stdout", "stderr"):
        call_output.write(stream, f"{stream}\n")
    for _ in range(2):
        call_output.flush("stdout")
    assert [(c["stream"], c["text"], c["flush"]) for _, c in events] == [
        ("stdout", "stdout\n", False),
        ("stderr", "stderr\n", False),
        ("stdout", "", True),
    ]


def test_order_is_kept_with_what_is_not_printed(call_output: CallOutput, events: Events) -> None:
    """A warning comes behind the line that was begun before it."""
    call_output.write("stdout", "begun")
    call_output.send("warned", {"text": "w"})
    assert [kind for kind, _ in events] == ["print", "warned"]


def test_long_text_comes_in_parts(call_output: CallOutput, events: Events) -> None:
    """None is larger than a message should be, and none is kept back for ever."""
    text = "x" * (2 * MAX_TEXT + 1)
    call_output.write("stdout", text)
    assert [len(part) for part in printed(events)] == [MAX_TEXT, MAX_TEXT, 1]


def test_a_thread_speaks_for_its_call_first(call_output: CallOutput, events: Events) -> None:
    """Threads that speak for nobody do so for the call whose turn it is."""
    other = CallOutput(lambda *_: None)
    found: list[CallOutput | None] = []
    assert current_output() is None
    with as_default_output(other):
        with output_to(call_output):
            call_output.write("stdout", "no end")
            assert current_output() is call_output
            thread = threading.Thread(target=lambda: found.append(current_output()))
            thread.start()
            thread.join()
        assert current_output() is other
    assert found == [other]
    assert current_output() is None
    assert printed(events) == ["no end"]


def test_a_callback_speaks_for_the_only_call_that_it_can_be(call_output: CallOutput) -> None:
    """With several of them, for none: nobody reads what another client's function prints."""
    other = CallOutput(lambda *_: None)
    add_caller(call_output)
    with as_default_output(other):
        with output_to_sole_caller():
            assert current_output() is call_output
        add_caller(other)
        with output_to_sole_caller():
            assert current_output() is None
        with output_to(other), output_to_sole_caller():
            assert current_output() is other
    remove_caller(other)
    remove_caller(call_output)
    remove_caller(call_output)
    with output_to_sole_caller():
        assert current_output() is None
