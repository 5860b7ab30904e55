"""What is said about a build, to whoever waits for it and to whoever asks later."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.meanings import Meaning
from jaxd_server import decisions as module
from jaxd_server.arrivals import Arrival
from jaxd_server.decisions import Decisions, describe
from jaxd_server.functions import Described, Function
from jaxd_server.progress import SILENT
from tests.server.builds import PARAMETERS, described, executable, key_of, skeleton_of, value_part
from tests.server.in_process import Kitchen, Source

PROGRAM = executable()


def step(x: Any, steps: int = 1) -> Any:
    """Takes the arguments of `PARAMETERS`."""
    return x * steps


def function_with(lr: str = "0.1") -> Function:
    """As the server has it, made of parts by hand."""
    whole = described(value_part("LR", lr))
    meaning = Meaning(whole.fingerprint, parts=whole.parts)
    what = Described(whole.fingerprint, whole.name, whole.options, meaning)
    return Function(key_of(whole), what, Arrival(step))


class Heard:
    """An event stream."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, content: dict[str, Any]) -> None:
        """Takes one event."""
        self.events.append((kind, content))


def test_a_function_is_described_by_what_its_client_said() -> None:
    """Its parameters the server sees itself."""
    found = describe(function_with())
    assert found == described(value_part("LR", "0.1"))
    assert found.parameters == PARAMETERS
    unknown = Function(b"k", Described(b"f", "it", found.options), Arrival(step))
    assert describe(unknown).parts == ()


def test_each_build_has_its_reason() -> None:
    """The last one first, as many as are asked for."""
    decisions = Decisions()
    for lr, x in (("0.1", 1.0), ("0.1", np.zeros(3, np.float32)), ("0.2", 1.0)):
        decisions.built(function_with(lr), skeleton_of(x), PROGRAM, SILENT)
    assert [decision.reason.text for decision in decisions.recent(9)] == [
        "global LR: 0.1 → 0.2",
        "argument x: float → float32[3]",
        "first call of this function on this server",
    ]
    assert len(decisions.recent(2)) == 2
    assert decisions.recent(0) == []


def test_only_the_last_decisions_are_kept() -> None:
    """A server that runs for months does not grow."""
    decisions = Decisions(limit=3)
    for lr in range(5):
        decisions.built(function_with(str(lr)), skeleton_of(1.0), PROGRAM, SILENT)
    assert [each.reason.differences[0].after for each in decisions.recent(9)] == ["4", "3", "2"]


def test_a_decision_is_json() -> None:
    """With names that stay."""
    decisions = Decisions()
    for lr in ("0.1", "0.2"):
        decisions.built(function_with(lr), skeleton_of(1.0), PROGRAM, SILENT)
    second, first = (decision.to_dict() for decision in decisions.recent(2))
    assert json.loads(json.dumps(second)) == second
    assert list(second) == [
        "time",
        "function",
        "key",
        "verdict",
        "seconds",
        "reason",
        "nearest",
        "differences",
    ]
    assert (second["verdict"], second["nearest"]) == ("compile", first["key"])
    assert (first["nearest"], first["differences"]) == (None, [])


def test_whoever_waited_long_is_told_why() -> None:
    """And whoever did not is not."""
    heard = Heard()
    slow = executable()
    slow.build_s = module.LONG_BUILD_S
    decisions = Decisions()
    decisions.built(function_with(), skeleton_of(1.0), PROGRAM, heard)
    assert heard.events == []
    decisions.built(function_with("0.2"), skeleton_of(1.0), slow, heard)
    content = {"function": "step", "seconds": 2.0, "reason": "global LR: 0.1 → 0.2"}
    assert heard.events == [("built", content)]


def test_advice_goes_to_the_call_that_brought_it_about_and_once() -> None:
    """The eighth shape; the ninth says nothing new."""
    heard = Heard()
    decisions = Decisions()
    for size in range(1, 8):
        decisions.built(function_with(), skeleton_of(np.zeros(size)), PROGRAM, heard)
    assert heard.events == []
    for size in (8, 9):
        decisions.built(function_with(), skeleton_of(np.zeros(size)), PROGRAM, heard)
    ((kind, content),) = heard.events
    assert (kind, content["category"], content["kind"]) == ("warning", "advice", "shapes")
    assert content["text"].startswith("step has been compiled for 8 shapes of argument x ")


def test_a_failing_explanation_costs_no_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is in the log, and the call goes on."""

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "reason_for", broken)
    decisions = Decisions()
    decisions.built(function_with(), skeleton_of(1.0), PROGRAM, SILENT)
    assert decisions.recent(9) == []
    assert "Traceback" not in capsys.readouterr().out


def test_the_pipeline_notes_what_it_builds_and_nothing_else(kitchen: Kitchen) -> None:
    """A warm call, and one that fails, leave no trace here."""

    def picky(x: Any) -> Any:
        if x.shape:
            raise ValueError("too many")
        return x

    source = Source(picky)
    for _ in range(3):
        kitchen.value(source, np.float32(1))
    with pytest.raises(ValueError, match="too many"):
        kitchen.value(source, np.zeros(2, np.float32))
    (decision,) = kitchen.pipeline.decisions.recent(9)
    assert decision.function == "picky"
    (record,) = kitchen.pipeline.decisions.ledger.records()
    assert [(built.calls, built.is_warm) for built in record.built] == [(3, True)]


def test_the_walks_parts_say_what_changed() -> None:
    """As the client finds them, not as a test writes them."""
    scope = {"LR": 0.1}
    exec("def step(x):\n    return x * LR", scope)
    decisions = Decisions()
    for lr in (0.1, 0.01):
        scope["LR"] = lr
        meaning = Meaning.of(walk(scope["step"], "step").fingerprint)
        what = Described(meaning.fingerprint, "step", described().options, meaning)
        function = Function(meaning.fingerprint, what, Arrival(step))
        decisions.built(function, skeleton_of(1.0), PROGRAM, SILENT)
    assert decisions.recent(1)[0].reason.text == "global LR: 0.1 → 0.01"
