from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental
import pytest
from jax.experimental import io_callback

from jaxd_protocol.fingerprint import walk
from jaxd_protocol.fingerprint.callbacks import given_to_callbacks

seen: list[Any] = []


class History:
    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, value: Any) -> None:
        self.items.append(value)


history = History()


def note(value: Any) -> None:
    """Is given to jax."""
    seen.append(value)


def helper(value: Any) -> None:
    """Is not."""
    seen.append(value)


def a_method(x: Any) -> None:
    jax.debug.callback(seen.append, x)


def a_lambda(x: Any) -> None:
    jax.debug.callback(lambda v: seen.append(abs(v)), x)


def a_function(x: Any) -> None:
    jax.debug.callback(note, x, ordered=True)


def with_other_calls(x: Any) -> None:
    jax.debug.callback(note, abs(x + 1), [str(x), max(1, 2)], k=len("ab"))


def a_nested_function(x: Any) -> None:
    def tell(value: Any) -> None:
        seen.append(value)

    jax.debug.callback(tell, x)


def in_a_loop(x: Any) -> Any:
    def tell(value: Any) -> None:
        seen.append(value)

    def body(c: Any, _: Any) -> Any:
        io_callback(tell, None, c)
        return c, None

    return jax.lax.scan(body, x, length=2)


def an_object(x: Any) -> None:
    io_callback(history.add, None, x)


def by_its_module(x: Any) -> None:
    jax.experimental.io_callback(history.add, None, x)


def closing_over(into: list[Any]) -> Callable[..., Any]:
    def f(x: Any) -> None:
        jax.debug.callback(lambda v: into.append(abs(v)), x)

    return f


GIVEN = [
    a_method,
    a_lambda,
    a_function,
    with_other_calls,
    a_nested_function,
    in_a_loop,
    an_object,
    by_its_module,
    closing_over(seen),
]


def the_length(x: Any) -> Any:
    jax.debug.callback(seen.append, x)
    return x * len(seen)


def one_of_two(x: Any, first: bool = True) -> None:
    jax.debug.callback(seen.append if first else helper, x)


def another_argument(x: Any) -> None:
    jax.debug.callback(print, x, len(seen))


def anothers_callback(x: Any) -> None:
    functools.callback(seen.copy(), x)  # type: ignore[attr-defined]


def called_as_well(x: Any) -> Any:
    def tell(value: Any) -> Any:
        return value * len(seen)

    jax.debug.callback(tell, x)
    return tell(x)


def made_by_a_call(x: Any) -> None:
    jax.debug.callback(functools.partial(print, len(seen)), x)


COUNTED = [
    the_length,
    one_of_two,
    another_argument,
    anothers_callback,
    called_as_well,
    made_by_a_call,
]


def fingerprints(function: Callable[..., Any]) -> list[bytes]:
    """One before what it reaches has changed, and one after."""
    found = []
    for turn in range(2):
        seen[:], history.items[:] = [turn] * turn, [turn] * turn
        found.append(walk(function, "f").fingerprint.digest)
    return found


@pytest.mark.parametrize("function", GIVEN)
def test_what_is_only_called_back_is_not_in_the_key(function: Callable[..., Any]) -> None:
    """A list that fills would otherwise compile the program anew at each call."""
    before, after = fingerprints(function)
    assert before == after


@pytest.mark.parametrize("function", GIVEN)
def test_it_is_not_watched_either(function: Callable[..., Any]) -> None:
    """So that a call after it is as quick as before."""
    guards = walk(function, "f").guards
    seen.append(1)
    history.items.append(1)
    assert guards.hold()
    assert guards.complete


@pytest.mark.parametrize("function", COUNTED)
def test_what_may_decide_about_a_result_is_in_the_key(function: Callable[..., Any]) -> None:
    """One stale result is worse than a thousand compilations."""
    before, after = fingerprints(function)
    assert before != after


def test_live_objects_have_numbers_of_their_own() -> None:
    """In the order in which the code names them; one that is named twice has one."""

    def f(x: Any) -> None:
        jax.debug.callback(seen.append, x)
        jax.debug.callback(note, x)
        jax.debug.callback(seen.extend, [x])

    assert walk(f, "f").reach.live == [seen, note]


def test_two_lists_are_not_one() -> None:
    """Whether two callbacks fill the same list is in the key: a program names them by number."""

    def of(one: list[Any], two: list[Any]) -> Callable[..., Any]:
        def f(x: Any) -> None:
            jax.debug.callback(one.append, x)
            jax.debug.callback(two.append, x)

        return f

    same, different = of(seen, seen), of(seen, [])
    assert walk(same, "f").fingerprint.digest != walk(different, "f").fingerprint.digest


def test_code_without_callbacks_is_not_looked_at() -> None:
    """As nearly all is."""
    assert given_to_callbacks(helper.__code__) == (frozenset(), frozenset())
