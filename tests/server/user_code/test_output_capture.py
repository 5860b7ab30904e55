from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxd_server.user_code.output import (
    CallOutput,
    capture_user_output,
    capture_warnings,
    output_to,
)

Events = list[tuple[str, Any]]


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


@pytest.fixture
def events() -> Events:
    """What was heard."""
    return []


@pytest.fixture
def call_output(events: Events) -> CallOutput:
    """Of some call."""
    return CallOutput(lambda kind, content: events.append((kind, content)))


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
    """By whoever showed them before."""
    with output_printer() as (out, _):
        warnings.simplefilter("always")
        warnings.warn("something", stacklevel=1)
    assert out.getvalue() == "shown as ever\n"


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


def test_logs_of_the_server_go_where_they_went() -> None:
    """Warnings to stderr, less important ones nowhere."""
    with output_printer() as (_, err):
        logging.getLogger("of_a_user").info("not this")
        logging.getLogger("of_a_user").warning("but this")
    assert err.getvalue() == "but this\n"
