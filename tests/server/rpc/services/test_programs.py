"""A program is given to a client of the same user, as the bytes that the disk has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jax_objects.program_bytes import load_compiled
from jaxd_protocol.jit.options import Options
from jaxd_server.config.options import ServerOptions
from jaxd_server.jax_compat import programs
from jaxd_server.rpc.services import check_arguments
from jaxd_server.rpc.services.programs import offered_program
from tests.server.in_process import PipelineHarness, Source

X = np.arange(4, dtype=np.float32)
EVERYTHING = 1 << 30


def affine(x: Any, w: Any) -> Any:
    return {"b": x * w, "a": x.sum()}


@pytest.fixture(params=["disk", "memory"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PipelineHarness]:
    """With a cache on disk and without."""
    tmp_path.chmod(0o700)
    harness = PipelineHarness(folder=str(tmp_path) if request.param == "disk" else None)
    yield harness
    harness.close()


def offer(
    harness: PipelineHarness,
    source: Source,
    *args: Any,
    most: int = EVERYTHING,
    principal: str = f"uid:{os.getuid()}",
    **options: Any,
) -> tuple[dict[str, Any], bytes, list[memoryview]]:
    """What a client is given after a call: the report, the form of the result, and the program."""
    call = source.call(args)
    harness.answer(call)
    message = (call.key, call.skeleton, most)
    check_arguments("program", message)
    served = replace(ServerOptions(), **options)
    (_, report, form), buffers = offered_program(harness.pipeline, served, principal, 0, message)
    return json.loads(report), form, list(buffers)


def test_what_answers_a_call_is_given(harness: PipelineHarness) -> None:
    """It loads and runs; the order of its results and their form are told."""
    report, form, (data,) = offer(harness, Source(affine), X, 3.0)
    assert (report["inputs"], report["outputs"], report["devices"]) == (2, 2, [0])
    assert (report["bytes"], report["jax"]) == (data.nbytes, jax.__version__)
    assert form == harness.executables.all()[0].form.skeleton
    program = load_compiled(bytes(data), 2, 2, report["devices"])
    found = [program(X, 3.0)[number] for number in report["order"]]
    assert sorted(np.asarray(each).ndim for each in found) == [0, 1]
    assert 9.0 in [float(np.max(each)) for each in found]


def test_a_large_one_is_only_told_of(harness: PipelineHarness) -> None:
    """The client asks again, in a thread."""
    report, _, buffers = offer(harness, Source(affine), X, 3.0, most=10)
    assert report["bytes"] > 10
    assert buffers == []


def test_a_program_that_was_loaded_is_passed_on_as_it_was(tmp_path: Path) -> None:
    """It is never written again: jax would leave its code out, without an error."""
    tmp_path.chmod(0o700)
    source = Source(affine)
    first = PipelineHarness(folder=str(tmp_path))
    _, _, (written,) = offer(first, source, X, 3.0)
    kept = bytes(written)
    first.close()
    second = PipelineHarness(folder=str(tmp_path))
    _, _, (again,) = offer(second, source, X, 3.0)
    assert isinstance(second.executables.all()[0].program.compiled, programs.Loaded)
    assert bytes(again) == kept
    assert second.counts() == (0, 0)
    store = second.program_cache.store  # type: ignore[union-attr]
    store.remove("programs", second.executables.all()[0].program.id)
    report, _, buffers = offer(second, source, X, 3.0)
    assert "cannot be written" in report["refused"]
    assert buffers == []
    second.close()


def printed(x: Any) -> Any:
    jax.debug.print("{x}", x=x)
    return x


def counted(x: Any) -> Any:
    return jax.pure_callback(lambda y: y, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize("function", [printed, counted])
def test_what_calls_back_stays(harness: PipelineHarness, function: Any) -> None:
    """It calls into the process that traced it."""
    report, _, buffers = offer(harness, Source(function), X)
    assert "calls back into Python" in report["refused"]
    assert not report["again"]
    assert buffers == []


def test_a_setting_that_counts_when_it_runs_keeps_it_here(harness: PipelineHarness) -> None:
    """But for the width of numbers, which the client has as well."""
    report, _, _ = offer(harness, Source(affine, Options(config=(("jax_debug_nans", True),))), X, 1)
    assert "jax_debug_nans" in report["refused"]
    wide = Options(config=(("jax_enable_x64", True),))
    report, _, _ = offer(harness, Source(affine, wide), X, 1)
    assert "refused" not in report


@pytest.mark.parametrize(
    "situation",
    [{"principal": "uid:12345"}, {"principal": "account:alice"}, {"allow_uids": (12345,)}],
)
def test_others_are_given_nothing(harness: PipelineHarness, situation: Any) -> None:
    """Neither who is not the user of the server, nor where others may run code in it."""
    report, form, buffers = offer(harness, Source(affine), X, 3.0, **situation)
    assert "has other users" in report["refused"]
    assert (form, buffers) == (b"", [])


def test_what_is_not_known_may_be_asked_for_again(harness: PipelineHarness) -> None:
    """Such as a call that nobody has made, or whose program had to make room."""
    source = Source(affine)
    offer(harness, source, X, 3.0)
    user = f"uid:{os.getuid()}"
    message = (source.key, b"another", EVERYTHING)
    (_, report, _), _ = offered_program(harness.pipeline, ServerOptions(), user, 0, message)
    assert json.loads(report)["again"]


def test_a_question_of_another_form_is_an_error() -> None:
    """As of any verb."""
    with pytest.raises(ProtocolError):
        check_arguments("program", (b"", b"", "all"))
