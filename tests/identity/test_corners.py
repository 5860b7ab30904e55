"""Differences that are easily overlooked, each found once in a review."""

from __future__ import annotations

import abc
import array
import builtins
import ctypes
import enum
import textwrap
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import WalkResult, walk


def seen(function: Any) -> WalkResult:
    """What a walk finds."""
    return walk(function, "it")


def reads(value: Any) -> Callable[[Any], Any]:
    """A function that closes over a value."""
    return lambda x: (value, x)


def made_by(factor: int) -> Any:
    """An enum whose members are made by a `__new__` of its own."""
    names: dict[str, Any] = {"enum": enum, "__name__": "__main__"}
    exec(
        "class Size(enum.Enum):\n"
        "    def __new__(cls, value):\n"
        "        made = object.__new__(cls)\n"
        f"        made._value_, made.scale = value, value * {factor}\n"
        "        return made\n"
        "    SMALL = 1\n",
        names,
    )
    return names["Size"]


def test_how_an_enum_makes_its_members_counts() -> None:
    """Not only the values that come of it."""
    digests = [seen(reads(made_by(factor))).fingerprint.digest for factor in (2, 2, 3)]
    assert digests[0] == digests[1] != digests[2]


def test_what_a_member_has_beside_its_value_counts() -> None:
    """Also when it was set from outside."""
    size = made_by(2)
    before = seen(reads(size))
    size.SMALL.weight = 3
    assert not before.guards.hold()
    assert seen(reads(size)).fingerprint.digest != before.fingerprint.digest


def test_a_class_that_was_registered_with_an_abstract_one_counts() -> None:
    """`isinstance` says something else then."""

    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    function = reads((Shape, Square))
    before = seen(function)
    Shape.register(Square)
    assert not before.guards.hold()
    assert seen(function).fingerprint.digest != before.fingerprint.digest


class Attributes(dict[str, Any]):
    """Gives its entries as attributes, and KeyError for others."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@pytest.mark.parametrize("value", [Attributes(lr=0.5), 1 << 20_000], ids=["attributes", "large"])
def test_what_is_awkward_to_look_at_is_walked_over(value: Any) -> None:
    """An object that raises for unknown attributes; a number that Python does not print."""
    assert seen(reads(value)).fingerprint.digest == seen(reads(value)).fingerprint.digest


def test_a_global_that_raises_for_unknown_attributes_can_be_read() -> None:
    """As the code reads it."""
    names: dict[str, Any] = {"CONFIG": Attributes(lr=0.5), "__name__": "__main__"}
    exec("def f(x): return x * CONFIG.lr", names)
    before = seen(names["f"])
    names["CONFIG"]["lr"] = 0.7
    assert not before.guards.hold()
    assert seen(names["f"]).fingerprint.digest != before.fingerprint.digest


def object_array() -> Any:
    """An array of objects."""
    return np.array([1, "a"], dtype=object)


def change_first(value: Any) -> None:
    """In place."""
    value[0] = 7


BASE, TABLE = np.zeros(3), {"lr": 1}


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (object_array(), change_first),
        (np.broadcast_to(BASE, (2, 3)), lambda _: change_first(BASE)),
        (np.zeros(2).view(np.recarray), lambda value: value.fill(3)),
        (MappingProxyType(TABLE), lambda _: TABLE.update(lr=2)),
        (array.array("d", [1.0]), change_first),
        ((ctypes.c_double * 2)(), change_first),
    ],
    ids=[
        "objects",
        "a view that cannot be written to",
        "an array of another class",
        "a view of a dict",
        "an array of Python",
        "an array of C",
    ],
)
def test_a_change_in_place_is_noticed(value: Any, change: Callable[[Any], Any]) -> None:
    """Although the object is the same."""
    before = seen(reads(value))
    assert before.guards.hold()
    change(value)
    assert not before.guards.hold()


def test_a_builtin_that_was_replaced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's are as Python made them."""
    monkeypatch.setattr(builtins, "hex", lambda x: x)
    with pytest.raises(PackingError, match=r"hex .*builtins"):
        seen(lambda x: hex(x) + "")


def test_a_function_with_builtins_of_its_own_is_refused() -> None:
    """As `exec` makes it where it is given some; the server has only Python's own."""
    names: dict[str, Any] = {"__builtins__": {"hex": str}}
    exec("def f(x): return hex(x)\ndef g(x): return x", names)
    with pytest.raises(PackingError, match=r"f uses hex .*has builtins of its own"):
        seen(names["f"])
    assert seen(names["g"]).guards.hold()


@pytest.mark.parametrize("wrap", [staticmethod, classmethod, property, lambda f: f])
def test_an_installed_class_with_code_of_the_users_is_refused(
    wrap: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the code is wrapped."""
    monkeypatch.setattr(textwrap.TextWrapper, "fill", wrap(lambda *args: args))
    with pytest.raises(PackingError, match=r"TextWrapper, whose fill was replaced"):
        seen(lambda x: textwrap.TextWrapper)


def test_a_setting_of_an_installed_class_counts_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does behind the module's."""
    names: dict[str, Any] = {"Settings": textwrap.TextWrapper, "__name__": "__main__"}
    exec("def f(x): return x * Settings.factor", names)
    monkeypatch.setattr(textwrap.TextWrapper, "factor", 1, raising=False)
    before = seen(names["f"])
    monkeypatch.setattr(textwrap.TextWrapper, "factor", 2)
    assert not before.guards.hold()
    assert seen(names["f"]).fingerprint.digest != before.fingerprint.digest
