"""On the server functions and classes have the names, texts and annotations that code reads."""

from __future__ import annotations

import json

import pytest

from tests.live_server import LiveServer

PROGRAM = '''
{future}
import copy, dataclasses, inspect, json, sys, typing
import numpy as np
from jaxd import persistent_call, statistics

T = typing.TypeVar("T")
class Box(typing.Generic[T]): pass
class Held:
    """{text}"""
    one: Box[{kind}]
    two: "Box[{kind}]"
class Below(Box[{kind}]): pass
@dataclasses.dataclass
class Row:
    left: {kind} = 1
class Base: pass
class First(Base): rate = 2.0
if "{kind}" == "int":
    class Second(Base): rate = 3.0
def helper(x: {kind}) -> "Box[{kind}]":
    """{text}"""
    return x
helper.__name__ = helper.__qualname__ = "{text}"
class Arrays: pass
arrays = Arrays()
arrays.one = np.ones(2, "f4")
arrays.two = arrays.one if "{kind}" == "int" else arrays.one.copy()
held = Held()

def persistent(function, names=()):
    return persistent_call(function, fallback="error", static_argnames=names)

@persistent
def name(x): return x + len(helper.__name__) + 10 * len(helper.__qualname__)
def text(x, given):
    found = len(helper.__doc__) + 10 * len(Held.__doc__)
    return x + found + isinstance(given, Held) * 100
def hints(x, given):
    found = (typing.get_type_hints(Held)["two"] == Box[int])
    found += 2 * (typing.get_type_hints(helper)["x"] is int)
    return x + found + isinstance(given, Held) * 100
text, hints = persistent(text, "given"), persistent(hints, "given")
@persistent
def bases(x): return x + (typing.get_args(Below.__orig_bases__[0])[0] is int)
@persistent
def types(x): return x + (dataclasses.fields(Row)[0].type in (int, "int"))
@persistent
def signature(x): return x + (inspect.signature(helper).parameters["x"].annotation in (int, "int"))
@persistent
def subclasses(x): return x + sum([each.rate for each in Base.__subclasses__()])
@persistent
def same(x): return x + (arrays.one is arrays.two)
@persistent
def copied(x):
    one, two = copy.deepcopy((arrays.one, arrays.two))
    return x + (one is two)

before = statistics().traces
found = [float(each(0.0)) for each in (name, bases, types, signature, subclasses, same, copied)]
found += [float(text(0.0, given=held)), float(hints(0.0, given=held))]
print(json.dumps([found, statistics().traces - before]))
'''
EXPECTED = {
    "int": [55.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 155.0, 103.0],
    "float": [33.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 133.0, 100.0],
}


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"])
def test_each_client_finds_its_own(live: LiveServer, future: str) -> None:
    """Whoever comes first; a fresh process traces nothing, and an instance is of that class."""
    for kind in ("int", "float", "int", "float"):
        text = "Texts" if kind == "int" else "Two"
        program = PROGRAM.replace("{future}", future).replace("{kind}", kind)
        done = live.run(program.replace("{text}", text), "-W", "error")
        assert done.returncode == 0, done.stderr
        assert "not shared" not in done.stderr
        found, traces = json.loads(done.stdout)
        assert found == EXPECTED[kind]
    assert traces == 0
