"""Answers to `why` and `recent`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.history.build_log import describe
from jaxd_server.jax_compat import programs
from jaxd_server.jax_compat.lowered import Obstacle
from jaxd_server.rpc.services import why as module
from jaxd_server.rpc.services.admin import AdminService
from jaxd_server.rpc.services.why import why
from tests.server.in_process import PipelineHarness, Source, encode

X = np.zeros((128, 8), np.float32)


def double(x: Any, steps: int = 1) -> Any:
    """Is called in these tests."""
    return x * 2 * steps


def ask(harness: PipelineHarness, source: Source, *args: Any, known: bool = True) -> dict[str, Any]:
    """What the server says about a call; with nothing known, about all calls."""
    pipeline = harness.pipeline
    skeleton = encode(args)[0] if args else None
    described = FunctionDescriptor("double", source.fingerprint, source.options, (), ("x", "steps"))
    if known:
        described = describe(pipeline.functions.obtain(source.key, source))
    message = (source.key, skeleton, described.to_message())
    answer = why(pipeline, *message)
    assert json.loads(json.dumps(answer)) == answer
    return answer


def test_an_unknown_function_compiles(harness: PipelineHarness) -> None:
    """Nobody is asked for its code, and nothing is kept."""
    source = Source(double)
    answer = ask(harness, source, X, known=False)
    assert (answer["verdict"], answer["nearest"], answer["programs"]) == ("compile", None, [])
    assert answer["reason"] == "first call of this function on this server"
    assert source.asked == []
    assert len(harness.pipeline.functions) == 0
    assert harness.pipeline.build_log.build_history.records() == {}


def test_a_call_that_was_made_is_a_hit(harness: PipelineHarness) -> None:
    """With the program that will answer it, and how often it did."""
    source = Source(double)
    for _ in range(2):
        harness.value(source, X)
    answer = ask(harness, source, X)
    assert (answer["verdict"], answer["differences"]) == ("hit", [])
    (program,) = answer["programs"]
    assert (program["arguments"], program["calls"]) == ({"x": "float32[128,8]"}, 2)
    assert program["seconds"] > 0


def test_other_arguments_compile_and_say_why(harness: PipelineHarness) -> None:
    """The nearest is the same key."""
    source = Source(double)
    harness.value(source, X)
    answer = ask(harness, source, X[:3])
    assert answer["verdict"] == "compile"
    assert [each["text"] for each in answer["differences"]] == [
        "argument x: float32[128,8] → float32[3,8]"
    ]
    assert answer["nearest"]["key"] == answer["key"]
    assert answer["nearest"]["same_key"]


def test_without_arguments_it_tells_all_programs(harness: PipelineHarness) -> None:
    """And that other calls compile."""
    source = Source(double)
    assert ask(harness, source)["verdict"] == "compile"
    for x in (X, X[:3]):
        harness.value(source, x)
    answer = ask(harness, source)
    assert answer["verdict"] == "hit"
    assert [program["arguments"] for program in answer["programs"]] == [
        {"x": "float32[128,8]"},
        {"x": "float32[3,8]"},
    ]


def test_a_dropped_program_is_no_hit() -> None:
    """It would have to be compiled again."""
    harness = PipelineHarness(limit=1)
    try:
        source = Source(double)
        harness.value(source, X)
        harness.value(source, X[:3])
        answer = ask(harness, source, X)
        assert answer["verdict"] == "compile"
        assert "dropped" in answer["reason"]
    finally:
        harness.close()


def test_asking_counts_nothing(harness: PipelineHarness) -> None:
    """Neither as a call nor as anything else."""
    source = Source(double)
    harness.value(source, X)
    before = harness.counters.snapshot()
    for args in ((X,), (X[:3],), ()):
        ask(harness, source, *args)
    after = harness.counters.snapshot()
    assert {**before, "uptime_s": 0} == {**after, "uptime_s": 0}


def test_pickled_arguments_are_judged_with_a_caveat(harness: PipelineHarness) -> None:
    """Nothing is unpickled to answer a question."""

    def chosen(x: Any) -> Any:
        return x[1]

    source = Source(chosen)
    odd = {np.int64(1): 2.0, np.int64(2): 3.0}
    harness.value(source, odd)
    answer = ask(harness, source, odd)
    assert answer["verdict"] == "hit"
    assert "travels as a pickle" in answer["advice"][-1]


def test_arguments_that_cannot_be_read_are_refused(harness: PipelineHarness) -> None:
    """With the error that the peer's mistakes have; see also test_admin.py."""
    described = ("f", b"", Options().to_bytes(), (), (), True)
    with pytest.raises(ProtocolError):
        AdminService(harness.pipeline).answer("why", (b"k", b"?", described))


def test_what_is_on_disk_is_a_load(open_harness: Callable[..., PipelineHarness]) -> None:
    """Nothing is loaded to say so, and once it is loaded it is a hit."""
    open_harness().value(Source(double), X)
    harness, source = open_harness(), Source(double)
    answer = ask(harness, source, X)
    assert (answer["verdict"], answer["differences"]) == ("load", [])
    assert answer["reason"] == "a compiled program for these arguments is on disk"
    (program,) = answer["programs"]
    assert (program["arguments"], program["calls"]) == ({"x": "float32[128,8]"}, 0)
    assert ask(harness, source)["verdict"] == "load"
    assert harness.counters.snapshot()["executable_loads"] == 0
    assert source.asked == []
    harness.value(source, X)
    assert ask(harness, source, X)["verdict"] == "hit"


def test_other_arguments_than_those_on_disk_compile(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """The nearest is what the earlier worker has built."""
    open_harness().value(Source(double), X)
    answer = ask(open_harness(), Source(double), X[:3])
    assert answer["verdict"] == "compile"
    assert [each["text"] for each in answer["differences"]] == [
        "argument x: float32[128,8] → float32[3,8]"
    ]


def test_a_program_that_is_gone_from_the_disk_compiles(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """Although it is still known that it was there."""
    open_harness().value(Source(double), X)
    harness = open_harness()
    assert harness.program_cache is not None
    (kept,) = harness.program_cache.calls().values()
    harness.program_cache.store.remove("programs", kept.program)
    assert ask(harness, Source(double), X)["verdict"] == "compile"


def asks_the_host(x: Any) -> Any:
    """Cannot be kept on disk."""
    return jax.pure_callback(lambda value: value, np.zeros((), np.float32), x)


@pytest.mark.slow
def test_why_a_program_cannot_be_kept_is_said(open_harness: Callable[..., PipelineHarness]) -> None:
    """After a restart, to whoever wonders why it is compiled again."""
    x = np.float32(1)
    harness, source = open_harness(), Source(asks_the_host)
    harness.value(source, x)
    assert ask(harness, source, x)["verdict"] == "hit"
    harness = open_harness()
    answer = ask(harness, source, x)
    assert answer["verdict"] == "compile"
    assert (
        "Its program calls back into Python, so it cannot be kept on disk: each new worker makes "
        "it again." in answer["advice"]
    )
    harness.value(source, x)
    assert harness.counts()[0] == 1
    assert ask(harness, source, x)["verdict"] == "hit"


def test_a_program_that_jax_cannot_write_says_so(
    open_harness: Callable[..., PipelineHarness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left a note."""

    def refuse(program: Any) -> bytes:
        raise programs.NotSerializable("not this one")

    harness, source = open_harness(), Source(double)
    with monkeypatch.context() as patched:
        patched.setattr(programs, "serialize", refuse)
        harness.value(source, X)
        assert harness.program_cache is not None
        harness.program_cache.flush()
    ((_, kept),) = harness.program_cache.calls().items()
    assert (kept.obstacle, kept.program) == ("unwritten", b"")
    advice = ask(open_harness(), Source(double), X)["advice"]
    assert any("is one that jax cannot write" in text for text in advice)


def test_every_obstacle_is_told_in_words() -> None:
    """And not by its name."""
    assert {*get_args(Obstacle), "tokens", "unwritten"} == set(module._OBSTACLES)
