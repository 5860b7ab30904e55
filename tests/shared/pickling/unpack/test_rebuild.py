"""What packed bytes call on the server."""

from __future__ import annotations

import weakref
from collections.abc import Sized
from types import CellType, SimpleNamespace
from typing import Any

from jaxd_protocol.pickling.unpack import rebuild
from jaxd_protocol.pickling.unpack.private_modules import PrivateModules


def test_a_module_that_can_be_imported_is_one() -> None:
    """However often it is made; one that cannot be imported is not listed."""
    blob = PrivateModules()
    first = rebuild.make_module(blob, "mine", "mine", "namespace", True)
    assert rebuild.make_module(blob, "mine", "mine", "namespace", True) is first
    assert blob.modules == {"mine": first}
    assert blob.namespaces == {"mine"}
    assert rebuild.make_module(blob, "mine", None, "module", False) is not first
    assert first.__path__ == []


def test_a_function_is_completed_in_place() -> None:
    """Globals, cells, attributes."""
    cell = rebuild.make_cell()
    outer = compile("def f(x):\n def g(): return x, G\n return g", "f", "exec").co_consts[0]
    inner = next(each for each in outer.co_consts if hasattr(each, "co_code"))
    function = rebuild.make_function(inner, {}, "g", (cell,))
    rebuild.fill_function(
        function,
        {
            "globals": {"G": 2},
            "closure": ((1,),),
            "attributes": {"note": 3},
            "more": {"__module__": "mine"},
        },
    )
    assert function() == (1, 2)
    assert (function.note, function.__module__) == (3, "mine")  # type: ignore[attr-defined]


def test_a_cell_may_stay_empty() -> None:
    """One that is met by itself is filled by itself."""
    cell = rebuild.make_cell()
    assert rebuild.same(cell) is cell
    rebuild.fill_cell(cell, (1,))
    assert cell == CellType(1)


class Slotted:
    __slots__ = ("__dict__", "a")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


def test_an_object_is_filled_without_asking_it() -> None:
    """Slots and attributes; it may refuse assignments."""
    value = rebuild.make_instance(Slotted)
    rebuild.fill_instance(value, {"a": 1, "b": 2})
    assert (value.a, value.b) == (1, 2)
    assert type(rebuild.make_instance(SimpleNamespace)) is SimpleNamespace


def test_an_object_can_be_made_although_methods_of_its_class_were_not_sent() -> None:
    """Only those that are read are: the class of an object that exists is not abstract."""

    class Partial(Sized):
        pass

    assert type(rebuild.make_instance(Partial)) is Partial


def test_a_weakly_referenced_object_is_kept_by_its_blob() -> None:
    """And a dead reference stays dead."""
    blob = PrivateModules()
    reference = rebuild.make_reference(blob, PrivateModules())
    assert reference() is not None
    assert isinstance(reference, weakref.ref)
    assert rebuild.dead_reference()() is None


def test_views_of_a_dict() -> None:
    """Of each kind."""
    assert list(rebuild.make_view("keys", "ab")) == ["a", "b"]
    assert list(rebuild.make_view("values", "aa")) == ["a", "a"]
    assert list(rebuild.make_view("items", [("a", 1)])) == [("a", 1)]
