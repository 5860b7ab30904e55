"""Static arguments: values that are part of the program, and equal in ways of their own.

Each is a global that the running process changes and passes to the call; its term stands in the
function that is called. What `==` says of two of them decides nothing: plain jax, whose caches are
empty, is asked what each gives.
"""

# ruff: noqa: E501  a piece of code is one line

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.generator.features import Feature, does

STATICS: Final[Mapping[str, Feature]] = {
    "static number": Feature(
        top="S_NN = 1",
        term="({int: 1, bool: 2, float: 3}[type(S_NN)] + int(str(S_NN)[:1] == '-'))",
        static="S_NN",
        edits=does("m.S_NN = True", "m.S_NN = 1.0", "m.S_NN = 0.0", "m.S_NN = -0.0", "m.S_NN = AA"),
    ),
    "static tuple": Feature(
        top="S_NN = (1, ('a', AA))",
        term="(S_NN[1][1] + {int: 1, bool: 2, float: 3}[type(S_NN[0])] + len(S_NN))",
        static="S_NN",
        edits=does(
            "m.S_NN = (True, ('a', AA))", "m.S_NN = (1.0, ('a', AA))", "m.S_NN = (1, ('a', BB), 2)"
        ),
    ),
    "static field that is not compared": Feature(
        top="from dataclasses import field\n@dataclass(frozen=True)\nclass C_NN:\n    name: str\n"
        "    rate: int = field(default=AA, compare=False)\nS_NN = C_NN('one')",
        term="S_NN.rate",
        static="S_NN",
        edits=does(
            "m.S_NN = m.C_NN('one', BB)",
            "m.S_NN = m.C_NN('two')",
            "m.S_NN = m.C_NN('one', AA)",
            "m.C_NN.rate = BB",
        ),
    ),
    "static of two named tuples": Feature(
        top="from collections import namedtuple\nclass A_NN(namedtuple('A_NN', 'a b')):\n    scale = AA\n"
        "class B_NN(namedtuple('B_NN', 'a b')):\n    scale = BB\nS_NN = A_NN(1, 2)",
        term="(S_NN.a * S_NN.scale)",
        static="S_NN",
        edits=does(
            "m.S_NN = m.B_NN(1, 2)",
            "m.S_NN = m.A_NN(1, 2)",
            "m.S_NN = m.A_NN(AA, 2)",
            "m.A_NN.scale = BB + 1",
        ),
    ),
    "static with an equality of its own": Feature(
        top="class E_NN:\n    def __init__(self, v): self.v = v\n    def __eq__(self, o): return type(o) is E_NN\n"
        "    def __hash__(self): return 1\nS_NN = E_NN(AA)",
        term="S_NN.v",
        static="S_NN",
        edits=does("m.S_NN = m.E_NN(BB)", "m.S_NN.v = BB + 2", "m.S_NN = m.E_NN(AA)"),
    ),
    "static text with an attribute": Feature(
        top="class T_NN(str): pass\nS_NN = T_NN('a')\nS_NN.v = AA",
        term="(getattr(S_NN, 'v', 50) + len(S_NN))",
        static="S_NN",
        edits=does("m.S_NN.v = BB", "m.S_NN = 'a'", "m.S_NN = m.T_NN('aa')"),
    ),
    "static function": Feature(
        top="K_NN = AA\ndef f_NN(x): return x + K_NN\nS_NN = f_NN",
        term="S_NN(2)",
        static="S_NN",
        edits=does(
            "m.K_NN = BB",
            "m.S_NN = lambda x: x * BB",
            "m.S_NN = m.functools.partial(m.f_NN, AA)",
            "m.f_NN.__code__ = (lambda x: x - AA).__code__",
        ),
    ),
    "static function that reads what no guard sees": Feature(
        top="from array import array\nclass T_NN:\n    values = array('i', [AA])\n    def get(self): return self.values[0]\n"
        "def f_NN(x): return x + T_NN().get()\nS_NN = (f_NN, 0)",
        term="S_NN[0](2)",
        static="S_NN",
        edits=does(
            "m.T_NN.values[0] = BB; m.S_NN = (m.f_NN, m.S_NN[1] + 1)",
            "m.T_NN.values[0] += 1; m.S_NN = (m.f_NN, m.S_NN[1] + 1)",
            "m.T_NN.values = m.array('i', [AA + 1])",
        ),
    ),
    "static class with an array": Feature(
        top="import numpy as np\nclass T_NN:\n    table = np.arange(3)\n    def get(self): return int(self.table[1])\nS_NN = (T_NN, 0)",
        term="S_NN[0]().get()",
        static="S_NN",
        edits=does(
            "m.T_NN.table[1] = BB; m.S_NN = (m.T_NN, m.S_NN[1] + 1)",
            "m.T_NN.table[1] += AA",
            "m.T_NN.table = m.T_NN.table + BB",
        ),
    ),
    "static object with what Python keeps in C": Feature(
        top="import collections\nimport decimal\nimport numpy as np\nclass H_NN:\n    def __init__(self, *v): self.v = v\n"
        "S_NN = H_NN(collections.defaultdict(lambda: AA), functools.partial(int, AA), np.arange(3), decimal.Context(AA))\n"
        "S_NN.v[2].flags.writeable = False",
        term="(S_NN.v[0].default_factory() + S_NN.v[1]() + int(S_NN.v[2][1]) + getattr(S_NN.v[1], 'unit', 0) + S_NN.v[3].prec)",
        static="S_NN",
        edits=does(
            "m.S_NN.v[0].default_factory = lambda: BB",
            "m.S_NN.v[1].__setstate__((int, (BB + 1,), {}, {}))",
            "m.S_NN.v[1].unit = BB + 2",
            "a = m.S_NN.v[2]; a.flags.writeable = True; a[1] = BB + 7; a.flags.writeable = False",
            "m.S_NN.v[3].prec = BB + 9",  # no guard sees it: it is looked at each time
        ),
    ),
    "static class of a metaclass": Feature(
        top="class M_NN(type):\n    rate = AA\nclass B_NN:\n    level = 1\nclass C_NN(B_NN, metaclass=M_NN):\n    k: int = BB\nS_NN = (C_NN, 0)",
        term="(S_NN[0].rate + S_NN[0].k + S_NN[0].level + len(S_NN[0].__annotations__))",
        static="S_NN",
        edits=does(
            "m.M_NN.rate = BB + 1",
            "m.C_NN.k = AA; m.S_NN = (m.C_NN, m.S_NN[1] + 1)",
            "m.B_NN.level = BB; m.S_NN = (m.C_NN, m.S_NN[1] + 1)",
            "m.C_NN.__annotations__['other'] = int; m.S_NN = (m.C_NN, m.S_NN[1] + 1)",
        ),
    ),
    "static bare object": Feature(
        top="A_NN, B_NN = object(), object()\nS_NN = (A_NN, 0)",
        term="(1 if S_NN[0] is A_NN else 2 if S_NN[0] is B_NN else 3)",
        static="S_NN",
        edits=does(
            "m.S_NN = (m.B_NN, AA)",
            "m.A_NN, m.B_NN = m.B_NN, m.A_NN",
            "m.A_NN = object(); m.S_NN = (m.A_NN, BB)",
            "m.C_NN = m.A_NN; m.A_NN = object(); m.S_NN = (m.C_NN, BB)",
        ),
    ),
    "static class": Feature(
        top="class C_NN:\n    k = AA\nS_NN = C_NN",
        term="S_NN.k",
        static="S_NN",
        edits=does("m.C_NN.k = BB", "m.S_NN = type('C_NN', (), {'k': BB})", "m.S_NN = m.C_NN"),
    ),
    "static member of an enum": Feature(
        top="class M_NN(enum.IntEnum):\n    one = 1\n    two = AA\nclass N_NN(enum.IntEnum):\n    first = 1\nS_NN = M_NN.one",
        term="(S_NN + len(S_NN.name))",
        static="S_NN",
        edits=does("m.S_NN = m.M_NN.two", "m.S_NN = m.N_NN.first", "m.S_NN = m.M_NN.one"),
    ),
}
"""By name."""
