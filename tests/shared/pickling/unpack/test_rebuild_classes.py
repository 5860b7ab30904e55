"""Classes on the server."""

from __future__ import annotations

import base64
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    run,
    write,
)

VERSION = """
import dataclasses
@dataclasses.dataclass
class C:
    a: int
    def f(self):
        return {n}
def make():
    return C(1), C(1).f()
"""

TWO = """
import base64, json, sys
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
made = [unpack_function(base64.b64decode(data)).function() for data in json.load(sys.stdin)]
classes = [type(instance) for instance, _ in made]
print([classes[0] is cls for cls in classes], [value for _, value in made])
"""


def test_two_clients_have_one_class(tmp_path: Path) -> None:
    """Their instances are equal and of one type; a changed class is another, and both live."""
    first, second = (
        pack_in_subprocess(
            write(tmp_path / name, {"mine.py": VERSION.format(n=1)}), "mine", ["make"]
        )
        for name in ("a", "b")
    )
    changed = pack_in_subprocess(
        write(tmp_path / "c", {"mine.py": VERSION.format(n=2)}), "mine", ["make"]
    )
    given = json.dumps(
        [base64.b64encode(each["make"]).decode() for each in (first, second, changed)]
    )
    assert run(TWO, cwd=tmp_path, given=given) == "[True, True, False] [1, 1, 2]\n"


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, value: Any, note: int) -> None:
        self.value = value
        self.note = note

    def tree_flatten(self) -> Any:
        return (self.value,), self.note

    @classmethod
    def tree_unflatten(cls, note: int, children: Any) -> Any:
        return cls(children[0], note)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    value: Any
    note: int = dataclasses.field(metadata={"static": True}, default=0)


class Hand:
    def __init__(self, value: Any) -> None:
        self.value = value


jax.tree_util.register_pytree_node(
    Hand, lambda hand: ((hand.value,), None), lambda _, children: Hand(children[0])
)


@pytest.mark.parametrize("make", [lambda: Node(1.0, 2), lambda: Data(1.0, 2), lambda: Hand(1.0)])
def test_a_class_of_nodes_is_one_on_the_server(make: Any) -> None:
    """However it was registered; and two arguments have equal trees, so nothing is traced twice."""
    first, second = (unpack(pack(make(), "it")) for _ in range(2))
    assert jax.tree.leaves(first) == [1.0]
    structures: list[Any] = [jax.tree.structure(each) for each in (first, second)]
    assert structures[0] == structures[1]
    traced = []

    def double(tree: Any) -> Any:
        traced.append(1)
        return jax.tree.map(lambda leaf: leaf * 2, tree)

    jitted = jax.jit(double)
    assert [jitted(each).value for each in (first, second)] == [2.0, 2.0]
    assert traced == [1]


def test_a_class_that_is_here_is_never_written_to() -> None:
    """Not even by the same bytes."""

    def use() -> Any:
        return Node

    data = pack_function(use, "it", walk(use, "it").reach)
    cls = unpack_function(data).function()
    cls.note_of_the_server = 1
    method = cls.tree_flatten
    assert unpack_function(data).function() is cls
    assert cls.tree_flatten is method
    assert cls.note_of_the_server == 1


def test_blobs_that_arrive_together_make_one_class() -> None:
    """None sees it half made."""

    class Fresh:
        values = tuple(range(100))

        def last(self) -> int:
            return self.values[-1]

    def use() -> Any:
        return Fresh, Fresh().last()

    data = pack_function(use, "it", walk(use, "it").reach)
    start = threading.Barrier(8)
    found: list[Any] = []

    def look() -> None:
        start.wait()
        found.append(unpack_function(data).function())

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0][1] == 99


class Small:
    def __init__(self) -> None:
        self.rate = 0.5
        self.unused = (number for number in [1])

    def scaled(self, x: Any) -> Any:
        return x * self.rate


def test_a_part_of_a_class_is_made_for_its_function_alone() -> None:
    """The instances have only what is read."""
    copy = round_trip(Small().scaled)
    assert copy(jnp.float32(4)) == 2.0
    assert not hasattr(copy.__self__, "unused")


def test_a_reducer_of_the_users_travels_with_its_class(tmp_path: Path) -> None:
    """It was told to `copyreg`, and says how instances are made."""
    text = """
import copyreg
class Odd:
    def __init__(self):
        self.file = open("/dev/null")
def remade():
    odd = Odd.__new__(Odd)
    odd.file = "remade"
    return odd
copyreg.pickle(Odd, lambda odd: (remade, ()))
ODD = Odd()
def use():
    import copyreg
    return vars(ODD)["file"], type(ODD) in copyreg.dispatch_table
"""
    packed = pack_in_subprocess(write(tmp_path / "author", {"odd.py": text}), "odd", ["use"])
    assert call_in_subprocess(tmp_path, packed) == {"use": "('remade', True)"}
