"""An edit of a local module changes what reads it, whichever way it is imported."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import pytest

from tests.identity.probing import ProbeResult
from tests.identity.projects import Edit, check, edit, probe_edits

PROJECT = """
import mine
import mine as renamed
import pkg.sub
import pkg.sub as sub
from everything import *
from mine import times
from pkg import other_sub
from pkg.sub import deep as deeper
def use(module): return module.times(1)
def attribute(x): return mine.times(x)
def alias(x): return renamed.times(x)
def from_import(x): return times(x)
def constant(x): return x * mine.RATE
def entry(x): return x * mine.TABLE["a"]
def dotted(x): return pkg.sub.deep(x)
def dotted_alias(x): return sub.deep(x)
def dotted_from(x): return deeper(x)
def relative(x): return other_sub.uses(x)
def by_name(x, name="times"): return getattr(mine, name)(x)
def keep(module): return [module]
def passed(x): return use(mine)
def kept(x): return keep(mine)
def held(x): return [mine][0].times(x)
def computed(x): return mine.made_up
def from_star(x): return starred(x) + STAR
def class_in_module(x): return mine.Settings.lr
def object_in_module(x): return mine.settings.lr
def dynamic(x): return eval("RATE", vars(mine))
def by_dict(x): return x * mine.__dict__["RATE"]
--- mine.py
RATE = 2
TABLE = {"a": 3, "b": 4}
UNREAD = 5
def times(x): return x * FACTOR
FACTOR = 6
def unread(x): return x + UNREAD
class Settings: lr, name = 0.5, "first"
settings = Settings()
VALUES = {"made_up": 10}
def __getattr__(name):
    try: return VALUES[name]
    except KeyError: raise AttributeError(name) from None
--- everything.py
STAR = 11
def starred(x): return x + STAR
--- pkg/__init__.py
LEVEL = 7
--- pkg/sub.py
from . import LEVEL
def deep(x): return x + LEVEL
--- pkg/other_sub.py
from . import sub
from .sub import deep
import pkg
def uses(x): return deep(x) + sub.deep(x) + pkg.LEVEL
"""
WHOLE = "by_name kept held dynamic by_dict"
TIMES = f"attribute alias from_import passed {WHOLE}"
DEEP = "dotted dotted_alias dotted_from relative"

LAZY = """
import loaded
def step(x):
    from mine import times
    return times(x)
def plain(x):
    import mine
    return mine.times(x)
def dotted(x):
    import pkg.sub
    return pkg.sub.deep(x)
def dotted_alias(x):
    import pkg.sub as sub
    return sub.deep(x)
def dotted_from(x):
    from pkg import sub
    return sub.deep(x)
def already(x):
    from loaded import read
    return read(x)
def in_a_closure(x):
    import mine as chosen
    def inner(y): return chosen.times(y)
    return [inner(y) for y in range(x)]
def in_a_class(x):
    class Local:
        from mine import times
    return Local.times(x)
def either(x):
    try: import mine as chosen
    except ImportError: import loaded as chosen
    return chosen.times(x)
def passed_on(x):
    import mine
    return vars(mine)
def star(x):
    import pkg.relative
    return pkg.relative.run(x)
def spaced(x):
    from space.inner import inside
    return inside(x)
def guarded(x):
    try: from missing import fast
    except ImportError: return x
    return fast(x)
--- loaded.py
def read(x): return x - 1
def not_read(x): return x - 2
--- mine.py
from helpers import factor
def times(x): return x * factor() * 3
--- helpers.py
def factor(): return 4
--- space/inner.py
def inside(x): return x + 7
--- pkg/__init__.py
LEVEL = 5
--- pkg/sub.py
def deep(x): return x + 6
--- pkg/relative.py
def run(x):
    from . import sub
    from .sub import deep
    return sub.deep(x) + deep(x)
"""
SUB = "dotted dotted_alias dotted_from star"

CIRCLE = """
import left
def step(x): return left.go(x)
def other(x): return left.alone(x)
--- left.py
import right
def go(x): return right.back(x)
def alone(x): return x
END = 1
--- right.py
import left
def back(x): return x * left.END if x else left.go(x)
"""

PATCHED = """
import pkg.sub
def mine(x): return x + 1
pkg.sub = mine
def as_name(x):
    import pkg.sub as chosen
    return chosen(x)
def as_chain(x): return pkg.sub(x)
def other(x): return x
--- pkg/__init__.py
--- pkg/sub.py
LEVEL = 2
"""

ROWS = [
    edit("a function in a module", PROJECT, "x * FACTOR", "x / FACTOR", TIMES, f"constant entry {DEEP}"),
    edit("a global of such a function", PROJECT, "FACTOR = 6", "FACTOR = 7", TIMES, f"constant entry {DEEP}"),
    edit("a constant in a module", PROJECT, "RATE = 2", "RATE = 3", f"constant {WHOLE}", f"attribute alias from_import entry {DEEP}"),
    edit("an entry of a dict in a module", PROJECT, '"a": 3', '"a": 2', f"entry {WHOLE}", "constant attribute"),
    edit("an entry that is not read", PROJECT, '"b": 4', '"b": 5', WHOLE, "entry constant attribute"),
    edit("what only a whole module has", PROJECT, "UNREAD = 5", "UNREAD = 4", WHOLE, f"attribute alias from_import passed constant entry {DEEP}"),
    edit("what a module makes up", PROJECT, "10}", "12}", f"computed {WHOLE}", "attribute constant"),
    edit("what a star brings", PROJECT, "STAR = 11", "STAR = 12", "from_star", "attribute constant"),
    edit("a setting in a module", PROJECT, "0.5", "0.7", f"class_in_module object_in_module {WHOLE}", "attribute constant"),
    edit("a name added to a module", PROJECT, "UNREAD = 5", "UNREAD = 5; NEW = 1", WHOLE, f"attribute constant {DEEP}"),
    edit("a function in a package's module", PROJECT, "x + LEVEL", "x - LEVEL", DEEP, "attribute constant"),
    edit("a constant of the package", PROJECT, "LEVEL = 7", "LEVEL = 8", DEEP, "attribute constant"),
    edit("a function that imports relatively", PROJECT, "+ sub.deep", "- sub.deep", "relative", "dotted attribute"),
    edit("a module imported later", LAZY, "factor() * 3", "factor() * 2", "step plain in_a_closure in_a_class either passed_on", f"{SUB} already guarded"),
    edit("what such a module imports", LAZY, "return 4", "return 3", "step plain in_a_closure in_a_class either passed_on", f"{SUB} already guarded"),
    edit("a submodule imported later", LAZY, "x + 6", "x + 7", SUB, "step plain already guarded"),
    edit("a package imported later", LAZY, "LEVEL = 5", "LEVEL = 4", SUB, "step plain already guarded"),
    edit("relative imports later", LAZY, "+ deep(x)", "- deep(x)", "star", "dotted step already"),
    edit("a loaded module imported again", LAZY, "x - 1", "x - 3", "already", "step dotted"),
    edit("what is not read of a loaded module", LAZY, "x - 2", "x - 3", "", "already step"),
    edit("a module that appears", LAZY, "--- loaded.py", "--- missing.py\ndef fast(x): return 0\n--- loaded.py", "guarded", "step already"),
    edit("a folder without __init__ imported later", LAZY, "x + 7", "x + 8", "spaced", "step dotted"),
    edit("a submodule that is patched", PATCHED, "x + 1", "x + 2", "as_name as_chain", "other"),
    edit("modules that import each other", CIRCLE, "END = 1", "END = 2", "step", "other"),
    edit("a function around a circle", CIRCLE, "x * left.END", "x + left.END", "step", "other"),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[ProbeResult, ProbeResult]]:
    """All rows, looked at from one interpreter."""
    return probe_edits(tmp_path_factory.mktemp("modules"), ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_an_edit_of_a_module_changes_its_readers(
    row: Edit, seen: dict[str, tuple[ProbeResult, ProbeResult]]
) -> None:
    """And only them."""
    check(row, seen)
