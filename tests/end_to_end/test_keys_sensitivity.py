"""Whatever is edited between two runs, the second gets the new answer, and the third the old one.

By result: each edit is made in a project, and fresh processes call it on one warm server.
"""

# ruff: noqa: E501  a row of a table is one line
from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.identity.projects import Edit, edit, write
from tests.live_server import ROOT, LiveServer, source_environment

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]  # one fixture visits everything

VISITOR = Path(__file__).with_name("visitor.py")
PATIENCE_S = 90

PARTS = """
import functools
def add(x, by=2, *, scale=3): return x * scale + by
def make(rate, function):
    def run(x): return function(x) * rate
    return run
closed = make(5, add)
FACTOR = 7
def inner(x): return x * FACTOR
def helper(x): return inner(x) + 11
def decorate(function):
    @functools.wraps(function)
    def run(x): return function(x) + 13
    return run
@decorate
def decorated(x): return x * 17
partial = functools.partial(add, by=19)
first, second = (lambda x: x + 23), (lambda x: x * 29)
def step(x): return closed(x) + helper(x) + decorated(x) + partial(x) + first(x) * second(x) - 31
"""
CLASSES = """
class Root:
    deep = 2
    def run(self, x): return x * self.deep
class Model(Root):
    width = 3
    def __init__(self, rate): self.rate, self.unread = rate, 1
    @property
    def double(self): return self.rate * 5
    @staticmethod
    def fixed(x): return x + 7
    @classmethod
    def classy(cls, x): return x * cls.width + 11
    def __call__(self, x):
        total = super().run(x) * self.double
        return self.fixed(x) + self.classy(x) + total
model = Model(0.5)
step = model.__call__
"""
JITTED = """
import jax, jax.numpy as jnp
from functools import partial
@partial(jax.jit, static_argnums=(1,))
def static(x, n): return x * (2 if isinstance(n, int) else 3)
@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, a, b): self.a, self.b = a, b
    def tree_flatten(self): return (self.a,), self.b
    @classmethod
    def tree_unflatten(cls, aux, children): return cls(*children, aux)
WEIGHT = jnp.asarray([0.25])
KEY = jax.random.PRNGKey(3)
# here
def step(x):
    pair = jax.tree.map(lambda v: v * 11, Pair(x, 13.0))
    return static(x, 1) + pair.a + pair.b + WEIGHT * jnp.pi + KEY[1]
"""
CUSTOM = """
import jax, jax.numpy as jnp
@jax.custom_vjp
def clipped(x): return x * 2
def forward(x): return clipped(x), (x,)
def backward(res, g): return (g * 3,)
clipped.defvjp(forward, backward)
@jax.custom_jvp
def safe(x): return x * 5
@safe.defjvp
def tangent(primals, tangents): return safe(primals[0]), tangents[0] * 7
def step(x): return jax.grad(lambda v: jnp.sum(clipped(v) + safe(v)))(x)
"""
TRACED = """
import jax
import numpy as np
def told(x): return jax.pure_callback(lambda y: np.asarray(y) * 7, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
def body(carry, y): return carry * 0.5 + y, None
mapped = jax.vmap(lambda v, w: v * w, in_axes=(0, None))
def step(x): return mapped(x, 1.5) + jax.lax.scan(body, 0.0, x)[0] + told(x)
"""
READS = """
import os, argparse
from types import SimpleNamespace
from dataclasses import dataclass
os.environ["JAXD_TEST_SCALE"] = "2"
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.5)
parser.add_argument("--run-name", default="first")
args = parser.parse_args()
namespace = SimpleNamespace(lr=3.0, name="a")
CONFIG = {"lr": 5.0, "model": {"width": 7.0}}
@dataclass
class Settings:
    rate: float = 11.0
settings = Settings()
class Table: size = 13.0
def step(x):
    class Local:
        size = Table.size
    scaled = x * float(os.environ["JAXD_TEST_SCALE"]) + args.lr * namespace.lr
    return abs(scaled) + CONFIG["lr"] * CONFIG["model"]["width"] + settings.rate * Local.size
# here
"""
FLAGS = """
from absl import flags
flags.DEFINE_float("lr", 0.5, "")
FLAGS = flags.FLAGS
FLAGS(["main.py", "--lr=0.25"])
def step(x): return x * FLAGS.lr
"""
PATCHED = """
import math, jax.numpy as jnp, optax
def mine(x): return x * 5
# here
def step(x): return jnp.tanh(x) + math.sqrt(4.0) + optax.l2_loss(x)
"""
TREE = """
--- mine.py
RATE = 2.0
def times(x): return x * RATE * factor()
def factor(): return 3.0
--- pkg/__init__.py
LEVEL = 5.0
--- pkg/sub.py
from . import LEVEL
from .deeper import bottom
def times(x): return x * LEVEL + bottom(x)
--- pkg/deeper.py
def bottom(x): return x * 7.0
"""
STYLES = {
    "import mine": "mine.times(x)",
    "import mine as chosen": "chosen.times(x)",
    "from mine import times": "times(x)",
    "from mine import times as renamed": "renamed(x)",
    "import pkg.sub": "pkg.sub.times(x)",
    "import pkg.sub as chosen": "chosen.times(x)",
    "from pkg import sub": "sub.times(x)",
    "from pkg.sub import times": "times(x)",
}
EDITS = {
    "mine": [("RATE = 2.0", "RATE = 2.5"), ("return 3.0", "return 3.5")],
    "pkg": [("LEVEL = 5.0", "LEVEL = 5.5"), ("x * 7.0", "x * 7.5")],
}


def _styles() -> Iterator[Edit]:
    """The module itself and what it reads in turn, at the top of a file and inside a function."""
    for number, (style, use) in enumerate([*STYLES.items(), ("from mine import *", "times(x)")]):
        edits = EDITS["pkg" if "pkg" in style else "mine"]
        top = f"{style}\ndef step(x): return {use}\n{TREE}"
        yield edit(style, top, *edits[number % 2])
        if "*" not in style:
            inside = f"def step(x):\n    {style}\n    return {use}\n{TREE}"
            yield edit(f"inside: {style}", inside, *edits[number // 2 % 2])


ROWS = [
    edit("a constant", PARTS, "- 31", "- 32"),
    edit("a default", PARTS, "by=2,", "by=4,"),
    edit("a keyword's default", PARTS, "scale=3", "scale=4"),
    edit("a value in a closure", PARTS, "make(5,", "make(6,"),
    edit("a function in a closure", PARTS, "make(5, add)", "make(5, abs)"),
    edit("a global number", PARTS, "FACTOR = 7", "FACTOR = 8"),
    edit("a helper", PARTS, "inner(x) + 11", "inner(x) + 12"),
    edit("a helper's helper", PARTS, "x * FACTOR", "x / FACTOR"),
    edit("a decorator", PARTS, "function(x) + 13", "function(x) + 14"),
    edit("what is decorated", PARTS, "x * 17", "x * 18"),
    edit("a decorator taken away", PARTS, "@decorate\n", ""),
    edit("a partial's argument", PARTS, "by=19", "by=20"),
    edit("one of two lambdas on a line", PARTS, "x * 29", "x * 30"),
    edit("the other lambda", PARTS, "x + 23", "x + 24"),
    edit("a method", CLASSES, "* self.double", "- self.double"),
    edit("an attribute of a class", CLASSES, "width = 3", "width = 4"),
    edit("an attribute of a base", CLASSES, "deep = 2", "deep = 3"),
    edit("a method of a base", CLASSES, "x * self.deep", "x + self.deep"),
    edit("a property", CLASSES, "self.rate * 5", "self.rate * 6"),
    edit("a static method", CLASSES, "x + 7", "x + 8"),
    edit("a class method", CLASSES, "cls.width + 11", "cls.width + 12"),
    edit("the base", CLASSES, "class Model(Root)", "class Model(type('Other', (Root,), {'deep': 9}))"),
    edit("the state of a bound instance", CLASSES, "Model(0.5)", "Model(0.75)"),
    edit("static arguments of jit", JITTED, "(1,)", "()"),
    edit("how a class is flattened", JITTED, "(self.a,), self.b", "(self.b,), self.a"),
    edit("an array", JITTED, "[0.25]", "[0.75]"),
    edit("a lambda in a transformation", JITTED, "v * 11", "v * 12"),
    edit("a custom backward pass", CUSTOM, "g * 3", "g * 4"),
    edit("a custom tangent", CUSTOM, "tangents[0] * 7", "tangents[0] * 6"),
    edit("what a callback does", TRACED, "(y) * 7", "(y) * 8"),
    edit("the body of a scan", TRACED, "carry * 0.5", "carry * 0.75"),
    edit("a mapped lambda", TRACED, "v * w", "v + w"),
    edit("a random key", JITTED, "PRNGKey(3)", "PRNGKey(4)"),
    edit("a variable of the environment", READS, '"2"', '"3"'),
    edit("a namespace", READS, "lr=3.0", "lr=3.5"),
    edit("an entry of a dict", READS, '"lr": 5.0', '"lr": 5.5'),
    edit("an entry in an entry", READS, '"width": 7.0', '"width": 7.5'),
    edit("a dataclass's default", READS, "float = 11.0", "float = 12.0"),
    edit("a global read by a class body inside", READS, "size = 13.0", "size = 14.0"),
    edit("a builtin that is shadowed below", READS, "# here", "def abs(x): return x * 3"),
    edit("an argument of the program", READS, "parse_args()", "parse_args(['--lr', '0.75'])"),
    edit("a flag", FLAGS, "lr=0.25", "lr=0.75"),
    edit("a patched constant of jax", JITTED, "# here", "jnp.pi = 3.0"),
    edit("a patched function of jax", PATCHED, "# here", "jnp.tanh = mine"),
    edit("a patched function of optax", PATCHED, "# here", "optax.l2_loss = mine"),
    edit("a patched function of the standard library", PATCHED, "# here", "math.sqrt = mine"),
    *_styles(),
]  # fmt: skip
ALONE = ("patched", "flag", "environment")  # they change more than the project
if not all(map(find_spec, ("absl", "optax"))):
    ROWS = [row for row in ROWS if row.before not in (FLAGS, PATCHED)]


@dataclass(frozen=True, slots=True)
class Story:
    """What the processes of one row got.

    Attributes:
        expected: by plain `jax.jit`, before and after the edit.
        seen: from the server: before, after, and before again.
    """

    expected: tuple[Any, ...]
    seen: tuple[Any, ...] = field(default=())


def _visit(how: str, folder: Path, environment: dict[str, str], rows: Sequence[Edit]) -> Any:
    modules = ["jax", "jax.numpy"]
    modules += [name for name in ("optax", "absl.flags") if find_spec(name.split(".")[0])]
    if how == "server":
        modules += ["jaxd_protocol.pickling", "jaxd.request.function_snapshot"]
    places = [
        {
            "folder": str(folder / str(number)),
            "length": number + 2,  # a program of its own for each row
            "alone": any(word in row.says for word in ALONE),
        }
        for number, row in enumerate(rows)
    ]
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", str(VISITOR)],
        input=json.dumps({"how": how, "preload": modules, "places": places}),
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stories(live: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Story]:
    """All rows: three processes for the server, one after the other, and two for plain jax."""
    folder = tmp_path_factory.mktemp("sensitivity")
    for number, row in enumerate(ROWS):
        write(folder / "before" / str(number), row.before)
        write(folder / "after" / str(number), row.after)
    with ThreadPoolExecutor() as pool:
        plain = source_environment(folder)
        expected = [
            pool.submit(_visit, "jit", folder / when, plain, ROWS) for when in ("before", "after")
        ]
        seen = [
            _visit("server", folder / when, live.environment, ROWS)
            for when in ("before", "after", "before")
        ]
    results = [future.result() for future in expected]
    return {
        row.says: Story(tuple(r[n] for r in results), tuple(s[n] for s in seen))
        for n, row in enumerate(ROWS)
    }


@pytest.mark.parametrize("says", [row.says for row in ROWS])
def test_an_edit_gives_the_new_answer(says: str, stories: dict[str, Story]) -> None:
    """With one more compile; and what was there before is still there, and still right."""
    story = stories[says]
    crashed = [found[""] for found in (*story.expected, *story.seen) if "" in found]
    assert not crashed, crashed[0]
    old, new = (expected["value"] for expected in story.expected)
    assert old != new, "the edit changes nothing: the row shows nothing"
    assert [found["value"] for found in story.seen] == [
        pytest.approx(expected, rel=1e-6) for expected in (old, new, old)
    ]
    assert [found["built"] for found in story.seen] == [[1, 1], [1, 1], [0, 0]]
    assert [found["heard"] for found in story.seen] == [[], [], []]
