"""An edit of anything that a function is made of or reaches changes its key, and no other's."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

from pathlib import Path

import pytest

from tests.identity.probing import Job, ProbeResult, probe
from tests.identity.projects import Edit, check, edit, probe_edits, write

HELPERS = """
SCALE = 3
UNREAD = 1
def inner(x): return x * SCALE
def helper(x): return inner(x) + 1
def unread(x): return x * UNREAD
def step(x): return helper(x)
"""
DEFAULTS = """
TABLE = [1]
def step(x, table=TABLE, *, rate=0.5): return x * rate, table
def other(x, table=None): return x, table
# here
"""
CLOSURES = """
def add(x): return x + 1
def make(rate, function):
    def run(x): return function(x) * rate
    def late(x): return unset(x)
    if rate > 5: unset = abs
    return run, late
step, late = make(2, add)
other, _ = make(4, abs)
"""
DECORATED = """
import functools
def scaled(by):
    def decorate(function):
        @functools.wraps(function)
        def run(*args): return function(*args) * by + 0
        return run
    return decorate
@scaled(2)
def step(x): return x + 1
def plain(x): return x + 1
"""
DISPATCH = """
import functools
@functools.singledispatch
def kind(x): return 0
@kind.register
def _(x: int): return 1
@functools.lru_cache
def cached(x): return x + 2
def step(x): return kind(x)
def memoised(x): return cached(x)
"""
SENTINELS = """
FIRST, SECOND = object(), object()
def step(x, mark=FIRST): return mark
def other(x, mark=None): return x if mark is FIRST else -x
# here
"""
NAMES = """
def step(x):
    try: return abs(x) * later
    except NameError: return 0
def other(x): return max(x, 1)
# here
"""
TEMPLATES = """
def step(x): return x + 1
def other(x): return x * 2
def third(x): return x * 3
# here
"""
PARTIAL = """
from functools import partial, partialmethod
def add(x, y, z=0): return x + y + z
step = partial(add, 1, z=2)
other = partial(add, 5)
class Adder:
    plus = partialmethod(add, 7)
def method(x): return Adder().plus(x)
"""
INSIDE = """
RATE = 2
def step(x):
    def inner(y): return [y + 1 for _ in range(3)]
    class Local:
        rate = RATE
        def run(self, y): return y - 4
    return inner(x), Local().run(x), (lambda z: z ** 5)(x)
def other(x): return [y for y in range(x)]
"""
CODE = """
def step(x, y=0):
    if x > 1 and y < 7: return f"{x:>4}" + "text"
    for i in range(3):
        try: x += i
        except ValueError: pass
    return x
def other(x): return -x
"""
UNDOCUMENTED = """
# top
def step(x): return x + 1
def other(x):
    # other
    if x > 2: return [x, "text", 2.5]
class Model:
    # model
    def __call__(self, x):
        # call
        return x * 7
    def nothing(self): pass
def method(x): return Model()(x), Model().nothing()
def inside(x):
    class Local:
        # local
        rate = RATE
        try: width = 8
        except ValueError: width = 9
    def inner(y: int) -> int:
        # inner
        return y - 3
    return inner(x) * Local.rate * Local.width
def lazy(x):
    from unloaded import value
    return value(x)
def evaluates(x: int): return eval("x")
RATE = 3
--- unloaded.py
# unloaded
LIMITS = (1, 2)
def value(x):
    # value
    return x * LIMITS[1]
"""
KINDS_OF_CODE = "step other method inside lazy evaluates"
LAMBDAS = "step, other = (lambda x: x + 1), (lambda x: x + 2)\n"

ROWS = [
    edit("a global number", HELPERS, "SCALE = 3", "SCALE = 4", "step helper inner", "unread"),
    edit("a global that nothing reads", HELPERS, "UNREAD = 1", "UNREAD = 2", "unread", "step"),
    edit("a helper", HELPERS, "inner(x) + 1", "inner(x) + 2", "step helper", "inner unread"),
    edit("a helper's helper", HELPERS, "x * SCALE", "x / SCALE", "step helper inner", "unread"),
    edit("which helper is called", HELPERS, "return helper", "return inner", "step", "helper"),
    edit("a default", DEFAULTS, "TABLE = [1]", "TABLE = [2]", "step", "other"),
    edit("a default that appears", DEFAULTS, "table=None", "table=()", "other", "step"),
    edit("a keyword's default", DEFAULTS, "rate=0.5", "rate=0.25", "step", "other"),
    edit("a mutated default", DEFAULTS, "# here", "TABLE.append(2)", "step", "other"),
    edit("defaults set later", DEFAULTS, "# here", "step.__defaults__ = (7,)", "step", "other"),
    edit("keyword defaults set later", DEFAULTS, "# here", "step.__kwdefaults__ = {'rate': 9}", "step", "other"),
    edit("a default that is another bare object", SENTINELS, "mark=FIRST", "mark=SECOND", "step", "other"),
    edit("a bare object that is made again", SENTINELS, "# here", "FIRST = object()", "step", "other"),
    edit("a bare object that a function closes over", SENTINELS, "is FIRST", "is SECOND", "other", "step"),
    edit("an attribute of it", DEFAULTS, "# here", "step.unit = 'm'", "step", "other"),
    edit("a value in a closure", CLOSURES, "make(2", "make(3", "step", "other late"),
    edit("a function in a closure", CLOSURES, "x + 1", "x + 2", "step", "other late"),
    edit("an empty cell that is filled", CLOSURES, "make(2", "make(6", "late step", "other"),
    edit("a closure's own body", CLOSURES, ") * rate", ") / rate", "step other", "late"),
    edit("what a decorator does", DECORATED, "by + 0", "by + 1", "step", "plain"),
    edit("what a decorator is given", DECORATED, "scaled(2)", "scaled(3)", "step", "plain"),
    edit("what is decorated", DECORATED, "def step(x): return x + 1", "def step(x): return x", kept="plain"),
    edit("a decorator taken away", DECORATED, "@scaled(2)\n", "", "step", "plain"),
    edit("a registered implementation", DISPATCH, "return 1", "return 2", "step", "memoised"),
    edit("the type that it is for", DISPATCH, "x: int", "x: str", "step", "memoised"),
    edit("what is cached", DISPATCH, "x + 2", "x + 3", "memoised cached", "step"),
    edit("a builtin that is shadowed", NAMES, "# here", "def abs(x): return 0", "step", "other"),
    edit("a global that appears", NAMES, "# here", "later = 1", "step", "other"),
    edit("a global that disappears", NAMES + "later = 1\n", "later = 1", "", "step", "other"),
    edit("its code, swapped", TEMPLATES, "# here", "step.__code__ = other.__code__", "step", "other third"),
    edit("a name that is bound again", TEMPLATES, "# here", "step = third", "step", "other third"),
    edit("a partial's argument", PARTIAL, "add, 1", "add, 3", "step", "other method"),
    edit("a partial's keyword", PARTIAL, "z=2", "z=3", "step", "other method"),
    edit("a partial's function", PARTIAL, "y + z", "y - z", "step other method", ""),
    edit("a partial method's argument", PARTIAL, "add, 7", "add, 8", "method", "step other"),
    edit("a nested function", INSIDE, "y + 1", "y + 2", "step", "other"),
    edit("a nested comprehension", INSIDE, "range(3)", "range(4)", "step", "other"),
    edit("a class inside", INSIDE, "y - 4", "y - 5", "step", "other"),
    edit("a global read by a class body inside", INSIDE, "RATE = 2", "RATE = 3", "step", "other"),
    edit("a lambda inside", INSIDE, "z ** 5", "z ** 6", "step", "other"),
    edit("numbers that read alike", CODE.replace("x > 1", "x*1+23"), "1+23", "12+3", "step", "other"),
    edit("a comparison", CODE, "x > 1", "x >= 1", "step", "other"),
    edit("and for or", CODE, " and ", " or ", "step", "other"),
    edit("a format", CODE, ":>4", ":>5", "step", "other"),
    edit("a text", CODE, '"text"', '"test"', "step", "other"),
    edit("what is caught", CODE, "ValueError", "KeyError", "step", "other"),
    edit("a try that shrinks", CODE, "try: x += i\n", "x += i\n        try: pass\n", "step", "other"),
    edit("a parameter's name", CODE, "x, y=0):", "x, z=0):\n    y = z", "step", "other"),
    edit("a parameter that must be named", CODE, "x, y=0", "x, *, y=0", "step", "other"),
    edit("a parameter that cannot be named", CODE, "x, y=0", "x, /, y=0", "step", "other"),
    edit("many arguments", CODE, "x, y=0", "x, y=0, *z", "step", "other"),
    edit("a generator in place of a function", CODE, "return -x", "yield -x", "other", "step"),
    edit("a docstring for one line", UNDOCUMENTED, "def step(x): return x + 1", "def step(x):\n    'Adds.'\n    return x + 1", "", KINDS_OF_CODE),
    edit("that line itself", UNDOCUMENTED, "def step(x): return x + 1", "def step(x):\n    'Adds.'\n    return x + 2", "step", "other method"),
    edit("a docstring among constants", UNDOCUMENTED, "# other", "'Something.'", "", KINDS_OF_CODE),
    edit("a docstring that is a constant, too", UNDOCUMENTED, "# other", "'text'", "", KINDS_OF_CODE),
    edit("such a constant", UNDOCUMENTED, '# other\n    if x > 2: return [x, "text"', "'text'\n    if x > 2: return [x, 'test'", "other", "step method inside"),
    edit("docstrings of a class", UNDOCUMENTED, "# model", "'A model.'", "", KINDS_OF_CODE),
    edit("a docstring of a method", UNDOCUMENTED, "# call", "'Calls it.'", "", KINDS_OF_CODE),
    edit("a number in that method", UNDOCUMENTED, "# call\n        return x * 7", "'Calls it.'\n        return x * 9", "method", "step inside"),
    edit("a docstring in place of a body", UNDOCUMENTED, "nothing(self): pass", "nothing(self): 'Nothing.'", "", KINDS_OF_CODE),
    edit("a docstring of a class inside", UNDOCUMENTED, "# local", "'A class.'", "", KINDS_OF_CODE),
    edit("a number in that class", UNDOCUMENTED, "width = 8", "width = 10", "inside", "step method"),
    edit("what that class catches", UNDOCUMENTED, "ValueError: width", "TypeError: width", "inside", "step method"),
    edit("a docstring of a function inside", UNDOCUMENTED, "# inner", "'Inner.'", "", KINDS_OF_CODE),
    edit("docstrings of a module that is not loaded", UNDOCUMENTED, "# unloaded", "'A module.'", "", KINDS_OF_CODE),
    edit("docstrings of a function there", UNDOCUMENTED, "# value", "'A value.'", "", KINDS_OF_CODE),
    edit("a constant there", UNDOCUMENTED, "# unloaded\nLIMITS = (1, 2)", "'A module.'\nLIMITS = (1, 3)", "lazy", "step inside"),
    edit("annotations as text", UNDOCUMENTED.replace("y: int) -> int", "y)"), "# top", "from __future__ import annotations", "evaluates", "step other method inside lazy"),
    edit("one of two lambdas on a line", LAMBDAS, "x + 1", "x + 3", "step", "other"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("functions"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_changes_what_it_reaches(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """That, and nothing else."""
    check(row, seen)


def test_lambdas_on_one_line_have_keys_of_their_own(tmp_path: Path) -> None:
    """A line number would not tell them apart."""
    folder = write(tmp_path / "lambdas", LAMBDAS)
    (found,) = probe([Job(str(folder), ("step", "other"))])
    assert found.digest("step") != found.digest("other")


@pytest.mark.slow
def test_an_assert_counts_only_where_it_is_run(tmp_path: Path) -> None:
    """Without asserts another program is compiled; each way agrees with itself."""
    source = "def step(x):\n    assert x > 0\n    return x\n"
    job = Job(str(write(tmp_path / "asserts", source)), ("step", "bystander"))
    runs = [probe([job], flags=flags)[0].digest("step") for flags in ((), ("-O",), ("-O",))]
    assert runs[1] == runs[2] != runs[0]
