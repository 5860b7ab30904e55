"""The text of a program: equal for programs that do the same, and where two begin to differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_identity import first_difference, program_digest, program_text

X = np.ones(3, "f4")


def lowered(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What jax makes of it."""
    return jax.jit(function, **options).lower(*args)


def text_of(function: Callable[..., Any], *args: Any, **options: Any) -> str:
    """Its text."""
    return program_text(lowered(function, *args, **options), Options())


def _named(name: str, body: Callable[..., Any]) -> Any:
    def inner(x: Any) -> Any:
        return body(x)

    inner.__name__ = inner.__qualname__ = name
    return jax.jit(inner)


def test_names_do_not_count() -> None:
    """Of the function, of what is in its result, and of functions that it calls."""
    one, other = (_named(name, lambda x: x + 1) for name in ("one", "other"))

    def first(x: Any) -> Any:
        return {"a": one(x)}

    def second(y: Any) -> Any:
        return [other(y)]

    assert text_of(first, X) == text_of(second, X)
    assert program_digest(lowered(first, X), Options()) != program_digest(
        lowered(second, X), Options()
    )


def test_a_function_that_is_there_twice_counts_once() -> None:
    """As jax lowers one twice where it has forgotten that it has traced it."""
    one, twin = (_named("helper", lambda x: jnp.where(x > 0, x, 2 * x)) for _ in range(2))
    twice = text_of(lambda x: one(x) + twin(x), X)
    assert twice == text_of(lambda x: one(x) + one(x), X)
    assert twice.count('sym_visibility = "private"') == 2  # the helper, and that of jnp.where


def _with_constants(one: Any, other: Any, third: Any) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        return jnp.sin(x * one) / jnp.where(x[0] > 0, other, x) - jnp.cos(x * third)

    return function


def test_a_constant_that_is_there_twice_counts_once() -> None:
    """As jax writes one array once, and its twins again. Two values are two."""
    one, other, third = (np.arange(3, dtype="f4") for _ in range(3))
    twins, once = _with_constants(one, other, third), _with_constants(one, one, one)
    written = [lowered(each, X).as_text().count("[0.000000e+00, 1.0") for each in (twins, once)]
    assert written[0] > written[1]
    assert text_of(twins, X) == text_of(once, X)
    assert text_of(_with_constants(one, other, third + 1), X) != text_of(once, X)
    assert text_of(_with_constants(one, other + 1, third), X) != text_of(once, X)


def _unordered(names: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        def body(carry: Any, row: Any) -> Any:
            found = {name: carry * ord(name) + row for name in names}
            return found["a"] - found["b"] * found["c"], row

        found = {name: x * ord(name) for name in names}
        return jax.lax.scan(body, found["a"], jnp.stack([found["b"], found["c"]]))

    return function


def test_the_order_of_what_does_not_depend_on_each_other_does_not_count() -> None:
    """As where Python goes through a set of text, whose order is another in each process."""
    assert lowered(_unordered("abc"), X).as_text() != lowered(_unordered("cab"), X).as_text()
    assert text_of(_unordered("abc"), X) == text_of(_unordered("cab"), X)


def _sum(names: str) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        def total(x: Any) -> Any:
            terms = [jnp.sin(x * ord(name)).sum() for name in names]
            return sum(terms[1:], terms[0]) * terms[0 if names[0] == "a" else names.index("a")]

        return jax.value_and_grad(total)(x)

    return function


def test_the_order_of_a_sum_does_not_count() -> None:
    """Nor that of its derivative, and of how it is put together."""
    assert text_of(_sum("abcd"), X) == text_of(_sum("dbca"), X)
    assert text_of(_sum("abcd"), X) != text_of(_sum("abce"), X)
    assert text_of(_sum("abcd"), X) != text_of(_sum("abccd"), X)
    one, other = (lambda x: (x + x * 2) + (x * 3 + x * 4)), (lambda x: x + (x * 2 + x * 4) + x * 3)
    assert text_of(one, X) == text_of(other, X)

    def doubled(x: Any) -> Any:
        for _ in range(200):
            x = x + x
        return x

    assert len(text_of(doubled, X).splitlines()) < 300  # what is used twice is not taken apart


def test_the_order_of_a_sum_does_not_depend_on_names_of_functions() -> None:
    """Which jax makes up: the second `normal` of a program is `normal_1`."""
    sums = [
        lambda x: _named("a", lambda x: x + 2)(x) + _named("b", lambda x: x + 3)(x),
        lambda x: _named("b", lambda x: x + 2)(x) + _named("a", lambda x: x + 3)(x),
        lambda x: _named("a", lambda x: x + 3)(x) + _named("b", lambda x: x + 2)(x),
    ]
    assert len({text_of(each, X) for each in sums}) == 1
    assert text_of(lambda x: _named("a", lambda x: x + 2)(x) + (x + 4), X) != text_of(sums[0], X)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: _named("a", lambda x: x + 2)(x) * _named("b", lambda x: x + 3)(x),
        lambda x: _named("a", lambda x: x + 3)(x) - _named("b", lambda x: x + 2)(x),
        lambda x: _named("a", lambda x: x + 2)(x) - _named("b", lambda x: x + 2)(x),
    ],
    ids=("main", "order", "which"),
)
def test_what_functions_do_counts(other: Callable[..., Any]) -> None:
    """And in which order they are called."""

    def function(x: Any) -> Any:
        return _named("a", lambda x: x + 2)(x) - _named("b", lambda x: x + 3)(x)

    assert text_of(function, X) == text_of(function, X)
    assert text_of(function, X) != text_of(other, X)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: (x - 2.0 * x, jnp.sort(x)),
        lambda x: (x - x * 2.0, jnp.sort(x)),
        lambda x: (x * 2.0 - x, -jnp.sort(-x)),
        lambda x: (jnp.sort(x), x * 2.0 - x),
        lambda x: (x * 2.5 - x, jnp.sort(x)),
    ],
    ids=("operands", "both", "region", "results", "constant"),
)
def test_what_is_computed_counts(other: Callable[..., Any]) -> None:
    """Which operand comes first, what is in a region, which result is which, constants."""

    def function(x: Any) -> Any:
        return x * 2.0 - x, jnp.sort(x)

    assert text_of(function, X) != text_of(other, X)


def test_facts_beside_the_module_count() -> None:
    """Donation, weak types, arguments that are not used, options of the compiler."""

    def function(x: Any, y: Any) -> Any:
        return x + 1

    plain = text_of(function, X, 1.0)
    assert plain != text_of(function, X, 1.0, donate_argnums=0)
    assert plain != text_of(function, X, np.float32(1))
    assert plain != text_of(function, X, 1.0, keep_unused=True)
    assert plain != text_of(function, X, 1.0, compiler_options={"xla_cpu_enable_fast_math": True})


def test_every_byte_of_a_large_constant_counts() -> None:
    """Although its text is short."""
    ones = np.ones(1000, "f4")
    ones[17] = 2.0
    texts = {text_of(lambda x, c=c: x + c, np.float32(1)) for c in (np.ones(1000, "f4"), ones)}
    assert len(texts) == 2
    assert max(map(len, texts)) < 5000


def test_the_first_difference() -> None:
    """The line and both texts, also where one is longer."""
    assert first_difference("a\nb", "a\nb") is None
    assert first_difference("a\n  b\nc", "a\n  d\ne") == (2, "b", "d")
    assert first_difference("a", "a\nb") == (2, "(nothing)", "b")
