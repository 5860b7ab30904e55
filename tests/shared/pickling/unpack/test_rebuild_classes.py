"""Classes and callables on a server: each is made once."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sized
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack import rebuild
from jaxd_protocol.pickling.unpack.content_table import ClassId, ContentTable
from jaxd_protocol.pickling.unpack.unpickler import unpack, unpack_function
from tests.shared.fingerprint.defining import define
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
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


def test_two_clients_have_one_class() -> None:
    """Their instances are equal and of one type; a changed class is another, and both live."""
    texts = [VERSION.format(n=n) for n in (1, 1, 2)]
    made = [round_trip(define(text, "mine").make)() for text in texts]
    first, second, changed = (instance for instance, _ in made)
    assert type(first) is type(second) is not type(changed)
    assert first == second
    assert [value for _, value in made] == [1, 1, 2]


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


def test_an_object_can_be_made_although_methods_of_its_class_were_not_sent() -> None:
    """Only those that are read are: the class of an object that exists is not abstract."""

    class Partial(Sized):
        pass

    assert type(rebuild.make_instance(Partial)) is Partial


ONE = ClassId(b"1" * 16, "Cls", "mine")


def made(table: ContentTable, name: ClassId = ONE) -> type:
    """The class of that id, in an unpacking of its own."""
    with table.unpacking():
        return table.class_of(name, lambda: type("Cls", (), {}))


def test_another_content_or_name_is_another_class() -> None:
    """Also when they are called the same."""
    table = ContentTable()
    others = [ClassId(b"2" * 16, "Cls", "mine"), ClassId(ONE.content, "Other", "mine")]
    others.append(ONE._replace(module="other"))
    assert len({made(table, name) for name in (ONE, *others)}) == 4


@pytest.mark.parametrize("main", ["__main__", "__mp_main__"])
def test_a_script_may_be_a_module_elsewhere(main: str) -> None:
    """Its classes are the same in both."""
    table = ContentTable()
    first = made(table)
    assert made(table, ONE._replace(module=main)) is first
    table = ContentTable()
    first = made(table, ONE._replace(module=main))
    assert made(table) is first


def test_a_script_that_may_be_either_of_two_modules_is_neither() -> None:
    """Nothing is guessed."""
    table = ContentTable()
    both = {made(table), made(table, ONE._replace(module="other"))}
    assert made(table, ONE._replace(module="__main__")) not in both


def test_a_class_is_completed_once() -> None:
    """In the unpacking that made it; a later one leaves it alone."""
    table = ContentTable()
    done = []
    for _ in range(2):
        with table.unpacking():
            cls = table.class_of(ONE, lambda: type("Cls", (), {}))
            table.fill_once(cls, lambda: done.append(1))
            table.fill_once(cls, lambda: done.append(1))
    assert done == [1]


def test_what_an_unpacking_made_that_failed_is_forgotten() -> None:
    """Its classes are incomplete."""
    table = ContentTable()

    def fail() -> None:
        with table.unpacking():
            table.class_of(ONE, lambda: type("Cls", (), {}))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert table.find_class(ONE) is None


def test_a_class_is_not_seen_before_it_is_complete() -> None:
    """Another thread waits, and gets the finished one."""
    table = ContentTable()
    begun, looking = threading.Event(), threading.Event()
    found: list[Any] = []

    def other() -> None:
        begun.wait()
        assert table.find_class(ONE) is None
        looking.set()
        with table.unpacking():
            cls = table.class_of(ONE, lambda: type("Wrong", (), {}))
            found.append((cls.__name__, getattr(cls, "done", False)))

    thread = threading.Thread(target=other)
    thread.start()
    with table.unpacking():
        cls = table.class_of(ONE, lambda: type("Cls", (), {}))
        begun.set()
        looking.wait()
        table.fill_once(cls, lambda: setattr(cls, "done", True))
    thread.join()
    assert found == [("Cls", True)]


def test_the_oldest_callables_go_first() -> None:
    """Looking one up makes it young."""
    table = ContentTable(max_callables=2)
    a, b = (table.callable_of(name, object) for name in (b"a", b"b"))
    table.callable_of(b"a", object)
    table.callable_of(b"c", object)
    assert table.callable_of(b"a", object) is a
    assert table.content_id_of(b) is None


def test_ids_are_found_for_what_was_made_here() -> None:
    """Results name classes and callables by them."""
    table = ContentTable()
    cls, function = made(table), table.callable_of(b"f" * 16, object)
    assert table.content_id_of(cls) == ONE.content
    assert table.content_id_of(function) == b"f" * 16
    assert table.content_id_of(int) is None
    assert table.content_id_of(len) is None


def test_a_class_is_as_abstract_as_it_was(tmp_path: Path) -> None:
    """Also where it is completed before the base that has its methods."""
    text = """
import abc
class Asked(abc.ABC):
    @abc.abstractmethod
    def method(self): ...
class Answers(Asked):
    def method(self):
        return Below
class Below(Answers):
    pass
class Abstract(Answers):
    @abc.abstractmethod
    def other(self): ...
def use():
    return Answers().method()().method().__name__
def refused():
    try:
        return Abstract()
    except TypeError:
        return "abstract"
"""
    author = write(tmp_path / "author", {"shape.py": text})
    packed = pack_in_subprocess(author, "shape", ["use", "refused"])
    called = call_in_subprocess(tmp_path, packed)
    assert called == {"use": "'Below'", "refused": "'abstract'"}


TABLES = """
import weakref
chosen = weakref.WeakSet()
factors = weakref.WeakKeyDictionary()
def choose(factor):
    def decorate(cls):
        chosen.add(cls)
        factors[cls] = factor, cls
        return cls
    return decorate
def is_chosen(cls):
    return cls in chosen and factors[cls][1] is cls and factors[cls][0]
class Meta(type):
    def __call__(cls):
        return factors[cls][0]
"""
HAS_TABLES = """
from tables import Meta, choose, chosen, factors, is_chosen
@choose(2)
class Two(metaclass=Meta): pass
@choose(3)
class Three(metaclass=Meta): pass
class Other: pass
def use():
    return is_chosen(Two), Two(), is_chosen(Other)
def another():
    return is_chosen(Three), Three(), Two in chosen
def all_of_them():
    try:
        return len(chosen) + len(factors)
    except Exception as error:
        return type(error).__name__
"""


def test_a_class_brings_what_weak_tables_have_of_it(tmp_path: Path) -> None:
    """The table is one for all functions, as the class is; nobody sees what else is in it."""
    author = write(tmp_path / "author", {"tables.py": TABLES, "has.py": HAS_TABLES})
    packed = pack_in_subprocess(author, "has", ["use", "another", "all_of_them"])
    assert call_in_subprocess(tmp_path, packed) == {
        "use": "(2, 2, False)",
        "another": "(3, 3, True)",
        "all_of_them": "'PackingError'",
    }
