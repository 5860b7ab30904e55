from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from jaxd_server.runtime import logs
from jaxd_server.runtime.events import SILENT, OutputOnce, repeat_output


@pytest.fixture(autouse=True)
def untouched_logger() -> Iterator[None]:
    """Leaves the logger as it was found."""
    logger = logging.getLogger("jaxd")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before


def test_lines_carry_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON under their names, without None; as text in one line, quoted where that is needed."""
    logs.configure("json", "host")
    logs.log_event("listening", address="tcp://127.0.0.1:1", control=None)
    line = json.loads(capsys.readouterr().err)
    del line["time"]
    assert line == {
        "level": "info",
        "process": "host",
        "event": "listening",
        "address": "tcp://127.0.0.1:1",
    }
    logs.configure("text", "worker")
    logs.log_event("left_behind", reason="wrong\ntoken", calls=3, name="f", empty="")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.endswith('worker left_behind reason="wrong\\ntoken" calls=3 name=f empty=""\n')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_error_within_except_brings_its_traceback(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    """A failure of our own can be found from the log alone."""
    logs.configure("json" if log_format == "json" else "text", "worker")
    try:
        print(1 / int("0"))
    except ZeroDivisionError:
        logs.log_event("job_failed")
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_ordinary_logging_is_formatted_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`logging.getLogger("jaxd.…")` needs no knowledge of events."""
    logs.configure("json", "worker")
    logging.getLogger("jaxd.wire").warning("odd %s", "bytes")
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["level"]) == ("odd bytes", "warning")
    SILENT("stage", {"stage": "trace"})  # nobody has to listen
    logs.configure("json", "host")
    logs.configure("text", "host")
    logs.log_event("idle")
    assert capsys.readouterr().err.count(" idle") == 1


def test_a_function_that_is_traced_again_outputs_nothing_twice() -> None:
    """Stages of the build are no output, and what is new comes."""
    events: list[tuple[str, Any]] = []
    emit = OutputOnce(lambda *event: events.append(event))
    for texts in ("ab", "abc", "abcd"):
        emit.begin_trace()
        emit("stage", {"stage": "trace"})
        for text in texts:
            emit("print", {"text": text})
    stage = ("stage", {"stage": "trace"})
    a, b, c, d = (("print", {"text": text, "traced": True}) for text in "abcd")
    assert events == [stage, a, b, stage, c, stage, d]
    told: list[tuple[str, Any]] = []
    repeat_output(emit.output, lambda *event: told.append(event))
    repeated = [("print", {"text": text, "traced": True, "repeated": True}) for text in "abcd"]
    assert told == repeated
    emit("print", {"text": "e" * 40_000})  # it is passed on, and is too much to be kept
    repeat_output(emit.output, lambda *event: told.append(event))
    assert told == repeated * 2
