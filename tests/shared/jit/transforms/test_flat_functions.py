"""What a client's jax asks of a function, step by step, in this process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.transforms import apply_transformations, encode_transformation

X, Y = np.arange(1.0, 4.0, dtype="f4"), np.full(3, 2, "f4")
XX = np.stack([X, X + 1])
F4 = ((3,), "float32", False)
NUMBER = ((), "float32", False)


def loss(x: Any, y: Any) -> Any:
    return (jnp.sin(x) * y**2).sum()


def flat(
    function: Any,
    *stages: tuple[str, dict[str, Any]],
    inputs: tuple[str | None, ...] = ("", ""),
    sent: tuple[int, ...] = (0, 1),
    static_argnums: tuple[int, ...] = (),
    static_argnames: tuple[str, ...] = (),
) -> Any:
    """The function behind `flat` and these stages."""
    options = {
        "inputs": inputs,
        "sent": sent,
        "static_argnums": static_argnums,
        "static_argnames": static_argnames,
    }
    every = [("flat", options), *stages]
    return apply_transformations(
        function, [encode_transformation(name, given) for name, given in every]
    )


def equal(ours: Any, *theirs: Any) -> None:
    assert type(ours) is tuple
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-6)


def test_what_is_static_or_stays_is_passed_by() -> None:
    """At any place, and by name."""

    def by_mode(x: Any, mode: str, tree: Any, *, kind: str) -> Any:
        assert (mode, tree[1], kind) == ("up", "text", "k")
        return x * tree[0]

    made = flat(by_mode, inputs=("", "", None), static_argnums=(1,), static_argnames=("kind",))
    equal(made((), X, "up", (Y, "text"), kind="k"), X * Y)


def test_cotangents_come_behind() -> None:
    """Of those outputs that count; what the function is linear in need not be sent."""
    reverse = {"linear": (False, False, True), "shapes": (F4,), "given": (True,)}
    made = flat(loss, ("flat_jvp", {"given": (True, False)}), ("flat_transpose", reverse))
    equal(made((np.float32(2),), X, Y), 2 * jax.grad(loss)(X, Y))

    def twice(x: Any, y: Any) -> Any:
        return x * 2, x * y

    linear = {"linear": (True, False), "shapes": (F4,), "given": (False, True)}
    made = flat(twice, ("flat_transpose", linear), sent=(1,))
    equal(made((X,), False, Y), X * Y)


def test_the_weak_type_of_what_is_linear_counts() -> None:
    """It is that of the derivative."""
    reverse = {"linear": (False, True), "shapes": ((*NUMBER[:2], True),), "given": (True,)}
    stages = (("flat_jvp", {"given": (True,)}), ("flat_transpose", reverse))
    (found,) = flat(jnp.sin, *stages, inputs=("",), sent=(0,))((1.0,), 0.0)
    assert found.weak_type


def test_what_is_linear_has_64_bits_where_an_array_of_jax_has() -> None:
    """Also outside of `enable_x64`."""
    with jax.enable_x64(True):
        x, rate = jnp.asarray([1.0 + 2**-40]), jnp.asarray([3.0])
    back = {"linear": (True, False), "shapes": (((1,), "float64", False),), "given": (True,)}
    (found,) = flat(jax.lax.mul, ("flat_transpose", back), sent=(1,))((x,), False, rate)
    assert (found.dtype, float(found[0])) == ("float64", 3 + 3 * 2**-40)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_travel_as_numbers(impl: str) -> None:
    """On the way in and on the way out, also many of them."""
    keys = jax.random.split(jax.random.key(1, impl=impl), 3)
    numbers = jax.random.key_data(keys)

    def drawn(key: Any, x: Any) -> Any:
        return jax.random.normal(key, (3,)) * x, jax.random.fold_in(key, 1)

    made = flat(drawn, ("flat_vmap", {"axes": (0, None)}), inputs=(impl, ""))
    values, others = jax.vmap(drawn, (0, None))(keys, X)
    equal(made((), numbers, X), values, jax.random.key_data(others))
