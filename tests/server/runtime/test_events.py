from __future__ import annotations

from typing import Any

from jaxd_server.runtime.events import SILENT, OutputOnce


def test_nobody_has_to_listen() -> None:
    """The silent event stream takes everything."""
    SILENT("stage", {"stage": "trace"})


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
    a, b, c, d = (("print", {"text": text}) for text in "abcd")
    assert events == [stage, a, b, stage, c, stage, d]
