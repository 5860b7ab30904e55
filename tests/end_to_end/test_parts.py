"""What travels of an object counts in the key, and what counts travels.

Two objects that differ in one part are read by the same code on a real server: both programs give
what they give here, and the server has found the key that the client has.
"""

from __future__ import annotations

import copy
import copyreg
import enum
import functools
import importlib
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import Client
from tests.another_server import named_server
from tests.shared.fingerprint.defining import define

Program = Callable[[Any], Any]
X = np.float32(3.0)
ROWS: list[Callable[[int], Program]] = []


def row(make: Callable[[int], Program]) -> Callable[[int], Program]:
    """Two programs, which a number tells apart."""
    ROWS.append(make)
    return make


def plain(x: Any) -> Any:
    return x


@row
def whether_a_cache_tells_types_apart(number: int) -> Program:
    kept = functools.lru_cache(typed=bool(number))(lambda x, _: x)
    return lambda x: x * (type((kept(1, 2), kept(1.0, 2))[1]) is float)


@row
def what_was_set_on_a_cache(number: int) -> Program:
    kept = functools.lru_cache(plain)
    kept.scale = number + 2.0  # type: ignore[attr-defined]
    return lambda x: x * [kept][0].scale  # type: ignore[attr-defined]


@row
def where_a_cached_property_keeps_its_value(number: int) -> Program:
    class Thing:
        rate = functools.cached_property(lambda _: 5.0)

    Thing.rate.attrname = ("rate", "other")[number]

    def run(x: Any) -> Any:
        thing = Thing()
        vars(thing)["other"] = 7.0
        return x * thing.rate

    return run


@row
def the_text_of_a_property(number: int) -> Program:
    made = property(plain, doc="text" * (number + 1))
    return lambda x: x * len(str([made][0].__doc__))


@row
def the_format_of_memory(number: int) -> Program:
    form: Any = "Bi"[number]
    memory = memoryview(b"\x2c\x01\0\0").cast(form)
    return lambda x: x * [memory][0][0]


class Answering(dict[str, float]):
    def __missing__(self, name: str) -> float:
        return self["rate"]


@row
def what_a_read_only_view_is_of(number: int) -> Program:
    view = types.MappingProxyType(Answering({"rate": number + 2.0}))
    return lambda x: x * view["missing"]


@row
def which_class_a_slot_is_of(number: int) -> Program:
    classes: list[Any] = [type("Same", (), {"__slots__": ("x",), "mark": n}) for n in (1, 2)]
    held = [cls() for cls in classes]
    held[0].x, held[1].x = 2.0, 5.0
    slot = vars(classes[number])["x"]

    def run(x: Any) -> Any:
        (mine,) = [each for each in held if type(each) is slot.__objclass__]
        return x * slot.__get__(mine)

    return run


@row
def a_reference_to_nothing(number: int) -> Program:
    class Gone:
        def method(self) -> None: ...

    reference: Any = (weakref.WeakMethod(Gone().method), weakref.ref(Gone()))[number]
    return lambda x: x * (reference() is None) + isinstance(reference, weakref.WeakMethod)


@row
def a_type_variable(number: int) -> Program:
    variable = typing.TypeVar("variable", int, str, *(float,) * number)  # type: ignore[misc]
    return lambda x: x * len([variable][0].__constraints__)


@row
def in_which_order_an_array_lies(number: int) -> Program:
    array = np.array([[1.0, 2.0], [3.0, 4.0]], order=("C", "F")[number])
    return lambda x: x * array.ravel("K")[1]


@row
def in_which_order_its_axes_lie(number: int) -> Program:
    array = np.arange(24.0).reshape(2, 3, 4)
    axes = (1, 0, 2)
    array = array.transpose(axes) if number else np.ascontiguousarray(array.transpose(axes))
    return lambda x: x * array.ravel("K")[5]


@row
def what_a_dtype_has_beside_it(number: int) -> Program:
    dtype: Any = np.dtype("f4", metadata={"scale": number + 2.0})
    record: Any = np.dtype([("a", dtype)])
    return lambda x: x * dtype.metadata["scale"] + record.fields["a"][0].metadata["scale"]


@row
def what_a_flag_does_with_other_bits(number: int) -> Program:
    make: Any = enum.Flag
    flag = make("flag", {"A": 1}, boundary=(enum.CONFORM, enum.KEEP)[number])
    return lambda x: x * flag(9).value


@row
def how_members_of_an_enum_are_made(number: int) -> Program:
    class Planet(enum.Enum):
        def __new__(cls, mass: float, radius: float) -> Any:
            made = object.__new__(cls)
            made._value_ = mass * (radius + number)
            return made

        EARTH = (2.0, 3.0)

    cls: Any = Planet
    return lambda x: x * cls.EARTH.value + cls._new_member_(cls, 1.0, 1.0)._value_


@row
def which_value_an_enum_would_give_next(number: int) -> Program:
    class Step(enum.Enum):
        @staticmethod
        def _generate_next_value_(name: str, start: int, count: int, last_values: Any) -> Any:
            return count * 2 + number

        FIRST = 7

    return lambda x: x * Step._generate_next_value_("it", 1, 2, [])


@row
def how_members_of_a_derived_enum_are_made(number: int) -> Program:
    class Sized(enum.Enum):
        def __new__(cls, width: float, height: float) -> Any:
            made = object.__new__(cls)
            made._value_ = width * height
            return made

    class Page(Sized):
        SMALL = (2.0, 3.0 + number)

    return lambda x: x * Page.SMALL.value


@row
def whether_an_enum_is_static_for_jax(number: int) -> Program:
    class Mode(enum.Enum):
        FAST = 1

    if number:
        jax.tree_util.register_static(Mode)
    return lambda x: x * (len(jax.tree.leaves([Mode.FAST])) + 1)


@row
def members_of_an_enum_that_are_one_number(number: int) -> Program:
    class Level(float, enum.Enum):
        def __new__(cls, data: float, value: str) -> Any:
            made = float.__new__(cls, data)
            made._value_ = value
            return made

        ONE = (1.0, "one")
        TWO = (1.0, "two" + "!" * number)

    return lambda x: x * len(Level.ONE.value + Level.TWO.value) + len(Level)


class Point:
    def __init__(self, x: float) -> None:
        self.x = x


@row
def how_an_object_is_copied(number: int) -> Program:
    cls = type("Point", (Point,), {})
    copyreg.pickle(cls, lambda point: (cls, (point.x + number,)))
    return lambda x: x * copy.copy(cls(2.0)).x


class Stated:
    """Says how its state is set, by a function that sets more than that."""

    def __init__(self, setter: Any) -> None:
        setter(self, {"x": 1.0})

    def __reduce__(self) -> Any:
        return object.__new__, (Stated,), {"x": self.x}, None, None, self.setter  # type: ignore[attr-defined]


def set_to_two(stated: Any, state: Any) -> None:
    vars(stated).update(state, y=2.0, setter=set_to_two)


def set_to_three(stated: Any, state: Any) -> None:
    vars(stated).update(state, y=3.0, setter=set_to_three)


@row
def how_a_state_is_set(number: int) -> Program:
    stated: Any = Stated((set_to_two, set_to_three)[number])
    return lambda x: x * vars([stated][0])["y"]


@row
def the_text_of_a_module(number: int) -> Program:
    found: Program = define(f'"""{"text" * (number + 1)}"""\ndef f(x): return x * len(__doc__)').f
    return found


@row
def the_text_of_a_module_that_is_a_value(number: int) -> Program:
    module = define(f'"""{"text" * (number + 1)}"""\nRATE = 1')
    return lambda x: x * len(str([module][0].__doc__))


@row
def the_signature_that_a_function_shows(number: int) -> Program:
    def shown(x: Any) -> Any:
        return x

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in "abc"]
    shown.__signature__ = inspect.Signature(parameters[number:])  # type: ignore[attr-defined]
    return lambda x: x * len(inspect.signature(shown).parameters)


@row
def how_many_parameters_a_class_has(number: int) -> Program:
    one, two = typing.TypeVar("one"), typing.TypeVar("two")
    generic: Any = typing.Generic
    cls: Any = types.new_class("Box", (generic[(one, two)[: number + 1]],))
    return lambda x: x * len([cls][0].__parameters__)


@row
def what_was_set_on_a_partial_of_jax(number: int) -> Program:
    partial: Any = jax.tree_util.Partial(plain)
    partial.scale = number + 2.0
    return lambda x: [partial][0](x) * [partial][0].scale


@row
def the_name_of_a_jitted_function(number: int) -> Program:
    jitted: Any = jax.jit(lambda x: x)
    jitted.__name__ = "name" * (number + 1)
    return lambda x: jitted(x) * len(jitted.__name__)


@row
def the_name_of_a_function_with_a_derivative(number: int) -> Program:
    function: Any = jax.custom_jvp(lambda x: x)
    function.__name__ = "name" * (number + 1)
    return lambda x: x * len(function.__name__)


OF_ONE_PYTHON = (what_a_flag_does_with_other_bits, the_signature_that_a_function_shows)
"""Objects of the standard library."""


@pytest.mark.parametrize("make", ROWS, ids=lambda make: make.__name__)
def test_a_part_counts_and_travels(client: Client, make: Callable[[int], Program]) -> None:
    """Of two objects that differ in it alone, each has its own result."""
    if named_server() is not None and make in OF_ONE_PYTHON:
        pytest.skip("they have other parts in each release of Python, and the server has its own")
    for number in (0, 1):
        program = make(number)
        found = client.persistent_call(program, fallback="error")(X)
        assert float(found) == float(program(X)), number


@pytest.mark.libraries("toolz")
def test_what_is_curried_counts_and_travels(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what it does: pickle writes the name of the function, which no server can import."""
    curry = importlib.import_module("toolz").curry
    for number in (2, 3):
        source = f"@wrap\ndef scale(x, by): return x * {number} + by\ndef f(x): return scale(x)(1)"
        module = define(source, "zz_curried", wrap=curry)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        found = client.persistent_call(module.f, fallback="error")
        assert float(found(X)) == X * number + 1
        assert found.why(X).verdict == "hit"
