"""Calls as an operation of the caller's own jax: what it takes of it, and its types."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.tracing import primitive
from jaxd.tracing.derived_call import Aval


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("jax.extend.core", ["Primitive"]),
        ("jax.interpreters.ad", ["Zero", "is_undefined_primal"]),
        ("jax.interpreters.ad", ["primitive_jvps", "primitive_transposes"]),
        ("jax.interpreters.batching", ["primitive_batchers"]),
        ("jax.interpreters.mlir", ["emit_python_callback", "register_lowering"]),
        ("jax.core", ["ShapedArray", "Tracer"]),
        ("jax._src.checkify", ["error_checks", "checkify_jaxpr", "user_checks", "ErrorEffect"]),
    ],
)
def test_what_it_takes_of_jax_is_where_it_was(module: str, names: list[str]) -> None:
    """All that this adapter names beside what every user of jax does."""
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []
    assert hasattr(jax.typeof(jnp.ones(1)), "to_tangent_aval")


class Call(NamedTuple):
    """All that jax asks of a call whose values it does not need."""

    outputs: tuple[Aval, ...]


def test_what_it_returns_has_the_type_that_was_said() -> None:
    """Weak types among it."""
    call: Any = Call((Aval((2,), "bfloat16", True),))
    (found,) = jax.eval_shape(lambda x: primitive.bind(call, [x]), np.ones(3, "f4"))
    assert (found.shape, found.dtype, found.weak_type) == ((2,), jnp.bfloat16, True)
    names = ("float16", "complex64", "int8")
    assert [Aval((), name).is_differentiable for name in names] == [True, True, False]
