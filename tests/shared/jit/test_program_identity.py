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
    assert twice.count("func.func private") == 2  # the helper, and that of jnp.where


@pytest.mark.parametrize(
    "other",
    [
        lambda x: _named("a", lambda x: x + 2)(x) * _named("b", lambda x: x + 3)(x),
        lambda x: _named("a", lambda x: x + 3)(x) + _named("b", lambda x: x + 2)(x),
        lambda x: _named("a", lambda x: x + 2)(x) + _named("b", lambda x: x + 2)(x),
    ],
    ids=("main", "order", "which"),
)
def test_what_functions_do_counts(other: Callable[..., Any]) -> None:
    """And in which order they are called."""

    def function(x: Any) -> Any:
        return _named("a", lambda x: x + 2)(x) + _named("b", lambda x: x + 3)(x)

    assert text_of(function, X) == text_of(function, X)
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
