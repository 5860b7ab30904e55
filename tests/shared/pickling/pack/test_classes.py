"""Classes by value."""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypedDict, TypeVar

import pytest

from jaxd_protocol.fingerprint import content_id, walk
from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.pickling.processes import (
    call_in_subprocess,
    pack_in_subprocess,
    round_trip,
    write,
)

REGISTRY: dict[str, int] = {}
OFFSET = 5


class Base:
    x = 1

    def __init_subclass__(cls, *, key: int, **more: Any) -> None:
        REGISTRY[cls.__name__] = key

    def hello(self) -> str:
        return "base"


class Child(Base, key=3):
    def __init__(self) -> None:
        self.y = OFFSET

    def hello(self) -> str:
        return super().hello() + f" child {self.y}"

    @property
    def doubled(self) -> int:
        return self.y * 2

    @staticmethod
    def static() -> int:
        return Child.x

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @functools.cached_property
    def cached(self) -> int:
        return self.y * 3


def test_a_class_keeps_all_kinds_of_methods() -> None:
    """`super()`, properties, static and class methods among them."""

    def use() -> list[Any]:
        child = Child()
        parts = [child.hello(), child.doubled, child.static(), child.named(), child.cached]
        return [*parts, isinstance(child, Base), Child.__qualname__]

    assert round_trip(use)() == ["base child 5", 10, 1, "Child", 15, True, "Child"]


def test_hooks_of_a_base_do_not_run_again() -> None:
    """What they did is in the classes and globals that travel."""

    def use() -> dict[str, int]:
        Child()
        return REGISTRY

    assert round_trip(use)() == {"Child": 3}


class Meta(type):
    must: int

    def __new__(mcs, name: str, bases: Any, content: Any, *, must: int) -> Any:
        cls = super().__new__(mcs, name, bases, content)
        cls.must = must
        return cls

    def __init__(cls, *args: Any, must: int) -> None:
        pass

    def __len__(cls) -> int:
        return cls.must


class WithMeta(metaclass=Meta, must=4):
    pass


def test_a_metaclass_travels_and_does_not_run_again() -> None:
    """It would ask for arguments that are gone."""

    def use() -> tuple[int, int]:
        return len(WithMeta), type(WithMeta()).must

    assert round_trip(use)() == (4, 4)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(kw_only=True)
class Keywords:
    a: int
    b: list[int] = dataclasses.field(default_factory=list)


FROZEN = Frozen(3)


def test_dataclasses_stay_dataclasses() -> None:
    """With slots, frozen, by keyword; their sentinels are Python's own."""

    def use() -> list[Any]:
        keywords = Keywords(a=2)
        fields = dataclasses.fields(keywords)
        return [
            repr(Frozen(1)),
            dataclasses.asdict(dataclasses.replace(keywords, a=9)),
            hash(Frozen(3)) == hash(FROZEN),
            {FROZEN: "found"}[Frozen(3)],
            fields[0].default is dataclasses.MISSING,
            dataclasses.is_dataclass(Frozen),
        ]

    assert round_trip(use)() == [
        "Frozen(a=1, b=(1, 2))",
        {"a": 9, "b": []},
        True,
        "found",
        True,
        True,
    ]


class Named(NamedTuple):
    a: int
    b: str = "x"

    def both(self) -> tuple[int, str]:
        return self.a, self.b


Old = collections.namedtuple("Old", "p q", defaults=[3])  # noqa: PYI024  the old way counts too


class Typed(TypedDict, total=False):
    a: int


class CanGo(Protocol):
    def go(self) -> int: ...


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self) -> int: ...


class Concrete(Abstract):
    def f(self) -> int:
        return 1


class Virtual:
    pass


Abstract.register(Virtual)
T = TypeVar("T")


class Box(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


class IntBox(Box[int]):
    pass


def test_the_kinds_of_classes_that_typing_has() -> None:
    """Named tuples, typed dicts, protocols, abstract and generic classes."""

    def use() -> list[Any]:
        return [
            Named(1).both(),
            Named._fields,
            tuple(Old(1)),
            dict(Typed(a=1)),
            issubclass(CanGo, Protocol),
            Concrete().f(),
            Abstract.__abstractmethods__ == {"f"},
            isinstance(Virtual(), Abstract),
            Box[int](3).value,
            IntBox(4).value,
            Box.__parameters__ == (T,),  # type: ignore[attr-defined]
        ]

    expected = [(1, "x"), ("a", "b"), (1, 3), {"a": 1}, True, 1, True, True, 3, 4, True]
    assert round_trip(use)() == expected


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self.name


class Slotted:
    described = Descriptor()
    __slots__ = ("__private", "a")

    def __init__(self) -> None:
        self.a = 1
        self.__private = 2

    def sum(self) -> int:
        return self.a + self.__private


def test_slots_and_descriptors() -> None:
    """Slots are made with the class, and descriptors know their names."""

    def use() -> tuple[Any, ...]:
        return Slotted().sum(), Slotted().described, hasattr(Slotted(), "__dict__")

    assert round_trip(use)() == (3, "described", False)


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


def test_the_same_class_arrives_in_each_argument() -> None:
    """It is made once, and instances compare equal."""
    first, second = (unpack(pack(Argument(1), "it")) for _ in range(2))
    assert type(first) is type(second)
    assert first == second
    assert type(first) is not Argument


def test_the_class_of_an_argument_is_that_of_the_function() -> None:
    """So `isinstance` in the function is right about its arguments."""

    def check(value: Any) -> bool:
        return isinstance(value, Argument)

    assert round_trip(check)(unpack(pack(Argument(1), "it")))


def test_packing_leaves_the_class_alone() -> None:
    """Nothing is written into the client's own."""
    before = dict(vars(Argument))
    unpack(pack(Argument(1), "it"))
    assert dict(vars(Argument)) == before


def test_classes_that_were_met_are_listed() -> None:
    """So that results come back as instances of this process's own."""

    def make() -> Argument:
        return Argument(1)

    packed = pack_function(make, "it", walk(make, "it").reach)
    assert packed.classes[__name__, "Argument"] is Argument
    assert Argument in packed.objects.values()
    assert pack(Argument(1), "it").classes[__name__, "Argument"] is Argument


FILES = {
    "shapes.py": """
import dataclasses, enum
@dataclasses.dataclass
class Pair:
    left: int
    right: int = 3
    def sum(self):
        return self.left + self.right
class Color(enum.Enum):
    RED = "red"
def use():
    pair = Pair(5)
    return pair.sum(), Color.RED.value, isinstance(pair, Pair), Pair.__qualname__
"""
}


def test_classes_run_where_their_module_is_not(tmp_path: Path) -> None:
    """In another process."""
    packed = pack_in_subprocess(write(tmp_path / "author", FILES), "shapes", ["use"])
    assert call_in_subprocess(tmp_path, packed) == {"use": "(8, 'red', True, 'Pair')"}


def test_classes_are_equal_bytes_in_every_process(tmp_path: Path) -> None:
    """Their ids are their content, and nothing random."""
    author = write(tmp_path, FILES)
    first, second = (
        pack_in_subprocess(author, "shapes", ["use"], PYTHONHASHSEED=seed) for seed in ("1", "2")
    )
    assert first == second


def test_a_class_of_an_installed_package_that_has_no_name_travels_by_value() -> None:
    """A library may make classes at run time."""
    made: Any = type("Made", (), {"__module__": "json", "value": 1})
    assert round_trip(lambda: made().value)() == 1


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


CYCLE = """
class Small:
    def twin(self): return Large
class Large:
    def twin(self): return Small
def both(): return Small, Large
"""


@pytest.mark.parametrize("first", ["Small", "Large", "both"])
def test_a_class_has_one_id_whatever_was_packed_before(first: str) -> None:
    """Also one that leads back to others: arguments are found by it on the server."""

    def names() -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": "cycled"}
        exec(CYCLE, namespace)
        return namespace

    alone = {name: content_id(names()[name]) for name in ("Small", "Large")}
    together = names()
    if first == "both":
        pack_function(together["both"], "it", walk(together["both"], "it").reach)
    else:
        pack(together[first], "it")
    assert {name: content_id(together[name]) for name in alone} == alone


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash_of(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.value == other.value


def hash_of(value: int) -> int:
    return hash((OFFSET, value))


TABLE = {Hashed(1): "x"}
MEMBERS = {Hashed(1), Hashed(5)}


def test_objects_with_a_hash_of_their_own_are_found_again() -> None:
    """Their methods are complete before they are put into a dict or set."""
    assert round_trip(lambda: (TABLE[Hashed(1)], Hashed(5) in MEMBERS))() == ("x", True)
