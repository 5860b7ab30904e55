"""What code reads of all that it reaches counts for code that reads such, and for no other."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import PackedFor, content_id, packing_for, walk
from tests.identity.probing import ProbeResult
from tests.identity.projects import Edit, check, edit, probe_edits, write

PROJECT = '''
import copy, dataclasses, inspect, operator, typing
from inspect import signature as look
import numpy as np
T = typing.TypeVar("T")
class Box(typing.Generic[T]): pass
class Held:
    """Held."""
    one: Box[int]
    two: "Box[int]"
class Below(Box[int]): pass
@dataclasses.dataclass
class Row:
    left: int = 1
    right: float = 2.0
def helper(x: int) -> Box[int]:
    """Helper."""
    return x
def texts(x: "Box[int]"): return x
VALUE = Box[int]
# here
def within(x):
    def inner():
        """Inner."""
    class Local:
        """Local."""
    return inner.__doc__, Local.__doc__
def not_within(x):
    def inner():
        """Inner."""
    class Local:
        """Local."""
    return inner, Local
def late(x):
    import unloaded
    return unloaded.read()
def plain(x): return helper(x), texts(x), Held, Below, Row(x), Box
def name(x): return helper.__name__, Held.__name__
def quoted(x): return getattr(helper, "__name__", ""), Held
def qualname(x): return helper.__qualname__, Held
def doc(x): return helper.__doc__, Held
def got_doc(x): return inspect.getdoc(helper), Held
def annotations(x): return helper.__annotations__, dict(Held.__annotations__)
def hints(x): return typing.get_type_hints(Held), texts
Number = int
def named(x: "Number"): return x
def resolved(x): return typing.get_type_hints(named)
def signature(x): return look(helper), Held
def bases(x): return Below.__orig_bases__
def fields(x): return [each.name for each in dataclasses.fields(Row)]
def types(x): return [each.type for each in dataclasses.fields(Row)]
def value(x): return typing.get_args(VALUE)
--- unloaded.py
"""Unloaded."""
def read():
    """Read."""
    return read.__doc__, __doc__
'''
READERS = "name quoted qualname doc got_doc annotations hints signature"
OTHERS = "within not_within late plain fields types value bases"


def _says(text: str) -> str:
    return PROJECT.replace("# here", text)


def _kept(*changed: str) -> str:
    return " ".join({*READERS.split(), *OTHERS.split()} - set(changed))


def _row(says: str, old: str, new: str, *changed: str) -> Edit:
    return edit(says, PROJECT, old, new, " ".join(changed), _kept(*changed))


REFLECTED = [
    _row("the name of a function", "# here", "helper.__name__ = 'other'", "name", "quoted"),
    _row("the qualified name of a function", "# here", "helper.__qualname__ = 'a.b'", "qualname"),
    _row("that of a class", "# here", "Held.__qualname__ = 'a.b'", "qualname"),
    _row("the docstring of a function", '"""Helper."""', '"""Help."""', "doc", "got_doc"),
    _row("that it has none any more", '"""Helper."""', "pass", "doc", "got_doc"),
    _row("the docstring of a class", '"""Held."""', '"""Hold."""', "doc", "got_doc"),
    _row("a docstring that is assigned", "# here", "helper.__doc__ = 'x'", "doc", "got_doc"),
    _row("the docstring of a function within", '"""Inner."""', '"""In."""', "within"),
    _row("the docstring of a class within", '"""Local."""', '"""Loc."""', "within"),
    _row("the docstring of a function of a module that is not loaded", '"""Read."""', '"""See."""', "late"),
    _row("the docstring of a module that is not loaded", '"""Unloaded."""', '"""Not yet."""', "late"),
    _row("an annotation of a parameter", "helper(x: int)", "helper(x: float)", "annotations", "signature"),
    _row("an annotation of a result", "-> Box[int]", "-> Box[float]", "annotations", "signature"),
    _row("one that is assigned", "# here", "helper.__annotations__['y'] = int", "annotations", "signature"),
    _row("an annotation of a class", "one: Box[int]", "one: Box[float]", "annotations", "hints", "signature"),
    _row("one of a class in quotes", 'two: "Box[int]"', 'two: "Box[float]"', "annotations", "hints", "signature"),
    _row("how one that is resolved is written", 'two: "Box[int]"', "two: Box[int]", "annotations"),
    _row("one of a function in quotes", 'x: "Box[int]"', 'x: "Box[float]"', "hints"),
    _row("the type of a field", "left: int = 1", "left: float = 1", "types"),
    _row("a generic base", "Below(Box[int])", "Below(Box[float])", "bases"),
    _row("a generic value", "VALUE = Box[int]", "VALUE = Box[float]", "value"),
]  # fmt: skip

ALIASES = """
import copy, functools, operator
import numpy as np
class Model: pass
def one(x): return x
m = Model()
m.a = np.ones(2)
m.b = m.a.copy()
m.first, m.second = [m.a], [m.b]
p = q = functools.partial(one, 2)
def make():
    n = 0
    def inc():
        nonlocal n
        n += 1
    return inc, lambda: n
inc, get = make()
# here
def plain(x): return x + m.a + m.b
def none(x): return x if m.a is None or m.b is not None else m.b
def named(x): return x.id + x.is_ + (m.a + m.b).sum()
def held(x): return m.first[0] + m.second[0]
def asks(x): return x if m.a is m.b else -x
def asks_not(x): return x if m.a is not m.b else -x
def by_id(x): return x if id(m.a) == id(m.b) else -x
def by_operator(x): return x if operator.is_(m.a, m.b) else -x
def in_lists(x): return x if m.first[0] is m.second[0] else -x
def by_helper(x): return same(m.a, m.b)
def same(a, b): return a is b
def copies(x): return copy.deepcopy((m.a, m.b))
def writes(x):
    m.a[0] = 2
    return m.b * x
def adds(x):
    a = m.a
    a += 1
    return m.b * x
def partials(x): return x if p is q else -x
def counts(x):
    inc()
    return get() * x
"""
WITHOUT = "plain none named held"
BY_ARRAYS = "asks asks_not by_id by_operator by_helper copies writes adds"


def _alias(says: str, old: str, new: str, changed: str, kept: str) -> Edit:
    return edit(says, ALIASES, old, new, changed, f"{kept} {WITHOUT}")


SAME = [
    _alias("one array for two equal ones", "m.b = m.a.copy()", "m.b = m.a", f"{BY_ARRAYS} in_lists", "partials counts"),
    _alias("one array in two lists", "[m.b]", "[m.a]", "in_lists", f"{BY_ARRAYS} partials counts"),
    _alias("two equal arrays, made in another way", "m.a.copy()", "np.array([1.0, 1.0])", "", f"{BY_ARRAYS} in_lists partials counts"),
    _alias("two partials for one", "p = q = functools.partial(one, 2)", "p, q = functools.partial(one, 2), functools.partial(one, 2)", "partials", f"{BY_ARRAYS} in_lists counts"),
    _alias("two cells for one", "inc, get = make()", "inc, get = make()[0], make()[1]", "counts", f"{BY_ARRAYS} in_lists partials"),
    _alias("one array that nothing reads", "# here", "m.c = m.a", "", f"{BY_ARRAYS} in_lists partials counts {WITHOUT}"),
]  # fmt: skip

PLUGINS = """
import pathlib
class Base: pass
class First(Base):
    rate = 1
class Other: pass
# here
def plain(x): return Base, First
def counted(x): return x * len(Base.__subclasses__())
def by_helper(x): return [each.rate for each in below(Base)]
def below(cls): return cls.__subclasses__()
def other(x): return Other.__subclasses__()
"""
FOUND = "counted by_helper"
SUBCLASSES = [
    edit("a subclass that nothing names", PLUGINS, "# here", "class Second(Base): rate = 2", FOUND, "plain other"),
    edit("a subclass of a subclass", PLUGINS, "# here", "class Second(First): rate = 2", FOUND, "plain other"),
    edit("what one reads", PLUGINS, "rate = 1", "rate = 3", f"{FOUND} plain", "other"),
    edit("the order of two", PLUGINS.replace("# here", "class A(Base): rate = 1\nclass B(Base): rate = 2"), "class A(Base): rate = 1\nclass B(Base): rate = 2", "class B(Base): rate = 2\nclass A(Base): rate = 1", FOUND, "plain other"),
    edit("one that is made twice", PLUGINS.replace("# here", "class Second(Base): __slots__ = ()"), "class Second(Base): __slots__ = ()", "Second = type('Second', (Base,), dict(vars(type('Second', (Base,), {'__slots__': (), '__module__': 'main'}))))", "", f"{FOUND} plain other"),
    edit("one that is gone", PLUGINS, "# here", "class Second(Base): rate = 2\ndel Second\nimport gc; gc.collect()", "", f"{FOUND} plain other"),
]  # fmt: skip

ORDER = """
import main_table
class Net:
    first = 1
    second = 2
    def run(self): return 3
class Slots:
    __slots__ = ("a",)
    def run(self): return 3
def noted(): pass
noted.one = 1
noted.two = 2
def plain(x): return Net.first, Net, noted, Slots, main_table
def by_vars(x): return [*vars(Net).values()], Slots
def by_dict(x): return list(Net.__dict__), Slots
def by_helper(x): return names_of(Net)
def names_of(cls): return [name for name in cls.__dict__]
def quoted(x): return getattr(Net, "__dict__")
def of_function(x): return list(vars(noted))
def of_module(x): return [*vars(main_table).values()]
--- main_table.py
one = 1
two = 2
"""
ORDERED = "by_vars by_dict by_helper quoted"
ORDERS = [
    edit("the order in a class", ORDER, "    first = 1\n    second = 2\n", "    second = 2\n    first = 1\n", ORDERED, "plain of_function of_module"),
    edit("that of a method", ORDER, "    second = 2\n    def run(self): return 3\n", "    def run(self): return 3\n    second = 2\n", ORDERED, "plain of_function of_module"),
    edit("that of what a function has", ORDER, "noted.one = 1\nnoted.two = 2\n", "noted.two = 2\nnoted.one = 1\n", "of_function", f"plain of_module {ORDERED}"),
    edit("that in a module", ORDER, "--- main_table.py\none = 1\ntwo = 2\n", "--- main_table.py\ntwo = 2\none = 1\n", "of_module", f"plain of_function {ORDERED}"),
]  # fmt: skip
ROWS = [*REFLECTED, *SAME, *SUBCLASSES, *ORDERS]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """What a walk finds before and after each edit."""
    return probe_edits(tmp_path_factory.mktemp("reflection"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_changes_what_reads_it_and_nothing_else(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """Also where it is read by way of a helper, or by a library's function of another name."""
    check(row, seen)


DESCRIPTORS = """
class Given:
    def __get__(self, held, cls): return 7
class Base: pass
class Held(Base): shadowed = Given()
held = Held()
held.own = 2
vars(held)["shadowed"] = 3
def own(x): return x * held.own
def shadowed(x): return x * held.shadowed
def plain(x): return x
"""

LATE = [
    (PROJECT, "name", "helper.__name__ = 'other'"),
    (PROJECT, "name", "Held.__name__ = 'Other'"),
    (PROJECT, "qualname", "helper.__qualname__ = 'a.b'"),
    (PROJECT, "qualname", "Held.__qualname__ = 'a.b'"),
    (PROJECT, "doc", "helper.__doc__ = 'x'"),
    (PROJECT, "doc", "Held.__doc__ = 'x'"),
    (PROJECT, "annotations", "helper.__annotations__['x'] = Box[float]"),
    (PROJECT, "annotations", "helper.__annotations__ = {}"),
    (PROJECT, "annotations", "Held.__annotations__['one'] = Box[float]"),
    (PROJECT, "resolved", "Number = float"),
    (PROJECT, "types", "dataclasses.fields(Row)[0].type = float"),
    (PROJECT, "value", "VALUE = Box[float]"),
    (ALIASES, "asks", "m.b = m.a"),
    (ALIASES, "in_lists", "m.second[0] = m.first[0]"),
    (PLUGINS, "by_helper", "class Second(Base): rate = 2"),
    (
        ORDER.replace("import main_table\n", ""),
        "by_vars",
        "one = Net.first; del Net.first; Net.first = one",
    ),
    (DESCRIPTORS, "own", "Held.own = property(lambda held: 5)"),
    (DESCRIPTORS, "own", "Base.own = property(lambda held: 5)"),
    (DESCRIPTORS, "shadowed", "Held.shadowed = property(lambda held: 5)"),
    (DESCRIPTORS, "shadowed", "Given.__set__ = lambda self, held, value: None"),
]


@pytest.mark.parametrize(("text", "name", "change"), LATE, ids=lambda each: each[:40].strip())
def test_a_late_change_is_noticed(tmp_path: Path, text: str, name: str, change: str) -> None:
    """By the guards of what reads it, and the next walk has another digest; others keep theirs."""
    names = _run(tmp_path, text)
    before, plain = walk(names[name], name), walk(names["plain"], "plain")
    assert before.guards.hold()
    exec(change, names)
    assert not before.guards.hold()
    after = walk(names[name], name)
    assert after.guards.hold()
    assert after.fingerprint.digest != before.fingerprint.digest
    renamed = "Held.__name__" in change  # which always counts
    same = walk(names["plain"], "plain").fingerprint.digest == plain.fingerprint.digest
    assert same is not renamed


def test_a_name_in_an_annotation_of_a_class_that_is_bound_anew_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The text is the same; what it means is looked up in the module of the class."""
    module = ModuleType("own_annotations")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(
        "import typing\nNumber = int\n"
        "class Named: one: 'Number'\n"
        "def resolved(x): return typing.get_type_hints(Named)",
        vars(module),
    )
    before = walk(module.resolved, "resolved")
    assert before.guards.hold()
    module.Number = float  # type: ignore[attr-defined]
    assert not before.guards.hold()
    assert walk(module.resolved, "resolved").fingerprint.digest != before.fingerprint.digest


def test_annotations_of_a_class_that_are_read_in_two_ways_are_refused(tmp_path: Path) -> None:
    """On a server text is resolved for `get_type_hints`, which has no module to look it up in."""
    names = _run(tmp_path, PROJECT)
    exec("class Texts: one: 'int'", names)
    exec("def both(x): return typing.get_type_hints(Texts), helper.__annotations__", names)
    with pytest.raises(PackingError, match="both as they are and resolved"):
        walk(names["both"], "both")


def test_a_class_has_another_id_for_code_that_reads_more_of_it(tmp_path: Path) -> None:
    """So on a server it is another class than for code of which none reads that."""
    held = _run(tmp_path, PROJECT)["Held"]
    plain = content_id(held)
    with packing_for(PackedFor(readers=frozenset({"docstrings"}))):
        before = content_id(held)
        held.__doc__ = "Other."
        assert before != content_id(held) != plain
    assert content_id(held) == plain


def _run(folder: Path, text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile((write(folder, text) / "main.py").read_text(), "main.py", "exec"), names)
    return names
