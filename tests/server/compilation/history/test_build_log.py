"""What is said about a build, to whoever waits for it and to whoever asks later."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.explain.argument_shapes import Argument, argument_shapes
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.packages.distributions import Package
from jaxd_server.compilation.functions.function import Described, Function
from jaxd_server.compilation.history import build_history
from jaxd_server.compilation.history import build_log as module
from jaxd_server.compilation.history.build_log import BuildLog, describe
from jaxd_server.runtime.events import SILENT
from jaxd_server.runtime.imported_packages import Change
from tests.server.builds import (
    PARAMETERS,
    described,
    executable,
    key_of,
    loaded,
    made,
    skeleton_of,
    value_part,
)
from tests.server.in_process import PipelineHarness, Source
from tests.server.staging import PATIENCE_S, join, start, until

PROGRAM = executable()


def function_with(lr: str = "0.1") -> Function:
    """As the server has it, made of parts by hand."""
    whole = described(value_part("LR", lr))
    manifest = FunctionManifest(whole.fingerprint, parts=whole.parts)
    what = Described(whole.fingerprint, whole.name, whole.options, manifest)
    return Function(key_of(whole), what, parameters=PARAMETERS)


class Heard:
    """An event stream."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, kind: str, content: dict[str, Any]) -> None:
        """Takes one event."""
        self.events.append((kind, content))


def test_a_function_is_described_by_what_its_client_said() -> None:
    """And by the parameters that the server has seen."""
    found = describe(function_with())
    assert found == described(value_part("LR", "0.1"))
    assert found.parameters == PARAMETERS
    unknown = Function(b"k", Described(b"f", "it", found.options))
    assert describe(unknown).parts == ()


def test_a_build_that_replaces_one_of_other_packages_names_them() -> None:
    """Where nothing else differs, also when the record of that is gone."""
    old = Package("lowlib", "1.0", b"")
    changed = Change(old, old._replace(version="1.1"))
    decisions = BuildLog()
    for _ in range(2):
        result = made(PROGRAM)._replace(changed=(changed,))
        decisions.made(function_with(), skeleton_of(1.0), result, SILENT)
    result = made(PROGRAM)._replace(changed=(changed,))
    decisions.made(function_with("0.2"), skeleton_of(1.0), result, SILENT)
    assert [decision.reason.text for decision in decisions.recent(9)] == [
        "global LR: 0.1 → 0.2",
        "dependency lowlib 1.0 → 1.1",
        "dependency lowlib 1.0 → 1.1",
    ]


def test_each_build_has_its_reason() -> None:
    """The last one first, as many as are asked for; and no more than the last are kept."""
    decisions = BuildLog(limit=3)
    for lr, x in (
        *(("0.0", 1.0), ("0.1", 1.0)),
        *(("0.1", np.zeros(3, np.float32)), ("0.2", 1.0)),
    ):
        decisions.made(function_with(lr), skeleton_of(x), made(PROGRAM), SILENT)
    assert [decision.reason.text for decision in decisions.recent(9)] == [
        "global LR: 0.1 → 0.2",
        "argument x: float → float32[3]",
        "global LR: 0.0 → 0.1",
    ]
    assert len(decisions.recent(2)) == 2
    assert decisions.recent(0) == []


def test_arguments_are_read_once_however_many_builds_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also of large objects and wide trees: each build is compared with all before it."""
    read: list[bytes] = []

    def noted(skeleton: bytes, parameters: tuple[str, ...]) -> dict[str, Argument]:
        read.append(skeleton)
        return argument_shapes(skeleton, parameters)

    monkeypatch.setattr(build_history, "argument_shapes", noted)
    skeletons = [skeleton_of(f"{n}" * 50_000) for n in range(10, 20)]
    skeletons += [skeleton_of([np.zeros(n)] * 300) for n in range(10)]
    decisions = BuildLog()
    for skeleton in skeletons:
        decisions.made(function_with(), skeleton, made(PROGRAM), SILENT)
    assert sorted(read) == sorted(skeletons)


def test_a_decision_is_json() -> None:
    """With names that stay."""
    decisions = BuildLog()
    for lr in ("0.1", "0.2"):
        decisions.made(function_with(lr), skeleton_of(1.0), made(PROGRAM), SILENT)
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
    slow = executable(module.LONG_BUILD_S)
    decisions = BuildLog()
    decisions.made(function_with(), skeleton_of(1.0), made(PROGRAM), heard)
    assert heard.events == []
    decisions.made(function_with("0.2"), skeleton_of(1.0), made(slow), heard)
    content = {"function": "step", "seconds": 2.0, "reason": "global LR: 0.1 → 0.2"}
    assert heard.events == [("built", content)]


def test_advice_goes_to_the_call_that_brought_it_about_and_once() -> None:
    """The eighth shape; the ninth says nothing new."""
    heard = Heard()
    decisions = BuildLog()
    for size in range(1, 8):
        decisions.made(function_with(), skeleton_of(np.zeros(size)), made(PROGRAM), heard)
    assert heard.events == []
    for size in (8, 9):
        decisions.made(function_with(), skeleton_of(np.zeros(size)), made(PROGRAM), heard)
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
    decisions = BuildLog()
    decisions.made(function_with(), skeleton_of(1.0), made(PROGRAM), SILENT)
    assert decisions.recent(9) == []
    assert "Traceback" not in capsys.readouterr().out


def test_the_pipeline_notes_what_it_builds_and_nothing_else(harness: PipelineHarness) -> None:
    """A warm call, and one that fails, leave no trace here."""

    def picky(x: Any) -> Any:
        if x.shape:
            raise ValueError("too many")
        return x

    source = Source(picky)
    for _ in range(3):
        harness.value(source, np.float32(1))
    with pytest.raises(ValueError, match="too many"):
        harness.value(source, np.zeros(2, np.float32))
    (decision,) = harness.pipeline.build_log.recent(9)
    assert decision.function == "picky"
    (record,) = harness.pipeline.build_log.build_history.records().values()
    assert [built.warm and built.warm.calls for built in record.built] == [3]


def test_a_load_is_a_decision_too(harness: PipelineHarness) -> None:
    """Listed with its time; whoever waited for it is told nothing, and it gives no advice."""
    heard = Heard()
    decisions = BuildLog()
    decisions.made(function_with(), skeleton_of(1.0), loaded(executable(9.0), b"name"), heard)
    (decision,) = decisions.recent(9)
    assert (decision.verdict, decision.seconds) == ("load", 9.0)
    assert decision.text == "kept on disk by an earlier worker"
    assert decision.to_dict()["differences"] == []
    assert heard.events == []


def test_what_was_not_compiled_says_so() -> None:
    """It was traced, and then found to be another function's program."""
    decisions = BuildLog()
    shared = made(PROGRAM, was_compiled=False)
    decisions.made(function_with(), skeleton_of(1.0), shared, SILENT)
    (decision,) = decisions.recent(1)
    assert (decision.verdict, decision.was_compiled) == ("compile", False)
    assert decision.text == (
        "first call of this function on this server (another function had compiled the same "
        "program)"
    )


def with_rate(rate: float) -> Source:
    """A function that reads a global."""
    scope = {"RATE": rate}
    exec("def step(x):\n    return x * RATE", scope)
    return Source(scope["step"])  # type: ignore[arg-type]


def test_reasons_reach_back_beyond_a_restart(
    open_harness: Callable[..., PipelineHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an earlier worker built is known; what this one builds is not taken for that.

    Not even when it is on disk before the others are read.
    """
    open_harness().value(with_rate(0.5), np.zeros(2))
    harness = open_harness()
    program_cache = harness.program_cache
    assert program_cache is not None
    keep = program_cache.keep

    def keep_now(*args: Any) -> None:
        keep(*args)
        program_cache.flush()

    monkeypatch.setattr(program_cache, "keep", keep_now)
    harness.value(with_rate(0.25), np.zeros(2))
    harness.value(with_rate(0.5), np.zeros(3))
    assert [each.text for each in harness.pipeline.build_log.recent(9)] == [
        "argument x: float64[2] → float64[3]",
        "global RATE: 0.5 → 0.25",
    ]


def test_what_was_kept_is_read_only_for_a_reason(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """A load is as fast as it can be; the first build after it knows of it all the same."""
    source = with_rate(0.5)
    open_harness().value(source, np.zeros(2))
    harness = open_harness()
    decisions = harness.pipeline.build_log
    harness.value(source, np.zeros(2))
    assert not decisions._is_restored
    (record,) = decisions.build_history.records().values()
    assert [each.warm and each.warm.calls for each in record.built] == [1]
    assert record.built[0].seconds > 0


def test_only_so_many_of_earlier_processes_are_read(
    open_harness: Callable[..., PipelineHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones."""
    harness = open_harness()
    for size in range(1, 5):
        harness.value(with_rate(0.5), np.zeros(size))
    monkeypatch.setattr(module, "MAX_RESTORED", 2)
    (record,) = open_harness().pipeline.build_log.build_history.records().values()
    assert [str(each.arguments["x"].form) for each in record.built] == ["float64[3]", "float64[4]"]


def test_a_load_does_not_wait_for_the_records_to_be_read(
    open_harness: Callable[..., PipelineHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be thousands; what is loaded meanwhile is in the build history all the same."""
    source = Source(lambda x: x + 1)
    open_harness().value(source, 1.0)
    harness = open_harness()
    decisions, program_cache = harness.pipeline.build_log, harness.program_cache
    assert program_cache is not None
    reading, opened = threading.Event(), threading.Event()
    calls = program_cache.calls

    def slow() -> Any:
        found = calls()
        reading.set()
        assert opened.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(program_cache, "calls", slow)
    asked = start(lambda: decisions.build_history)
    assert reading.wait(PATIENCE_S)
    loading = start(harness.value, source, 1.0)
    try:
        until(lambda: not loading.is_alive())
    finally:
        opened.set()
        join([asked, loading])
    record = decisions.build_history.find(source.key)
    assert record is not None
    assert record.built[0].warm
