"""What cannot change a result builds nothing: counted, for fresh processes on one warm server."""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.identity.projects import write
from tests.live_server import LiveServer

PROJECT = '''
"""A program."""
# top
import enum, functools, json, sys
from dataclasses import dataclass
from types import SimpleNamespace
from jaxd import persistent_call, statistics
import helpers
import pkg.sub
from helpers import Base, scale
NAMES = {"alpha", "beta", "gamma", ("delta", 1), 7}
TABLE = {"rate": 0.5, "unread": 1}
CONFIG = SimpleNamespace(rate=0.25, name="first")
FUNCTIONS = []
# middle
def mine(function):
    """Remembers it."""
    FUNCTIONS.append(persistent_call(function))
    return function
class Color(enum.Enum):
    """Colors."""
    RED = 1.5
@dataclass
class Settings:
    """Settings."""
    rate: float = 0.75
class Model(Base):
    """A model."""
    width = 8
    def __init__(self, rate): self.rate, self.steps = rate, 0
    @property
    def double(self): return self.rate * 2
    def __call__(self, x):
        """Calls it."""
        return super().run(x) * self.double
def decorate(function):
    @functools.wraps(function)
    def run(x): return function(x) + 1
    return run
def make(rate, function):
    def run(x): return function(x) * rate
    return run
@mine
def plain(x: float, by: "int" = 2) -> float:
    """Plain."""
    return x * by + 3 + scale(x) + helpers.shift(x) + pkg.sub.deep(x)
@mine
@decorate
def sets(x):
    """Members."""
    return x * ("alpha" in NAMES) + len([n for n in ("beta", "omega") if n in {"beta", "gamma", "delta"}])
@mine
def reads(x): return x * TABLE["rate"] * CONFIG.rate + Color.RED.value + Settings().rate
@mine
def traces(x):
    """Imports where it runs."""
    import jax, jax.numpy as jnp
    from unloaded import value
    return jax.grad(lambda y: jnp.sum(jnp.sin(y) * value()))(x)
mine(make(3, plain))
mine(functools.partial(plain, by=5))
model = mine(Model(0.25))
mine(model.__call__)
def main():
    before = statistics()
    values = [float(function(1.5)) for function in FUNCTIONS]
    after = statistics()
    made = [each.compiles + each.programs_shared for each in (before, after)]
    print(json.dumps([values, after.traces - before.traces, made[1] - made[0]]))
# bottom
if __name__ == "__main__": main()
--- helpers.py
"""Helpers."""
# top
FACTOR = 3
class Base:
    def run(self, x): return x + FACTOR
def scale(x): return x * FACTOR
def shift(x): return scale(x) + 1
# bottom
--- unloaded.py
"""Not loaded yet."""
def value(): return 9
--- pkg/__init__.py
--- pkg/sub.py
from helpers import scale
def deep(x): return scale(x) - 1
'''
FUNCTIONS = 8


@dataclass(frozen=True, slots=True)
class Way:
    """Another way to come to the same program: how its text, its place or its process differs."""

    says: str
    changes: Sequence[tuple[str, str]] = ()
    place: str = "place"
    words: Sequence[str] = ("main.py",)
    environment: dict[str, str] = field(default_factory=dict)


NOTEBOOK = "import sys; sys.path.insert(0, ''); exec(compile(open('main.py').read(), {!r}, 'exec'))"
WAYS = [
    Way("again"),
    Way("comments and blank lines", [("# top", "# one\n\n# two"), ("# middle", "\n\n\n# other"), ("    return x * by", "    # why\n\n    return x * by")]),
    Way("imports", [("# top", "import zlib\nfrom os import path"), ("# bottom", "import textwrap")]),
    Way("docstrings", [(f'"""{text}"""', '"""Something else."""') for text in ("A program.", "Plain.", "Members.", "Calls it.", "A model.", "Settings.", "Colors.", "Helpers.", "Not loaded yet.", "Imports where it runs.")]),
    Way("annotations", [('(x: float, by: "int" = 2) -> float', '(x: "int | str", by: float = 2)')]),
    Way("what nothing reads", [("# middle", "MORE = 1\ndef more(x): return MORE"), ('"unread": 1', '"unread": 2'), ('name="first"', 'name="second"'), ("# bottom", "class Unused: pass")]),
    Way("where the lines break", [("return x * by + 3", "return (\n        x * by\n        + 3\n    )"), ("def scale(x): return x * FACTOR", "def scale(\n    x,\n):\n    return x * FACTOR")]),
    Way("another folder", place="a/much deeper/folder"),
    Way("another file name", [('"""A program."""', '"""A program."""\n--- other.py\n"""A program."""')], words=("other.py",)),
    Way("imported", words=("-c", "import main; main.main()")),
    Way("a cell of a notebook", words=("-c", NOTEBOOK.format("<ipython-input-3-0123abcd>"))),
    Way("hash seed 0", environment={"PYTHONHASHSEED": "0"}),
    Way("hash seed 1", environment={"PYTHONHASHSEED": "1"}),
    Way("development mode", words=("-X", "dev", "main.py")),
    Way("no compiled files", words=("-B", "main.py")),
    Way("jax was imported before", words=("-c", "import jax, main; main.main()")),
    Way("other variables of the environment", environment={"TZ": "Asia/Tokyo", "EXTRA": "1"}),
]  # fmt: skip


def run(server: LiveServer, folder: Path, way: Way) -> Any:
    """What the program prints: its results, and how much was traced and compiled for it."""
    text = PROJECT
    for old, new in way.changes:
        assert old in text
        text = text.replace(old, new)
    place = write(folder / way.place, text)
    done = subprocess.run(
        [sys.executable, *way.words],
        cwd=place,
        env=server.environment | way.environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def first(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the first process gets: everything is built for it."""
    values, traces, made = run(live, tmp_path_factory.mktemp("first"), Way("first"))
    assert (traces, made) == (FUNCTIONS, FUNCTIONS)
    return values


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=way.says, marks=() if way.says == "again" else pytest.mark.slow)
        for way in WAYS
    ],
)
def test_nothing_is_built_again(way: Way, live: LiveServer, first: Any, tmp_path: Path) -> None:
    """And the results are the same."""
    assert run(live, tmp_path, way) == [first, 0, 0]


@pytest.mark.slow
def test_other_optimisation_is_another_program(
    live: LiveServer, first: Any, tmp_path: Path
) -> None:
    """An assert in a helper would not run: nobody can tell what else follows from that."""
    values, traces, _ = run(live, tmp_path, Way("optimised", words=("-O", "main.py")))
    assert (values, traces) == (first, FUNCTIONS)
