from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from jaxd.results.local_objects import LocalObjects, RemoteObject
from jaxd.results.reader import ResultReader, ResultsAs
from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.fingerprint import content_id
from jaxd_protocol.messages.data_locations import (
    INLINE_RESULT_BYTES,
    KEEP_ALL,
    KEEP_NONE,
    ResultPolicy,
)
from jaxd_protocol.pickling.unpack.content_table import ClassId, content_table
from jaxd_protocol.pickling.unpack.object_tokens import find_kept_object
from jaxd_protocol.pytree import Layout, Leaf
from jaxd_server.codec.results import ResultLayout, pack_result, result_layout, retained_leaves
from jaxd_server.jax_compat.lowered import out_leaves
from tests.ids import row
from tests.spans import leaves_in


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True, slots=True)
class Frozen:
    w: Any
    b: Any


@jax.tree_util.register_dataclass
@dataclass(slots=True)
class Slotted:
    w: Any


class _Node:
    """One child, and nothing else that counts."""

    child: Any

    def tree_flatten(self) -> tuple[tuple[Any], None]:
        return (self.child,), None

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Any:
        node = cls.__new__(cls)
        node.child = children[0]
        return node


@jax.tree_util.register_pytree_node_class
class Box(_Node):
    """Keeps a number of its own beside the child."""

    def __init__(self, child: Any) -> None:
        self.child = child
        self.label = "a box"


class _WithSlot:
    __slots__ = ("child",)


@jax.tree_util.register_pytree_node_class
class HalfSlotted(_WithSlot, _Node):
    """Its child is in a slot, and it has a `__dict__` too."""


@jax.tree_util.register_pytree_node_class
class Named(_Node):
    """Says itself how it is to be pickled."""

    def __reduce__(self) -> Any:
        return Named, ()


@jax.tree_util.register_pytree_node_class
class Table(dict[str, Any]):
    """A dict of another class, as some libraries have them."""

    def tree_flatten(self) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        return tuple(self.values()), tuple(self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: tuple[Any, ...]) -> Table:
        return cls(zip(names, values, strict=True))


class Count(int):
    """A number that is more than a number."""


CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (Point, Layer, Frozen, Slotted, Box, HalfSlotted, Named, Table)
}


def packed(result: Any) -> tuple[ResultLayout, bytes, list[memoryview]]:
    """A result's form, and its data."""
    leaves, structure = jax.tree.flatten(result)
    form = result_layout(leaves, structure)
    return form, *pack_result(leaves, form)[:2]


def home(result: Any, results: ResultsAs = "numpy") -> Any:
    """What the client makes of a result, when it has sent the classes."""
    for cls in CLASSES.values():
        arrived(cls)
    form, blob, buffers = packed(result)
    return ResultReader(CLASSES).read(form.skeleton, blob, buffers, results)


def arrived(cls: Any) -> None:
    """Has the server know a class as one of its clients'."""
    with content_table.unpacking():
        name = ClassId(content_id(cls), cls.__qualname__, cls.__module__)
        content_table.class_of(name, lambda: cls)


def run(tree: Any) -> Any:
    """The tree as `jax.jit` returns it."""
    return jax.jit(lambda tree: tree)(tree)


def test_plain_containers_come_home_as_they_are() -> None:
    """With None in its place and the values where they were; ordered dicts in their order."""
    tree = {"b": [np.float32(1), (np.int8(2), None)], "a": (), "c": {}}
    result = home(run(tree))
    assert str(jax.tree.structure(result)) == str(jax.tree.structure(tree))
    assert jax.tree.map(float, result) == {"b": [1.0, (2.0, None)], "a": (), "c": {}}
    result = home(run(OrderedDict(z=1.0, a=2.0)))
    assert type(result) is OrderedDict
    assert [(name, float(value)) for name, value in result.items()] == [("z", 1.0), ("a", 2.0)]


def test_default_dicts_come_home_with_what_makes_their_values() -> None:
    """One that the client's function or arguments have, no other; dicts may have unusual keys."""
    form, blob, buffers = packed(run(defaultdict(list, a=1.0)))
    with pytest.raises(ResultError, match="cannot be made here"):
        ResultReader(CLASSES).read(form.skeleton, blob, buffers, "numpy")
    reader = ResultReader(CLASSES, LocalObjects(installed=[list]))
    result = reader.read(form.skeleton, blob, buffers, "numpy")
    assert type(result) is defaultdict
    assert result.default_factory is list
    assert float(result["a"]) == 1.0
    found = home({frozenset({1}): jnp.ones(1), frozenset({2}): jnp.zeros(2)})
    assert {key: value.shape for key, value in found.items()} == {
        frozenset({1}): (1,),
        frozenset({2}): (2,),
    }


def test_named_tuples_and_dataclasses_keep_their_class() -> None:
    """Nested ones, frozen ones, and those with slots, which have no `__dict__` to read."""
    result = home(run(Point(1.0, Point(2.0, None))))
    assert type(result) is type(result.y) is Point
    assert (float(result.x), float(result.y.x), result.y.y) == (1.0, 2.0, None)
    for cls in (Layer, Frozen):
        made = home(run(cls(np.ones(3, np.float32), None)))
        assert type(made) is cls
        assert (made.w.tolist(), made.b) == ([1, 1, 1], None)
    assert home(run(Slotted(2.0))).w == 2.0


def test_registered_classes_come_home_with_all_their_attributes() -> None:
    """Those that jax does not see, and those in slots of a base class."""
    box = Box(1.0)
    result = home(box.tree_unflatten(None, (jnp.asarray(3.0),)))
    assert type(result) is Box
    assert float(result.child) == 3.0
    box.child = jnp.ones(2)
    leaves, structure = jax.tree.flatten(box)
    assert home(jax.tree.unflatten(structure, leaves)).child.tolist() == [1, 1]
    half = HalfSlotted()
    half.child = jnp.asarray(4.0)
    assert float(home(half).child) == 4.0


def test_objects_that_are_more_than_their_attributes_come_home_through_jax() -> None:
    """As `jax.jit` makes them: from what is registered for their class."""
    named = home(Named.tree_unflatten(None, (jnp.ones(1),)))
    assert type(named) is Named
    assert named.child.tolist() == [1.0]
    table = home(Table(a=jnp.ones(1), b=(jnp.zeros(2),)))
    assert type(table) is Table
    assert (list(table), table["a"].tolist(), table["b"][0].tolist()) == (["a", "b"], [1], [0, 0])


def test_data_that_jax_does_not_see_is_no_data() -> None:
    """A value in an attribute is part of the structure: the client gets a token for it."""
    extras: tuple[Any, ...] = (Count(3), np.ones(2), {frozenset(): len})
    for extra in extras:

        @jax.tree_util.register_pytree_node_class
        class Holder(_Node):
            @classmethod
            def tree_unflatten(cls, _: None, children: tuple[Any], extra: Any = extra) -> Any:
                holder = super().tree_unflatten(None, children)
                holder.extra = extra
                return holder

        arrived(Holder)
        form, blob, _ = packed(Holder.tree_unflatten(None, (jnp.ones(1),)))
        known_objects = {(Holder.__module__, Holder.__qualname__): Holder}
        found = ResultReader(known_objects).read(form.skeleton, blob, (), "numpy")
        assert type(found.extra) is RemoteObject
        assert find_kept_object(found.extra.token) is extra


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys_come_home(impl: str) -> None:
    """With their implementation, beside ordinary arrays."""
    keys = jax.random.split(jax.random.key(1, impl=impl))
    result = home({"keys": keys, "x": jnp.ones(2)}, "jax")
    assert result["keys"].dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(result["keys"]), jax.random.key_data(keys))


def test_weak_types_come_home() -> None:
    """So that what is computed with a result has the dtype that it has without a server."""
    weak, strong = home((jnp.asarray(1.0) * 2, jnp.asarray(1.0, jnp.float32)), "jax")
    assert (weak.weak_type, strong.weak_type) == (True, False)


def test_all_dtypes_and_shapes_come_home() -> None:
    """Small ones in the blob, large ones beside it."""
    rows: list[tuple[int, ...]] = [(), (0,), (3, 2), (100, 100)]
    others: list[Any] = [
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        np.bool_,
        np.complex64,
        np.uint8,
    ]
    for shape in rows:
        for dtype in others:
            with row((shape, dtype)):
                array = jnp.ones(shape, dtype)
                result = home(array)
                assert (result.dtype, result.shape) == (array.dtype, shape)
                np.testing.assert_array_equal(result, np.asarray(array))


def test_large_arrays_travel_beside_the_message_without_a_copy() -> None:
    """The buffer is the memory of the result itself."""
    array = jnp.arange(10_000, dtype=jnp.float32)
    _, blob, (buffer,) = packed([array, jnp.ones(3)])
    assert len(blob) == 12
    assert np.frombuffer(buffer, "u1").ctypes.data == array.unsafe_buffer_pointer()


def test_the_form_of_a_result_is_found_out_once() -> None:
    """Then it takes the leaves alone; it can be made before there is a result."""
    form, _, _ = packed({"b": jnp.ones(2), "a": jnp.zeros(())})
    blob, _, _ = pack_result([jnp.full((), 7.0), jnp.full(2, 3.0)], form)
    assert ResultReader(CLASSES).read(form.skeleton, blob, (), "numpy")["b"].tolist() == [3, 3]
    function = jax.jit(lambda x: {"weak": x * 2, "key": jax.random.key(0), "x": (jnp.ones(3), x)})
    lowered = function.lower(1.0)
    form = result_layout(out_leaves(lowered), lowered.out_tree)
    assert form == packed(function(1.0))[0]
    assert (len(form.layout.leaves), form.keys) == (4, True)


def test_a_form_is_its_skeleton_and_its_order() -> None:
    """Nothing else has to be kept: the rest is made from them, without any class."""
    arrived(Table)
    results: list[Any] = [
        None,
        (),
        {"a": jnp.ones(()), "b": [jnp.ones(1, int), None]},
        OrderedDict(z=jnp.ones(1), a=jnp.ones(2)),
        Point(jnp.ones(1), Point(jnp.ones(3), None)),
        Layer(jnp.ones(3), {}),
        Box(jnp.ones(2)),
        Table(a=jnp.ones(1)),
        jnp.ones(10_000),
        [jnp.ones((), jnp.int8), jnp.ones(3, jnp.bfloat16), jnp.ones((2, 2), jnp.complex64)],
        {"key": jax.random.key(1), "keys": jax.random.split(jax.random.key(2, impl="rbg"))},
    ]
    for result in results:
        with row(result):
            form, blob, buffers = packed(result)
            again = ResultLayout.of(form.skeleton, form.order)
            assert again == form
            assert pack_result(jax.tree.leaves(result), again) == (blob, buffers, ())


@jax.tree_util.register_pytree_node_class
class Marked(_Node):
    """Each one that is made gets a number that is more than a number."""

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any]) -> Any:
        marked = super().tree_unflatten(None, children)
        marked.extra = Count(3)
        return marked


def test_only_a_form_without_tokens_lasts() -> None:
    """A token names an object of this process."""
    for cls in (Box, Marked):
        arrived(cls)
    assert packed(Box(jnp.ones(1)))[0].is_lasting
    assert packed(Point(jnp.ones(1), {"a": jax.random.key(0)}))[0].is_lasting
    assert not packed(Marked.tree_unflatten(None, (jnp.ones(1),)))[0].is_lasting


@pytest.mark.parametrize("skeleton", [b"", b"garbage", b"\x00", b"T\xff\xff\xff\xff"])
def test_what_is_no_skeleton_is_no_form(skeleton: bytes) -> None:
    """With the error that other unreadable messages have."""
    with pytest.raises(ProtocolError):
        ResultLayout.of(skeleton, ())


LOSS = Leaf("A", "float32")
COUNT = Leaf("A", "int32")
BIAS = Leaf("A", "float32", (64,))
WEIGHTS = Leaf("A", "float32", (64, 1024))
STATE = (COUNT, BIAS, WEIGHTS)


def numbers(
    leaves: Sequence[Leaf], above: int, home: int = INLINE_RESULT_BYTES, taken: Sequence[Leaf] = ()
) -> tuple[list[int], list[int]]:
    """What stays, and what does not come home."""
    found = retained_leaves(Layout(leaves, tuple), ResultPolicy(1, above, home), taken)
    away = list(leaves_in(found.packed_away))
    assert sorted((*found.home, *found.away)) == list(range(len(leaves)))
    kept = [number for number, stays in enumerate(found.present) if stays]
    assert found.nbytes == sum(leaves[number].nbytes for number in kept)
    gone = [i for i, place in enumerate(found.placement.places) if place.buffer == place.offset]
    assert gone == away
    return kept, away


ALL = (*STATE, LOSS)
SMALL = (Leaf("A", "float32", (8, 1024)),) * 3
STAYING: dict[str, tuple[tuple[Any, ...], list[int], list[int]]] = {
    "nothing": ((ALL, KEEP_NONE, KEEP_NONE, STATE), [], []),
    "what is large": ((ALL, INLINE_RESULT_BYTES), [2], [2]),
    "the state of a loop, not its loss": (
        (ALL, INLINE_RESULT_BYTES, INLINE_RESULT_BYTES, STATE),
        [0, 1, 2],
        [0, 1, 2],
    ),
    "small ones that are large together": (
        ((*SMALL, LOSS), INLINE_RESULT_BYTES, INLINE_RESULT_BYTES, SMALL),
        [0, 1, 2],
        [0, 1, 2],
    ),
    "none of small ones": (((*SMALL, LOSS), INLINE_RESULT_BYTES), [], []),
    "nothing of a small result like its argument": (
        ((BIAS, LOSS), INLINE_RESULT_BYTES, INLINE_RESULT_BYTES, (BIAS, LOSS)),
        [],
        [],
    ),
    "everything, and nothing comes home": ((ALL, KEEP_ALL, -1), [0, 1, 2, 3], [0, 1, 2, 3]),
    "everything, and what is new comes home": (
        (ALL, KEEP_ALL, INLINE_RESULT_BYTES, STATE),
        [0, 1, 2, 3],
        [0, 1, 2],
    ),
    "everything, however small the state": (
        ((BIAS, LOSS), KEEP_ALL, INLINE_RESULT_BYTES, (BIAS,)),
        [0, 1],
        [0],
    ),
}


@pytest.mark.parametrize("what", STAYING)
def test_what_stays_and_what_does_not_come_home(what: str) -> None:
    """By size, and by whether it looks like an argument."""
    arguments, kept, away = STAYING[what]
    assert numbers(*arguments) == (kept, away)


@pytest.mark.parametrize(
    ("taken", "away"), [((), []), ((LOSS,), [0]), ((LOSS, LOSS), [0, 1]), ((COUNT,), [])]
)
def test_each_value_that_was_taken_stands_for_one_leaf(
    taken: Sequence[Leaf], away: list[int]
) -> None:
    """A loss is not taken for the state because there is a number of its kind in the state."""
    assert numbers((LOSS, LOSS), KEEP_ALL, taken=taken)[1] == away
