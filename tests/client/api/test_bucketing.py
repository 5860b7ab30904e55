"""The option `bucket`."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Bucket, Client, persistent_call
from jaxd.errors import ArgumentError, ConfigurationError
from tests.end_to_end.counting import costs
from tests.ids import row
from tests.live_server import LiveServer

SIZES = (4, 8, 16)


def mean(x: Any, *, n: Any = None) -> Any:
    """Of the first `n` rows."""
    rows = jnp.arange(x.shape[0])[:, None]
    return jnp.where(rows < n, x, 0).sum(0) / n


def whole(x: Any) -> Any:
    """What it was given."""
    return x


def rows(count: int, dtype: Any = np.float32) -> Any:
    """An array of so many rows, none of zeros."""
    return np.arange(1, 2 * count + 1).reshape(count, 2).astype(dtype)


def test_few_programs_serve_many_sizes(client: Client) -> None:
    """One for each size that arrays are padded to; results are those of the true length."""
    f = client.persistent_call(mean, bucket={"x": {0: Bucket(SIZES, length="n")}})
    with costs(client) as spent:
        for count in range(1, 17):
            np.testing.assert_allclose(f(rows(count)), rows(count).mean(0), rtol=1e-6)
    assert spent["compiles"] == 3
    with costs(client) as spent:
        np.testing.assert_allclose(f(x=rows(20)), rows(20).mean(0), rtol=1e-6)
    assert spent["compiles"] == 1  # as it is


def test_every_way_to_call_pads(client: Client) -> None:
    """And to ask, to build and to look."""
    f = client.persistent_call(whole, bucket={"x": {0: SIZES}})
    expected = np.concatenate([rows(5), np.zeros((3, 2), np.float32)]).tolist()
    spec = jax.ShapeDtypeStruct((5, 2), np.float32)
    assert f.why(rows(5)).verdict == "compile"
    assert f.warm(spec).verdict == "compile"
    assert f.why(rows(7)).verdict == "hit"
    assert [one.verdict for one in f.warm(spec.update(shape=("b", 2)), over={"b": (3, 6)})] == [
        "compile",
        "hit",
    ]
    with costs(client) as spent:
        assert np.asarray(f(rows(5))).tolist() == expected
        assert np.asarray(f.remote(rows(5))).tolist() == expected
        assert np.asarray(f.submit(rows(5)).result()).tolist() == expected
        assert np.asarray(asyncio.run(f.call_async(rows(5)))).tolist() == expected
        assert [len(one) for one in f.map([rows(5), rows(2), rows(8)])] == [8, 4, 8]
        assert np.asarray(f.on(0)(rows(5))).tolist() == expected
    assert "compiles" not in spent
    assert f.eval_shape(spec).shape == (8, 2)
    assert f.lower(spec).compile()(rows(8)).shape == (8, 2)
    assert f.trace(spec).jaxpr.in_avals[0].shape == (8, 2)
    assert "f32[8,2]" in f.jaxpr(spec)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, jnp.bfloat16, np.complex64])
def test_arrays_of_all_kinds_are_padded(dtype: Any, client: Client) -> None:
    """Several axes, from either end; each leaf of a tree; what has no such axis stays."""
    f = client.persistent_call(whole, bucket={"x": {0: Bucket(SIZES, fill=1), -1: (3,)}})
    given = {"a": rows(2, dtype), "b": [jnp.asarray(rows(4, dtype)), 7.5], "c": np.float32(1)}
    found = f(given)
    assert found["a"].dtype == dtype
    assert np.asarray(found["a"])[:2, :2].tolist() == rows(2, dtype).tolist()
    assert np.asarray(found["a"])[2:, :2].tolist() == np.ones((2, 2), dtype).tolist()
    assert [found["a"].shape, found["b"][0].shape] == [(4, 3), (4, 3)]
    assert (float(found["b"][1]), float(found["c"])) == (7.5, 1.0)


def test_a_weak_type_stays(client: Client) -> None:
    """As without the option."""
    f = client.persistent_call(lambda x: x * np.float16(2), bucket={"x": {0: SIZES}})
    weak = jnp.full(3, 2.0)
    assert weak.weak_type
    assert f(weak).dtype == (weak * np.float16(2)).dtype


def test_a_length_that_is_given_stays(client: Client) -> None:
    """By name or position."""
    f = client.persistent_call(
        lambda x, n=None: n, bucket={"x": {0: Bucket(SIZES, length="n")}}, results="numpy"
    )
    assert [int(f(rows(3))), int(f(rows(3), n=2)), int(f(rows(3), 1))] == [3, 2, 1]


def test_inside_of_others_it_pads_as_well(client: Client) -> None:
    """On the server as in this process; its sizes are part of their keys then."""

    def outer(sizes: tuple[int, ...]) -> Any:
        inner = client.persistent_call(mean, bucket={"x": {0: Bucket(sizes, length="n")}})
        see = client.persistent_call(whole, bucket={"x": {0: sizes}})
        return lambda x: (inner(x), see(x))

    for sizes, size in (((4, 8), 8), ((6,), 6)):
        for call in (client.persistent_call(outer(sizes)), jax.jit(outer(sizes))):
            found, seen = call(rows(5))
            np.testing.assert_allclose(found, rows(5).mean(0), rtol=1e-6)
            assert seen.shape == (size, 2)


def test_a_method_and_a_gradient(client: Client) -> None:
    """jax transforms the call; its gradient is that of what was given."""

    class Model:
        @client.persistent_call(bucket={"x": {0: Bucket(SIZES, length="n")}})
        def loss(self, x: Any, n: Any = None) -> Any:
            return (mean(x, n=n) ** 2).sum()

    model = Model()
    expected = jax.grad(lambda x: (x.mean(0) ** 2).sum())(jnp.asarray(rows(5)))
    np.testing.assert_allclose(jax.grad(model.loss)(jnp.asarray(rows(5))), expected, rtol=1e-5)
    with pytest.raises(ConfigurationError, match=r"Use jax\.grad on it"):
        client.persistent_call(whole, bucket={"x": {0: SIZES}}).grad()


def test_it_has_the_signature_of_the_function() -> None:
    """The length is a parameter as any other."""
    f = persistent_call(mean, bucket={"x": {0: Bucket(SIZES, length="n")}})
    assert inspect.signature(f) == inspect.signature(mean)


def test_an_option_that_does_not_suit_the_function() -> None:
    """Is an error where the function is decorated."""
    rows: list[tuple[Any, str]] = [
        ({"y": {0: SIZES}}, "'y', which the function does not have. It has: x, n"),
        ({"x": SIZES}, "no axes of 'x'"),
        ({"x": {0: 8}}, "no sizes"),
        ({"x": {0: (8, 0)}}, "no sizes"),
        ({"x": {"0": (8,)}}, "no sizes"),
        ({"x": {0: ()}}, "no sizes"),
        ({"x": {0: Bucket(SIZES, length="m")}}, "Add a parameter to the function: `m=None`"),
        ({"x": {0: Bucket(SIZES, fill="0")}}, "no number"),  # type: ignore[arg-type]
        ([("x", 0)], "no names of parameters"),
    ]
    for bucket, text in rows:
        with row((bucket, text)), pytest.raises(ConfigurationError, match=text):
            persistent_call(mean, bucket=bucket)


def test_a_static_argument_is_not_padded() -> None:
    """Nor is a length static: it would be a program for each."""
    with pytest.raises(ConfigurationError, match="static and never padded"):
        persistent_call(mean, static_argnames="x", bucket={"x": {0: SIZES}})
    with pytest.raises(ConfigurationError, match="or is static"):
        persistent_call(mean, static_argnames="n", bucket={"x": {0: Bucket(SIZES, length="n")}})


def test_what_cannot_be_padded_is_an_error(client: Client) -> None:
    """Two sizes under one name, an axis that is two, random keys, what the dtype cannot hold."""
    f = client.persistent_call(
        lambda x, y, n=None: x, bucket={name: {0: Bucket(SIZES, "n")} for name in ("x", "y")}
    )
    with pytest.raises(ArgumentError, match="n stands for 3 and for 5"):
        f(rows(3), rows(5))
    twice = client.persistent_call(whole, bucket={"x": {0: SIZES, -1: (3,)}})
    with pytest.raises(ArgumentError, match="has axis 0 of an array of 'x' twice"):
        twice(np.ones(2))
    sized = client.persistent_call(whole, bucket={"x": {0: SIZES}})
    keys = jax.random.split(jax.random.key(0))
    with pytest.raises(ArgumentError, match=r"over=\{'batch'"):
        sized.warm(jax.ShapeDtypeStruct(("rows", 2), np.float32))
    for call in (sized, jax.jit(sized), client.persistent_call(lambda x: sized(x) * 1)):
        with pytest.raises(ArgumentError, match="random keys"):
            call(keys)


@pytest.mark.parametrize(
    ("fill", "dtype"), [(-1, np.uint8), (0.5, np.int32), (2, bool), (1j, np.float32)]
)
def test_what_is_put_in_has_to_be_a_value_of_the_array(
    fill: complex, dtype: Any, client: Client
) -> None:
    """In whichever process it is put in."""
    f = client.persistent_call(whole, bucket={"x": {0: Bucket(SIZES, fill=fill)}})
    for call in (f, jax.jit(f)):
        with pytest.raises(ArgumentError, match="no value of"):
            call(rows(3, dtype))


@pytest.mark.slow
def test_without_jax_and_without_a_server(live: LiveServer) -> None:
    """A light process pads as well; and one that runs its calls itself."""
    program = """
import sys
import numpy as np
from jaxd import Bucket, persistent_call

@persistent_call(bucket={"x": {0: Bucket((4, 8), "n")}})
def f(x, n=None):
    return x.sum() / n, x

mean, x = f({"a": np.ones(3, np.float32)}["a"])
again = persistent_call(lambda x: f(x)[1])(np.ones(5, np.float32))
print(float(mean), x.shape, again.shape, "jax" in sys.modules)
"""
    assert live.run(program).stdout.split("\n")[0] == "1.0 (4,) (8,) False"
    assert live.run(program, JAXD_INLINE="1").stdout.split("\n")[0] == "1.0 (4,) (8,) True"
    verified = live.run("import jax\n" + program, JAXD_VERIFY="1")
    assert verified.stdout.split("\n")[0] == "1.0 (4,) (8,) True"
