from __future__ import annotations

import decimal
import importlib
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.request import packing_cache
from jaxd.request.packing_cache import guard_content, pack_cached
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.guards import is_implemented_in_c
from jaxd_protocol.fingerprint.walk import Walk
from jaxd_protocol.pickling.pack import arguments
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.client.packings import record_packings
from tests.ids import stable_id

RATE = SimpleNamespace(value=1)


def scaled(x: Any) -> Any:
    return x * RATE.value


class Colour(Enum):
    RED = 1


@dataclass
class Setting:
    width: int = 1
    more: dict[str, Any] = field(default_factory=dict)


class Scale:
    def __init__(self, by: int, unread: int) -> None:
        self.by, self.unread = by, unread

    def __call__(self, x: Any) -> Any:
        return x * self.by


@pytest.fixture
def packings(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was packed, in order."""
    return record_packings(monkeypatch, packing_cache, "_pickle_cache")


@pytest.mark.parametrize(
    "value",
    [
        *(pytest.param(each, id=stable_id(each)) for each in (scaled, Colour.RED, Setting)),
        *(pytest.param(each, id=stable_id(each)) for each in (Setting(), {"a"})),
        pytest.param(Setting(more={"text": "x" * 100_000}), id="large"),
    ],
)
def test_what_has_not_changed_is_packed_once(packings: list[Any], value: Any) -> None:
    """Functions, classes, members and instances alike."""
    one, other = (pack_cached(value, "it") for _ in range(2))
    assert one is other
    assert len(packings) == 1


def test_a_change_is_noticed(packings: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an attribute, deep inside, and of what a function reads."""
    setting = Setting()
    first = pack_cached(setting, "it")
    setting.width = 2
    second = pack_cached(setting, "it")
    setting.more["a"] = 1
    third = pack_cached(setting, "it")
    assert len({bytes(first), bytes(second), bytes(third)}) == len(packings) == 3
    assert unpack(third).more == {"a": 1}
    small = SimpleNamespace(data=np.zeros(3))
    pack_cached(small, "it")
    small.data[1] = 7.0
    assert unpack(pack_cached(small, "it")).data[1] == 7.0
    pack_cached(scaled, "it")
    monkeypatch.setattr(RATE, "value", 2)
    assert unpack(pack_cached(scaled, "it"))(3) == 6


def test_tuples_and_structures_that_are_made_anew_are_packed_once(packings: list[Any]) -> None:
    """Of the same objects; any other object, and any other kind of number, is packed."""
    setting, other = Setting(), Setting(3)

    def made(one: Any, keys: tuple[str, ...] = ("a", "b"), factory: Any = None) -> Any:
        tree = {key: [jax.tree_util.Partial(scaled, 1.0), None] for key in keys}
        held = tree if factory is None else defaultdict(factory, tree)
        return one, (jax.tree.structure(held), (keys, None))

    kinds = (1, True, 1.0, 0.0, -0.0, "1", b"1", setting, other, [setting], (setting,), ((),), ())
    different: list[tuple[Any, ...]] = [(kind,) for kind in kinds]
    different += [(1, ("a",)), (1, ("b", "c")), (1, ("a", "b"), list), (1, ("a", "b"), set)]
    for number, given in enumerate(different, 1):
        kept = made(*given)
        assert pack_cached(kept, "it") is pack_cached(kept, "it")
        assert len(packings) == number
    for given in different:
        pack_cached(made(*given), "it")
    assert len(packings) == len(different)
    setting.width = 2
    assert unpack(pack_cached(made(setting), "it"))[0].width == 2
    assert len(packings) == len(different) + 1


def test_an_object_that_can_be_called_is_watched_whole(packings: list[Any]) -> None:
    """Others may read of it what its own call does not."""
    scale = Scale(1, 2)
    pack_cached(scale, "it")
    scale.unread = 3
    assert unpack(pack_cached(scale, "it")).unread == 3
    assert len(packings) == 2


def test_what_nobody_watches_is_packed_each_time(packings: list[Any]) -> None:
    """What C code keeps may change, and nothing says so; what is large is not kept."""
    hidden = SimpleNamespace(settings=decimal.Context(7))
    large = Setting(more={"text": "x" * 3_000_000})
    for value in (hidden, hidden, large, large):
        pack_cached(value, "it")
    assert len(packings) == 4


def test_that_something_cannot_travel_is_found_out_once(
    packings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is as it was, and for a while; a call that falls back asks each time."""
    monkeypatch.setattr(arguments, "_REFUSED_FOR", 1e9)
    monkeypatch.setattr(packing_cache, "_refusals", {})
    value = Setting(more={"mark": object()})
    for _ in range(5):
        with pytest.raises(PackingError, match=r"my thing.*bare object\(\)"):
            pack_cached(value, "my thing")
    assert len(packings) == 1
    with pytest.raises(PackingError, match=r"another name.*bare object\(\)"):
        pack_cached(value, "another name")
    value.more["other"] = 2
    with pytest.raises(PackingError):
        pack_cached(value, "my thing")
    assert len(packings) == 3
    monkeypatch.setattr(arguments, "_REFUSED_FOR", 0)
    value.more["other"] = 3
    for _ in range(2):
        with pytest.raises(PackingError):
            pack_cached(value, "my thing")
    assert len(packings) == 5
    value.more["mark"] = 1
    assert unpack(pack_cached(value, "my thing")).more == {"mark": 1, "other": 3}


def imports(name: str) -> Any:
    """What no walk can follow."""
    return importlib.import_module(name)


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is walked over, but for the parts of a walk."""
    found: list[Any] = []
    whole = Walk.run

    def noted(walk: Walk, value: Any, name: str) -> Any:
        if not walk.is_inner:
            found.append(value)
        return whole(walk, value, name)

    monkeypatch.setattr(Walk, "run", noted)
    monkeypatch.setattr(arguments, "_REFUSED_FOR", 1e9)
    monkeypatch.setattr(arguments, "_refused", {})
    monkeypatch.setattr(packing_cache, "_parts", BoundedDict(2))
    return found


def test_that_a_function_cannot_be_walked_is_found_out_once_for_all_values_that_have_it(
    walks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And again after a while."""
    for number in range(5):
        with pytest.raises(PackingError, match="import_module"):
            pack_cached((imports, f"number {number}"), "it")
    assert walks.count(imports) == 2  # to watch it, and to pack it
    monkeypatch.setattr(arguments, "_REFUSED_FOR", 0)
    arguments._refused.clear()
    for number in (5, 6):
        with pytest.raises(PackingError, match="import_module"):
            pack_cached((imports, f"number {number}"), "it")
    assert walks.count(imports) == 4


def test_that_a_function_cannot_be_packed_is_found_out_once_for_all_values_that_have_it(
    walks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as nothing in it changes."""
    tried: list[Any] = []

    def refused(function: Any, what: str, reach: Any) -> Any:
        tried.append(function)
        raise PackingError("it is of this process")

    monkeypatch.setattr(arguments, "pack_function", refused)
    monkeypatch.setattr(arguments, "_packed_callables", BoundedDict(2))
    for number in range(5):
        with pytest.raises(PackingError, match="is of this process"):
            pack_cached((scaled, f"number {number}"), "it")
    assert tried == [scaled]
    assert walks.count(scaled) == 1
    monkeypatch.setattr(RATE, "value", 2)
    with pytest.raises(PackingError, match="is of this process"):
        pack_cached((scaled, "another number"), "it")
    assert tried == [scaled, scaled]


def test_what_is_watched_has_a_content() -> None:
    """Equal for equal objects; none for what has none."""
    one, other, third = (
        guard_content(value, "it") for value in (Setting(1), Setting(1), Setting(2))
    )
    assert one is not None
    assert other is not None
    assert third is not None
    assert one.content == other.content != third.content
    assert one.guards.hold()
    assert guard_content((n for n in range(2)), "it") is None


def test_classes_made_in_c() -> None:
    """Their instances may change unseen."""
    assert is_implemented_in_c(dict)
    assert is_implemented_in_c(type(np.random.default_rng()))
    assert not is_implemented_in_c(Setting)


class Table:
    values = array("i", [1])

    def scaled(self, x: Any) -> Any:
        return x * self.values[0]


def test_what_a_class_holds_that_nobody_watches_is_looked_at_each_time(
    packings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what the object holds itself."""
    monkeypatch.setattr(Table, "values", array("i", [1]))
    table = Setting(more={"table": Table()})
    for _ in range(2):
        pack_cached(table, "it")
    assert len(packings) == 2
    assert guard_content(table, "it") is None


def test_unions_and_generic_types_do_not_change(packings: list[Any]) -> None:
    """Annotations of libraries hold these."""
    value = Setting(more={"kinds": int | str, "of": list[int], "called": Callable[[int], str]})
    one, other = (pack_cached(value, "it") for _ in range(2))
    assert one is other
    value.more["kinds"] = int | bytes
    assert unpack(pack_cached(value, "it")).more["kinds"] == int | bytes
    assert len(packings) == 2


def test_a_function_is_looked_at_once_for_all_values_that_have_it(
    packings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a class. A change of it is noticed for each of them."""
    looked_at = _looks(monkeypatch)
    values = [(scaled, Setting, f"number {number}") for number in range(5)]
    for value in (*values, *values):
        pack_cached(value, "it")
    assert (len(packings), looked_at) == (5, [scaled, Setting])
    monkeypatch.setattr(RATE, "value", 2)
    for value in values:
        assert unpack(pack_cached(value, "it"))[0](3) == 6
    assert (len(packings), looked_at) == (10, [scaled, Setting, scaled])
    monkeypatch.setattr(Setting, "width", 7)
    for value in values:
        assert unpack(pack_cached(value, "it"))[1].width == 7
    assert (len(packings), looked_at) == (15, [scaled, Setting, scaled, Setting])


class Leader:
    """Its methods lead to others."""

    def scaled(self, x: Any) -> Any:
        return scaled(x) * Setting().width


def test_what_a_class_leads_to_is_looked_at_with_it(
    packings: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not by itself, as for the classes of a library, all of which may lead to all others."""
    looked_at = _looks(monkeypatch)
    value = Leader, scaled, Setting
    pack_cached(value, "it")
    assert looked_at == [Leader]
    monkeypatch.setattr(RATE, "value", 2)
    assert unpack(pack_cached(value, "it"))[1](3) == 6
    monkeypatch.setattr(Setting, "width", 7)
    assert unpack(pack_cached(value, "it"))[2].width == 7
    assert len(packings) == 3


def _looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions and classes that are looked at from now on, in order."""
    looked_at: list[Any] = []
    whole = packing_cache._watched_walk

    def noted(value: Any, name: str, instead: Any = None) -> Any:
        if instead is None:
            looked_at.append(value)
        return whole(value, name, instead)

    monkeypatch.setattr(packing_cache, "_watched_walk", noted)
    monkeypatch.setattr(packing_cache, "_parts", BoundedDict(2))
    return looked_at


def test_a_value_with_a_function_that_nobody_watches_is_packed_each_time(
    packings: list[Any],
) -> None:
    """What the function reads may change unseen."""

    def reads(x: Any) -> Any:
        return Table().scaled(x)

    for number in (3, 4):
        Table.values[0] = number
        assert unpack(pack_cached((reads, "once"), "it"))[0](2) == 2 * number
    Table.values[0] = 1
    assert len(packings) == 2
