"""Functions behind transformations, in this process."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.transforms import (
    TransformedFunction,
    apply_transformations,
    encode_transformation,
    untransformed,
)
from jaxd_protocol.jit.transforms.transformed_function import Batched

X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")


def product(x: Any, y: Any) -> Any:
    return jnp.sum(jnp.sin(x) * y**2)


def powers(mode: str, x: Any, n: int) -> Any:
    """A function with something static before, and an integer behind."""
    return x**n if mode == "up" else x / n


def of(function: Any, name: str, **options: Any) -> Any:
    return apply_transformations(function, [encode_transformation(name, options)])


def equal(ours: Any, theirs: Any) -> None:
    assert str(jax.tree.structure(ours)) == str(jax.tree.structure(theirs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


USUAL = {"argnums": (0, 1), "has_aux": False, "holomorphic": False}


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "jacfwd", "jacrev", "hessian"])
def test_a_derivative_is_that_of_jax(name: str) -> None:
    """With the same options."""
    equal(of(product, name, **USUAL)(X, Y), getattr(jax, name)(product, argnums=(0, 1))(X, Y))


def test_the_order_counts() -> None:
    """The gradient of a mapped function is not the mapped gradient."""
    grad = encode_transformation("grad", {"argnums": 0})
    vmap = encode_transformation(
        "vmap", {"in_axes": 0, "static_argnums": (), "static_argnames": ()}
    )
    equal(apply_transformations(jnp.sin, [grad, vmap])(X), jax.vmap(jax.grad(jnp.sin))(X))
    with pytest.raises(TypeError, match="scalar-output"):
        apply_transformations(jnp.sin, [vmap, grad])(X)


@pytest.mark.parametrize("axes", [0, (None, 0, 0)], ids=["one for all", "one each"])
def test_static_arguments_are_not_mapped(axes: Any) -> None:
    """Neither by position nor by name."""
    mapped = of(
        powers, "vmap", in_axes=axes, static_argnums=(0,), static_argnames=("mode",), out_axes=0
    )
    expected = X ** np.arange(3)
    equal(mapped("up", X, np.arange(3)), jnp.asarray(expected, "f4"))
    if axes == 0:
        equal(mapped(mode="up", x=X, n=np.arange(3)), jnp.asarray(expected, "f4"))


def test_forward_mode_takes_tuples() -> None:
    """None for the tangent of what stays as it is; static arguments by name."""
    jvp = of(powers, "jvp", has_aux=False, static=((0, "mode"),))
    ours = jvp((X, 3), (Y, None), mode="up")
    equal(ours, jax.jvp(lambda x: powers("up", x, 3), (X,), (Y,)))
    nested = of(lambda tree: tree["a"] * tree["b"], "jvp", has_aux=False, static=())
    equal(nested(({"a": X, "b": Y},), (None,))[1], np.zeros(3, "f4"))
    with pytest.raises(TypeError, match="same tree structure"):
        jvp((X, 3), (Y,), mode="up")


def test_reverse_mode_takes_tuples() -> None:
    """And gives a cotangent for each; None for what has no derivative."""
    vjp = of(powers, "vjp", has_aux=False, static=((0, "mode"),))
    gradient, nothing = vjp((X, 3), Y, mode="up")
    _, pull_back = jax.vjp(lambda x: powers("up", x, 3), X)
    equal((gradient,), pull_back(Y))
    assert nothing is None


def test_auxiliary_data_comes_last() -> None:
    """As jax has it."""

    def with_aux(x: Any) -> Any:
        return x * 2, {"seen": x}

    jvp, vjp = (of(with_aux, name, has_aux=True, static=()) for name in ("jvp", "vjp"))
    equal(jvp((X,), (Y,)), jax.jvp(with_aux, (X,), (Y,), has_aux=True))
    equal(vjp((X,), Y), (Y * 2,))


def test_it_says_how_it_is_called() -> None:
    """By the function's own parameters, unless it is called with tuples."""
    grad, jvp = of(powers, "grad", argnums=1), of(powers, "jvp", has_aux=False, static=())
    assert list(inspect.signature(grad).parameters) == ["mode", "x", "n"]
    assert list(inspect.signature(jvp).parameters) == ["primals", "tangents", "kwargs"]
    assert (grad.__name__, jvp.__qualname__) == ("grad(powers)", "jvp(powers)")
    flat = of(powers, "flat", inputs=("", ""), sent=(0, 1))
    assert list(inspect.signature(flat).parameters) == ["behind", "mode", "x", "n"]
    odd = of(lambda behind: behind, "flat", inputs=("",), sent=(0,))
    assert list(inspect.signature(odd).parameters) == ["behind", "args", "kwargs"]
    assert not hasattr(grad, "__wrapped__")


def test_it_is_pickled_by_what_it_is_made_of() -> None:
    """The class is known wherever this package is."""
    again = pickle.loads(pickle.dumps(of(product, "grad", argnums=0)))
    assert isinstance(again, TransformedFunction)
    equal(again(X, Y), jax.grad(product)(X, Y))


def test_without_transformations_it_is_the_function() -> None:
    """And back."""
    assert apply_transformations(product, ()) is product
    assert untransformed(of(product, "grad")) is product
    assert untransformed(product) is product


class Held:
    """Neither data nor hashable by content."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def slope(self, x: Any, y: Any = 2.0) -> Any:
        return jnp.sum(self.factor * x**2 * y)


def test_of_a_method_the_instance_is_no_argument() -> None:
    """Whatever jax makes of it; it comes first in the call."""
    by = (encode_transformation("grad", {"argnums": 1}), encode_transformation("vmap", _EACH))
    mapped = of(Held.slope, "on_instance", by=by)
    plain = jax.vmap(jax.grad(Held(3.0).slope, 1))
    equal(mapped(Held(3.0), np.stack([X, Y]), X[:2]), plain(np.stack([X, Y]), X[:2]))
    jvp = of(Held.slope, "on_instance", by=(encode_transformation("jvp", _PLAIN),))
    equal(jvp(Held(3.0), (X,), (Y,)), jax.jvp(Held(3.0).slope, (X,), (Y,)))


def test_of_a_method_the_signature_begins_with_the_instance() -> None:
    """Whose name may be static."""
    grad = of(Held.slope, "on_instance", by=(encode_transformation("grad", {"argnums": 0}),))
    assert list(inspect.signature(grad).parameters) == ["self", "x", "y"]
    jvp = of(Held.slope, "on_instance", by=(encode_transformation("jvp", _PLAIN),))
    assert list(inspect.signature(jvp).parameters) == ["self", "primals", "tangents", "kwargs"]
    any_ = of(lambda *args: args[0], "on_instance", by=(encode_transformation("grad", {}),))
    assert list(inspect.signature(any_).parameters) == ["args"]


_EACH = {"in_axes": 0, "out_axes": 0, "static_argnums": (), "static_argnames": ()}
_PLAIN = {"has_aux": False, "static": ()}


ROWS = np.arange(12.0, dtype=np.float32).reshape(6, 2)
WEIGHTS = np.array([1.0, 2.0], np.float32)


def dot(x: Any, w: Any, *, b: Any = 0.0) -> Any:
    return jnp.dot(x, w) + b


def test_each_example_has_its_result() -> None:
    """As by `jax.vmap`, also when there are more than fit in a batch."""
    theirs = jax.vmap(dot, (0, None))(ROWS, WEIGHTS)
    for size in (8, 6, 4, 1):
        found = Batched(dot, size)((True, False), (ROWS, WEIGHTS), {})
        np.testing.assert_array_equal(found, theirs)


def test_no_more_than_a_batch_is_worked_on_at_once() -> None:
    """The program has arrays of that size, and a loop."""
    batched = Batched(lambda x: jnp.outer(x, x), 2)
    text = str(jax.make_jaxpr(lambda x: batched((True,), (x,), {}))(ROWS))
    assert "scan" in text
    assert "f32[2,2,2]" in text
    assert "f32[6,2]" in text


def test_axes_as_for_vmap() -> None:
    """Arguments by name along the first axis."""
    found = Batched(dot, 6, [1, None])(None, (ROWS.T, WEIGHTS), {"b": np.arange(6.0)})
    np.testing.assert_array_equal(found, jax.vmap(dot, (0, None))(ROWS, WEIGHTS) + np.arange(6.0))
    with pytest.raises(ValueError, match="inconsistent sizes"):
        Batched(dot, 6, 0)(None, (ROWS, WEIGHTS), {})


def test_it_has_the_name_of_the_function() -> None:
    """By which the server calls it."""
    assert Batched(dot, 2).__qualname__ == "dot"
