"""One project with a bit of everything that a function can reach."""

from __future__ import annotations

GALLERY = '''
"""A module with a docstring."""
# top
import collections, enum, functools, logging, math, threading, typing
from dataclasses import dataclass, field
from types import SimpleNamespace
import numpy as np
import helpers
import pkg.sub
from helpers import Base, scale
LOCK, LOG, T = threading.Lock(), logging.getLogger("gallery"), typing.TypeVar("T")
SET = {"alpha", "beta", "gamma", ("delta", 1), 7, frozenset({"x", "y", "z"})}
FROZEN = frozenset({"one", "two", "three", "four"})
TABLE = {"rate text": 0.5, "names": ["a", "b"], "deep": {"x": (1, 2.5, None)}}
TEXT = "a text that is long, with spaces"
ARRAY = np.arange(12.0).reshape(3, 4)
CONFIG = SimpleNamespace(rate=0.25, name="first")
SEEN = {}
# middle
class Color(enum.Enum):
    """Colors."""
    RED = "red"
    BLUE = "blue"
@dataclass
class Settings:
    """Settings."""
    rate: float = 0.5
    names: list[str] = field(default_factory=list)
class Point(typing.NamedTuple):
    x: int = 1
    y: int = 2
class Stack(typing.Generic[T]):
    def push(self, item: T) -> T: return item
class Model(Base):
    """A model."""
    width = 8
    def __init__(self, rate): self.rate = rate
    @property
    def double(self): return self.rate * 2
    @staticmethod
    def fixed(x): return x + 1
    def __call__(self, x):
        """Calls it."""
        return super().run(x) * self.double * self.fixed(x)
def plain(x: int, y: "float" = 2) -> float:
    """Plain."""
    return x * y + 3
def tests(x): return x in {"alpha", "beta", "gamma", "delta"}
def sets(x): return x in SET or x in FROZEN
def texts(x): return TEXT + str(TABLE["rate text"]) + str(TABLE["deep"])
def whole_table(x): return dict(TABLE)
def arrays(x): return x * ARRAY
def sliced(x): return x * CONFIG.rate
def imported(x): return helpers.shift(x) + scale(x) + pkg.sub.deep(x)
def colors(x): return Color.RED if x else Color("blue").name
def settings(x): return Settings(rate=x)
def points(x): return Point(x)._replace(y=3)
def generic(x): return Stack[int]().push(x)
def model(x): return Model(0.5)(x)
instance = Model(0.25)
bound = instance.__call__
def recursive(n): return 1 if n < 2 else n * recursive(n - 1)
def nested(x):
    """Nested."""
    def inner(y):
        """Inner."""
        return [y + z for z in range(3)]
    class Local:
        """Local."""
        size = math.pi
    return inner(x), Local().size, (lambda w: w + 1)(x)
def make(rate, function):
    def run(x): return function(x) * rate
    return run
closure = make(3, plain)
partial = functools.partial(plain, 1, y=4)
def decorate(function):
    @functools.wraps(function)
    def run(*args): return function(*args) + 1
    return run
@decorate
def decorated(x):
    """Decorated."""
    return x + 2
@functools.lru_cache
def cached(x): return x + 4
def caches(x): return cached(x)
@functools.singledispatch
def kind(x): return "any"
@kind.register
def _(x: int): return "int"
def dispatches(x): return kind(x)
def remembers(x):
    SEEN[x] = 1
    return x
def locked(x):
    with LOCK: LOG.debug("x")
    return x
def generates(x): yield from range(x)
async def later(x): return x
def catches(x):
    try: return 1 / x
    except ZeroDivisionError as error: return str(error)
def lazy(x):
    from unloaded import value
    from pkg import sub
    return value() + sub.deep(x)
def lazy_submodules(x): return np.random.default_rng(3).normal() * np.fft.fft(x)
def exercise():
    for n in range(2000):
        plain(n), tests(n), sets(n), texts(n), arrays(1), sliced(n), imported(n), colors(n)
        points(n), generic(n), model(n), bound(n), recursive(3), nested(n), closure(n), partial()
        decorated(n), caches(n % 50), dispatches(n % 3), dispatches("a"), catches(0), locked(n)
# bottom
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
NAMES = [
    "plain",
    "tests",
    "sets",
    "texts",
    "whole_table",
    "arrays",
    "sliced",
    "imported",
    "colors",
    "settings",
    "points",
    "generic",
    "model",
    "instance",
    "bound",
    "recursive",
    "nested",
    "closure",
    "partial",
    "decorated",
    "caches",
    "dispatches",
    "remembers",
    "locked",
    "generates",
    "later",
    "catches",
    "lazy",
    "lazy_submodules",
    "Model",
    "Color",
    "Settings",
    "Point",
]
