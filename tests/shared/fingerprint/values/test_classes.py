"""Classes: the user's own by all that is in them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from tests.shared.fingerprint.defining import define, digest_of, walk_of


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
