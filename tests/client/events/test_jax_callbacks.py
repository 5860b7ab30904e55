"""What a server may have called: what the code gives, what `callbacks=` lists, and nothing else."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.events.jax_callbacks import CallbackTable, check_no_functions
from jaxd.results.local_objects import LocalObjects
from jaxd.results.reader import ResultReader
from jaxd_protocol.errors import CallbackError, ProtocolError
from jaxd_protocol.fingerprint import walk
from tests.fake_packages import FakeSite
from tests.ids import row, stable_id

seen: list[Any] = []


class Box:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def put(self, value: Any) -> None:
        """Is given."""
        self.items.append(value)

    def wipe(self, *_: Any) -> None:
        """Is not."""
        raise AssertionError

    def run(self, x: Any) -> None:
        """Gives a method of its own object."""
        jax.debug.callback(lambda v: self.put(v), x)  # noqa: PLW0108  it holds the object


box = Box()


def note(value: Any, name: str = "") -> None:
    """Is given."""
    seen.append((value, name))


def gives(x: Any, cb: Any = None) -> None:
    """All that may be given."""
    factor = len(os.sep)
    jax.debug.callback(box.put, x)
    jax.debug.callback(functools.partial(note, name="p"), x)
    jax.debug.callback(cb.put, x)

    def inner(value: int) -> Any:
        return value * factor

    def tell(value: int, more: int = 1) -> Any:
        return tell2(value) if value < 0 else inner(value) + more + len(os.sep)

    def tell2(value: int) -> Any:
        return tell2(value + 1) if value < 0 else value

    jax.debug.callback(tell, x)
    jax.debug.callback(lambda v: cb.items.append(v), x)  # noqa: PLW0108  it holds the argument


def table(
    function: Any = gives, listed: Any = (), arguments: Any = ((0, box), {})
) -> CallbackTable:
    """What may be called in a call of it."""
    return CallbackTable(walk(function, "f").reach.targets, listed, arguments)


@pytest.fixture(autouse=True)
def _empty() -> None:
    seen.clear()
    box.items.clear()


def test_what_the_code_gives_is_found_by_number() -> None:
    """With the attributes that stand in the code; a method is that of this process's object."""
    found = [table().function_at(("given", number), ()) for number in range(2)]
    assert [found[0], found[1]] == [box.put, note]
    assert table().function_at(("argument", 0), ()) == box.put


def test_a_partial_has_data_and_what_may_be_called() -> None:
    """And nothing else."""
    args = (("list", (("value", 1), ("array", 0))),)
    aim = ("partial", ("given", 1), args, (("name", ("value", "n")),))
    table().function_at(aim, [np.ones(2)])()
    ((value, name),) = seen
    assert (value[0], value[1].tolist(), name) == (1, [1.0, 1.0], "n")


def made(number: int, *cells: Any, defaults: Any = None, **more: Any) -> Callable[..., Any]:
    """What the client makes of code that stands in place."""
    return table(**more).function_at(("made", number, cells, defaults, None), ())


INNER = ("code", (("factor", ("value", 5)),), None, None)
TELL2 = ("code", (("tell2", ("again",)),), None, None)


def test_code_in_place_is_made_of_this_process_own() -> None:
    """In its own globals, with the cells that the code says, and with data of the server's."""
    tell = made(0, ("inner", INNER), ("tell2", TELL2), defaults=(("value", 2),))
    assert tell.__globals__ is globals()
    assert (tell(3), tell(-3)) == (3 * 5 + 2 + 1, 0)
    made(1, ("cb", ("argument",)))(4)
    assert box.items == [4]


def test_a_method_has_its_object() -> None:
    """That which the walk has met."""
    targets = walk(box.run, "run").reach.targets
    aim = ("made", 0, (("self", ("self", 0)),), None, None)
    CallbackTable(targets).function_at(aim, ())(7)
    assert box.items == [7]


def test_what_is_listed_is_called() -> None:
    """It may be in a cell as well."""
    more = {"listed": [box.put, seen.append]}
    table(**more).function_at(("listed", 1), ())(1)
    with pytest.raises(AttributeError, match="items"):  # a function, in place of an object
        made(1, ("cb", ("listed", 0)), **more)(2)
    assert seen == [1]


CALLBACK_TARGETS: list[Any] = [
    ("given", 7),
    ("given", -1),
    ("given", True),
    ("given", "0"),
    ("listed", 0),
    ("argument", 1),
    ("object", 0),
    ("get", ("given", 0), "__self__"),
    ("live", 0, ("wipe",)),
    ("value", 1),
    ("partial", ("value", 1), (), ()),
    ("partial", ("given", 0), (("given", 1),), ()),
    ("partial", ("given", 0), (("listed", 0),), ()),
    ("partial", ("given", 0), (), ((1, ("value", 1)),)),
    ("made", 0, (), None, None),
    ("made", 0, (("inner", ("value", 1)), ("tell2", TELL2)), None, None),
    ("made", 0, (("inner", ("given", 0)), ("tell2", TELL2)), None, None),
    ("made", 0, (("inner", ("code", (), None, None)), ("tell2", TELL2)), None, None),
    ("made", 0, (("inner", INNER), ("tell2", ("again",))), None, None),
    ("made", 0, (("inner", INNER), ("tell2", TELL2)), (("given", 0),), None),
    ("made", 1, (("cb", ("given", 0)),), None, None),
    ("made", 1, (("cb", ("self", 0)),), None, None),
    ("made", 1, (("cb", ("made", 0, (), None, None)),), None, None),
    ("made", 2, (), None, None),
    ("made", -1, (), None, None),
    (),
    None,
    7,
    (["given"], 0),
]


def test_a_server_cannot_name_anything_else() -> None:
    """It names what is in the table, and nothing that lies behind."""
    for callback_target in CALLBACK_TARGETS:
        with (
            row(callback_target),
            pytest.raises(ProtocolError, match="does not give to be called back"),
        ):
            table().function_at(callback_target, ())


def test_what_is_held_is_an_array() -> None:
    """Also where the server sends something that behaves like one."""
    for held in (note, np.dtype("f4"), [1], type("A", (), {"dtype": 1, "shape": ()})()):
        with pytest.raises(ProtocolError):
            table().function_at(("partial", ("given", 0), (("held", 0),), ()), [held])


def test_arguments_count_only_where_they_are_those_of_the_call() -> None:
    """Not under transformations, which give the function others."""
    with pytest.raises(ProtocolError):
        table(arguments=None).function_at(("argument", 0), ())


def test_what_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of the user's may change while a program runs."""
    found = table()
    monkeypatch.delattr(Box, "put")
    with pytest.raises(CallbackError, match="no attribute 'put'"):
        found.function_at(("given", 0), ())


def test_a_module_is_not_imported_for_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code names it; it has to be there."""

    def f(x: Any) -> None:
        import colorsys

        jax.debug.callback(lambda v: seen.append(colorsys.rgb_to_hsv(v, v, v)), x)

    aim = ("made", 0, (), None, None)
    monkeypatch.setitem(sys.modules, "colorsys", np)
    assert table(f).function_at(aim, ()).__closure__[0].cell_contents is np  # type: ignore[index]
    found = table(f)
    monkeypatch.delitem(sys.modules, "colorsys")
    with pytest.raises(CallbackError, match="uses the module colorsys"):
        found.function_at(aim, ())
    assert "colorsys" not in sys.modules


@pytest.mark.parametrize("value", [note, [note], {"k": (1, [len])}, Box, (({},), {"k": box.put})])
def test_nothing_that_can_be_called_is_an_argument(value: Any) -> None:
    """What is called back could call it."""
    check_no_functions([1, np.ones(2), "text", {"k": None}])
    with pytest.raises(ProtocolError, match="gives a function"):
        check_no_functions(value)


class Network:
    """As modules of libraries are: data, and a `__call__`."""

    def __call__(self) -> None:
        raise AssertionError


def test_objects_that_can_be_called_are_arguments() -> None:
    """A program may give its callback a model."""
    check_no_functions(((Network(), {"model": Network()}), {}))


LIBRARY = """
import os, jax
def check(x): return x
def wipe(path): os.remove(path)
def solve(x): jax.debug.callback(check, x)
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An installed module that gives one of its functions."""
    site = FakeSite(tmp_path)
    site.install("gives-one", "1.0", {"gives_one/__init__.py": LIBRARY})
    monkeypatch.syspath_prepend(str(site.path))
    yield importlib.import_module("gives_one")
    monkeypatch.delitem(sys.modules, "gives_one")


def of_library(reached: str, *literal: Any) -> Any:
    """What is called of a function that reaches a package."""
    snapshot = ResultReader({}, LocalObjects(packages=(reached,)))
    targets = walk(box.put, "f").reach.targets
    return CallbackTable(targets, reaches=snapshot.reaches).function_at(("library", *literal), ())


def test_a_library_s_own_function_is_called(library: Any) -> None:
    """Where the function reaches that library, and its code gives it."""
    assert of_library("gives_one", "gives_one", "global", "check", ()) is library.check


@pytest.mark.parametrize(
    ("reached", "literal"),
    [
        ("another", ("gives_one", "global", "check", ())),
        ("gives_one", ("gives_one", "global", "wipe", ())),
        ("gives_one", ("gives_one", "global", "os", ("system",))),
        ("gives_one", ("gives_one", "global", "check", ("__globals__",))),
        ("gives_one", ("gives_one", "module", "os", ("system",))),
        ("gives_one", ("os", "global", "system", ())),
        ("os", ("os", "global", "system", ())),
        ("gives_one", ("gives_one.os", "global", "system", ())),
        ("gives_one", ("gives_one", "global", ["check"], ())),
        ("gives_one", ("gives_one", "global", "check", (1,))),
        ("gives_one", ("gives_one", "global", "check")),
    ],
    ids=stable_id,
)
def test_a_library_s_other_functions_are_not(
    library: Any, reached: str, literal: tuple[Any, ...]
) -> None:
    """Nor anything of one that is not reached, nor of Python."""
    assert library is not None
    with pytest.raises((ProtocolError, CallbackError)):
        of_library(reached, *literal)


def test_only_libraries_open_a_call_to_questions() -> None:
    """Not jax, numpy or Python, nor the user's own modules."""
    own = [LocalObjects(packages=("jax", "numpy", "os", __name__.partition(".")[0]))]
    assert not any(each.reaches_libraries() for each in (*own, LocalObjects()))
    assert LocalObjects(packages=("not_imported_yet",)).reaches_libraries()
