"""Calls that jax asks for: which are the same, and what is kept of one that has failed."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from jaxd.request.call_request import CallSettings
from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec
from jaxd.tracing.derived_call import Aval, CallOutline, TracedCall, last_error, record_last_error
from jaxd_protocol.jit.options import Options

CALLER: Any = object()


def call_of(name: str) -> TracedCall:
    """A call of a function of that name."""
    options = Options()
    spec = FunctionSpec(FunctionSnapshot(lambda x: (x, 1), options), options)
    settings, structure = CallSettings(()), jax.tree.structure(([0], {}))
    outline = CallOutline(CALLER, spec, settings, structure, (None,), (None,), (None,), {}, name)
    return TracedCall(outline, (Aval((3,), "float32"), Aval((), "int32")), (0,))


def test_equal_calls_are_one_to_jax() -> None:
    """It keeps what it has made of one; of the same steps, or none of its tables would end."""
    one, same = call_of("one"), call_of("one")
    assert (one, hash(one)) == (same, hash(same))
    assert one.mapped((0,), 2) == same.mapped((0,), 2)
    others = [call_of("two"), *(one.mapped((0,), size)[0] for size in (2, 3))]
    assert len({one, *others}) == 4
    assert one != "one"


def test_the_last_error_is_that_of_the_call_that_failed_last() -> None:
    """Itself, whatever thread asks, without its frames: they hold arrays of the program."""
    with pytest.raises(ValueError, match="c") as caught:
        int("c")
    assert caught.value.__traceback__ is not None
    for error in (caught.value, LookupError("b")):
        record_last_error(error)
        assert last_error() is error
        assert error.__traceback__ is None
