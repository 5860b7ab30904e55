"""What becomes of arguments on their way out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from jaxd import LazyArray, PRNGKeys
from jaxd.request.arguments import encode_arguments, name_of
from jaxd_protocol.errors import ArgumentError, PackingError
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.pickling.unpack.unpickler import unpack
from jaxd_protocol.pytree import parse_skeleton, read_scalar
from jaxd_protocol.pytree.leaves import numpy_leaf
from tests.client.fresh_process import in_a_fresh_process

STRICT = StaticArgs(strict=True)


class Kind(Enum):
    A = 1
    B = 2


class Number(IntEnum):
    TWO = 2


class Whole(int):
    """A number with a name of its own."""


class Real(float):
    """The same."""


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Pair:
    a: Any
    b: Any


def encode(*args: Any, statics: StaticArgs = NO_STATIC_ARGS, **kwargs: Any) -> Any:
    """Skeleton, blob and buffers."""
    encoded = encode_arguments(args, kwargs, statics, {})
    return encoded.skeleton, encoded.blob, encoded.buffers


def arrived(*args: Any, statics: StaticArgs = NO_STATIC_ARGS, **kwargs: Any) -> Any:
    """Arguments as a server reads them."""
    skeleton, blob, buffers = encode(*args, statics=statics, **kwargs)
    layout = parse_skeleton(skeleton, lambda module, name, fields: tuple, unpack)
    layout.whole.check(blob, buffers)
    leaves = []
    for leaf, place in zip(layout.leaves, layout.whole.places, strict=True):
        if leaf.tag == "P":
            first = place.buffer + 1
            beside = buffers[first : first + leaf.buffers]
            leaves.append(unpack(buffers[place.buffer], beside))
        elif leaf.tag in "AK":
            leaves.append(numpy_leaf(leaf, place, blob, buffers))
        else:
            leaves.append(read_scalar(leaf.tag, blob, place.offset))
    return layout.build(leaves)


def only(value: Any) -> Any:
    """How a single argument arrives."""
    ((found,), kwargs) = arrived(value)
    assert kwargs == {}
    return found


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        1.5,
        2j,
        float("inf"),
        (1 << 63) - 1,
        -(1 << 63),
        [],
        (),
        {},
        1 << 70,
    ],
    ids=str,
)
def test_plain_values_arrive_as_they_are(value: Any) -> None:
    """With their own types."""
    found = only(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("value", [-0.0, float("nan")])
def test_special_numbers_keep_their_bits(value: float) -> None:
    """The sign of zero included."""
    assert np.float64(only(value)).tobytes() == np.float64(value).tobytes()


ARRAYS = {
    "small": np.arange(6, dtype=np.int16).reshape(2, 3),
    "large": np.arange(1 << 14, dtype=np.float64),
    "0-d": np.array(3.5, np.float32),
    "zero size": np.zeros((0, 3), np.int8),
    "large zero size": np.zeros((1 << 20, 0)),
    "not contiguous": np.arange(20.0).reshape(4, 5)[::2, ::-2],
    "large, not contiguous": np.arange(1 << 14, dtype=np.int32).reshape(128, 128).T,
    "big-endian": np.arange(5, dtype=">f4"),
    "large, big-endian": np.arange(1 << 13, dtype=">i8"),
    "read-only": np.broadcast_to(np.float32(1), (3, 4)),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], np.complex64),
    "bfloat16": np.ones(3, ml_dtypes.bfloat16),
    "int4": np.ones(3, ml_dtypes.int4),
    "float16": np.ones((2, 1, 2), np.float16),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_with_shape_values_and_native_dtype(name: str) -> None:
    """Whatever their layout in memory."""
    array: Any = ARRAYS[name]
    found = only(array)
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.shape == array.shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("scalar", [np.float32(1.5), np.int8(-3), np.bool_(True), np.float64(2.5)])
def test_numpy_scalars_are_arrays_without_dimensions(scalar: Any) -> None:
    """Also np.float64, which is a Python float as well, and would be weakly typed as one."""
    found = only(scalar)
    assert (found.shape, found.dtype, found) == ((), scalar.dtype, scalar)


def test_subclasses_of_arrays_are_arrays() -> None:
    """A matrix or a memory map is its data."""
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1.0, 2.0]])
    found = only(matrix)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [[1.0, 2.0]])


def test_large_contiguous_arrays_are_not_copied() -> None:
    """The buffer is a view of the caller's memory."""
    array = np.zeros(1 << 14)
    _, _, (buffer,) = encode(array)
    array[0] = 7.0
    assert np.frombuffer(buffer, np.float64)[0] == 7.0


@pytest.mark.parametrize(
    "tree",
    [
        ([1.0, (2, None)], {"b": 1, "a": 2}),
        {"deep": {"deeper": [OrderedDict(z=1.0, a=2.0)]}},
        {1: 1.0, ("t", 2): 2.0, None: 3.0, 1.5: 4.0, b"b": 5.0, True + 1: 6.0},
    ],
    ids=["sequences", "mappings", "keys"],
)
def test_trees_arrive_with_their_order_and_types(tree: Any) -> None:
    """Dicts stay in the order in which they were written."""
    found = only(tree)
    assert found == tree
    assert repr(found) == repr(tree)


def test_arguments_by_name() -> None:
    """Positional and keyword arguments arrive as such."""
    args, kwargs = arrived(1.0, x=2.0, y=[3.0])
    assert (args, kwargs) == ((1.0,), {"x": 2.0, "y": [3.0]})


@pytest.mark.parametrize(
    "value",
    [Pair(1.0, [2.0]), {Point(1, 2): 1.0}, frozenset({1})],
    ids=["dataclass", "unusual keys", "set"],
)
def test_what_has_no_place_in_a_tree_is_pickled(value: Any) -> None:
    """The server, which has jax, decides whether it is a tree of arrays."""
    found = only(value)
    assert repr(found) == repr(value).replace(f"{__name__}.", "")


def test_large_arrays_inside_pickled_objects_are_not_copied() -> None:
    """They travel beside the pickle."""
    array = np.zeros(1 << 14)
    _, _, buffers = encode(Pair(array, 1.0), statics=STRICT)
    array[0] = 7.0
    assert any(len(b) == array.nbytes and np.frombuffer(b)[0] == 7.0 for b in buffers)


def test_a_class_that_was_met_is_remembered() -> None:
    """So that a result can come back as its instance."""
    classes: dict[tuple[str, str], type] = {}
    encode_arguments((Pair(1.0, 2.0),), {}, NO_STATIC_ARGS, classes)
    assert classes[Pair.__module__, "Pair"] is Pair


def test_a_lazy_array_goes_out_as_it_came() -> None:
    """A result given back as an argument."""
    array = np.arange(4, dtype=np.int32)
    np.testing.assert_array_equal(
        only(LazyArray("int32", (4,), memoryview(array.tobytes()))), array
    )


def test_keys_of_a_process_without_jax_go_out_as_keys() -> None:
    """Their implementation stands in the skeleton."""
    skeleton, _, _ = encode(PRNGKeys("threefry2x32", np.zeros(2, np.uint32)))
    (leaf,) = parse_skeleton(skeleton, lambda *_: tuple).leaves
    assert (leaf.tag, leaf.impl, leaf.shape, leaf.dtype) == ("K", "threefry2x32", (2,), "uint32")


def test_jax_arrays_go_out_as_arrays_and_keep_their_weak_type() -> None:
    """Weak types are part of a signature."""
    import jax.numpy as jnp

    np.testing.assert_array_equal(only(jnp.arange(3)), np.arange(3, dtype=np.int32))
    skeleton, _, _ = encode(jnp.asarray(1.0), jnp.ones(()))
    assert [leaf.weak for leaf in parse_skeleton(skeleton, lambda *_: tuple).leaves] == [
        True,
        False,
    ]


# signatures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 2.0),
        (np.ones(3), np.zeros(3)),
        ({"a": 1}, {"a": 2}),
        (np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(3, 2).T),
    ],
)
def test_other_values_have_the_same_skeleton(one: Any, other: Any) -> None:
    """So that the server finds the executable by its bytes."""
    assert encode(one)[0] == encode(other)[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1),
        (1, True),
        (1.0, 1j),
        (1.0, None),
        (1.0, np.float64(1.0)),
        (np.ones(3), np.ones(4)),
        (np.ones(3), np.ones((3, 1))),
        (np.ones(3, np.float32), np.ones(3, np.float16)),
        ([1.0], (1.0,)),
        ({"a": 1.0}, {"b": 1.0}),
        ({1: 1.0}, {True: 1.0}),
        ({"a": 1.0}, OrderedDict(a=1.0)),
        ([[], 1.0], [[1.0]]),
    ],
)
def test_other_types_have_another_skeleton(one: Any, other: Any) -> None:
    """Nothing that jax tells apart looks alike."""
    assert encode(one)[0] != encode(other)[0]


def test_static_arguments_are_part_of_the_skeleton() -> None:
    """By position and by name, with type and value; the others are not."""
    statics = StaticArgs(frozenset({1}), frozenset({"mode"}))

    def skeleton(*args: Any, **kwargs: Any) -> bytes:
        found: bytes = encode(*args, statics=statics, **kwargs)[0]
        return found

    base = skeleton(1.0, 2, mode="a")
    assert base == skeleton(9.0, 2, mode="a")
    assert len({base, skeleton(1.0, 3, mode="a"), skeleton(1.0, 2, mode="b")}) == 3
    assert skeleton(1.0, 2) != skeleton(1.0, 2.0) != skeleton(1.0, True)


@pytest.mark.parametrize(
    "value", ["text", (1, "a", None), Ellipsis, slice(1, 2), Point(1, 2)], ids=str
)
def test_static_arguments_arrive_with_their_values(value: Any) -> None:
    """Plain ones as data, others pickled."""
    args, _ = arrived(1.0, value, statics=StaticArgs(frozenset({1})))
    assert args[0] == 1.0
    assert repr(args[1]) == repr(value)


# refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        len,
        int,
        lambda x: x,
        np.array(["a"]),
        np.array([None]),
        np.zeros(2, "M8[s]"),
        np.zeros(1, "i,f"),
    ],
    ids=["builtin", "class", "lambda", "text", "objects", "dates", "records"],
)
def test_what_is_of_no_use_to_jax_is_refused(value: Any) -> None:
    """Before anything is sent; the message says what to do."""
    with pytest.raises(ArgumentError, match=r"static_argnames|functools\.partial"):
        encode({"deep": [value]}, statics=STRICT)


def test_what_jax_cannot_trace_is_part_of_the_structure() -> None:
    """By its content, wherever it stands; numbers beside it are data as ever."""

    def skeleton(mode: Any) -> bytes:
        found: bytes = encode({"deep": [mode, 1.0]})[0]
        return found

    same = [("relu", "re" + "lu"), (len, len), (Kind.B, Kind.B), (frozenset("a"), frozenset("a"))]
    for one, other in same:
        assert skeleton(one) == skeleton(other)
    assert len({skeleton(mode) for mode in ("a", b"a", len, print, Kind.A, Kind.B, Pair)}) == 7
    assert only({"deep": ["relu", 2.0]}) == {"deep": ["relu", 2.0]}


def test_what_is_large_travels_beside_the_structure() -> None:
    """The server looks at it in each call; a skeleton is kept, and hashed."""
    skeleton, _, buffers = encode(Pair("x" * 100_000, None))
    (pickled,) = buffers
    assert len(skeleton) < 100
    assert len(pickled) > 100_000


@pytest.mark.parametrize("value", [Number.TWO, Whole(2), Real(2.5)], ids=repr)
def test_subclasses_of_numbers_are_numbers(value: Any) -> None:
    """As they are to jax."""
    assert encode(value)[0] == encode(0.0 if isinstance(value, float) else 0)[0]
    assert only(value) == value


def test_arrays_of_others_are_never_static() -> None:
    """They are data, and there would be a program for each value."""

    class Foreign:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.ones(3)

    with pytest.raises(ArgumentError, match=r"Foreign.*numpy\.asarray"):
        encode(Foreign())


@pytest.mark.parametrize(("name", "text"), [("masked", "masked"), ("own", "__jax_array__")])
def test_what_jax_refuses_in_its_own_words(name: str, text: str) -> None:
    """With its own type of error."""

    class Own:
        def __jax_array__(self) -> Any:
            return np.ones(3)

    value = np.ma.array([1.0], mask=[True]) if name == "masked" else Own()
    with pytest.raises(ValueError, match=text):
        encode(value)


def test_what_cannot_be_pickled_is_refused() -> None:
    """The message says what kind of thing it was."""
    with pytest.raises(PackingError, match="argument of type generator"):
        encode(n for n in range(3))


def test_no_numpy_is_imported_for_arguments_without_arrays() -> None:
    """A light client stays light."""
    program = (
        "import json, sys; from jaxd.request.arguments import encode_arguments\n"
        "from jaxd_protocol.jit.static_args import NO_STATIC_ARGS\n"
        "encode_arguments((1.0, [2, {'a': None}], 'text'), {}, NO_STATIC_ARGS, {})\n"
        "print(json.dumps('numpy' in sys.modules))"
    )
    assert in_a_fresh_process(program) is False


def test_without_jax_only_the_server_knows_the_classes_of_packages() -> None:
    """Of what is the user's own, of code and of members of enums this process is sure."""
    program = (
        "import json, sys, enum, fractions, collections\n"
        "from jaxd.request.arguments import is_plain_object\n"
        "class Own: pass\n"
        "Kind = enum.Enum('Kind', 'A')\n"
        "Point = collections.namedtuple('Point', 'x')\n"
        "values = [Own(), Kind.A, len, Own, 'a', ..., fractions.Fraction(1), {1}]\n"
        "values += [collections.defaultdict(int), Point(1.0)]\n"
        "print(json.dumps([is_plain_object(value) for value in values]))\n"
        "assert 'jax' not in sys.modules\n"
    )
    assert in_a_fresh_process(program) == [True] * 6 + [False] * 4


def test_what_people_call_it_is_the_same_in_each_call() -> None:
    """No address is in it: it is part of what stands for a call."""
    values = ("text", (1, "a"), Kind.A, Pair(3, 4), Pair, len, np.sin)
    names = ["", "", "Kind.A", "an object of Pair", "Pair", "len", "an object of ufunc"]
    assert [name_of(value) for value in values] == names
