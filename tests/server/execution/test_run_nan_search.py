"""Looking for the first NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxd_protocol.jit.options import Options
from tests.server.execution.test_pipeline import double, failure
from tests.server.in_process import PipelineHarness, Source


def risky(x: Any) -> Any:
    """Makes a NaN on its second line."""
    y = x - 1
    return jax.numpy.log(y)


NANS = Options(config=(("jax_debug_nans", True),))


def test_a_nan_is_found_where_it_is_made(open_harness: Callable[..., PipelineHarness]) -> None:
    """The user sees the line, also when the program came from disk and the call is warm."""
    good, bad = np.float32(2), np.float32(0)
    for _ in range(2):
        harness, source = open_harness(), Source(risky, NANS)
        for _ in range(2):
            assert float(harness.value(source, good)) == 0.0
            failed = failure(harness, source, bad)
            assert failed[1] == "FloatingPointError"
            assert "return jax.numpy.log(y)" in failed[5]
    assert harness.counts() == (0, 0)
    assert source.asked == []


def test_a_nan_is_found_although_its_code_on_disk_is_no_good(
    open_harness: Callable[..., PipelineHarness],
) -> None:
    """The client is asked for it, and sees its own error."""
    harness, source = open_harness(), Source(risky, NANS)
    harness.value(source, np.float32(2))
    assert harness.program_cache is not None
    harness.program_cache.keep_code(source.fingerprint, bytes(Source(double).code_))
    harness, source = open_harness(), Source(risky, NANS)
    for _ in range(2):  # found by its signature, and then by its bytes
        harness.value(source, np.float32(2))
    failed = failure(harness, source, np.float32(0))
    assert failed[1] == "FloatingPointError"
    assert source.asked == ["describe", "code"]


def test_other_errors_are_not_looked_for(harness: PipelineHarness) -> None:
    """Without the setting, a NaN is a result."""
    assert np.isnan(harness.value(Source(risky), np.float32(0)))


def test_one_that_only_the_compiler_makes_is_said_to_be_one(
    harness: PipelineHarness, monkeypatch: Any
) -> None:
    """Step by step there is none: the caller learns what that means."""
    source = Source(risky, NANS)
    harness.value(source, np.float32(2))
    (function,) = harness.pipeline.functions._functions.values()
    monkeypatch.setattr(type(function), "function", property(lambda _: lambda x: x))
    failed = failure(harness, source, np.float32(0))
    assert failed[1] == "FloatingPointError"
    assert "not when it is run step by step" in failed[2]
