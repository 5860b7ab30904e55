"""What stands for arguments when there is no data."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest

from jaxd import LazyArray, PRNGKeys
from jaxd.request.arguments import encode_arguments
from jaxd.request.array_specs import encode_specs, is_spec
from jaxd_protocol.errors import ArgumentError, TracerError
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.client.fresh_process import in_a_fresh_process

LARGE = np.ones((100, 30), np.float32)


class Spec:
    """What a user may have made."""

    def __init__(self, shape: Any, dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass
class Pair:
    a: Any
    b: Any


def spec_of(leaf: Any) -> Any:
    """As `jax.eval_shape` and its like give them."""
    if not hasattr(leaf, "dtype"):
        return leaf
    weak = getattr(leaf, "weak_type", False)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, weak_type=weak)


def called(*args: Any, statics: StaticArgs = NO_STATIC_ARGS, **kwargs: Any) -> bytes:
    """The skeleton of a call."""
    return encode_arguments(args, kwargs, statics, {}).skeleton


def warmed(*args: Any, statics: StaticArgs = NO_STATIC_ARGS, **kwargs: Any) -> bytes:
    """The skeleton of what is warmed."""
    return encode_specs(args, kwargs, statics, {})[0]


TREES = {
    "nothing": (),
    "numbers": (1.0, 2, True, 3j, None, "text"),
    "arrays": (LARGE, np.ones(3, np.int8), np.float16(2)),
    "not contiguous": (LARGE.T, LARGE[::2]),
    "ml_dtypes": (np.ones(3, ml_dtypes.bfloat16), np.ones(2, ml_dtypes.int4)),
    "jax": (jnp.ones((2, 3)), jnp.asarray(2.0), jnp.arange(3)),
    "keys": (jax.random.key(0), jax.random.split(jax.random.key(1, impl="rbg"), 3)),
    "containers": ({"b": LARGE, "w": [LARGE, (1.0,)]}, OrderedDict(z=LARGE)),
    "named": (optax.adam(1e-3).init({"w": jnp.ones(3)}),),
    "unusual keys": ({Point(1, 2): LARGE, frozenset(): [jnp.asarray(1.0)]},),
    "local named tuple": (Point(LARGE, jax.random.key(0)),),
    "objects": (Pair(LARGE, [Pair(jnp.ones(2), 1.0), jnp.asarray(2.0)]), LARGE),
    "an array twice": (Pair(LARGE, LARGE),),
}

with jax.enable_x64(True):
    OF_64_BITS = jnp.arange(3), jnp.asarray(1.5), jnp.ones(2, jnp.complex128)

PICKLED = ("unusual keys",)
ALIKE = ("numbers", "unusual keys")
"""Those of which jax makes no tree of specs that is like them."""


@pytest.mark.parametrize("name", TREES)
def test_specs_have_the_skeleton_of_the_call(name: str) -> None:
    """Weak types, key dtypes and static values included; so have the arrays themselves."""
    tree = TREES[name]
    specs = jax.tree.map(spec_of, tree) if name not in ALIKE else tree
    assert warmed(*specs) == warmed(*tree) == called(*tree)
    assert warmed(1.0, tree=specs) == called(2.0, tree=tree)


@pytest.mark.parametrize("name", TREES)
def test_only_what_is_pickled_has_data(name: str) -> None:
    """Also when arrays are given."""
    _, buffers = encode_specs(TREES[name], {}, NO_STATIC_ARGS, {})
    assert bool(buffers) == (name in PICKLED)


def test_static_arguments_are_given_as_values() -> None:
    """By position and by name."""
    statics = StaticArgs(frozenset({1}), frozenset({"mode"}))
    spec = Spec((3,), np.float32)
    array = np.ones(3, np.float32)
    for size in (3, Point(1, 2)):
        expected = called(array, size, mode="a", statics=statics)
        assert warmed(spec, size, mode="a", statics=statics) == expected


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("f4"), jnp.float32, ">f4"])
def test_anything_with_shape_and_dtype_is_a_spec(dtype: Any) -> None:
    """However the dtype is named."""
    assert warmed(Spec([2, np.int64(3)], dtype)) == called(np.ones((2, 3), np.float32))


def test_arrays_of_jax_of_64_bits_are_specs_of_such() -> None:
    """A spec of the same dtype is one of what jax would narrow."""
    assert warmed(*OF_64_BITS) == called(*OF_64_BITS)
    assert warmed(spec_of(OF_64_BITS[0])) == called(np.arange(3)) != called(OF_64_BITS[0])


def test_own_specs_of_keys() -> None:
    """Their dtype is jax's."""
    key = jax.random.key(0)
    assert warmed(Spec((), key.dtype)) == called(key)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_of_a_process_without_jax_are_specs_too(impl: str) -> None:
    """The dtype is text there, as `f.eval_shape` gives it."""
    keys = jax.random.split(jax.random.key(0, impl=impl), 3)
    assert warmed(Spec((3,), f"key<{impl}>")) == called(keys)


def test_results_of_a_process_without_jax_are_specs_too() -> None:
    """Lazy arrays and keys."""
    lazy = LazyArray("int32", (2000,), memoryview(bytes(8000)))
    keys = PRNGKeys("threefry2x32", np.zeros(2, np.uint32))
    assert warmed(lazy, keys) == called(lazy, keys)


def test_zeros_stand_in_pickled_objects_where_specs_are() -> None:
    """Shapes, dtypes, weak types and implementations stay; the object's own data too."""
    rest = {"key": spec_of(jax.random.key(0, impl="rbg")), "n": 3, "s": np.float16(2)}
    specs = Pair([Spec((2,), "int8"), spec_of(jnp.asarray(1.0))], rest)
    (first, *beside) = encode_specs(({frozenset(): specs},), {}, NO_STATIC_ARGS, {})[1]
    found = unpack(first, beside)[frozenset()]
    (array, weak), rest = found.a, found.b
    assert (array.tolist(), array.dtype) == ([0, 0], np.int8)
    assert (float(weak), weak.dtype, weak.weak_type) == (0.0, np.float32, True)
    assert str(jax.random.key_impl(rest["key"])) == "rbg"
    assert (rest["n"], rest["s"], rest["s"].dtype) == (3, 2.0, np.float16)


def test_a_node_with_shape_and_dtype_is_a_node() -> None:
    """As jax sees it."""

    @jax.tree_util.register_pytree_node_class
    class Quantized:
        shape = (4,)
        dtype = "int8"

        def tree_flatten(self) -> Any:
            return (np.ones(4, np.int8), np.float32(2)), None

        @classmethod
        def tree_unflatten(cls, aux: Any, children: Any) -> Any:
            return cls()

    assert not is_spec(Quantized())
    assert is_spec(spec_of(LARGE))
    assert not is_spec(jax.ShapeDtypeStruct)
    assert warmed(Quantized()) == called(Quantized())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Spec((3,), "float33"), "dtype 'float33'"),
        (Spec((3,), object()), "dtype <object"),
        (Spec((3,), np.dtype("U3")), "cannot go to jax"),
        (Spec((None, 3), "float32"), "shape"),
        (Spec(3, "float32"), "shape 3"),
        (Spec((-1,), "float32"), r"shape \(-1,\)"),
    ],
)
def test_a_spec_that_is_none_is_refused(spec: Any, words: str) -> None:
    """Before anything is sent; also inside of an object."""
    for tree in (spec, Pair(spec, 1)):
        with pytest.raises(ArgumentError, match=words):
            warmed(tree)


def test_a_tracer_is_refused() -> None:
    """As by a call."""
    with pytest.raises(TracerError):
        jax.jit(warmed)(1.0)


def test_data_of_jax_arrays_is_not_fetched() -> None:
    """One that was deleted is as good."""
    array = jnp.ones((2, 3))
    expected = called(array)
    array.delete()
    assert warmed(array) == expected


def test_neither_numpy_nor_jax_is_imported() -> None:
    """Where dtypes are names."""
    program = (
        "import json, sys; from jaxd.request.array_specs import encode_specs\n"
        "from jaxd_protocol.jit.static_args import NO_STATIC_ARGS\n"
        "class Spec:\n"
        "    shape, dtype = (2, 3), 'bfloat16'\n"
        "skeleton, _ = encode_specs((1.0, [Spec()]), {}, NO_STATIC_ARGS, {})\n"
        "print(json.dumps([skeleton.hex(), 'numpy' in sys.modules, 'jax' in sys.modules]))"
    )
    expected = called(1.0, [np.ones((2, 3), ml_dtypes.bfloat16)]).hex()
    assert in_a_fresh_process(program) == [expected, False, False]
