"""On the server functions and classes have the names, texts and annotations that code reads."""

from __future__ import annotations

import json

import pytest

from tests.live_server import LiveServer
from tests.warm_clients import run_light

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
def both(x):
    resolved, text = typing.get_type_hints(helper)["return"], helper.__annotations__["return"]
    return x + (resolved == Box[int]) + 2 * isinstance(text, str)
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
functions = name, both, bases, types, signature, subclasses, same, copied
found = [float(each(0.0)) for each in functions]
found += [float(text(0.0, given=held)), float(hints(0.0, given=held))]
print(json.dumps([found, statistics().traces - before]))
'''
EXPECTED = {
    "int": [55.0, 3.0, 1.0, 1.0, 1.0, 5.0, 1.0, 1.0, 155.0, 103.0],
    "float": [33.0, 2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 133.0, 100.0],
}


@pytest.mark.slow
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


GIVEN = """
import json, pathlib
from jaxd import persistent_call
from jaxd.errors import PackingError

class Base:
    "Text."
class First(Base): rate = 2.0
class Kind: pass
def called(x):
    "abc"

def persistent(function):
    return persistent_call(function, fallback="error", static_argnames="given")

@persistent
def subclasses(x, given): return x + sum([each.rate for each in given.__subclasses__()])
@persistent
def text(x, given): return x + len(given.__doc__)
@persistent
def name(x, given): return x + len(given.__name__)
@persistent
def of_class(x, given): return x + len(type(given).__qualname__)
kind = Kind()
CALLS = [(subclasses, Base), (text, Base), (text, called), (name, called), (of_class, kind)]

found = [float(each(0.0, given=given)) for each, given in CALLS]
class Second(Base): rate = 3.0
Base.__doc__ = called.__doc__ = called.__name__ = Kind.__qualname__ = "x"
found += [float(each(0.0, given=given)) for each, given in CALLS]
class Own(pathlib.PurePath): pass
try:
    subclasses(0.0, given=pathlib.PurePath)
except PackingError as error:
    found.append("has Own" in str(error))
print(json.dumps(found))
"""


@pytest.mark.slow
def test_what_is_read_of_an_argument_is_its_caller_s(live: LiveServer) -> None:
    """Of classes, functions and objects that are static, also where it changes between calls."""
    for _ in range(2):
        done = live.run(GIVEN)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == [2.0, 5.0, 3.0, 6.0, 4.0, 5.0, 1.0, 1.0, 1.0, 1.0, True]


SHARED = """
import json
import numpy as np
from jaxd import persistent_call

WEIGHTS = np.arange(3.0)
class Model:
    weights = WEIGHTS
model = Model()

@persistent_call(fallback="error")
def sends_the_class_first(x): return x + Model.weights.sum() + isinstance(model, Model)
@persistent_call(fallback="error", static_argnames="given")
def shared(x, given):
    return x + 10 * (Model.weights is WEIGHTS) + 20 * (given.weights is WEIGHTS) + (
        100 * isinstance(given, Model))

print(json.dumps([float(sends_the_class_first(0.0)), float(shared(0.0, given=model))]))
"""


def test_what_is_one_object_stays_one_where_a_class_is_known_already(live: LiveServer) -> None:
    """Also if another function has sent the class before, with an array of its own."""
    done = run_light(live, SHARED)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [4.0, 130.0]
    assert "SkewWarning" not in done.stderr
