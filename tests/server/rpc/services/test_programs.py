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

from jaxd_protocol.errors import NotPermitted
from jaxd_protocol.jax_objects.lowered_bytes import pack_lowered
from jaxd_protocol.jax_objects.program_bytes import load_compiled
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_server.config.options import ServerOptions
from jaxd_server.execution.call import Client
from jaxd_server.jax_compat import programs
from jaxd_server.rpc.services import check_arguments
from jaxd_server.rpc.services.programs import ProgramService
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
    service = ProgramService(harness.pipeline, served, Client("", principal), source)
    (_, report, form), buffers = service.answer("program", message, ())
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
    service = ProgramService(harness.pipeline, ServerOptions(), Client("", user), source)
    (_, report, _), _ = service.answer("program", message, ())
    assert json.loads(report)["again"]


# what the client has lowered ---------------------------------------------------------------------


def lowered(function: Any, *args: Any) -> bytes:
    """The program of a function, as a client sends it."""
    return pack_lowered(jax.jit(function).lower(*args))


def compiled(
    harness: PipelineHarness, data: bytes, principal: str = f"uid:{os.getuid()}", **options: Any
) -> tuple[dict[str, Any], list[memoryview]]:
    """What a client is given for a lowered program."""
    message = ("affine", Options().to_bytes())
    check_arguments("compile", message)
    served = replace(ServerOptions(), **options)
    service = ProgramService(harness.pipeline, served, Client("", principal), Source(affine))
    (_, report, form), buffers = service.answer("compile", message, (memoryview(data),))
    assert form == b""
    return json.loads(report), list(buffers)


def is_ready(harness: PipelineHarness, source: Source, *args: Any) -> bool:
    """Whether a call is answered untraced."""
    call = source.call(args)
    service = ProgramService(harness.pipeline, ServerOptions(), Client("", ""), source)
    text, _ = service.answer("ready", (call.key, call.skeleton, source.fingerprint), ())
    return bool(json.loads(text)["ready"])


def test_what_a_client_has_lowered_is_compiled_once(harness: PipelineHarness) -> None:
    """Under the name of its content, which the server's own trace finds; it runs."""
    data = lowered(affine, X, 3.0)
    report, (first,) = compiled(harness, data)
    again, (second,) = compiled(harness, data)
    assert report["id"] == again["id"]
    assert bytes(first) == bytes(second)
    program = load_compiled(bytes(first), report["inputs"], report["outputs"], report["devices"])
    assert [np.asarray(each).tolist() for each in program(X, 3.0)] == [6.0, [0.0, 3.0, 6.0, 9.0]]
    assert harness.counts() == (0, 1)
    offered, _, _ = offer(harness, Source(affine), X, 3.0)
    assert offered["id"] == report["id"]
    assert harness.counts() == (1, 1)


def test_it_outlives_the_server(tmp_path: Path) -> None:
    """On disk, as any program."""
    tmp_path.chmod(0o700)
    data = lowered(affine, X, 3.0)
    first = PipelineHarness(folder=str(tmp_path))
    _, (written,) = compiled(first, data)
    kept = bytes(written)
    first.close()
    second = PipelineHarness(folder=str(tmp_path))
    _, (again,) = compiled(second, data)
    assert bytes(again) == kept
    assert second.counts() == (0, 0)
    second.close()


def test_no_key_leads_to_it(harness: PipelineHarness) -> None:
    """Whatever was lowered: a key is bound by the server's own trace of the code."""
    source = Source(affine)
    compiled(harness, lowered(lambda x, w: {"b": x * 0, "a": w * 0}, X, 3.0))
    assert not is_ready(harness, source, X, 3.0)
    call = source.call((X, 3.0))
    harness.answer(call)
    assert harness.counts()[0] == 1
    assert is_ready(harness, source, X, 3.0)


def test_ready_is_what_is_in_memory_or_on_disk(tmp_path: Path) -> None:
    """Also in a later server; not for other arguments, and not without a cache."""
    tmp_path.chmod(0o700)
    source = Source(affine)
    for number in range(2):
        harness = PipelineHarness(folder=str(tmp_path))
        assert is_ready(harness, source, X, 3.0) is (number > 0)
        harness.answer(source.call((X, 3.0)))
        assert is_ready(harness, source, X, 3.0)
        assert not is_ready(harness, source, X[:2], 3.0)
        harness.close()


def test_what_more_is_read_has_to_be_asked_for(harness: PipelineHarness) -> None:
    """So the server answers: it asks what the client's process has."""
    source = Source(affine)
    harness.pipeline.functions._reads[source.fingerprint] = (ProcessRead("variable", "RATE"),)
    assert is_ready(harness, source, X, 3.0)


@pytest.mark.parametrize(
    "situation",
    [
        {"principal": "uid:12345"},
        {"principal": "account:alice"},
        {"allow_uids": (12345,)},
        {"accept": "exported"},
    ],
)
def test_for_others_nothing_is_opened(
    harness: PipelineHarness, situation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for anybody by a server of programs: to open it can run code."""
    monkeypatch.setattr("jaxd_server.rpc.services.programs.unpack_lowered", None)
    with pytest.raises(NotPermitted, match="only for the user who runs it"):
        compiled(harness, b"anything", **situation)


def test_what_only_its_own_process_has_is_refused(
    harness: PipelineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends it all the same, such as one of another version."""
    monkeypatch.setattr("jaxd_protocol.jax_objects.lowered_bytes.bound_by", lambda _: None)
    made = jax.jit(jax.lax.linalg.cholesky).lower(np.eye(2, dtype="f4"))
    monkeypatch.setattr("jaxd_server.jax_compat.lowered._own_targets", set())
    report, buffers = compiled(harness, pack_lowered(made))
    assert "only its own process has: targets" in report["refused"]
    assert buffers == []
