"""The names of objects without content."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.packages import bare_objects
from jaxd_protocol.packages.bare_objects import (
    bare_object_name,
    constant_name,
    is_empty_constant,
    names_of_bare_object,
    object_of_name,
    own_constant_name,
    own_object_name,
    weak_table_of_name,
)
from jaxd_protocol.packages.importable import find_object

_mine = object()
_of_two_names = _also_mine = object()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Writes modules, imports the first, and has them gone after the test."""

    def loaded(folder: str = "", **texts: str) -> ModuleType:
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        monkeypatch.syspath_prepend(place)
        for name, text in texts.items():
            (place / f"{name}.py").write_text(text)
            monkeypatch.setitem(sys.modules, name, None)
            del sys.modules[name]
        return importlib.import_module(next(iter(texts)))

    return loaded


def test_a_bare_object_has_the_name_by_which_its_module_makes_it(
    load: Callable[..., ModuleType],
) -> None:
    """And not that of a module which imports it; one of the user's own has none there."""
    sent = load(
        "site-packages",
        aa_imports="from zz_makes import sent\n",
        zz_makes="def named(x):\n    return x\nsent: object = named(object())\n",
    ).sent
    assert bare_object_name(sent) == ("zz_makes", "sent")
    assert find_object("zz_makes", "sent") is sent
    assert bare_object_name(object()) is None
    assert bare_object_name(_mine) is None
    assert names_of_bare_object(sent) == (("zz_makes", "sent"), None)


CONSTANTS = """
from zz_constants import made, Kept
token, first = made("token"), made("first")
second, filled, called = type(first)(), made("filled"), made("called")
filled.x = 1
type(called).__call__ = lambda self: 0
in_module, container = Kept(), made("container", list)
"""
MAKES_CONSTANTS = """
class Kept: pass
def made(name, *bases):
    return type(name, bases, {})()
"""


def test_an_instance_without_content_is_known_where_only_a_function_has_its_class(
    load: Callable[..., ModuleType],
) -> None:
    """By the module that made it: others may have it, too, and jax makes others of such a class."""
    texts = {"aa_takes": "from yy_uses import token\nimport yy_uses\n"}
    used = load("site-packages", **texts, yy_uses=CONSTANTS, zz_constants=MAKES_CONSTANTS).yy_uses
    assert constant_name(used.token) == ("yy_uses", "token")
    assert constant_name(type(used.token)()) == ("yy_uses", "token")
    assert constant_name(used.first) == ("yy_uses", "first")
    assert constant_name(used.second) == ("yy_uses", "second")
    assert constant_name(type(used.first)()) is None  # it may be either
    for other in (used.filled, used.called, used.in_module, used.container):
        assert constant_name(other) is None
        assert not is_empty_constant(other)


def test_one_of_the_users_own_has_the_name_by_which_its_module_makes_it(
    load: Callable[..., ModuleType],
) -> None:
    """Also where another module imports it; of several names in one module it is the first."""
    sent = load(
        aa_takes="from zz_gives import sent as kept\n", zz_gives="sent: object = object()\n"
    ).kept
    assert own_object_name(sent) == ("zz_gives", "sent")
    assert own_object_name(_mine) == (__name__, "_mine")
    assert own_object_name(_of_two_names) == (__name__, "_of_two_names")
    assert names_of_bare_object(_mine) == (None, (__name__, "_mine"))
    assert own_object_name(object()) is None


def test_a_name_is_that_of_what_is_under_it_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before has none."""
    before, after = _mine, object()
    assert own_object_name(before) == (__name__, "_mine")
    monkeypatch.setitem(globals(), "_mine", after)
    assert own_object_name(before) is None
    assert own_object_name(after) == (__name__, "_mine")


def test_a_name_does_not_change_while_it_leads_to_the_object(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function and its argument are packed at two moments, and have the same one then."""
    sent = load(mm_gives="sent = [object()][0]\n").sent
    assert own_object_name(sent) == ("mm_gives", "sent")
    load(aa_also_takes="from mm_gives import sent\n")
    assert own_object_name(sent) == ("mm_gives", "sent")
    monkeypatch.delattr("mm_gives.sent")
    assert own_object_name(sent) == ("aa_also_takes", "sent")


def test_what_was_taken_for_one_without_a_name_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the same reason; and it is kept, so that no other object gets its id."""
    nameless = object()
    assert own_object_name(nameless) is None
    monkeypatch.setitem(globals(), "_later", nameless)
    assert own_object_name(nameless) is None
    number = id(nameless)
    monkeypatch.undo()
    del nameless
    assert number not in [id(object()) for _ in range(1000)]


def test_what_is_known_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs make objects without a name all the time."""
    own = bare_objects._OwnObjects()
    monkeypatch.setattr(own._known, "limit", 10)
    for _ in range(50):
        own.name_of(object())
    assert len(own._known) == 10


def test_a_name_leads_to_one_object_in_another_process() -> None:
    """Which has that name there, whatever modules that process has."""
    there = object_of_name("elsewhere", "sentinel")
    assert type(there) is object
    assert object_of_name("elsewhere", "sentinel") is there
    assert object_of_name("elsewhere", "other") is not there
    assert own_object_name(there) == ("elsewhere", "sentinel")
    assert object_of_name(__name__, "_mine") is not _mine


def test_no_function_leaves_something_in_a_table_that_others_ask() -> None:
    """What stands for a weak table is one for all clients, and so are the classes with a name."""
    table: Any = weak_table_of_name("weakref.WeakKeyDictionary", "elsewhere", "factors")
    chosen: Any = weak_table_of_name("_weakrefset.WeakSet", "elsewhere", "chosen")
    own = type("Own", (), {"__module__": "elsewhere"})
    table[own] = 1
    chosen.add(own)
    assert table[own] == 1
    assert own in chosen
    changes = (
        lambda: table.__setitem__(float, 3),
        lambda: table.setdefault(float, 3),
        lambda: chosen.add(float),
    )
    for change in changes:
        with pytest.raises(PackingError, match="outside of the function"):
            change()  # type: ignore[no-untyped-call]
    assert float not in table
    assert float not in chosen


class _Tag:
    """Two of them are told apart by which they are."""


_MAKES_TAGS = """
class Tag:
    pass
FAST, SLOW = Tag(), Tag()
KEPT = _KEPT = Tag()
NOTED: Tag = Tag()
"""


@pytest.mark.parametrize("name", ["FAST", "SLOW", "KEPT", "NOTED"])
def test_a_constant_has_the_name_by_which_its_module_makes_it(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever imports it: a script's name precedes others, and so would that of a package."""
    made = getattr(load(aa_takes="from zz_tags import *\n", zz_tags=_MAKES_TAGS), name)
    monkeypatch.setitem(vars(sys.modules["__main__"]), name, made)
    assert own_constant_name(made) == ("zz_tags", name)


def test_a_constant_that_no_source_makes_has_the_name_in_the_module_of_its_class(
    load: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or any other before that of a script."""
    load(zz_made="")
    made = _Tag()
    monkeypatch.setitem(vars(sys.modules["zz_made"]), "TAG", made)
    monkeypatch.setitem(vars(sys.modules["__main__"]), "TAG", made)
    assert own_constant_name(made) == ("zz_made", "TAG")
    again = _Tag()
    for home in ("zz_made", "__main__", __name__):
        monkeypatch.setitem(vars(sys.modules[home]), "AGAIN", again)
    assert own_constant_name(again) == (__name__, "AGAIN")
