"""With what classes are registered counts, also where nothing names the registration."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import importlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import walk
from tests.identity.probing import ProbeResult
from tests.identity.projects import INSTALLED, Edit, check, edit, probe_edits, write

PROJECT = """
import abc, enum, functools, numbers, collections.abc
import shapes
class Shape(abc.ABC): pass
class Round(Shape): pass
class Like(numbers.Real, abc.ABC): pass
class Square:
    def __len__(self): return 4
class Ring: pass
class Color(enum.Enum):
    RED = 1
FACTOR = 3
def area_of_square(square): return FACTOR
square = Square()
# here
def step(x): return isinstance(square, numbers.Number) * x
def through_library(x): return shapes.twice(square) * x
def own_abc(x): return isinstance(square, Shape) * x
def member(x): return shapes.area(Color.RED)
def number(x): return isinstance(x, numbers.Number)
def direct(x): return shapes.area(x)
def other(x): return isinstance(x, Ring)
--- site-packages/shapes.py
from functools import singledispatch as generic
@generic
def area(shape): return 0
@generic
def length(shape): return 0
def twice(shape): return 2 * area(shape)
"""
PLAIN = "number direct other"
SQUARE = "step through_library"


def _says(text: str) -> str:
    return PROJECT.replace("# here", text)


AREA = _says("shapes.area.register(Square, area_of_square)")
ROWS = [
    edit("registered with an installed abstract class", PROJECT, "# here", "numbers.Number.register(Square)", SQUARE, PLAIN),
    edit("with one below the one that is asked", PROJECT, "# here", "numbers.Integral.register(Square)", SQUARE, PLAIN),
    edit("with one of its own below an installed one", PROJECT, "# here", "Like.register(Square)", SQUARE, PLAIN),
    edit("with one of another module", PROJECT, "# here", "collections.abc.Sequence.register(Square)", SQUARE, PLAIN),
    edit("with another one", _says("numbers.Real.register(Square)"), "numbers.Real", "numbers.Integral", SQUARE, PLAIN),
    edit("with an abstract class of its own", PROJECT, "# here", "Shape.register(Square)", "own_abc", PLAIN),
    edit("with one below that", PROJECT, "# here", "Round.register(Square)", "own_abc", PLAIN),
    edit("registered twice", _says("numbers.Real.register(Square)"), "numbers.Real.register(Square)", "numbers.Real.register(Square); numbers.Real.register(Square)", "", f"{SQUARE} {PLAIN}"),
    edit("another class", PROJECT, "# here", "numbers.Real.register(Color)", "member", f"{SQUARE} {PLAIN}"),
    edit("a form of a library's function", PROJECT, "# here", "shapes.area.register(Square, area_of_square)", SQUARE, PLAIN),
    edit("for a member of an enum", PROJECT, "# here", "shapes.area.register(Color, area_of_square)", "member", f"{SQUARE} {PLAIN}"),
    edit("for another function", AREA, "shapes.area.register", "shapes.length.register", SQUARE, PLAIN),
    edit("another form", AREA, ", area_of_square)", ", lambda square: 3)", SQUARE, PLAIN),
    edit("the code of a form", AREA, "return FACTOR", "return FACTOR + 1", SQUARE, PLAIN),
    edit("what a form reads", AREA, "FACTOR = 3", "FACTOR = 4", SQUARE, PLAIN),
    edit("the order of two", _says("shapes.area.register(Square, area_of_square); shapes.length.register(Square, len)"), "shapes.area.register(Square, area_of_square); shapes.length.register(Square, len)", "shapes.length.register(Square, len); shapes.area.register(Square, area_of_square)", "", f"{SQUARE} {PLAIN}"),
    edit("a form for a class that nothing reaches", PROJECT, "# here", "shapes.area.register(Ring, area_of_square)", "other", f"{SQUARE} number direct"),
]  # fmt: skip

GENERIC = """
import abc, functools
class Shape(abc.ABC): pass
class Other(abc.ABC): pass
@functools.singledispatch
def sides(shape): return 0
@sides.register
def _(shape: Shape): return 1
# here
def step(x): return sides(x)
"""
ROWS += [
    edit("a class that a generic function has nothing of, registered before it is called", GENERIC, "# here", "Other.register(list); sides(3)", "", "step"),
    edit("a form for an abstract class", GENERIC, "shape: Shape", "shape: list"),
]  # fmt: skip


TABLES = """
import weakref
chosen, factors = weakref.WeakSet(), weakref.WeakKeyDictionary()
class Square: pass
class Ring: pass
square = Square()
# here
def step(x): return (type(square) in chosen) * x
def factor(x): return factors.get(type(square), 1) * x
def other(x): return isinstance(x, Ring)
"""
HAS_FACTOR = TABLES.replace("# here", "factors[Square] = 3")
ROWS += [
    edit("added to a weak set", TABLES, "# here", "chosen.add(Square)", "step factor", "other"),
    edit("a key of a weak table", TABLES, "# here", "factors[Square] = 3", "step factor", "other"),
    edit("another value there", HAS_FACTOR, "= 3", "= 4", "step factor", "other"),
    edit("another class in both", TABLES, "# here", "chosen.add(Ring); factors[Ring] = 3", "other", "step factor"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What a walk finds before and after each edit."""
    return probe_edits(tmp_path_factory.mktemp("registrations"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_changes_what_it_concerns_and_nothing_else(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """A registration is a part of the class."""
    check(row, seen)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The project, run here, with a library that no other test has."""
    library = f"shapes_{next(_numbers)}"
    text = PROJECT.replace("import shapes", f"import {library} as shapes")
    folder = write(tmp_path, text.replace("shapes.py", f"{library}.py"))
    monkeypatch.syspath_prepend(folder / INSTALLED)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile((folder / "main.py").read_text(), str(folder / "main.py"), "exec"), names)
    return names


_numbers = itertools.count()

LATE = {
    "an installed abstract class": ("step", "numbers.Number.register(Square)"),
    "one below it": ("step", "numbers.Rational.register(Square)"),
    "an abstract class of its own": ("own_abc", "Round.register(Square)"),
    "a form": ("step", "shapes.area.register(Square, area_of_square)"),
    "a form of an enum": ("member", "shapes.area.register(Color, area_of_square)"),
}


@pytest.mark.parametrize("row", LATE)
def test_a_late_registration_is_noticed(project: dict[str, Any], row: str) -> None:
    """The guards fail, and the next walk has another digest; none of another class is noticed."""
    name, registration = LATE[row]
    before = walk(project[name], name)
    exec("numbers.Number.register(Ring); shapes.length.register(Ring, len)", project)
    assert before.guards.hold() is (name != "own_abc")  # which looks at all, and finds the same
    exec(registration, project)
    assert not before.guards.hold()
    after = walk(project[name], name)
    assert after.guards.hold()
    assert after.fingerprint.digest != before.fingerprint.digest


def test_another_form_in_the_place_of_one_is_noticed(project: dict[str, Any]) -> None:
    """As a cell of a notebook that is run again registers it."""
    exec("shapes.area.register(Square, len)", project)
    before = walk(project["step"], "step")
    assert before.guards.hold()
    exec("shapes.area.register(Square, area_of_square)", project)
    assert not before.guards.hold()


def test_a_form_for_an_installed_class_is_refused(project: dict[str, Any]) -> None:
    """On a server it would be one for all clients."""
    walk(project["direct"], "direct")
    exec("shapes.area.register(float, area_of_square)", project)
    with pytest.raises(PackingError, match=r"registered for float .*hold for all clients"):
        walk(project["direct"], "direct")


def test_what_a_class_registers_for_itself_is_looked_at_again() -> None:
    """`__init_subclass__` writes when a class is defined, and not while a function is traced."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "class Base:\n"
        "    known = {}\n"
        "    def __init_subclass__(cls): KNOWN[cls.__name__] = cls; ORDER.append(cls)\n"
        "KNOWN, ORDER = Base.known, []\n"
        "def step(x): return [each.rate * x for each in Base.known.values()], ORDER\n"
        "class First(Base): rate = 2\n",
        names,
    )
    before = walk(names["step"], "step")
    assert before.guards.complete
    exec("class Second(Base): rate = 3", names)
    assert not before.guards.hold()
    assert walk(names["step"], "step").fingerprint.digest != before.fingerprint.digest


@pytest.mark.parametrize("late", ["chosen.add(Square)", "factors[Square] = 3"])
def test_a_late_entry_of_a_weak_table_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """And another value in the place of the first."""
    name = f"tables_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(TABLES)
    monkeypatch.syspath_prepend(tmp_path)
    names = vars(importlib.import_module(name))
    found = [walk(names["step"], "step")]
    for text in (late, "factors[Square] = 'other'"):
        assert found[-1].guards.hold()
        exec(text, names)
        assert not found[-1].guards.hold()
        found.append(walk(names["step"], "step"))
    assert len({each.fingerprint.digest for each in found}) == 3
