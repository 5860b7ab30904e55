"""Plain objects in parts, and constants of installed modules by name."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest

from jaxd_protocol.pickling.pack.instances import constant_name, is_plain, reduce_partial
from tests.shared.pickling.processes import round_trip


class Settings:
    pass


SETTINGS: Any = Settings()
SETTINGS.rate = 0.5
SETTINGS.stream = (number for number in [1])
SETTINGS.inner = Settings()
SETTINGS.inner.width = [3]
SETTINGS.inner.other = SETTINGS.stream
TABLE: dict[str, Any] = {
    "rate": 3,
    "stream": SETTINGS.stream,
    "inner": {"x": 1, "y": SETTINGS.stream},
}
SPACE = types.SimpleNamespace(rate=0.25, stream=SETTINGS.stream)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    stream: Any


FROZEN = Frozen(1, SETTINGS.stream)


def test_of_an_object_only_the_attributes_that_are_read_travel() -> None:
    """What else it holds need not be packable. Frozen objects and those with slots too."""

    def use() -> list[Any]:
        return [SETTINGS.rate, SETTINGS.inner.width, FROZEN.a, SPACE.rate]

    copy = round_trip(use)
    assert copy() == [0.5, [3], 1, 0.25]
    assert vars(copy.__globals__["SETTINGS"]).keys() == {"rate", "inner"}


def test_of_a_dict_only_the_keys_that_are_read_travel() -> None:
    """When they are constants."""

    def use() -> list[Any]:
        return [TABLE["rate"], TABLE["inner"]["x"]]

    copy = round_trip(use)
    assert copy() == [3, 1]
    assert copy.__globals__["TABLE"] == {"rate": 3, "inner": {"x": 1}}


def test_of_the_object_of_a_method_only_what_it_reads_travels() -> None:
    """The method is called on it as before."""
    assert round_trip(Reader().read)() == 4


class Reader:
    def __init__(self) -> None:
        self.value = 4
        self.stream = SETTINGS.stream

    def read(self) -> int:
        return self.value


class Cyclic:
    def itself(self) -> bool:
        return CYCLIC is self


CYCLIC: Any = Cyclic()
CYCLIC.me = CYCLIC


def test_an_object_that_its_own_methods_reach() -> None:
    """It is one object on the other side as well."""

    def use() -> bool:
        return CYCLIC.itself() and CYCLIC.me is CYCLIC

    assert round_trip(use)()


def test_a_part_has_only_what_the_object_has() -> None:
    """A name that is looked for and missing stays missing."""
    reduced = reduce_partial(SETTINGS, {"rate", "absent"}, {})
    assert reduced[2] == {"rate": 0.5}


def test_constants_of_installed_modules_have_a_name() -> None:
    """Code compares them by identity."""
    assert constant_name(dataclasses.MISSING) == ("dataclasses", "MISSING")
    assert constant_name(SETTINGS) is None
    assert constant_name(dataclasses.field()) is None


@pytest.mark.parametrize(
    ("cls", "plain"),
    [(Settings, True), (Frozen, True), (types.SimpleNamespace, True), (dict, False), (str, False)],
)
def test_an_object_that_holds_something_in_c_is_not_plain(cls: type, plain: bool) -> None:
    """It cannot be made from attributes."""
    assert is_plain(cls) is plain
    assert is_plain(type("Below", (cls,), {})) is plain or cls is types.SimpleNamespace
