from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxd_server.user_code.output import (
    MAX_TEXT,
    CallOutput,
    add_caller,
    as_default_output,
    capture_user_output,
    capture_warnings,
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


@contextmanager
def output_printer() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """The process's own stdout and stderr, below what hears user code; all is put back."""
    root, streams = logging.getLogger(), (sys.stdout, sys.stderr)
    handlers, level = list(root.handlers), root.level
    out, err = io.StringIO(), io.StringIO()
    sys.stdout, sys.stderr = out, err
    root.handlers.clear()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda *_: out.write("shown as ever\n")  # type: ignore[assignment]
            capture_user_output()
            yield out, err
    finally:
        sys.stdout, sys.stderr = streams
        root.handlers[:] = handlers
        root.setLevel(level)


def test_prints_belong_to_who_speaks(call_output: CallOutput, events: Events) -> None:
    """The server's own go where they went before."""
    with output_printer() as (out, err):
        print("the server")
        with output_to(call_output):
            print("a function")
            print("its error", file=sys.stderr)
            with pytest.raises(TypeError, match="must be str, not bytes"):
                sys.stdout.write(b"bytes")  # type: ignore[arg-type]
        print("the server again", flush=True)
    assert (out.getvalue(), err.getvalue()) == ("the server\nthe server again\n", "")
    assert [(c["stream"], c["text"]) for _, c in events] == [
        ("stdout", "a function\n"),
        ("stderr", "its error\n"),
    ]


def test_all_warnings_of_a_call_are_heard(call_output: CallOutput, events: Events) -> None:
    """Whatever filters there are, and however often; the client has filters of its own."""
    with output_printer() as (out, _):
        warnings.simplefilter("ignore")
        capture_warnings()
        capture_warnings()
        assert (
            len(
                [
                    each
                    for each in warnings.filters
                    if "_MatchInCallThreads" in type(each[1]).__name__
                ]
            )
            == 1
        )
        with output_to(call_output):
            for _ in range(2):
                warnings.warn("old", DeprecationWarning, stacklevel=1)
        warnings.warn("the server's own", stacklevel=1)
    assert [content["text"] for _, content in events] == ["old", "old"]
    assert events[0][1]["category"] == ["builtins", "DeprecationWarning"]
    assert events[0][1]["file"] == __file__
    assert "DeprecationWarning" in events[0][1]["bases"]
    assert out.getvalue() == ""


def test_warnings_of_the_server_are_shown_as_ever() -> None:
    """By whoever showed them before; its logs go to stderr from warnings on."""
    with output_printer() as (out, _):
        warnings.simplefilter("always")
        warnings.warn("something", stacklevel=1)
    assert out.getvalue() == "shown as ever\n"
    with output_printer() as (_, err):
        logging.getLogger("of_a_user").info("not this")
        logging.getLogger("of_a_user").warning("but this")
    assert err.getvalue() == "but this\n"


def test_what_is_logged_is_heard(call_output: CallOutput, events: Events) -> None:
    """On all levels, with its traceback; jax's own only from warnings on."""
    logger = logging.getLogger("of_a_user")
    with output_printer(), output_to(call_output):
        logger.debug("%s and %s", "this", "that")
        try:
            _ = vars()["broken"]
        except KeyError:
            logger.exception("it failed")
        logging.getLogger("jax._src.something").info("about jax")
        logging.getLogger("jax._src.something").warning("of jax")
        logging.getLogger("jax._src.dispatch").warning("Finished tracing")
    assert [(kind, c["text"], c["level"]) for kind, c in events] == [
        ("logged", "this and that", 10),
        ("logged", "it failed", 40),
        ("logged", "of jax", 30),
        ("compiled", "Finished tracing", 30),
    ]
    assert "KeyError: 'broken'" in events[1][1]["traceback"]
    assert events[0][1]["function"] == "test_what_is_logged_is_heard"
