"""Two values that differ in anything give two keys, however the value is reached."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.identity.probing import ProbeResult
from tests.identity.projects import Edit, check, edit, probe_edits

PAIRS = [
    ("1", "2"),
    ("1", "1.0"),
    ("1", "True"),
    ("0", "False"),
    ("0", "None"),
    ("1", "1 + 0j"),
    ("0.0", "-0.0"),
    ("0j", "-0j"),
    ("1", '"1"'),
    ('b"a"', '"a"'),
    ('b"a"', 'bytearray(b"a")'),
    ('"a"', '"a\\0"'),
    ("...", "NotImplemented"),
    ("2**70", "2**70 + 1"),
    ('float("nan")', 'float("inf")'),
    ("(1, 23)", "(12, 3)"),
    ('("ab", "c")', '("a", "bc")'),
    ("(1, 2)", "(2, 1)"),
    ("(1, (2, 3))", "(1, 2, 3)"),
    ("((), 1)", "((1,),)"),
    ("(1, 2)", "[1, 2]"),
    ("[[1], 2]", "[1, [2]]"),
    ("{1, 2}", "frozenset({1, 2})"),
    ("{1, 2}", "{1, 3}"),
    ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
    ('{"a": 1, "b": 2}', '{"a": 2, "b": 1}'),
    ('{"a": 1}', '{"a": 1, "b": None}'),
    ('{"a": 1}', 'OrderedDict({"a": 1})'),
    ("defaultdict(int)", "defaultdict(float)"),
    ("deque([1])", "deque([1], maxlen=3)"),
    ("range(3)", "range(4)"),
    ("slice(1, 2)", "slice(2, 1)"),
    ("Point(1, 2)", "(1, 2)"),
    ("Point(1, 2)", "Point(1, 3)"),
    ("Whole(3)", "3"),
    ("Whole(3)", "Whole(4)"),
    ("Color.RED", "Color.BLUE"),
    ("Color", "Point"),
    ('Flag("Bits", "A B", boundary=KEEP)', 'Flag("Bits", "A B", boundary=CONFORM)'),
    ("len", "sum"),
    ("int", "float"),
    ('Decimal("1.0")', 'Decimal("1.00")'),
    ("Fraction(1, 2)", "Fraction(1, 3)"),
    ("date(2026, 1, 1)", "date(2026, 1, 2)"),
    ('PurePosixPath("a")', 'PurePosixPath("b")'),
    ('re.compile("a")', 're.compile("a", re.I)'),
    ("partial(max, 1)", "partial(max, 2)"),
    ("partial(max, key=abs)", "partial(max, key=len)"),
    ('attrgetter("a")', 'attrgetter("b")'),
    ("partial(partial(max, 1), 2)", "partial(partial(max, 2), 1)"),
    ('"ab".join', '"cd".join'),
    ("[1].count", "[2].count"),
    ("{1: 2}.get", "{1: 3}.get"),
    ("np.arange(3).sum", "np.arange(4).sum"),
    ('re.compile("a").match', 're.compile("b").match'),
    ('re.compile("a").match', 're.compile("a").search'),
    ("itemgetter(1)", "itemgetter(2)"),
    ('MappingProxyType({"a": 1})', 'MappingProxyType({"a": 2})'),
    ("ChainMap({1: 2}, {3: 4})", "ChainMap({3: 4}, {1: 2})"),
    ('Counter("aab")', 'Counter("abb")'),
    ("UserDict(a=1)", "UserDict(a=2)"),
    ('array("i", [1])', 'array("l", [1])'),
    ("timedelta(1)", "timedelta(2)"),
    ("UUID(int=1)", "UUID(int=2)"),
    ('ValueError("a")', 'ValueError("b")'),
    ('ValueError("a")', 'TypeError("a")'),
    ("Named('a')", "'a'"),
    ("Named('a')", "Named('a', 'm')"),
    ("list[int]", "list[float]"),
    ("int | str", "int | bytes"),
    ("Literal[1]", "Literal[True]"),
    ("Optional[int]", "Optional[float]"),
    ("property(len)", "property(sum)"),
    ("staticmethod(len)", "classmethod(len)"),
    ("lru_cache(len)", "lru_cache(abs)"),
    ("lru_cache(len)", "lru_cache(typed=True)(len)"),
    ("rated(1)", "rated(2)"),
    ('type("X", (), {"a": 1})', 'type("X", (), {"a": 2})'),
    ('type("X", (int,), {})', 'type("X", (float,), {})'),
    ('make_dataclass("D", [("a", int, 1)])', 'make_dataclass("D", [("a", int, 2)])'),
    ('new_class("X", (), {}, set_one)', 'new_class("X", (), {}, set_two)'),
    ("Single(1)", "Single(2)"),
    ("lambda x: x + 1", "lambda x: x + 2"),
    ("math", "re"),
    ("SimpleNamespace(a=1)", "SimpleNamespace(a=2)"),
    ("Box(1)", "Box(2)"),
    ("Box(1)", "Case(1)"),
    ("Slotted(1)", "Slotted(2)"),
    ("Frozen(1)", "Frozen(2)"),
    ("Box([Box(1)])", "Box([Box(2)])"),
    ("np.float32(3)", "3.0"),
    ("np.float64(3)", "3.0"),
    ("np.float32(3)", "np.float64(3)"),
    ("np.float64(3)", "np.array(3.0)"),
    ("np.arange(3)", "[0, 1, 2]"),
    ("np.zeros(2, 'f4')", "np.zeros(2, 'i4')"),
    ("np.zeros(2, '<f4')", "np.zeros(2, '>f4')"),
    ("np.zeros((2, 3))", "np.zeros((3, 2))"),
    ("np.zeros((0, 3))", "np.zeros((3, 0))"),
    ("np.zeros(1000)", "np.eye(1000)[999]"),
    ("np.array([1, 2])", "np.array([2, 1])"),
    ("np.arange(4).reshape(2, 2)", "np.arange(4).reshape(2, 2).T"),
    ("np.ones((2, 3))", "np.ones((2, 3), order='F')"),
    ("np.ones((2, 3, 4))", "np.ones((3, 2, 4)).transpose(1, 0, 2)"),
    ("np.array([0.0])", "np.array([-0.0])"),
    ("np.array([1, None], object)", "np.array([2, None], object)"),
    ("np.zeros(2, [('a', 'f4')])", "np.zeros(2, [('b', 'f4')])"),
    ("np.array(['a'])", "np.array(['b'])"),
    ("np.array(0, 'M8[s]')", "np.array(0, 'M8[ms]')"),
    ("np.ma.array([1, 2], mask=[0, 1])", "np.ma.array([1, 2], mask=[1, 0])"),
    ("np.dtype('f4')", "np.dtype('f8')"),
    ("np.add", "np.multiply"),
    ("np.str_('a')", "'a'"),
    ("np.bool_(True)", "True"),
    ("np.datetime64(0, 's')", "np.datetime64(1, 's')"),
    ("np.poly1d([1, 2])", "np.poly1d([2, 1])"),
    ("np.vectorize(len)", "np.vectorize(sum)"),
    ("np.matrix([1])", "np.array([[1]])"),
    ("np.array([1, 2]).view(Tagged)", "np.array([1, 2])"),
    ("tagged(1)", "tagged(2)"),
    ("tagged(1)", "np.array([1, 2]).view(Tagged)"),
    ("Degrees(3)", "np.float64(3)"),
    ("Degrees(3)", "Degrees(4)"),
    ("np.ma.array([1], hard_mask=True)", "np.ma.array([1], hard_mask=False)"),
    ("Scales(1)", "Scales(2)"),
    ("Scales(1)", "Others(1)"),
    ("Passing(1)", "Passing(2)"),
    ("Passing(1, 3)", "Passing(1)"),
    ("Everything(Box(1))", "Everything(Box(2))"),
    ("Counted(1)", "Counted(2)"),
    ("{1: 2}.keys()", "{3: 2}.keys()"),
    ("{1: 2}.values()", "{1: 3}.values()"),
    ("{1: 2}.items()", "{1: 3}.items()"),
    ("memoryview(b'a')", "memoryview(b'b')"),
    ("memoryview(b'ab')", "memoryview(b'ab').cast('H')"),
    ("weakref.WeakMethod(BOX.first)", "weakref.WeakMethod(BOX.second)"),
    ("time.struct_time(range(9))", "time.struct_time(range(1, 10))"),
    ("sys.version_info", "tuple(sys.version_info)"),
    ("sys.float_info", "sys.int_info"),
    ("np.ma.array([1, 2], fill_value=3)", "np.ma.array([1, 2], fill_value=4)"),
    ("np.random.RandomState(1)", "np.random.RandomState(2)"),
    ("np.random.default_rng(1)", "np.random.default_rng(2)"),
]

SOURCE = """
import math, re, sys, threading, time, weakref
from array import array
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, make_dataclass
from datetime import date, timedelta
from decimal import Decimal
from enum import CONFORM, KEEP, Enum, Flag
from fractions import Fraction
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from pathlib import PurePosixPath
from types import MappingProxyType, SimpleNamespace, new_class
from typing import Literal, Optional
from uuid import UUID
import numpy as np

Point = namedtuple("Point", "x y")
Color = Enum("Color", "RED BLUE")
class Whole(int): pass
def rated(rate):
    made = lru_cache(len)
    made.rate = rate
    return made
class Tagged(np.ndarray): pass
def tagged(unit):
    made = np.array([1, 2]).view(Tagged)
    made.unit = unit
    return made
class Degrees(np.float64): pass
class Passing:
    __slots__ = ("inner", "unset")
    def __init__(self, inner, *unset):
        self.inner = inner
        if unset: self.unset = unset
    def __getattr__(self, name): return getattr(self.inner, name)
class Everything:
    def __init__(self, inner): object.__setattr__(self, "inner", inner)
    def __getattribute__(self, name): return getattr(object.__getattribute__(self, "inner"), name)
class Counted:
    def __new__(cls, count):
        made = object.__new__(cls)
        made.count = count
        return made
class Scales(threading.local):
    by = 2
    def __init__(self, inside): self.inside = inside
class Others(threading.local):
    by = 3
    def __init__(self, inside): self.inside = inside
class Methods:
    def first(self): return 1
    def second(self): return 2
BOX = Methods()
class Single:
    def __init__(self, inside): self.inside = inside
    def __reduce__(self): return "VALUE"
def set_one(names): names["a"] = 1
def set_two(names): names["a"] = 2
class Named(str):
    def __new__(cls, text, unit=None):
        made = super().__new__(cls, text)
        made.unit = unit
        return made
class Box:
    def __init__(self, inside): self.inside = inside
class Case:
    def __init__(self, inside): self.inside = inside
class Slotted:
    __slots__ = ("inside",)
    def __init__(self, inside): self.inside = inside
@dataclass(frozen=True)
class Frozen:
    inside: int

VALUE = $
def identity(x, value): return x, value
def by_global(x): return x, VALUE
def by_default(x, value=VALUE): return x, value
def by_keyword(x, *, value=VALUE): return x, value
def make(value):
    def by_closure(x): return x, value
    def fills(x): return x, [value] + [value]
    return by_closure, fills
by_closure, nested = make(VALUE)
by_partial = partial(identity, value=VALUE)
in_containers = partial(identity, value=[{"key": (VALUE,)}])
def by_attribute(x): return x, by_attribute.value
by_attribute.value = VALUE
"""
WAYS = "by_global by_default by_keyword by_closure nested by_partial in_containers by_attribute"


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _pair(one: str, other: str) -> Edit:
    source, ways = SOURCE, WAYS
    if _is_literal(one) and _is_literal(other):
        source += "def as_constant(x): return x, ($)\ndef tested(x): return x in (($), 7)\n"
        ways += " as_constant tested"
    row = edit(f"{one} and {other}", source, "$", other, ways, "identity")
    return replace(row, before=source.replace("$", one))


ROWS = [_pair(one, other) for one, other in PAIRS]

PRELOAD = ["decimal", "fractions", "ipaddress", "pathlib", "uuid"]
"""What each of the projects imports."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("values"), ROWS, *PRELOAD)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_two_values_have_two_keys(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """As a global, a default, in a closure, in a container, an attribute, a constant."""
    check(row, seen)
