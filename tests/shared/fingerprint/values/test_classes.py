"""Classes: the user's own by all that is in them."""

from __future__ import annotations

from array import array
from enum import Enum
from typing import Any

import jax
import pytest

from tests.shared.fingerprint.defining import define, digest_of, function, part_names, walk_of


def cls(body: str, head: str = "class C:", **names: Any) -> type:
    """A class with that body."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    made = define(f"{head}\n{lines}", **names).C
    assert isinstance(made, type)
    return made


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("'Says.'\na = 1", "'Says more.'\na = 1"),
        ("a: int", "a: float"),
        ("a = 1\nb = 2", "b = 2\na = 1"),
        ("a = 1", "\n\na = 1"),
    ],
)
def test_what_decides_nothing_does_not_count(one: str, other: str) -> None:
    """What is said of it, types of annotations, the order of attributes, and lines."""
    assert digest_of(cls(one)) == digest_of(cls(other))


def test_a_class_is_a_part_of_its_own() -> None:
    """Its attributes are named by it."""
    assert part_names([cls("a = 1\ndef m(self): pass")]) == [
        "class: class C",
        "value: attribute C.a",
        "function: function C.m",
    ]


LAYERS = """
class C{0}_0: below = ({1})
class C{0}_1: below = ({1})
class C{0}_2: below = ({1})
"""


def test_classes_that_lead_to_each_other_on_many_ways_are_taken_apart_once() -> None:
    """Three that refer to each of the next three, and so on: 3 ** 40 ways to the last ones."""
    last = "class C40_0: rate = 1\nclass C40_1: rate = 1\nclass C40_2: rate = 1\n"
    below = [f"C{layer}_0, C{layer}_1, C{layer}_2" for layer in range(1, 41)]
    above = "".join(LAYERS.format(layer, below[layer]) for layer in reversed(range(40)))
    text = last + above + "def f(): return C0_0, C0_1, C0_2\n"
    walked = walk_of(define(text).f)
    assert len(walked.reach.classes) == 3 * 41
    assert len(walked.reach.objects) < 1000
    assert walked.fingerprint.digest != digest_of(define(text.replace("rate = 1", "rate = 2")).f)


CIRCLE = """
class A:
    def to_b(self): return B
class B:
    rate = 1
    def to_a(self): return A
def both(): return A, B
def other(): return B, A
"""


def test_what_was_walked_over_before_does_not_decide() -> None:
    """Of classes that lead to each other, the one that was met first is not another one."""
    first, second, third = (define(CIRCLE) for _ in range(3))
    digest_of(first.A)
    digest_of(second.B)
    assert digest_of(first.both) == digest_of(second.both) == digest_of(third.both)
    assert digest_of(first.other) == digest_of(second.other) == digest_of(third.other)
    second.B.rate = 2
    assert digest_of(second.both) != digest_of(third.both)
    assert digest_of(second.A) != digest_of(third.A)


UNWATCHED = """
class C:
    table = array("i", [1])
    def get(self): return self.table[0]
def make():
    def g(x): return x * C().get()
    return g
"""


def test_a_class_is_taken_apart_anew_for_each_function() -> None:
    """What no guard can see, such as the items of an array of Python's, may have changed."""
    made = define(UNWATCHED, array=array)
    before = digest_of(made.make())
    made.C.table[0] = 99
    assert digest_of(made.make()) != before


ENUM = "class C(Enum):"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A = 1\nB = 2", "A = 2\nB = 1"),
        ("A = 1\nB = 2", "B = 2\nA = 1"),
        ("A = 1", "B = 1"),
        ("A = [1]", "A = [2]"),
        ("A = 1\ndef m(self): return 1", "A = 1\ndef m(self): return 2"),
    ],
)
def test_members_of_an_enumeration_count(one: str, other: str) -> None:
    """Names, values and their order."""
    first, again, second = (cls(body, ENUM, Enum=Enum) for body in (one, one, other))
    assert digest_of(first) == digest_of(again) != digest_of(second)


def test_a_class_that_jax_knows_as_a_tree_counts_by_that_too() -> None:
    """How it is taken apart decides about results."""

    def registered(child: str) -> bytes:
        made = cls("def __init__(self, a, b): self.a, self.b = a, b")
        jax.tree_util.register_pytree_node(
            made,
            function(f"return (x.{child},), None"),
            function("return None", "x, y"),
        )
        return digest_of(made)

    plain = digest_of(cls("def __init__(self, a, b): self.a, self.b = a, b"))
    assert registered("a") == registered("a") != registered("b")
    assert plain not in (registered("a"), registered("b"))
