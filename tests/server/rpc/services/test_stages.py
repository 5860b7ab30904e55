"""What is shown of a function; see also tests/client/api/test_stages.py."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.request.array_specs import encode_specs
from jaxd_protocol.errors import ArgumentError, LimitExceeded, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_server.compilation.executable_source import BuildQuota
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.rpc.services import check_arguments
from jaxd_server.rpc.services.stages import Stages
from tests.server.in_process import PipelineHarness, Source

X = np.arange(4, dtype=np.float32)


def affine(x: Any, w: Any, mode: str = "plus") -> Any:
    return jnp.tanh(x) * w + 1 if mode == "plus" else x


def show(
    harness: PipelineHarness, source: Source, stage: str, *args: Any, **more: Any
) -> dict[str, Any]:
    """What is said of a stage."""
    pipeline = harness.pipeline
    pipeline.functions = Functions()
    stages = Stages(pipeline, harness.compiler, more.get("quota", BuildQuota()))
    skeleton, buffers = encode_specs(
        args, {}, infer_static_args(source.function, source.options), {}
    )
    message = (source.key, skeleton, stage, more.get("dialect", "stablehlo"), False)
    check_arguments("stages", message)
    reply, _ = stages.answer(source, message, buffers)
    found: dict[str, Any] = json.loads(reply)
    return found


def test_a_jaxpr_prints_as_that_of_jax(harness: PipelineHarness) -> None:
    """Traced once, and nothing compiled."""
    source = Source(affine)
    expected = str(jax.make_jaxpr(affine)(X, 2.0))
    assert show(harness, source, "jaxpr", X, 2.0) == {"text": expected}
    assert harness.counts() == (1, 0)
    with pytest.raises(ProtocolError, match="stages"):
        show(harness, source, "jitted", X, 2.0)


@pytest.mark.parametrize("stage", ["jaxpr", "lowered", "program", "compiled"])
def test_each_stage_is_charged_to_who_asks(stage: str, harness: PipelineHarness) -> None:
    """Also where the function fails; and is refused to who has nothing left."""

    def broken(x: Any, w: Any) -> Any:
        raise ValueError

    for function in (affine, broken):
        quota = BuildQuota(1e-9)
        with suppress(ValueError):
            show(harness, Source(function), stage, X, 2.0, quota=quota)
        with pytest.raises(LimitExceeded):
            show(harness, Source(affine), stage, X, 2.0, quota=quota)
    assert len(harness.executables) == 0  # no call uses what was shown


def test_what_jax_cannot_trace_is_static_here_too(harness: PipelineHarness) -> None:
    """And by jax's own rule it is an error, before anything is traced."""
    text = show(harness, Source(affine), "jaxpr", X, 2.0, "minus")["text"]
    assert "tanh" not in text
    with pytest.raises(ArgumentError, match="static_argnames"):
        show(harness, Source(affine, Options(static="jax")), "jaxpr", X, 2.0, "minus")
