"""Packages put together from pieces, and the edits that each piece allows."""

from __future__ import annotations

from dataclasses import dataclass

Swap = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some lines of a module.

    Attributes:
        text: the lines.
        term: an expression over them and `x`, an integer that adds to the result.
        changes: replacements after which the term is another number.
        keeps: replacements after which nothing is different.
    """

    text: str
    term: str
    changes: tuple[Swap, ...]
    keeps: tuple[Swap, ...] = ()


PIECES = {
    "constant": Piece("K = 7", "K * 2", (("K = 7", "K = 8"),), (("K = 7", "K = 0x7"),)),
    "dict": Piece(
        'CONFIG = {"used": 3, "unused": 4}',
        'CONFIG["used"]',
        (('"used": 3', '"used": 5'),),
        (('"unused": 4', '"unused": 5'), (', "unused": 4', "")),
    ),
    "namespace": Piece(
        "ARGS = SimpleNamespace(lr=5, name='first')",
        "ARGS.lr",
        (("lr=5", "lr=6"),),
        (("'first'", "'second'"), ("lr=5, name='first'", "name='first', lr=5")),
    ),
    "class": Piece(
        'class Base:\n    level = 2\nclass Model(Base):\n    """A class."""\n    width = 3\n'
        '    def run(self, x):\n        """Runs."""\n        return x * self.width + self.level',
        "Model().run(x)",
        (
            ("level = 2", "level = 3"),
            ("width = 3", "width = 4"),
            ("+ self.level", "+ 2 * self.level"),
            ("class Model(Base)", "class Model(type('B', (Base,), {'width': 1, 'level': 9}))"),
        ),
        (('"""A class."""', '"""Another text."""'), ('"""Runs."""', '"""Another text."""')),
    ),
    "defaults": Piece(
        "def defaults(x, a=4, *, b=6): return x * a + b",
        "defaults(x)",
        (("a=4", "a=5"), ("b=6", "b=7"), ("x * a + b", "x + a + b * x")),
        (("defaults(x, a=4", "defaults(x: 'int', a: int = 4"), ("b=6):", "b=6) -> 'int':")),
    ),
    "closure": Piece(
        "def make(rate):\n    def run(x): return x * rate + 1\n    return run\nclosed = make(3)",
        "closed(x)",
        (("make(3)", "make(4)"), ("rate + 1", "rate + 2")),
        (("return x * rate + 1", "return (x * rate) + 1"),),
    ),
    "decorator": Piece(
        "def more(by):\n    def decorate(function):\n        @functools.wraps(function)\n"
        "        def run(x): return function(x) + by\n        return run\n    return decorate\n"
        "@more(2)\ndef decorated(x): return x * 3",
        "decorated(x)",
        (("@more(2)", "@more(3)"), ("x * 3", "x * 4"), ("+ by", "- by"), ("@more(2)\n", "")),
    ),
    "nested": Piece(
        "def nested(x):\n    def inner(y): return y + 1\n    pairs = [inner(z) for z in range(3)]\n"
        "    return sum(pairs) + (lambda w: w * 2)(x)",
        "nested(x)",
        (("y + 1", "y + 2"), ("range(3)", "range(4)"), ("w * 2", "w * 3")),
        (("    return sum", "    # a comment\n\n    return sum"),),
    ),
    "text": Piece(
        'def text(x):\n    """Says."""\n    return len("abc") + x',
        "text(x)",
        (('"abc"', '"abcd"'),),
        (('"""Says."""', '"""Says something else."""'), ('"abc"', "'a' 'bc'")),
    ),
    "tuple": Piece("ORDER = (5, 2)", "ORDER[0] * 3", (("(5, 2)", "(2, 5)"), ("(5, 2)", "(6, 2)"))),
    "partial": Piece(
        "def scaled(by, x): return by * x\npartial = functools.partial(scaled, 2)",
        "partial(x)",
        (("scaled, 2", "scaled, 3"), ("by * x", "by + x * 5")),
    ),
    "array": Piece(
        "ARRAY = np.arange(4)",
        "int(ARRAY.sum())",
        (("arange(4)", "arange(5)"), ("np.arange(4)", "np.arange(4) * 2")),
        (("np.arange(4)", "np.arange(8)[:4]"),),
    ),
    "table": Piece(
        "TABLE = {'f': lambda x: x + 5, 'g': lambda x: x + 6}",
        "TABLE['f'](x)",
        (("x + 5", "x + 7"), ("'f': lambda x: x + 5", "'f': lambda x: x + 6")),
    ),
    "bound": Piece(
        "class Adder:\n    def __init__(self, by, name): self.by, self.name = by, name\n"
        "    def add(self, x): return x + self.by\nbound = Adder(3, 'tall').add",
        "bound(x)",
        (("Adder(3", "Adder(4"), ("x + self.by", "x + self.by * 2")),
        (("'tall'", "'small'"),),
    ),
    "loop": Piece(
        "def loop(x):\n    total = 0\n    for i in range(x):\n        total += i\n    return total",
        "loop(x)",
        (("total = 0", "total = 1"), ("range(x)", "range(x + 1)"), ("+= i", "+= i * i")),
        (("    return total", "    # done\n    return total"),),
    ),
    "super": Piece(
        "class Parent:\n    def run(self, x): return x * self.size\n"
        "class Child(Parent):\n    def __init__(self): self.size = 3\n"
        "    def run(self, x): return super().run(x) + 1\nchild = Child()",
        "child.run(x)",
        (("size = 3", "size = 4"), ("x * self.size", "x + self.size"), ("run(x) + 1", "run(x)")),
    ),
    "dataclass": Piece(
        "@dataclass\nclass Data:\n    a: int = 3\n    b: int = 4\n"
        "    def total(self): return self.a + self.b * 3",
        "Data().total()",
        (("a: int = 3", "a: int = 5"), ("b * 3", "b * 4"), ("    a: int = 3\n", "    a = 9\n")),
    ),
    "enum": Piece(
        "class Level(enum.Enum):\n    LOW = 3\n    HIGH = 4",
        "Level.LOW.value",
        (("LOW = 3", "LOW = 5"), ("LOW = 3\n    HIGH = 4", "HIGH = 3\n    LOW = 4")),
    ),
    "alias": Piece(
        "OPTIONS = SimpleNamespace(v=3)\ndef alias(x):\n    chosen = OPTIONS\n"
        "    return chosen.v * x",
        "alias(x)",
        (("v=3", "v=4"), ("chosen.v * x", "chosen.v + 2 * x")),
    ),
    "generator": Piece(
        "STEP = 1\ndef generates(x): return sum(y + STEP for y in range(0, x))",
        "generates(x)",
        (("STEP = 1", "STEP = 2"), ("y + STEP", "y * y + STEP")),
    ),
    "cached": Piece(
        "@functools.lru_cache\ndef cached(x): return x * 6",
        "cached(x)",
        (("x * 6", "x * 7"),),
        (("@functools.lru_cache", "@functools.lru_cache()"),),
    ),
    "dispatch": Piece(
        "@functools.singledispatch\ndef kind(x): return 1\n@kind.register\ndef _(x: int): return 2",
        "kind(x)",
        (("return 2", "return 3"), ("x: int", "x: str")),
    ),
    "state": Piece(
        "STATE = {'n': 2}\ndef counts(x):\n    STATE['n'] += x\n    return STATE['n']",
        "counts(x)",
        (("'n': 2", "'n': 3"), ("+= x", "+= 2 * x")),
    ),
    "property": Piece(
        "class Sized:\n    def __init__(self): self.side = 4\n    @property\n"
        "    def area(self): return self.side ** 2\nsized = Sized()",
        "sized.area",
        (("side = 4", "side = 5"), ("** 2", "** 3")),
    ),
    "subclasses": Piece(
        "class Plugin: pass\nclass One(Plugin): rate = 2",
        "sum([each.rate for each in Plugin.__subclasses__()])",
        (("rate = 2", "rate = 3"), ("rate = 2", "rate = 2\nclass Two(Plugin): rate = 5")),
        (("rate = 2", "rate = 2\nclass NoPlugin: rate = 5"),),
    ),
    "registered": Piece(
        "import numbers\nclass Value: pass\nVALUE = Value()",
        "isinstance(VALUE, numbers.Complex) * 3",
        (
            ("VALUE = Value()", "VALUE = Value()\nnumbers.Complex.register(Value)"),
            ("VALUE = Value()", "VALUE = Value()\nnumbers.Integral.register(Value)"),
        ),
        (
            (
                "class Value: pass",
                "class Value: pass\nclass Other: pass\nnumbers.Real.register(Other)",
            ),
        ),
    ),
    "aliases": Piece(
        "LEFT = np.ones(2)\nRIGHT = LEFT.copy()",
        "(LEFT is RIGHT) * 3",
        (("LEFT.copy()", "LEFT"),),
        (("LEFT.copy()", "np.array([1.0, 1.0])"),),
    ),
    "qualified name": Piece(
        "def called(x): return x",
        "len(called.__qualname__)",
        (("def called(x): return x", "def called(x): return x\ncalled.__qualname__ = 'a'"),),
    ),
}
ANYWHERE: tuple[Swap, ...] = (
    ("# top", "# one\n\n\n# another"),
    ("# bottom", "\n\n# the end"),
    ("# bottom", "def unread(x): return UNUSED"),
    ("# bottom", "class Unread: pass"),
    ("# top", "import json, os.path as tools"),
    ("# top", "EARLY = [1, 2]"),
    ("UNUSED = 1", "UNUSED = 2"),
    ('"""A module."""', '"""Another text."""'),
    ("def unread_helper(x): return x", "def unread_helper(x): return x + UNUSED"),
    ('"""Adds it all."""', '"""Another text."""'),
)
"""What may be edited in any module."""

EVEN_IN_SOURCES: tuple[Swap, ...] = ANYWHERE[:2]
"""What does not count even in a module that is not imported yet."""

LINKS = {
    "import as": ("import {p}.{m} as {m}", "", "{m}.go(x)"),
    "import": ("import {p}.{m}", "", "{p}.{m}.go(x)"),
    "from import": ("from {p}.{m} import go as {m}_go", "", "{m}_go(x)"),
    "from package": ("from {p} import {m}", "", "{m}.go(x)"),
    "relative": ("from .{m} import go as {m}_go", "", "{m}_go(x)"),
    "relative module": ("from . import {m}", "", "{m}.go(x)"),
    "later": ("", "from {p}.{m} import go", "go(x)"),
    "later relative": ("", "from .{m} import go", "go(x)"),
    "later module": ("", "import {p}.{m}", "{p}.{m}.go(x)"),
    "later as": ("", "import {p}.{m} as module", "module.go(x)"),
    "later relative module": ("", "from . import {m}", "{m}.go(x)"),
}
"""How a module reaches the next: at its top, in the function, and the call."""


def render(package: str, pieces: list[str], link: str | None, following: str) -> str:
    """A module whose `go(x)` adds up the terms of its pieces, and what the next module gives."""
    top, inside, call = (part.format(p=package, m=following) for part in LINKS[link or "later"])
    terms = [PIECES[name].term for name in pieces] + ([call] if link else [])
    lines = [
        '"""A module."""',
        "# top",
        "import enum, functools",
        "from dataclasses import dataclass",
        "from types import SimpleNamespace",
        "import numpy as np",
        top if link else "",
        "UNUSED = 1",
        "def unread_helper(x): return x",
        *(PIECES[name].text for name in pieces),
        "def go(x):",
        '    """Adds it all."""',
        f"    {inside}" if link and inside else "",
        f"    return {' + '.join(['x', *terms])}",
        "# bottom",
    ]
    return "\n".join(lines) + "\n"
