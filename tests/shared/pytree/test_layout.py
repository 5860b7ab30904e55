from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.pytree import INLINE_BYTES, Layout, dump_literal, parse_leaves, parse_skeleton
from jaxd_protocol.pytree.decoder import restore_instance
from tests.shared.pytree.samples import Point, encode, find_class, parse, trees

X = np.zeros(3, "f4")
LARGE = np.zeros(INLINE_BYTES + 1, "u1")
P = b"P" + struct.pack("!I", 2)
Q = b"Q" + struct.pack("!I", 3) + b"abc"


class Thing:
    """An object with attributes, and an `__init__` that nobody calls."""

    def __init__(self) -> None:
        raise AssertionError("made by calling it")


def any_class(module: str, name: str, fields: tuple[str, ...] | None) -> type:
    return Thing if fields is None else Point


def test_a_layout_says_where_everything_lies() -> None:
    """In the order of the tree."""
    layout = parse(encode({"a": 1.0, "b": [LARGE, True], "c": "static"}).skeleton)
    assert [leaf.tag for leaf in layout.leaves] == ["F", "A", "B"]
    assert [place.buffer for place in layout.whole.places] == [-1, 0, -1]
    assert (layout.whole.blob_bytes, layout.whole.buffers) == (17, 1)


def test_a_tree_is_built_from_any_leaves_as_often_as_one_likes() -> None:
    """One layout serves all calls of a signature."""
    layout = parse(encode(Point([1.0, None], OrderedDict(a=2, b=(3,)))).skeleton)
    for leaves in (["x", "y", "z"], [7, 8, 9]):
        one, two, three = leaves
        assert layout.build(leaves) == Point([one, None], OrderedDict(a=two, b=(three,)))


OWN: Any = SimpleNamespace(
    instance=lambda cls, state, is_own: restore_instance(cls, state, by_new=is_own)
)
"""What a client has of its own, where nothing of it is asked for."""


def test_an_object_is_made_without_calling_it() -> None:
    """From its class and its attributes alone."""
    skeleton = b"O" + dump_literal(("m", "Thing")) + encode({"x": 1, "y": None}).skeleton
    thing = parse_skeleton(skeleton, any_class, own=OWN).build([5])
    assert type(thing) is Thing
    assert vars(thing) == {"x": 5, "y": None}


@pytest.mark.parametrize("skeleton", [P, Q, b"L" + struct.pack("!I", 1) + P])
def test_a_reader_that_takes_no_code_refuses_it(skeleton: bytes) -> None:
    """A client never unpickles what a server sent."""
    with pytest.raises(ProtocolError, match="code where only data is allowed"):
        parse(skeleton)


R = b"R" + dump_literal(("o", (), b"token", "it"))
G = b"G" + dump_literal(("m", "Thing")) + b"N" + struct.pack("!I", 0)
OBJECT = b"O" + dump_literal(("m", "Thing")) + b"D" + struct.pack("!I", 0)


@pytest.mark.parametrize("skeleton", [R, G, OBJECT, b"JN"])
def test_a_reader_that_has_nothing_of_its_own_takes_only_data(skeleton: bytes) -> None:
    """A server takes no references: a client sends the object itself, or a token."""
    with pytest.raises(ProtocolError, match="where only data is allowed"):
        parse_skeleton(skeleton, any_class, bytes)


def test_what_else_is_said_of_a_class_reaches_whoever_looks_it_up() -> None:
    """Its content id and its numbers."""
    asked: list[Any] = []

    def find(*args: Any) -> type:
        asked.append(args)
        return Thing

    for said in ((), (b"id",), (b"id", ((b"mark", 3),))):
        parse_skeleton(b"O" + dump_literal(("m", "n", *said)) + b"D" + count(0), find, own=OWN)
        assert asked.pop() == ("m", "n", None, *said)
    with pytest.raises(ProtocolError):
        parse_skeleton(b"O" + dump_literal(("m", "n", 3)) + b"D" + count(0), find, own=OWN)


def test_a_server_takes_code() -> None:
    """As a static value in the skeleton, or as a leaf with its buffers."""
    data = pickle.dumps([1, 2])
    skeleton = b"Q" + struct.pack("!I", len(data)) + data
    assert parse_skeleton(skeleton, find_class, pickle.loads).build([]) == [1, 2]
    layout = parse_skeleton(P, find_class, pickle.loads)
    assert (layout.whole.buffers, layout.leaves[0].buffers) == (3, 2)


def template(*leaves: bytes) -> bytes:
    """An object, as a client with jax writes it."""
    return (
        b"V" + dump_literal("outline") + count(4) + b"code" + count(len(leaves)) + b"".join(leaves)
    )


def test_an_object_is_made_of_its_template_and_its_leaves() -> None:
    """The template is opened once, however often the tree is built."""
    opened: list[bytes] = []

    def open_template(data: bytes) -> Any:
        opened.append(data)
        return lambda leaves: (data, leaves)

    skeleton = b"L" + count(2) + template(b"F", template(b"I")) + b"B"
    layout = parse_skeleton(skeleton, find_class, pickle.loads, open_template=open_template)
    for last in (True, False):
        found = layout.build([1.5, 2, last])
        assert found == [(b"code", [1.5, (b"code", [2])]), last]
    assert opened == [b"code", b"code"]


def test_an_outline_makes_no_objects() -> None:
    """They are lists of their leaves: what stands for these may be no data."""

    def refuse(_: list[Any]) -> Any:
        raise AssertionError

    skeleton = b"T" + count(2) + template(b"F", template(), b"I") + b"N"
    layout = parse_skeleton(skeleton, find_class, bytes, open_template=lambda _: refuse)
    assert layout.outline("ab") == (["a", [], "b"], None)


def data_of(layout: Layout) -> tuple[bytes, list[memoryview]]:
    """Zeros of the right sizes."""
    sizes = [leaf.nbytes for leaf, place in zip(layout.leaves, layout.whole.places, strict=True)
             if place.buffer >= 0]  # fmt: skip
    return bytes(layout.whole.blob_bytes), [memoryview(bytes(size)) for size in sizes]


@given(trees)
def test_data_of_another_size_is_refused(tree: Any) -> None:
    """Too little would be read beyond its end, too much is not what the skeleton describes."""
    layout = parse(encode(tree).skeleton)
    blob, buffers = data_of(layout)
    layout.whole.check(blob, buffers)
    wrong = [(blob + b"\0", buffers), (blob, [*buffers, memoryview(b"")])]
    if blob:
        wrong.append((blob[:-1], buffers))
    for n, buffer in enumerate(buffers):
        wrong.append((blob, buffers[:n] + buffers[n + 1 :]))
        others = (buffer[:-1], memoryview(bytes(buffer) + b"\0"))
        wrong += [(blob, [*buffers[:n], other, *buffers[n + 1 :]]) for other in others]
    for some_blob, some_buffers in wrong:
        with pytest.raises(ProtocolError):
            layout.whole.check(some_blob, some_buffers)


def count(n: int) -> bytes:
    return struct.pack("!I", n)


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "an unknown tag": b"Z",
    "bytes behind": b"NN",
    "more children than bytes": b"L" + count(1 << 31),
    "half a child": b"T" + count(1) + b"S",
    "a class that is no name": b"U" + dump_literal(3) + dump_literal(("x", "y")),
    "a class with one name": b"U" + dump_literal(("m",)) + dump_literal(("x", "y")),
    "names that are no text": b"O" + dump_literal((1, 2)) + b"D" + count(0),
    "fields that are none": b"U" + dump_literal(("m", "n")) + dump_literal(3),
    "fields that are no text": b"U" + dump_literal(("m", "n")) + dump_literal((1,)),
    "an object without attributes": b"O" + dump_literal(("m", "n")) + b"N",
    "a dtype that is none": b"A\0\3\0\0xyz",
    "a record of dtypes": b"A\0\5\0\0f4,f4",
    "a shape that cannot be": b"A\0\4\0\2int8" + b"\xff" * 16,
    "too many dimensions": b"A\0\4\xff\xffint8" + b"\0" * 8 * 65535,
    "a bomb of lists": (b"L" + count(1)) * 100_000 + b"N",
    "a bomb of objects": (b"O" + dump_literal(("m", "n")) + b"D" + count(1) + dump_literal(1))
    * 50_000,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_skeleton_is_refused(case: str) -> None:
    """Whoever reads it."""
    for unpickle in (None, bytes):
        with pytest.raises(ProtocolError):
            parse_skeleton(BROKEN[case], any_class, unpickle)


def test_a_list_of_leaves_is_read_as_such() -> None:
    """Arrays and numbers, as many as are expected."""
    layout = parse_leaves(encode([X, 1.0, 2, True, 1j]).skeleton, 5)
    assert [leaf.tag for leaf in layout.leaves] == ["A", "F", "I", "B", "C"]
    assert layout.build([1, 2, 3, 4, 5]) == [1, 2, 3, 4, 5]
    assert parse_leaves(encode([]).skeleton, 0).build([]) == []


@pytest.mark.parametrize(
    "tree", [X, (X,), [[X]], {"a": X}, [X, X], [None], [()], [Point(X, X)], [OrderedDict(a=X)]]
)
def test_anything_else_than_a_list_of_leaves_is_refused(tree: Any) -> None:
    """Also what a general tree may be made of."""
    with pytest.raises(ProtocolError, match="list of arrays"):
        parse_leaves(encode(tree).skeleton, 1)


@pytest.mark.parametrize("tag", sorted("NTLDMUOGJSRQXVP"))
def test_no_other_tag_is_read_in_a_list_of_leaves(tag: str) -> None:
    """Whatever stands behind it."""
    skeleton = b"L" + struct.pack("!I", 1) + tag.encode() + dump_literal(("os", "PathLike"))
    with pytest.raises(ProtocolError, match="list of arrays"):
        parse_leaves(skeleton, 1)


@pytest.mark.parametrize(
    "skeleton", [b"", b"L", b"L\0\0\0\1", b"L\0\0\0\1F!", b"L\xff\xff\xff\xffF", "L"]
)
def test_a_broken_list_of_leaves_is_refused(skeleton: Any) -> None:
    """Cut off, too long, or no bytes."""
    with pytest.raises(ProtocolError):
        parse_leaves(skeleton, 1)


class Plain:
    def __init__(self) -> None:
        raise AssertionError("made by calling it")

    @property
    def guarded(self) -> int:
        return 1

    @guarded.setter
    def guarded(self, value: int) -> None:
        raise AssertionError("a property was set")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("an attribute was set")


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Needy:
    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls)


def test_attributes_are_put_in_place_without_running_anything() -> None:
    """No `__init__`, no property, no `__setattr__`; and the class stays what it is."""
    made = restore_instance(Plain, {"a": 1, "guarded": 2, "__class__": Slotted, "__dict__": {}})
    assert type(made) is Plain
    assert vars(made) == {"a": 1, "guarded": 2, "__class__": Slotted, "__dict__": {}}


def test_attributes_in_slots() -> None:
    """Of frozen classes too."""
    assert restore_instance(Slotted, {"x": 3}) == Slotted(3)


@pytest.mark.parametrize("name", ["y", "__class__", 1])
def test_an_attribute_that_the_class_has_no_place_for(name: Any) -> None:
    """Is refused."""
    with pytest.raises(ProtocolError):
        restore_instance(Slotted, {name: 3})


def test_a_class_that_cannot_be_made() -> None:
    """Is named, with what to do."""
    with pytest.raises(ResultError, match=r"Needy.*Return dicts"):
        restore_instance(Needy, {})
