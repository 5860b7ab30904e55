"""Walks that are made as if at one moment find what each of them would find by itself."""

from __future__ import annotations

import fractions
import random
from array import array
from types import FunctionType
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import content_id, next_moment, one_moment, walk
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.pickling.pack import arguments
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.fingerprint.defining import define

REFERENCES = (
    "    below_{n} = C{n}\n",
    "    below_{n} = (C{n}, {n})\n",
    "    def to_{n}(self): return C{n}\n",
    "    def set_{n}(self): return SET\n",
    "    def at_{n}(self, given=C{n}): return given.rate\n",
)
"""How a class may lead to another one, also to one that comes later."""


def classes(seed: int, count: int = 6) -> Any:
    """A module of classes that refer to each other in many ways, and to a set of some of them."""
    draw = random.Random(seed)
    numbers = range(count)
    text = "".join(
        f"class C{number}({draw.choice(['', 'Base'])}):\n    rate = {draw.randrange(3)}\n"
        for number in numbers
    )
    for number in numbers:
        for _ in range(draw.randrange(4)):
            form = draw.choice(REFERENCES).format(n=draw.choice(numbers))
            head, _, body = form.strip().partition(" = ")
            if body and not head.startswith("def"):
                text += f"C{number}.{head} = {body}\n"
            else:
                text += f"{form[4:]}C{number}.m{len(text)} = {head.split()[1].partition('(')[0]}\n"
    some = ", ".join(f"C{draw.choice(numbers)}" for _ in range(3))
    text = f"class Base: pass\n{text}SET = {{{some}}}\n"
    if seed % 2:  # names do not tell one from the other
        text += "".join(f"C{number}.__name__ = 'C{number % 2}'\n" for number in numbers)
    text += "def f(): return SET, " + ", ".join(f"C{number}" for number in numbers) + "\n"
    return define(text)


SEEDS = [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 40))]


@pytest.mark.parametrize("seed", SEEDS)
def test_classes_have_one_content_however_many_walks_have_seen_them(seed: int) -> None:
    """In whichever order; a server looks at them in another one."""
    made = classes(seed)
    values = [made.f, *(each for each in vars(made).values() if isinstance(each, type))]
    alone = [walk(each, "it") for each in values]
    for order in range(3):
        shuffled = list(range(len(values)))
        random.Random(order).shuffle(shuffled)
        with one_moment():
            for number in shuffled:
                found, known = walk(values[number], "it"), alone[number]
                assert found.fingerprint.digest == known.fingerprint.digest
                assert found.fingerprint.parts == known.fingerprint.parts
                assert found.guards.hold()
                assert {*map(id, found.reach.classes)} == {*map(id, known.reach.classes)}
                assert found.reach.whole == known.reach.whole


@pytest.fixture
def taken_apart(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The classes that were taken apart, one after the other."""
    found: list[type] = []
    walk_component = Walk._walk_component

    def noted(self: Walk, cls: type, name: str) -> Any:
        found.append(cls)
        return walk_component(self, cls, name)

    monkeypatch.setattr(Walk, "_walk_component", noted)
    return found


TWO = "class B: rate = 1\nclass A: below = B\ndef f(): return A\ndef g(): return A, B"


def test_a_class_is_taken_apart_once_at_one_moment(taken_apart: list[type]) -> None:
    """For however many functions, also where no guard would see a change."""
    made = define(TWO + "\nB.table = TABLE", TABLE=array("i", [1]))
    with one_moment():
        for value in (made.f, made.g, made.A, made.B):
            walk(value, "it")
    assert taken_apart == [made.A, made.B]
    for value in (made.f, made.g):
        walk(value, "it")
    assert taken_apart == [made.A, made.B] * 3


def test_a_class_is_taken_apart_again_after_a_change(taken_apart: list[type]) -> None:
    """Of itself or of what it leads to; and not for another function before."""
    made = define(TWO)
    for value in (made.f, made.g, made.A, made.B):
        walk(value, "it")
    assert taken_apart == [made.A, made.B]
    made.B.rate = 2
    for value in (made.f, made.g):
        walk(value, "it")
    assert taken_apart == [made.A, made.B] * 2


def test_a_class_of_a_function_is_not_kept_for_its_walk(taken_apart: list[type]) -> None:
    """It may hold anything, and its function makes another one each time."""
    made = define("def make():\n    class A: pass\n    return lambda: A\nf = make()")
    for _ in range(2):
        walk(made.f, "it")
    assert len(taken_apart) == 2


STANDARD = """
import collections, enum, fractions, inspect, pathlib, typing
Pair = collections.namedtuple("Pair", "one other")
class Color(enum.Enum): RED = 1
class Model:
    kind, color, pair = typing.NewType("kind", int), Color.RED, Pair(1, 2)
    either, calls = int | None, collections.abc.Callable[[int], int]
    shape, place = inspect.signature(len), pathlib.Path("a")
    ratio, counter = fractions.Fraction(1, 2), collections.Counter("a")
def f(): return Model
def g(): return Model, 1
"""


def test_a_class_with_objects_of_the_standard_library_is_taken_apart_once(
    taken_apart: list[type],
) -> None:
    """Its code says of an object what that holds, and nothing else that could change."""
    made = define(STANDARD)
    for value in (made.f, made.g):
        walk(value, "it")
    assert taken_apart.count(made.Model) == 1


SUBJECT = """
import abc, collections, fractions, os
RATE, STATE = 2, {"a": 1}
class Base:
    unit: int = 1
class Elsewhere: pass
class Meta(type): pass
class Plain(metaclass=Meta): pass
class OtherMeta(type):
    extra = 1
class Told:
    def __reduce__(self): return len, (STATE["a"] * "x",)
class Open(abc.ABC): pass
class Model(Base):
    width, table, array = 8, {"a": [1]}, ARRAY
    ratio, counter = fractions.Fraction(1, 2), collections.Counter("a")
    named = collections.UserDict()
    def run(self): return helper(self), Other, Open, fractions.Fraction, Plain
class Other:
    def to(self): return Model
class Telling:
    told = Told()
class Above:
    def to(self): return Telling
def helper(x): return x, RATE
def other(x): return x
def f(): return Model, Other, Telling, Above
"""
EDITS = (
    "RATE = 3",
    "helper = other",
    "Model.width = 9",
    "Model.late = 1",
    "Model.__bases__ = (Elsewhere,)",
    "Model.run.__code__ = Other.to.__code__",
    "Model.table['a'].append(2)",
    "Model.array[1] = 5",
    "Model.ratio._numerator = 3",
    "Model.counter['a'] = 5",
    "Model.named['late'] = 1",
    "Base.unit = 2",
    "Base.__annotations__['late'] = int",
    "Other.late = 1",
    "Plain.__class__ = OtherMeta",
    "Other.__name__ = 'Another'",
    "Open.register(Elsewhere)",
    "jax.tree_util.register_pytree_node(Other, lambda it: ((), None), lambda *_: Other())",
    "STATE['a'] = 2",
)


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_known_of_a_class_is_as_it_is_now(edit: str) -> None:
    """For another function than that for which it was looked at."""

    def digest(before: bool) -> bytes:
        made = define(SUBJECT, ARRAY=np.arange(3), jax=jax)
        if before:
            walk(made.f, "it")
            walk(made.f, "it")
        exec(edit, vars(made))
        again = FunctionType(made.f.__code__, vars(made), "f")
        return walk(again, "it").fingerprint.digest

    assert digest(before=True) == digest(before=False)
    unchanged = walk(define(SUBJECT, ARRAY=np.arange(3), jax=jax).f, "it").fingerprint.digest
    assert digest(before=True) != unchanged


def test_a_class_may_be_gone_through_while_it_is_looked_at() -> None:
    """Nothing is put into it."""
    made = define("class Config:\n    a, b = 1, 2\ndef f(): return Config().a")
    for name in vars(made.Config):
        walk(made.f, name)
    assert "__slotnames__" not in vars(made.Config)


def test_what_is_known_of_a_class_is_of_one_moment() -> None:
    """Also where something that it leads to was looked at since, by itself."""
    made = define(TWO + "\ndef h(): return B")
    unchanged = walk(made.f, "it").fingerprint.digest
    made.B.rate = 2
    changed = walk(made.h, "it").fingerprint.digest
    assert walk(made.f, "it").fingerprint.digest != unchanged
    made.B.rate = 1
    assert walk(made.f, "it").fingerprint.digest == unchanged
    assert walk(made.h, "it").fingerprint.digest != changed


def test_what_was_put_into_a_library_is_refused_for_a_known_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for any other."""
    made = define(SUBJECT, ARRAY=np.arange(3))
    walk(made.f, "it")
    monkeypatch.setattr(fractions.Fraction, "mine", lambda self: self, raising=False)
    with pytest.raises(PackingError, match=r"Fraction"):
        walk(FunctionType(made.f.__code__, vars(made), "f"), "it")


class Counted:
    """Counts how often it is looked at."""

    def __init__(self) -> None:
        self.looks = 0

    def __fingerprint__(self) -> int:
        self.looks += 1
        return 3


def test_classes_that_lead_to_each_other_are_taken_apart_together() -> None:
    """Not once for each of them, and whichever comes first."""
    counted = Counted()
    ring = range(20)
    text = "".join(f"class C{n}:\n    def next(self): return C{(n + 1) % 20}\n" for n in ring)
    text += "C7.counted = COUNTED\n"
    text += "def f(): return " + ", ".join(f"C{(n + 5) % 20}" for n in ring)
    made = define(text, COUNTED=counted)
    walk(made.f, "it")
    assert counted.looks <= 2 * 3  # from the first that is met, and from that with the first name
    before = walk(made.f, "it").fingerprint.digest
    made.C7.other = 1
    assert walk(made.f, "it").fingerprint.digest != before
    del made.C7.other
    assert walk(made.f, "it").fingerprint.digest == before


def test_of_classes_that_lead_to_each_other_each_is_its_own() -> None:
    """Those that look alike count as one where they hang together alike, and else do not."""
    text = "class {0}:\n    def to(self): return {1}\nclass {1}:\n    def to(self): return {0}\n"
    made = define(text.format("A", "B") + "A.__name__ = B.__name__ = 'C'\ndef f(): return A, B\n")
    one, other = (walk(each, "it").fingerprint.digest for each in (made.A, made.B))
    assert one != other  # each names the other by a name of its own
    made.A.to.__code__ = made.B.to.__code__
    made.A.to.__globals__.update(A=made.B)  # now both lead to B
    assert walk(made.A, "it").fingerprint.digest != one


UNWATCHED = """
class C:
    table = array("i", [1])
    def get(self): return self.table[0]
def f(x): return x * C().get()
"""


def test_what_has_changed_is_seen_at_the_next_moment() -> None:
    """Also what no guard sees."""
    made = define(UNWATCHED, array=array)
    seen = []
    for number in (1, 2, 3):
        made.C.table[0] = number
        with one_moment():
            seen += [walk(made.f, "it").fingerprint.digest, content_id(made.f)]
            assert walk(made.f, "it").fingerprint.digest == seen[-2]
    made.C.table[0] = 4
    with one_moment():
        seen.append(walk(made.f, "it").fingerprint.digest)
        made.C.table[0] = 5
        next_moment()
        seen.append(walk(made.f, "it").fingerprint.digest)
    assert len({*seen[::2], seen[-1]}) == 5


CHANGES_ITSELF = """
class C:
    packed = 0
    def __reduce__(self):
        C.packed = min(C.packed + 1, LIMIT)
        return C, ()
    def get(self): return C.packed
"""


def test_a_class_that_is_changed_by_the_packing_of_its_objects_is_packed_as_it_is_then() -> None:
    """It is packed once more; where that has no end, it is an error."""
    made = define(CHANGES_ITSELF, LIMIT=1)
    value = made.C()
    found = unpack(pack(value, "it"))
    assert found.get() == made.C.packed == 1


@pytest.mark.parametrize(("first", "limit"), [(10, 11), (20, 1000)])
def test_what_no_guard_sees_is_compared_after_it_is_packed(
    first: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id by which a class travels is that of the content that it was packed with."""
    made = define(UNWATCHED, array=array)
    made.C.table[0] = first

    def changed_by_a_thread(*given: Any) -> Any:
        made.C.table[0] = min(made.C.table[0] + 1, limit)
        return pack_function(*given)

    monkeypatch.setattr(arguments, "pack_function", changed_by_a_thread)
    if limit == 1000:
        with pytest.raises(PackingError, match="changed all the time"):
            pack(made.C, "it")
        return
    packed = pack((made.C, [made.C]), "it")
    assert content_id(made.C) in bytes(packed)
    assert unpack(packed)[0]().get() == made.C.table[0] == limit


def test_what_no_guard_sees_is_packed_once_for_each_content(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As everything else."""
    made = define(UNWATCHED, array=array)
    pack(made.C, "it")
    monkeypatch.setattr(arguments, "pack_function", lambda *_: 1 / 0)
    pack(made.C, "it")


def test_walks_that_count_in_another_way_share_nothing() -> None:
    """Such as those that leave something out."""
    made = define("RATE = 1\nclass C:\n    def get(self): return RATE\ndef f(): return C")
    with one_moment():
        whole = walk(made.f, "it").fingerprint.digest
        part = walk(made.f, "it", ignore=("RATE",)).fingerprint.digest
        assert walk(made.f, "it").fingerprint.digest == whole != part


def test_variables_of_the_environment_are_those_of_each_function() -> None:
    """What stands for the environment has those that one function reads, and no others."""
    made = define(
        "import os\nclass A:\n    def get(self): return os.environ['A_VARIABLE']\n"
        "class B:\n    def get(self): return os.environ['B_VARIABLE']\n"
        "def both(): return A, B\ndef one(): return A"
    )
    with one_moment():
        walk(made.both, "it")
        found = walk(made.one, "it").reach.replacements
    counted = [each.counted for each in found.values() if hasattr(each, "counted")]
    assert [list(each) for each in counted] == [["A_VARIABLE"]]


def test_an_error_is_one_for_each_walk() -> None:
    """A class that cannot be in a key is in none."""
    made = define("class C:\n    def get(self): return __import__(self.name)\ndef f(): return C")
    with one_moment():
        for value in (made.f, made.C):
            with pytest.raises(PackingError, match="__import__"):
                walk(value, "it")
