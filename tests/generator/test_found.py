"""What `make identity` has found, each as the smallest project that shows it: jaxd says what plain jax says."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.generator.processes import Processes
from tests.generator.running import compared
from tests.generator.worlds import Act, Process, World


class Found(NamedTuple):
    """A project, a package `PKG` whose `f.entry` is called, and what is done to it.

    Attributes:
        says: what was wrong.
        files: of the package; `entry` calls `go` of `f.py`.
        steps: the edits before each call.
        jax: whether the client has jax.
        threads: what each of several threads does before its call.
        refused: how many of the last steps may be refused.
    """

    says: str
    files: dict[str, str]
    steps: tuple[str, ...] = ("",)
    jax: bool = False
    threads: tuple[str, ...] = ()
    refused: int = 0


_ENTRY = "\ndef entry(n, x): return x + go(n)\n"
_ABSENT = "import importlib, os, PKG; open(os.path.join(PKG.__path__[0], 'absent.py'), 'w').write('K = 7'); importlib.invalidate_caches()"
_UNRELATED = "import os\ndef names(): return dict(os.environ)\n"

ROWS = [
    *(
        Found(
            f"a function that was put into a library was not there for a late module: {read}",
            {
                "f.py": "def go(n):\n    from PKG import late\n    return late.go(n)",
                "late.py": text,
                "compat.py": "import statistics",
            },
            (
                "import statistics; statistics.median = lambda v: 8",
                "import statistics; statistics.median = lambda v: 9",
            ),
        )
        for read, text in {
            "by its module": "import statistics\ndef go(n): return statistics.median([1, 7])",
            "by another name": "import statistics as s\nK = s.median([1, 7])\ndef go(n): return K",
            "by its name": "from statistics import median\ndef go(n): return median([1, 7])",
            "with all names": "from statistics import *\ndef go(n): return median([1, 7])",
            "in a function": "def go(n):\n    import statistics\n    return statistics.median([1, 7])",
            "by its name, in a function": "def go(n):\n    from statistics import median\n    return median([1, 7])",
            "through another module": "from PKG.compat import statistics\ndef go(n): return statistics.median([1, 7])",
            "as an argument": "import statistics\ndef call(m): return m.median([1, 7])\ndef go(n): return call(statistics)",
        }.items()
    ),
    *(
        Found(
            f"a constant that was replaced in a library was the library's for a late module: {read}",
            {
                "f.py": "def go(n):\n    from PKG import late\n    return late.go(n)",
                "late.py": text,
                "compat.py": "import colorsys",
            },
            (
                "import colorsys",
                "import colorsys; colorsys.ONE_THIRD = 8.0",
                "import colorsys; colorsys.ONE_THIRD = 9.0",
            ),
        )
        for read, text in {
            "by its module": "import colorsys\ndef go(n): return colorsys.ONE_THIRD",
            "by another name": "import colorsys as c\nK = c.ONE_THIRD\ndef go(n): return K",
            "by its name": "from colorsys import ONE_THIRD\ndef go(n): return ONE_THIRD",
            "in a function": "def go(n):\n    import colorsys\n    return colorsys.ONE_THIRD",
            "through another module": "from PKG.compat import colorsys\ndef go(n): return colorsys.ONE_THIRD",
            "as an argument": "import colorsys\ndef third(m): return m.ONE_THIRD\ndef go(n): return third(colorsys)",
        }.items()
    ),
    Found(
        "a late module that imports a name of its package had all of the package packed",
        {
            "f.py": "import PKG.unrelated\ndef go(n):\n    from PKG import late\n    return late.K",
            "unrelated.py": _UNRELATED,
            "late.py": "from . import part\nK = part.K",
            "part.py": "K = 3",
        },
    ),
    Found(
        "a module that is loaded was no attribute of its package for a late module",
        {
            "f.py": "def go(n):\n    import PKG.late\n    return PKG.late.go(n)",
            "late.py": "def go(n):\n    import PKG.loaded\n    return PKG.loaded.K",
            "loaded.py": "K = 3",
        },
        ("module('PKG.loaded')", "module('PKG.loaded').K = 5"),
    ),
    Found(
        "the `__getattr__` of a module that makes a name was replaced, and nobody looked",
        {
            "f.py": "import PKG.made\ndef go(n): return PKG.made.value",
            "made.py": "def other(name):\n    if name == 'value': return 7\n    raise AttributeError(name)\ndef __getattr__(name):\n    if name == 'value': return 3\n    raise AttributeError(name)",
        },
        ("", "made = module('PKG.made'); made.__getattr__ = made.other"),
    ),
    Found(
        "a package of which another module is imported late lacked what else was read of it",
        {
            "f.py": "import PKG.loaded\ndef go(n):\n    import PKG.late\n    return PKG.late.K + PKG.loaded.K",
            "late.py": "K = 3",
            "loaded.py": "K = 4",
        },
        ("", "module('PKG.loaded').K = 5"),
    ),
    Found(
        "two late modules of one package, imported in one function, had all of the package packed",
        {
            "f.py": "import PKG.unrelated\ndef go(n):\n    import PKG.one\n    import PKG.two\n    return PKG.one.K + PKG.two.K",
            "one.py": "K = 3",
            "two.py": "K = 4",
            "unrelated.py": _UNRELATED,
        },
    ),
    Found(
        "a late module that imports another by its dotted name had all of the package packed",
        {
            "f.py": "import PKG.unrelated, PKG.loaded\ndef go(n):\n    import PKG.late\n    return PKG.late.go(n)",
            "late.py": "import PKG.part\ndef go(n): return PKG.part.K + PKG.loaded.K",
            "part.py": "K = 3",
            "loaded.py": "K = 4",
            "unrelated.py": _UNRELATED,
        },
        ("", "module('PKG.loaded').K = 5"),
    ),
    Found(
        "of a loaded module that a function of a late one imports all was packed",
        {
            "f.py": "def go(n):\n    import PKG.late\n    return PKG.late.go(n)",
            "late.py": "def go(n):\n    from . import unrelated\n    import PKG.unrelated as same\n    return unrelated.K + same.twice(n)",
            "unrelated.py": f"{_UNRELATED}K = 3\ndef twice(n): return 2 * n + LEVEL\nLEVEL = 4",
        },
        (
            "module('PKG.unrelated')",
            "module('PKG.unrelated').K = 5",
            "module('PKG.unrelated').LEVEL = 6",
        ),
    ),
    Found(
        "a name that a module lacks was made by a `__getattr__` that it got later",
        {
            "f.py": "import PKG.part\ndef go(n): return getattr(PKG.part, 'LATER', 3)",
            "part.py": "def getter(name):\n    if name == 'LATER': return 7\n    raise AttributeError(name)",
        },
        ("", "part = module('PKG.part'); part.__getattr__ = part.getter"),
    ),
    Found(
        "a name that an import did not find was there later",
        {
            "f.py": "import PKG.part\ndef go(n):\n    try:\n        from PKG.part import LATER\n    except ImportError: return 3\n    return LATER",
            "part.py": "",
        },
        ("", "module('PKG.part').LATER = 7"),
    ),
    Found(
        "a module that an import did not find was there later",
        {
            "f.py": "def go(n):\n    try:\n        from PKG import absent\n    except ImportError: return 3\n    return absent.K"
        },
        ("", _ABSENT),
    ),
    Found(
        "a module that a late module did not find was there later",
        {
            "f.py": "def go(n):\n    import PKG.late\n    return PKG.late.K",
            "late.py": "try:\n    from PKG.absent import K\nexcept ImportError: K = 3",
        },
        ("", _ABSENT),
    ),
    Found(
        "a thread found what another one has in a `threading.local`",
        {
            "f.py": "import threading\nLOCAL = threading.local()\ndef go(n): return getattr(LOCAL, 'v', 3)"
        },
        threads=("module('PKG.f').LOCAL.v = 5", "module('PKG.f').LOCAL.v = 7", ""),
    ),
    Found(
        "a thread found what another one has in a context variable",
        {
            "f.py": "import contextvars\nVARIABLE = contextvars.ContextVar('v', default=3)\ndef go(n): return VARIABLE.get()"
        },
        threads=("module('PKG.f').VARIABLE.set(5)", "module('PKG.f').VARIABLE.set(7)", ""),
    ),
    Found(
        "two classes that are alike, one of before a reload, were one class on the server",
        {
            "f.py": "import PKG.forms\nvalue = PKG.forms.P()\ndef go(n): return PKG.forms.kind(value)",
            "forms.py": "from PKG.base import kind\nclass P: pass\n@kind.register\ndef _(x: P): return 3",
            "base.py": "import functools\n@functools.singledispatch\ndef kind(x): return 1",
        },
        (
            "",
            "import importlib, PKG.forms as f; file = open(f.__file__, 'a'); file.write('@kind.register\\ndef _(x: P): return 5\\n'); file.close(); importlib.invalidate_caches(); again('PKG.forms')",
        ),
    ),
    Found(
        "an object of a class that was reloaded was one of the class before",
        {
            "f.py": "from PKG.base import kind\nfrom PKG import forms\nvalue = forms.P()\ndef go(n): return kind(value)",
            "forms.py": "from PKG.base import kind\nclass P: pass\n@kind.register\ndef _(x: P): return 3",
            "base.py": "import functools\n@functools.singledispatch\ndef kind(x): return 1",
        },
        (
            "",
            # both processes write it, and neither may read a part
            "import importlib, os, pathlib, PKG.forms as f; file = pathlib.Path(f.__file__); new = pathlib.Path(f'{file}.{os.getpid()}'); new.write_text(file.read_text().replace('return 3', 'return 53')); new.replace(file); importlib.invalidate_caches(); again('PKG.forms'); again('PKG.f')",
        ),
    ),
    Found(
        "a class that was registered, and has the method later, was not registered on the server",
        {
            "f.py": "import collections.abc\nclass P: pass\np = P()\ndef go(n): return 2 if isinstance(p, collections.abc.Sized) else 5",
        },
        (
            "m = module('PKG.f'); m.collections.abc.Sized.register(m.P); m.P.__len__ = lambda self: 1",
        ),
    ),
    Found(
        "a class that was registered with one that later says yes to all was not on the server",
        {
            "f.py": "import abc\nclass A(abc.ABC): pass\nclass P: pass\np = P()\ndef go(n): return 2 if isinstance(p, A) else 5",
        },
        (
            "m = module('PKG.f'); m.A.register(m.P); m.A.__subclasshook__ = classmethod(lambda c, o: True)",
        ),
    ),
    Found(
        "a late module found the server's context of decimal",
        {
            "f.py": "def go(n):\n    import PKG.late\n    return PKG.late.K",
            "late.py": "import decimal\nK = len(str(decimal.Decimal(1) / decimal.Decimal(7)))",
        },
        ("", "import decimal; decimal.getcontext().prec = 5"),
        refused=1,
    ),
    Found(
        "what one function registers and another reads was not looked at again",
        {
            "f.py": "def go(n):\n    import PKG.plugins\n    return PKG.plugins.go(n)",
            "plugins.py": "from . import registry\ndef go(n): return registry.go(n)",
            "registry.py": "TABLE = {}\ndef add(f): TABLE['f'] = f\ndef go(n): return sum(f(n) for f in TABLE.values())",
        },
        ("module('PKG.registry').add(lambda n: 9)", "module('PKG.registry').add(lambda n: 8)"),
    ),
]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes() as made:
        yield made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_what_was_found_is_right_now(row: Found, processes: Processes) -> None:
    """In one process, before and after each edit."""
    name = f"found_{ROWS.index(row)}"

    files = {f"{name}/{path}": text.replace("PKG", name) + "\n" for path, text in row.files.items()}
    files[f"{name}/f.py"] += _ENTRY
    files[f"{name}/__init__.py"] = ""
    call = {
        "function": f"{name}.f",
        "threads": [code.replace("PKG", name) for code in row.threads],
    }
    acts = [Act({}, [code.replace("PKG", name)] if code else [], [call]) for code in row.steps]
    made = World(name, files, [], [Process({}, ["prog"], "wd", [], acts)])
    for each in compared(processes, made, jax=row.jax):
        assert not each.is_end, each.got
        may_refuse = each.act >= len(acts) - row.refused
        for _, got, right in each.outcomes():
            assert right[0] == "value", right
            assert got == right or (may_refuse and got[:2] == ["raised", "PackingError"]), each.act
        assert not each.unsound()
