"""An edit of a class changes the key of what uses it."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import pytest

from tests.identity.probing import ProbeResult
from tests.identity.projects import Edit, check, edit, probe_edits

MODEL = """
from layers import Base
SCALE = 2
class Kind(type):
    def twice(cls): return 2
class Model(Base, metaclass=Kind):
    width = 8
    def __init__(self, rate): self.rate = rate
    def run(self, x): return x * self.rate * self.size
    def __call__(self, x): return self.run(x) + 1
    @property
    def size(self): return self.width + 3
    @staticmethod
    def fixed(x): return x + 4
    @classmethod
    def from_class(cls, x): return cls.width + 5
    def uses_global(self): return SCALE
model = Model(0.5)
def step(x): return Model(2.0)(x)
def by_instance(x): return model(x)
bound = model.run
def other(x): return Base.shared(x)
--- layers.py
class Root:
    def deep(self): return 6
class Base(Root):
    @staticmethod
    def shared(x): return x + 7
"""
ALL = "step by_instance bound"

DATA = """
import enum, typing
from dataclasses import dataclass, field
@dataclass
class Config:
    rate: float = 0.1
    names: list = field(default_factory=lambda: ["a"])
    def scaled(self): return self.rate * 2
@dataclass(frozen=True, order=True)
class Fixed:
    rate: float = 0.2
class Pair(typing.NamedTuple):
    left: int = 1
    right: int = 3
    def total(self): return self.left + self.right
class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"
    def shade(self): return "dark " + self.value
def data(x): return Config().scaled() * x
def fixed(x): return Fixed() < Fixed(x)
def pair(x): return Pair().total() + x
def color(x): return Color.RED.shade() if x else Color.BLUE
"""

SPECIAL = """
class Positive:
    def __set_name__(self, owner, name): self.name = "_" + name
    def __get__(self, object, owner): return 5
def register(cls):
    cls.added = lambda self: 6
    return cls
class Parent:
    def __init_subclass__(cls, unit="m"): cls.unit = unit
    def run(self): return "parent"
    class Nested:
        level = 9
@register
class Child(Parent, unit="km"):
    __slots__ = ("here",)
    value = Positive()
    def run(self): return super().run()
    def __getattr__(self, name): return "missing"
    def __add__(self, other): return 11
above = super
class Grand(Parent):
    def __init__(self): self.rate, self.other = 21, 22
    def explicit(self): return super(Grand, self).read()
    def renamed(self):
        __class__
        return above().read()
    def implicit(self): return super().read()
Parent.read = lambda self: self.rate
grand = Grand()
explicit, renamed, implicit = (getattr(grand, n) for n in ("explicit", "renamed", "implicit"))
def step(x): return Child().run() + x
def other(x): return Positive
# here
"""

ROWS = [
    edit("a method", MODEL, "x * self.rate", "x / self.rate", ALL, "other"),
    edit("a special method", MODEL, "self.run(x) + 1", "self.run(x) + 2", "step by_instance", "other"),
    edit("an attribute of the class", MODEL, "width = 8", "width = 9", ALL, "other"),
    edit("a property", MODEL, "self.width + 3", "self.width + 2", ALL, "other"),
    edit("a static method", MODEL, "x + 4", "x + 5", "step", "other"),
    edit("a class method", MODEL, "cls.width + 5", "cls.width + 6", "step", "other"),
    edit("a static method for a class method", MODEL, "@classmethod\n    def from_class(cls, x)", "@staticmethod\n    def from_class(cls, x)", "step", "other"),
    edit("a global that a method reads", MODEL, "SCALE = 2", "SCALE = 3", "step", "other"),
    edit("the metaclass", MODEL, "return 2", "return 3", "step", "other"),
    edit("the metaclass taken away", MODEL, ", metaclass=Kind", "", "step", "other"),
    edit("a base", MODEL, "Model(Base,", "Model(Base.__base__,", "step", "other"),
    edit("a method of a base in another module", MODEL, "x + 7", "x + 8", "step other"),
    edit("a method of a base's base", MODEL, "return 6", "return 5", "step"),
    edit("the state of a bound instance", MODEL, "Model(0.5)", "Model(0.25)", "bound by_instance", "step"),
    edit("a default of a dataclass", DATA, "rate: float = 0.1", "rate: float = 0.3", "data", "fixed pair"),
    edit("a default factory", DATA, '["a"]', '["b"]', "data", "fixed pair color"),
    edit("a dataclass's method", DATA, "self.rate * 2", "self.rate * 3", "data", "fixed pair color"),
    edit("a dataclass's order", DATA, ", order=True", ", eq=False", "fixed", "data pair color"),
    edit("a dataclass's field", DATA, "    rate: float = 0.2", "    rate: float = 0.2\n    b: int = 0", "fixed", "data"),
    edit("a field's order", DATA, "    left: int = 1\n    right: int = 3", "    right: int = 3\n    left: int = 1", "pair", "data"),
    edit("a default of a named tuple", DATA, "right: int = 3", "right: int = 4", "pair", "data color"),
    edit("a named tuple's method", DATA, "self.left +", "self.left -", "pair", "data color"),
    edit("a value of an enum", DATA, '"red"', '"RED"', "color", "data pair"),
    edit("an enum's method", DATA, '"dark "', '"light "', "color", "data pair"),
    edit("a member of an enum", DATA, '"blue"', '"blue"\n    GREEN = "green"', "color", "data pair"),
    edit("a descriptor", SPECIAL, "return 5", "return 4", "step other"),
    edit("what a class decorator adds", SPECIAL, "self: 6", "self: 7", "step", "other"),
    edit("what is told to a parent", SPECIAL, '"km"', '"mm"', "step", "other"),
    edit("what super() finds", SPECIAL, '"parent"', '"grandparent"', "step", "other"),
    edit("a class within a class", SPECIAL, "level = 9", "level = 8", "step", "other"),
    edit("the fallback for attributes", SPECIAL, '"missing"', '"absent"', "step", "other"),
    edit("state that is read through super()", SPECIAL, "# here", "grand.rate = 7", "explicit renamed implicit", "step other"),
    edit("an operator", SPECIAL, "return 11", "return 12", "step", "other"),
    edit("a method set later", SPECIAL, "# here", "Child.run = lambda self: 'new'", "step", "other"),
    edit("an attribute set later", SPECIAL, "# here", "Parent.late = 1", "step", "other"),
    edit("a slot that is added", SPECIAL, '("here",)', '("here", "there")', "step", "other"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("classes"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_of_a_class_changes_its_users(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """Whatever part of it, and nothing that does not use it."""
    check(row, seen)
