from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.pytree.decoder import restore_instance


class Plain:
    def __init__(self) -> None:
        raise AssertionError("made by calling it")

    @property
    def guarded(self) -> int:
        return 1

    @guarded.setter
    def guarded(self, value: int) -> None:
        raise AssertionError("a property was set")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("an attribute was set")


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any


class Needy:
    def __new__(cls, x: Any) -> Any:
        return super().__new__(cls)


def test_attributes_are_put_in_place_without_running_anything() -> None:
    """No `__init__`, no property, no `__setattr__`; and the class stays what it is."""
    made = restore_instance(Plain, {"a": 1, "guarded": 2, "__class__": Slotted, "__dict__": {}})
    assert type(made) is Plain
    assert vars(made) == {"a": 1, "guarded": 2, "__class__": Slotted, "__dict__": {}}


def test_attributes_in_slots() -> None:
    """Of frozen classes too."""
    assert restore_instance(Slotted, {"x": 3}) == Slotted(3)


@pytest.mark.parametrize("name", ["y", "__class__", 1])
def test_an_attribute_that_the_class_has_no_place_for(name: Any) -> None:
    """Is refused."""
    with pytest.raises(ProtocolError):
        restore_instance(Slotted, {name: 3})


def test_a_class_that_cannot_be_made() -> None:
    """Is named, with what to do."""
    with pytest.raises(ResultError, match=r"Needy.*Return dicts"):
        restore_instance(Needy, {})
