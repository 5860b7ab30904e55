"""Enums arrive with members that are still members."""

from __future__ import annotations

import enum
from typing import Any

from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.classes import enum_description, enum_state
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.pickling.processes import round_trip


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"
    ALIAS = "r"  # noqa: PIE796  an alias is what it is to be

    def shout(self) -> str:
        return str(self.value).upper()


class Planet(enum.Enum):
    EARTH = (4.0, 2.0)

    def __init__(self, mass: float, radius: float) -> None:
        self.mass = mass
        self.radius = radius

    @property
    def gravity(self) -> float:
        return self.mass / self.radius


class Number(enum.IntEnum):
    ONE = 1
    TWO = enum.auto()


class Word(enum.StrEnum):
    HELLO = enum.auto()


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Coordinate(bytes, enum.Enum):
    label: str

    def __new__(cls, value: int, label: str) -> Any:
        made = bytes.__new__(cls, [value])
        made._value_ = value
        made.label = label
        return made

    X = (7, "P.X")


def test_members_are_found_by_name_and_value() -> None:
    """Aliases too."""

    def use() -> list[Any]:
        red = Color.RED
        found = [Color("r") is red, Color["ALIAS"] is red, red.shout(), [c.name for c in Color]]
        return [*found, isinstance(red, Color)]

    assert round_trip(use)() == [True, True, "R", ["RED", "BLUE"], True]


def test_members_keep_what_init_gave_them() -> None:
    """It does not run again."""

    def use() -> tuple[float, ...]:
        earth = Planet((4.0, 2.0))  # type: ignore[call-arg, arg-type]
        return earth.mass, earth.gravity

    assert round_trip(use)() == (4.0, 2.0)


def test_enums_over_other_types_are_of_these_types() -> None:
    """Numbers, strings, flags."""

    def use() -> list[Any]:
        both = Access.READ | Access.WRITE
        return [Number.TWO + 1, Word.HELLO.upper(), Access.READ in both, Access(3) == both]

    assert round_trip(use)() == [3, "HELLO", True, True]


def test_members_made_by_a_new_of_the_users() -> None:
    """Their value may be another than what they are made from."""

    def use() -> list[Any]:
        found = Coordinate.X
        again = Coordinate(7)  # type: ignore[call-arg]
        return [found.label, found.value, again is found, bytes(found)]

    assert round_trip(use)() == ["P.X", 7, True, b"\x07"]


def test_a_member_as_an_argument_is_that_member() -> None:
    """Of the one class that the server has."""
    first, second = (unpack(pack(Color.BLUE, "it")) for _ in range(2))
    assert first is second
    assert first.name == "BLUE"


def test_what_the_metaclass_makes_does_not_travel() -> None:
    """Members are described once; `enum` computes the rest."""
    _, name, bases, members, _ = enum_description(Color)
    assert (name, bases) == ("Color", (enum.Enum,))
    assert members == {"RED": "r", "BLUE": "b", "ALIAS": "r"}
    kept = enum_state(Color, vars(Color))["attributes"]
    assert "shout" in kept
    assert "_member_map_" not in kept
    assert "RED" not in kept
