from __future__ import annotations

import inspect
import socket
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple
from urllib.parse import DefragResult

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax  # type: ignore[import-untyped]
import pytest

from jaxd_protocol.errors import ArgumentError, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs, dynamic, infer_static_args
from jaxd_protocol.messages.function_manifest import parameter_names
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.wire import BulkChannel, BulkStream
from jaxd_server.codec.arguments import (
    call_order,
    donated_leaves,
    empty_leaves,
    leaves_of,
    parse_arguments,
    read_leaves,
)
from tests.server.in_process import encode


class Point(NamedTuple):
    x: Any
    y: Any


def there(*args: Any, **kwargs: Any) -> Any:
    """What the server makes of a call's arguments."""
    skeleton, blob, buffers = encode(args, kwargs)
    return read(skeleton, blob, [memoryview(bytearray(buffer)) for buffer in buffers])


def read(skeleton: bytes, blob: bytes, buffers: Sequence[memoryview]) -> Any:
    """The arguments in these bytes."""
    layout = parse_arguments(skeleton)
    return layout.build(read_leaves(layout.whole, blob, buffers))


@pytest.mark.parametrize("dtype", [np.float32, np.int16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("size", [3, 10_000])
def test_arrays_arrive_as_views_of_what_was_received(dtype: Any, size: int) -> None:
    """Nothing is copied between the socket and jax."""
    skeleton, blob, buffers = encode((np.ones(size, dtype),))
    received = [memoryview(bytearray(buffer)) for buffer in buffers]
    ((array,), _) = read(skeleton, blob, received)
    assert (array.dtype, array.shape) == (dtype, (size,))
    assert not array.flags.owndata
    memory = np.frombuffer(received[0] if received else blob, "u1")
    assert np.shares_memory(array, memory)


@pytest.mark.parametrize("value", [1.5, jnp.pi, 7, 1j])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_weak_arrays_arrive_weak(value: Any, shape: tuple[int, ...]) -> None:
    """Of every shape: else a result could have another dtype than with `jax.jit`."""
    given = jnp.full(shape, value)
    assert given.weak_type
    ((arrived,), _) = there(given)
    assert arrived.aval == given.aval
    np.testing.assert_array_equal(arrived, given)


def test_weak_arrays_of_64_bits_arrive_unchanged() -> None:
    """The client's settings come into force only when the program runs."""
    with jax.enable_x64(True):
        number, integer = jnp.asarray(0.1), jnp.asarray(1 << 40)
        ((first, second), _) = there(number, integer)
    assert (float(first), int(second)) == (0.1, 1 << 40)
    assert first.weak_type
    assert second.weak_type
    key = jax.random.key(5, impl="rbg")
    ((arrived,), _) = there(key)
    assert arrived.dtype == key.dtype
    np.testing.assert_array_equal(jax.random.bits(arrived, (3,)), jax.random.bits(key, (3,)))


def named(module: str, name: str, *names: str) -> bytes:
    """The skeleton of a call with one named tuple."""
    children = b"N" * len(names)
    node = b"U" + dump_literal((module, name)) + dump_literal(names) + children
    return b"T" + COUNT.pack(2) + b"T" + COUNT.pack(1) + node + b"D" + COUNT.pack(0)


def test_named_tuples_of_installed_classes_are_found_by_name() -> None:
    """Imported when they are not loaded; others are refused, with what to install."""
    fields = ("time", "priority", "sequence", "action", "argument", "kwargs")
    ((event,), _) = read(named("sched", "Event", *fields), b"", [])
    import sched

    assert type(event) is sched.Event
    with pytest.raises(ProtocolError, match=r"flux\.State.*Install its package"):
        parse_arguments(named("flux", "State", "a"))
    with pytest.raises(ProtocolError, match=r"sched\.Nothing"):
        parse_arguments(named("sched", "Nothing", "a"))
    with pytest.raises(ProtocolError, match="other fields"):
        parse_arguments(named("sched", "Event", "time"))


@pytest.mark.parametrize("skeleton", [b"", b"garbage", b"T\xff\xff\xff\xff", b"\x00"])
def test_what_is_no_skeleton_is_refused(skeleton: bytes) -> None:
    """With an error of our own."""
    with pytest.raises(ProtocolError):
        parse_arguments(skeleton)


def test_data_that_does_not_fit_its_skeleton_is_refused() -> None:
    """Nothing is read beyond its end."""
    arrays = (np.ones(3, np.float32), np.ones(5_000, np.float32))
    skeleton, blob, (buffer,) = encode(arrays)
    layout = parse_arguments(skeleton)
    for wrong in ((blob[:-1], [buffer]), (blob, []), (blob, [buffer[:-4]])):
        with pytest.raises(ProtocolError, match=r"fit|size"):
            read_leaves(layout.whole, *wrong)


def test_jax_takes_a_large_received_array_without_a_copy() -> None:
    """The program reads the memory into which the socket was read."""
    ours, theirs = (BulkChannel(BulkStream(sock)) for sock in socket.socketpair())
    skeleton, blob, buffers = encode((np.ones(1 << 14, np.float32),))
    theirs.send(b"a call", buffers)
    frame = ours.recv()
    ((array,), _) = read(skeleton, blob, frame.buffers)
    assert jax.device_put(array).unsafe_buffer_pointer() == array.ctypes.data
    for channel in (ours, theirs):
        channel.close()


STATICS = StaticArgs(frozenset({1}), frozenset({"mode"}))

TREES: list[tuple[tuple[Any, ...], dict[str, Any], StaticArgs]] = [
    ((), {}, NO_STATIC_ARGS),
    ((1.0, [2, (3j, None)], {}), {}, NO_STATIC_ARGS),
    (({"b": 1.0, "a": {"d": 2.0, "c": 3.0}},), {"z": 4.0, "y": 5.0}, NO_STATIC_ARGS),
    (({2: 1.0, 10: 2.0, -1: 3.0}, OrderedDict(b=1.0, a=2.0)), {}, NO_STATIC_ARGS),
    ((DefragResult(1.0, {"y": 2.0, "x": 3.0}),), {"d": DefragResult(None, ())}, NO_STATIC_ARGS),  # type: ignore[arg-type]
    ((1.0, ("relu", 3), {"b": 2.0, "a": 3.0}), {"mode": "fast", "k": 4.0}, STATICS),
    ((jax.random.key(0), 7, np.ones((2, 3))), {"mode": None}, STATICS),
]


@pytest.mark.parametrize(("args", "kwargs", "statics"), TREES)
def test_the_order_of_the_leaves_is_known_from_the_skeleton(
    args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs
) -> None:
    """What the executable takes can be read off the wire without making the tree."""
    skeleton, blob, buffers = encode(args, kwargs, statics)
    layout = parse_arguments(skeleton)
    order = call_order(layout, statics)
    assert order is not None
    leaves = read_leaves(layout.whole, blob, buffers)
    expected = leaves_of(dynamic((args, kwargs), statics))
    found = [leaves[index] for index in order]
    assert [np.shape(leaf) for leaf in found] == [np.shape(leaf) for leaf in expected]
    for leaf, other in zip(found, expected, strict=True):
        assert jax.numpy.array_equal(leaf, other)


def test_pickled_arguments_have_no_order_that_is_known_before() -> None:
    """How many leaves are in them shows only when they are unpickled."""
    layout = parse_arguments(encode(({frozenset({1}): 2.0}, 1.0))[0])
    assert call_order(layout, NO_STATIC_ARGS) is None
    arguments = ((1, 2, 3), {"mode": "fast", "x": 4})
    assert dynamic(arguments, NO_STATIC_ARGS) == arguments
    assert dynamic(arguments, STATICS) == ((1, 3), {"x": 4})


def test_a_specification_is_filled_with_zeros() -> None:
    """Of the shapes, dtypes and weak types that its skeleton says."""
    key = jax.random.key(3, impl="rbg")
    args = (1.5, 7, True, 2j, np.ones((2, 3), np.int8), jnp.asarray(2.0), key, [np.ones(9_000)])
    layout = parse_arguments(encode(args)[0])
    ((*leaves, (large,)), _) = layout.build(empty_leaves(layout, []))
    for leaf, given in zip((*leaves, large), (*args[:-1], args[-1][0]), strict=True):
        assert jax.typeof(leaf) == jax.typeof(given)
        assert type(leaf) is type(given) or type(given) is np.ndarray
    assert not np.any(large)
    assert not np.any(jax.random.key_data(leaves[-1]))
    odd = {frozenset({1}): np.arange(5_000.0)}
    skeleton, _, buffers = encode((np.ones(9_000), odd))
    layout = parse_arguments(skeleton)
    pickle, beside = buffers[-2:]
    ((array, found), _) = layout.build(empty_leaves(layout, [pickle, memoryview(bytes(beside))]))
    assert (array.shape, list(found)) == ((9_000,), [frozenset({1})])
    assert found[frozenset({1})].shape == (5_000,)
    for wrong in ([], [pickle], [pickle, beside, beside]):
        with pytest.raises(ProtocolError, match="specification"):
            empty_leaves(layout, wrong)


# objects that jax takes apart ---------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclass
class State:
    """What a training loop carries along."""

    w: Any
    mode: Any = field(default="mean", metadata={"static": True})


@jax.tree_util.register_pytree_node_class
class Checked:
    """Looks at what it is made of, as classes should not."""

    def __init__(self, w: Any) -> None:
        assert w.ndim == 1
        self.w = w

    def tree_flatten(self) -> Any:
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Any:
        return cls(*children)


OBJECTS: dict[str, Any] = {
    "static field": State({"b": 1.0, "a": [np.ones(2), None]}, ("mean", 3)),
    "nested": {"x": [State(State(1.0), "a"), State(Point(2, 3.0))]},
    "without leaves": State((None, {}, [])),
    "local named tuple": Point(np.ones(2, np.float32), {"k": 2}),
    "containers": State(OrderedDict(b=1, a=defaultdict(int, {"d": 1, "c": 2}))),
    "optax": State(optax.adam(1e-3).init({"w": jnp.ones(3)})),
    "weak types and keys": State((jnp.asarray(2.0), jax.random.key(0, impl="rbg"))),
    "a checking class": Checked(np.ones(3)),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_arrive(name: str) -> None:
    """With their static fields and leaves of the same kinds, in an order that is known before."""
    ((arrived,), _) = there(OBJECTS[name])
    found, expected = jax.tree.flatten(arrived), jax.tree.flatten(OBJECTS[name])
    assert str(found[1]) == str(expected[1])
    assert list(map(jax.typeof, found[0])) == list(map(jax.typeof, expected[0]))
    args = (1.0, OBJECTS[name], {"z": 1.0, "a": OBJECTS[name]})
    skeleton, blob, buffers = encode(args)
    layout = parse_arguments(skeleton)
    order = call_order(layout, NO_STATIC_ARGS)
    assert order is not None
    leaves = read_leaves(layout.whole, blob, buffers)
    types = [jax.typeof(leaves[index]) for index in order]
    assert types == [jax.typeof(leaf) for leaf in leaves_of((args, {}))]


def test_objects_of_equal_content_have_one_structure() -> None:
    """Whichever process packed them: nothing is traced again."""
    ((one,), _) = there(State(1.0, lambda x: x + 1))
    ((other,), _) = there(State(np.ones(2), lambda x: x + 1))
    structures: list[Any] = [jax.tree.structure(each) for each in (one, other)]
    assert structures[0] == structures[1]
    assert one.mode is other.mode


def test_a_class_that_only_the_client_has_registered_is_refused() -> None:
    """The message says where to register it."""
    node = (Fraction, None, ())
    data = bytes(pack(node, "a template"))
    head = b"V" + dump_literal((("Fraction", (), ()), b"")) + COUNT.pack(len(data)) + data
    with pytest.raises(ArgumentError, match=r"fractions\.Fraction.*Register it"):
        parse_arguments(head + COUNT.pack(0))


X: Any = np.ones(3, np.float32)


def two(state: Any, batch: Any, scale: Any = 1.0) -> Any:
    return jax.tree.map(lambda leaf: leaf * scale, (state, batch))


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def by_name(state: Any, *, batch: Any) -> Any:
    return state, batch


CASES: list[tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    (two, {}, (X, X), {}),
    (two, {"donate_argnums": 0}, (X, X), {}),
    (two, {"donate_argnums": (0, 1)}, ({"a": X, "b": [X, None]}, X), {}),
    (two, {"donate_argnums": -2}, (X, X), {}),
    (two, {"donate_argnums": 0}, (), {"batch": X, "state": X}),
    (two, {"donate_argnums": 1}, (X,), {"batch": X}),
    (two, {"donate_argnames": "state"}, (X, X), {}),
    (two, {"donate_argnames": ("batch", "state")}, (X,), {"batch": (X, X)}),
    (two, {"donate_argnums": 0, "donate_argnames": "batch"}, (X, X), {}),
    (two, {"donate_argnums": 0, "donate_argnames": "batch"}, (X,), {"batch": X}),
    (two, {"donate_argnums": 2}, (X, X), {}),
    (anything, {"donate_argnums": 1}, (X, X), {"a": X}),
    (anything, {"donate_argnames": "a"}, (X, X), {"a": X, "b": X}),
    (by_name, {"donate_argnames": "batch"}, (X,), {"batch": X}),
    (by_name, {"donate_argnums": 0}, (X,), {"batch": X}),
]


def as_tuple(value: Any) -> Any:
    """Options hold tuples."""
    return value if isinstance(value, tuple) or value is None else (value,)


@pytest.mark.parametrize(("function", "given", "args", "kwargs"), CASES)
def test_what_is_given_up_is_what_jax_gives_up(
    function: Callable[..., Any], given: Any, args: Any, kwargs: Any
) -> None:
    """By position, by name, from the end, and both for the same parameter."""
    skeleton, _, _ = encode(args, kwargs)
    layout = parse_arguments(skeleton)
    options = Options(**{name: as_tuple(value) for name, value in given.items()})
    found = donated_leaves(layout, options, parameter_names(function))
    lowered = jax.jit(function, **given).trace(*args, **kwargs)
    flags = [info.donated for info in jax.tree.leaves(lowered.lower().args_info)]
    numbers = layout.build(list(range(len(layout.leaves))))
    assert found == {n for n, flag in zip(jax.tree.leaves(numbers), flags, strict=True) if flag}


def test_static_arguments_are_none_of_them() -> None:
    """They are no leaves; nothing is given up while jax looks for NaNs."""

    def step(n: int, x: Any) -> Any:
        return x * n

    options = Options(static_argnums=(0,), donate_argnums=(1,))
    skeleton, _, _ = encode((3, X), {}, infer_static_args(step, options))
    names = tuple(inspect.signature(step).parameters)
    assert donated_leaves(parse_arguments(skeleton), options, names) == {0}
    skeleton, _, _ = encode((X, X))
    options = Options(donate_argnums=(0,), config=(("jax_debug_nans", True),))
    assert donated_leaves(parse_arguments(skeleton), options, ("state", "batch")) == frozenset()
    with jax.debug_nans(True):
        lowered = jax.jit(two, donate_argnums=0).lower(X, X)
    assert not any(info.donated for info in jax.tree.leaves(lowered.args_info))
