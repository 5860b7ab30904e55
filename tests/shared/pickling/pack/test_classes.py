"""Classes and enums by value."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.fingerprint.defining import define
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    write,
)

MINE = define("""
import abc, collections, dataclasses, enum, functools, typing
OFFSET, REGISTRY, RATED = 5, {}, []
class Base:
    x = 1
    def __init_subclass__(cls, *, key, **more): REGISTRY[cls.__name__] = key
    def hello(self): return "base"
class Child(Base, key=3):
    def __init__(self): self.y = OFFSET
    def hello(self): return super().hello() + f" child {self.y}"
    @property
    def doubled(self): return self.y * 2
    @staticmethod
    def static(): return Child.x
    @classmethod
    def named(cls): return cls.__name__
    @functools.cached_property
    def cached(self): return self.y * 3
class Meta(type):
    def __new__(mcs, name, bases, content, *, must):
        cls = super().__new__(mcs, name, bases, content)
        cls.must = must
        return cls
    def __init__(cls, *args, must): pass
    def __len__(cls): return cls.must
class WithMeta(metaclass=Meta, must=4): pass
@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple = (1, 2)
@dataclasses.dataclass(kw_only=True)
class Keywords:
    a: int
    b: list = dataclasses.field(default_factory=list)
FROZEN = Frozen(3)
def keywords():
    made = Keywords(a=2)
    replaced = dataclasses.asdict(dataclasses.replace(made, a=9))
    return replaced, dataclasses.fields(made)[0].default is dataclasses.MISSING
class Named(typing.NamedTuple):
    a: int
    b: str = "x"
    def both(self): return self.a, self.b
Old = collections.namedtuple("Old", "p q", defaults=[3])
class Typed(typing.TypedDict, total=False):
    a: int
class CanGo(typing.Protocol):
    def go(self): ...
class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...
class Concrete(Abstract):
    def f(self): return 1
class Virtual: pass
Abstract.register(Virtual)
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    def __init__(self, value): self.value = value
class IntBox(Box[int]): pass
class Shelf(typing.Generic[T]):
    def first(self): return Deep()
class Deep(Shelf[T]): pass
class Descriptor:
    def __set_name__(self, owner, name): self.name = name
    def __get__(self, instance, owner): return self.name
class Rated(property):
    def __init__(self, get=None, *, rate=2):
        RATED.append(rate)
        super().__init__(get)
        self.rate = rate
class Once(functools.cached_property):
    def __set_name__(self, owner, name): super().__set_name__(owner, "kept_" + name)
class Plain(staticmethod):
    label = "plain"
class OfClass(classmethod): pass
class Described:
    @Rated
    def double(self): return 4
    triple = Rated(lambda self: 6, rate=3)
    @Once
    def once(self): return [OFFSET]
    plain, named = Plain(lambda: 7), OfClass(lambda cls: cls.__name__)
    def rates(self): return [each.rate for each in vars(type(self)).values() if type(each) is Rated]
class One:
    def __new__(cls):
        if "only" not in vars(cls): cls.only = super().__new__(cls)
        return cls.only
class Only(One):
    first = 1
    def last(self): return 2
ONLY = Only()
class Slotted:
    described = Descriptor()
    __slots__ = ("__private", "a")
    def __init__(self): self.a, self.__private = 1, 2
    def sum(self): return self.a + self.__private
class Hashed:
    def __init__(self, value): self.value = value
    def __hash__(self): return hash_of(self.value)
    def __eq__(self, other): return isinstance(other, Hashed) and self.value == other.value
def hash_of(value): return hash((OFFSET, value))
TABLE, MEMBERS = {Hashed(1): "x"}, {Hashed(1), Hashed(5)}
Made = type("Made", (), {"__module__": "json", "value": 1})
class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
    ALIAS = "r"
    def shout(self): return str(self.value).upper()
class Planet(enum.Enum):
    EARTH = (4.0, 2.0)
    def __init__(self, mass, radius): self.mass, self.radius = mass, radius
    @property
    def gravity(self): return self.mass / self.radius
class Number(enum.IntEnum):
    ONE = 1
    TWO = enum.auto()
class Word(enum.StrEnum):
    HELLO = enum.auto()
class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
class Coordinate(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    X = (7, "P.X")
X = Coordinate.X
""")
ROWS: dict[str, tuple[str, Any]] = {
    "super and a property": ("Child().hello(), Child().doubled", ("base child 5", 10)),
    "other kinds of methods": ("Child.static(), Child.named(), Child().cached", (1, "Child", 15)),
    "its bases and its name": ("isinstance(Child(), Base), Child.__qualname__", (True, "Child")),
    "the hook of a base does not run again": ("Child() and REGISTRY", {"Child": 3}),
    "a metaclass does not run again": ("len(WithMeta), type(WithMeta()).must", (4, 4)),
    "a frozen dataclass": (
        "repr(Frozen(1)), {FROZEN: 'found'}[Frozen(3)], dataclasses.is_dataclass(Frozen)",
        ("Frozen(a=1, b=(1, 2))", "found", True),
    ),
    "sentinels of dataclasses are Python's own": ("keywords()", ({"a": 9, "b": []}, True)),
    "named tuples": (
        "Named(1).both(), Named._fields, tuple(Old(1))",
        ((1, "x"), ("a", "b"), (1, 3)),
    ),
    "a typed dict and a protocol": (
        "dict(Typed(a=1)), issubclass(CanGo, typing.Protocol)",
        ({"a": 1}, True),
    ),
    "abstract classes": (
        "Concrete().f(), Abstract.__abstractmethods__ == {'f'}, isinstance(Virtual(), Abstract)",
        (1, True, True),
    ),
    "generic classes": (
        "Box[int](3).value, IntBox(4).value, Box.__parameters__ == (T,)",
        (3, 4, True),
    ),
    "a generic class whose method names one that is derived from it": (
        "type(Shelf[int]().first()) is Deep, Deep[int].__args__, Deep.__parameters__ == (T,)",
        (True, (int,), True),
    ),
    "descriptors of a class of one's own": (
        (
            "(Described().double, Described().triple, Described().once), Described().rates(), "
            "RATED, Described.plain(), Described().named(), type(vars(Described)['once']).__name__"
        ),
        ((4, 6, [5]), [2, 3], [2, 3], 7, "Described", "Once"),
    ),
    "a class that keeps its only instance": (
        "Only() is ONLY is Only.only, [name for name in vars(Only) if name[0] != '_']",
        (True, ["first", "last", "only"]),
    ),
    "slots and descriptors": (
        "Slotted().sum(), Slotted().described, hasattr(Slotted(), '__dict__')",
        (3, "described", False),
    ),
    "objects with a hash of their own": ("TABLE[Hashed(1)], Hashed(5) in MEMBERS", ("x", True)),
    "a nameless class of an installed package": ("Made().value", 1),
    "members of an enum": (
        "Color('r') is Color.RED, Color['ALIAS'] is Color.RED, Color.RED.shout()",
        (True, True, "R"),
    ),
    "the order of members": ("[each.name for each in Color]", ["RED", "BLUE"]),
    "what init gave a member": ("Planet((4.0, 2.0)).mass, Planet.EARTH.gravity", (4.0, 2.0)),
    "enums over other types": (
        "Number.TWO + 1, Word.HELLO.upper(), Access(3) == Access.READ | Access.WRITE",
        (3, "HELLO", True),
    ),
    "members that a new has made": (
        "X.label, X.value, Coordinate(7) is X, bytes(X)",
        ("P.X", 7, True, b"\x07"),
    ),
}


@pytest.mark.parametrize("says", ROWS)
def test_a_class_arrives_as_it_was(says: str) -> None:
    """With all that Python has put into it, and nothing runs again to make it."""
    text, expected = ROWS[says]
    exec(f"def use(): return {text}", vars(MINE))
    assert round_trip(MINE.use)() == expected


def test_a_member_as_an_argument_is_that_member() -> None:
    """Of the one class that the server has."""
    first, second = (unpack(pack(MINE.Color.BLUE, "it")) for _ in range(2))
    assert first is second
    assert first.name == "BLUE"


class Settings:
    rate = 0.5
    broken = (number for number in [1])  # a generator, which cannot travel

    @staticmethod
    def unused() -> Any:
        return Settings.broken


def test_of_a_class_that_is_read_in_part_only_that_part_travels() -> None:
    """The rest need not even be packable."""

    def use() -> float:
        return Settings.rate

    copy = round_trip(use)
    assert copy() == 0.5
    assert not hasattr(copy.__globals__["Settings"], "broken")


@dataclasses.dataclass
class Argument:
    value: int


def test_the_class_of_an_argument_is_that_of_the_function() -> None:
    """So `isinstance` in the function is right about its arguments."""

    def check(value: Any) -> bool:
        return isinstance(value, Argument)

    assert round_trip(check)(unpack(pack(Argument(1), "it")))


def test_classes_that_were_met_are_listed() -> None:
    """So that results come back as instances of this process's own."""

    def make() -> Argument:
        return Argument(1)

    packed = pack_function(make, "it", walk(make, "it").reach)
    assert packed.classes[__name__, "Argument"] is Argument
    assert Argument in packed.objects.values()
    assert pack(Argument(1), "it").classes[__name__, "Argument"] is Argument


def test_an_object_of_a_class_that_was_reloaded_is_one_of_that_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a server has the class, and the object, of before the reload."""
    form = "from forms_base import kind\nclass P: pass\n@kind.register\ndef _(x: P): return "
    files = {
        "forms_base": "import functools\n@functools.singledispatch\ndef kind(x): return 1\n",
        "forms": f"{form}3\n",
        "forms_user": "from forms_base import kind\nimport forms\nvalue = forms.P()\n"
        "def use(): return kind(value)\n",
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    user, forms = map(importlib.import_module, ("forms_user", "forms"))
    assert round_trip(user.use)() == 3
    (tmp_path / "forms.py").write_text(f"{form}53\n")
    importlib.invalidate_caches()
    for module in (forms, user):
        importlib.reload(module)
    assert round_trip(user.use)() == user.use() == 53
    for name in files:
        del sys.modules[name]


@pytest.mark.parametrize("cls", [type(None), type(...), type(NotImplemented), type(lambda: 0)])
def test_classes_of_python_without_a_name_in_builtins(cls: type) -> None:
    """They arrive as themselves."""
    assert unpack(pack(cls, "it")) is cls


# A packer that calls itself for what a method reads gives up at 150 of these classes.
DEEP = """
for i in range(60):
    exec(f"class D{i}(D{i - 1}): pass" if i else "class D0: x = 1")
for i in range(150):
    exec(f"class C{i}:\\n    def f(self): return C{i + 1}().f() + 1")
class C150:
    def f(self): return 0
def bases(): return D59().x, len(D59.__mro__)
def chain(): return C0().f()
"""


@pytest.mark.slow
def test_classes_may_be_nested_as_deeply_as_one_likes(tmp_path: Path) -> None:
    """As bases of each other, or through their methods."""
    packed = pack_in_subprocess(
        write(tmp_path / "author", {"deep.py": DEEP}), "deep", ["bases", "chain"]
    )
    assert call_in_subprocess(tmp_path, packed) == {"bases": "(1, 61)", "chain": "150"}
