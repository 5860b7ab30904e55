from __future__ import annotations

import functools
import logging
import operator
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd.aims import find
from jaxd_protocol.errors import CallbackError
from jaxd_protocol.live import Live
from jaxd_server.aims import Aims, stays_here

held: list[Any] = []


class Box:
    def put(self, value: Any) -> None:
        """Is bound."""
        held.append(value)


box = Box()


def traced(scale: int) -> tuple[Callable[..., Any], ...]:
    """Makes functions as traced code does."""
    table = np.arange(3)
    items = {"a": [scale, (1, "two")]}

    def inner(value: Any, more: int = 2, *, last: str = "l") -> Any:
        return value * scale + more, table.tolist(), items, last

    return inner, lambda value: inner(value)  # noqa: PLW0108  it holds the other


def gives(found: list[Any]) -> Any:
    """Says `append`, as the code does that gives it to be called back."""
    return found.append


OBJECTS = [traced, box, held, gives]


def there_and_back(function: Any, live: tuple[Any, ...] = ()) -> Any:
    """What a client finds that reaches the same objects."""
    aim, arrays = Aims("f", OBJECTS, live).at(function)
    return find(_filled(aim, arrays), OBJECTS, live)


def _filled(aim: Any, arrays: list[Any]) -> Any:
    """With the arrays, as they are put in on their way."""
    if isinstance(aim, tuple):
        return tuple(_filled(each, arrays) for each in aim)
    if isinstance(aim, dict):
        return {name: _filled(each, arrays) for name, each in aim.items()}
    return arrays[aim.index] if type(aim).__name__ == "Slot" else aim


def test_what_the_function_reaches_has_a_number() -> None:
    """As has a method of it, and one of a list."""
    assert there_and_back(traced) is traced
    there_and_back(box.put)(1)
    there_and_back(held.append)(2)
    assert held == [1, 2]
    held.clear()


def test_what_is_only_given_away_has_one_of_its_own() -> None:
    """It comes as a stand-in, or as itself where its module travels as a file."""
    alone: list[Any] = []
    there_and_back(Live(0, ("append",)), (alone,))(1)
    there_and_back(alone.append, (alone,))(2)
    assert alone == [1, 2]


def test_functions_that_traced_code_makes_are_made_again() -> None:
    """Of the same code, with what they hold: numbers, arrays, containers, each other."""
    for function in traced(4):
        made = there_and_back(function)
        assert made is not function
        assert made(2) == function(2) == (10, [0, 1, 2], {"a": [4, (1, "two")]}, "l")
    partial = there_and_back(functools.partial(traced(4)[0], 1, last="x"))
    assert partial(5) == (9, [0, 1, 2], {"a": [4, (1, "two")]}, "x")


def test_a_tracer_cannot_leave() -> None:
    """Under `jax.jit` it is an error as well; this one says what to do."""

    def f(x: Any) -> Any:
        function = traced(x)[0]
        with pytest.raises(CallbackError, match="Pass it as an argument"):
            Aims("f", OBJECTS, ()).at(function)
        return x

    jax.jit(f)(1.0)


def test_a_function_of_unknown_origin_is_refused() -> None:
    """Nobody could say which one of the client's it is."""
    with pytest.raises(CallbackError, match=r"f gives test_a_.*<lambda> to jax.debug.callback"):
        Aims("f", OBJECTS, ()).at(lambda value: value)


def test_what_stays_on_the_server() -> None:
    """Python's own and jax's own; what the user has written never, nor what a library offers."""
    stay: list[Any] = [
        print,
        logging.info,
        sys.stdout.write,
        functools.partial(print, 1),
        jnp.sin,
        np.save,
    ]
    go: list[Any] = [Live(0), traced, box.put, held.append, functools.partial(traced), lambda: 0]
    assert all(map(stays_here, stay))
    assert not any(map(stays_here, go))
    assert not stays_here(pytest.importorskip("optax").adam)
    assert stays_here(operator.attrgetter("x")) is stays_here(operator.itemgetter(1))
