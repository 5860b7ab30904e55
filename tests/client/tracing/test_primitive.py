"""The rules that jax is given, over a call that is made here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.tracing import primitive
from jaxd.tracing.derived_call import Aval

bind: Any = primitive.bind
X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")


@dataclass(frozen=True)
class Local:
    """A call that jax makes in this process, with a note of what was asked for."""

    function: Callable[..., Sequence[Any]]
    outputs: tuple[Aval, ...]
    asked: tuple[Any, ...] = ()

    def eager(self, arrays: Sequence[Any]) -> Sequence[Any]:
        LOG.append(self.asked)
        return self.function(*arrays)

    def callback(self, arrays: Sequence[Any], weak: Sequence[bool]) -> Sequence[Any]:
        assert all(type(array) is np.ndarray for array in arrays)
        LOG.append((*self.asked, "program", tuple(weak)))
        return [np.asarray(2 * arrays[0])] * len(self.outputs)

    def mapped(self, axes: tuple[int | None, ...], size: int) -> Local:
        outputs = tuple(one._replace(shape=(size, *one.shape)) for one in self.outputs)
        return Local(jax.vmap(self.function, axes), outputs, (*self.asked, "vmap", axes, size))

    def differentiated(self, given: tuple[bool, ...]) -> Local:
        def tangents(*args: Any) -> Any:
            count = len(given)
            moving = [x for x, moves in zip(args, given, strict=False) if moves]

            def of_moving(*moving: Any) -> Any:
                waiting = iter(moving)
                every = [next(waiting) if m else x for x, m in zip(args, given, strict=False)]
                found = self.function(*every)
                return [x for x, aval in zip(found, self.outputs, strict=True) if _moves(aval)]

            return jax.jvp(of_moving, tuple(moving), args[count:])[1]

        outputs = tuple(filter(_moves, self.outputs))
        return Local(tangents, outputs, (*self.asked, "jvp", given))

    def transposed(
        self, linear: tuple[bool, ...], avals: tuple[Aval, ...], given: tuple[bool, ...]
    ) -> Local:
        def cotangents(*args: Any) -> Any:
            rest = linear.count(False)

            def of_linear(*moving: Any) -> Any:
                yes, no = iter(moving), iter(args[:rest])
                found = self.function(*[next(yes) if m else next(no) for m in linear])
                return [x for x, wanted in zip(found, given, strict=True) if wanted]

            specs = [jnp.zeros(aval.shape, aval.dtype) for aval in avals]
            return jax.linear_transpose(of_linear, *specs)(list(args[rest:]))

        return Local(cotangents, avals, (*self.asked, "T", linear, avals, given))


LOG: list[Any] = []
VECTOR = Aval((3,), "float32")


def _moves(aval: Aval) -> bool:
    return aval.is_differentiable


def product(x: Any, y: Any) -> Any:
    """As a call with one output."""
    return bind(Local(lambda x, y: [x * y], (VECTOR,)), [x, y])[0]


@pytest.fixture(autouse=True)
def _empty() -> None:
    LOG.clear()


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("jax.extend.core", ["Primitive"]),
        ("jax.interpreters.ad", ["Zero", "is_undefined_primal"]),
        ("jax.interpreters.ad", ["primitive_jvps", "primitive_transposes"]),
        ("jax.interpreters.batching", ["primitive_batchers"]),
        ("jax.interpreters.mlir", ["emit_python_callback", "register_lowering"]),
        ("jax.core", ["ShapedArray", "Tracer"]),
        ("jax._src.checkify", ["error_checks", "checkify_jaxpr", "user_checks"]),
    ],
)
def test_what_it_takes_of_jax_is_where_it_was(module: str, names: list[str]) -> None:
    """All that this adapter names beside what every user of jax does."""
    found = importlib.import_module(module)
    assert [name for name in names if not hasattr(found, name)] == []
    assert hasattr(jax.typeof(jnp.ones(1)), "to_tangent_aval")


def test_a_call_is_made_at_once_where_jax_knows_the_values() -> None:
    """With what was given."""
    np.testing.assert_array_equal(product(X, Y), X * Y)
    assert LOG == [()]


def test_the_tangents_of_what_moves_are_asked_for() -> None:
    """And nothing when nothing moves."""
    value, tangent = jax.jvp(lambda x: product(x, Y), (X,), (Y,))
    np.testing.assert_array_equal((value, tangent), (X * Y, Y * Y))
    assert LOG == [(), ("jvp", (True, False))]
    LOG.clear()
    jax.jvp(lambda x: product(jax.lax.stop_gradient(x), Y), (X,), (Y,))
    assert LOG == [()]


def test_the_cotangents_of_what_is_linear_are_asked_for() -> None:
    """Of the shapes that it has."""
    found = jax.grad(lambda x: product(x, Y).sum())(X)
    np.testing.assert_array_equal(found, Y)
    reverse = ("T", (False, False, True), (VECTOR,), (True,))
    assert [(), ("jvp", (True, False), *reverse)] == LOG


def test_an_output_that_is_not_used_has_no_cotangent() -> None:
    """Neither has one that cannot have any."""

    def three(x: Any) -> Any:
        outputs = (VECTOR, Aval((3,), "int32"), VECTOR)
        call = Local(lambda x: [x * 2, jnp.ones(3, "i4"), x * 3], outputs)
        return bind(call, [x])[2].sum()

    np.testing.assert_array_equal(jax.grad(three)(X), np.full(3, 3))
    assert LOG[-1][-1] == (False, True)


def test_many_are_one_call() -> None:
    """Wherever the axes are; an argument without one is sent once."""
    xx = np.stack([X, X + 1], axis=1)
    found = jax.vmap(product, (1, None), 1)(xx, Y)
    np.testing.assert_array_equal(found, xx * Y[:, None])
    assert LOG == [("vmap", (1, None), 2)]


def test_a_program_calls_back_without_jax() -> None:
    """With numpy arrays, and with what jax knew of their types."""
    found = jax.jit(product)(2.0 * jnp.ones(3), X)
    np.testing.assert_array_equal(found, np.full(3, 4))
    (found,) = jax.jit(lambda x: bind(Local(list, (Aval((), "float32"),)), [x]))(3.0)
    assert float(found) == 6.0
    assert LOG == [("program", (False, False)), ("program", (True,))]


def test_a_program_leaves_out_what_it_does_not_need() -> None:
    """The value, where only the derivative is wanted."""

    def unused(x: Any) -> Any:
        product(x, Y)
        return x + 1

    np.testing.assert_array_equal(jax.jit(unused)(X), X + 1)
    assert LOG == []


def test_what_it_returns_has_the_type_that_was_said() -> None:
    """Weak types among it."""
    call = Local(lambda x: [x], (Aval((2,), "bfloat16", True),))
    (found,) = jax.eval_shape(lambda x: bind(call, [x]), X)
    assert (found.shape, found.dtype, found.weak_type) == ((2,), jnp.bfloat16, True)
    assert [Aval((), name).is_differentiable for name in ("float16", "complex64", "int8")] == [
        True,
        True,
        False,
    ]
