from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs, infer_static_args


def plain(x: Any, n: int, flag: bool = True) -> Any:
    """A function as they usually are."""


def mixed(x: Any, /, n: int, *rest: Any, flag: bool = True, **more: Any) -> Any:
    """One with every kind of parameter."""


def statics(positions: set[int], names: set[str]) -> StaticArgs:
    return StaticArgs(frozenset(positions), frozenset(names))


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (plain, Options(), NO_STATIC_ARGS),
        (plain, Options(static_argnums=(1,)), statics({1}, {"n"})),
        (plain, Options(static_argnums=(-1, 0)), statics({0, -1}, {"x"})),
        (plain, Options(static_argnames=("flag",)), statics({2}, {"flag"})),
        (plain, Options(static_argnames=("flag", "n")), statics({1, 2}, {"flag", "n"})),
        (plain, Options(static_argnums=(0,), static_argnames=("n",)), statics({0}, {"n"})),
        (plain, Options(static_argnums=()), statics(set(), set())),
        (mixed, Options(static_argnums=(0, 1)), statics({0, 1}, {"n"})),
        (mixed, Options(static_argnums=(4,)), statics({4}, set())),
        (mixed, Options(static_argnames=("flag", "other")), statics(set(), {"flag", "other"})),
        (mixed, Options(static_argnames=("n",)), statics({1}, {"n"})),
    ],
)
def test_positions_and_names_follow_from_each_other(
    function: Callable[..., Any], options: Options, expected: StaticArgs
) -> None:
    """As in `jax.jit`."""
    assert infer_static_args(function, options) == expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (Options(static_argnums=(1,)), statics({1}, set())),
        (Options(static_argnames=("key",)), statics(set(), {"key"})),
    ],
)
def test_without_a_signature_they_count_as_they_are(options: Options, expected: StaticArgs) -> None:
    """Some functions written in C have none."""
    assert infer_static_args(min, options) == expected


def test_negative_positions_count_from_the_last_argument_of_a_call() -> None:
    """And not from the last parameter, as in `jax.jit`."""
    found = infer_static_args(plain, Options(static_argnums=(-1, 0)))
    assert [sorted(found.at(count)) for count in (2, 3, 1)] == [[0, 1], [0, 2], [0]]
    assert statics({1}, set()).at(1) == {1}
    with pytest.raises(ValueError, match=r"got value -1 for len\(args\) == 0"):
        found.at(0)


def test_the_rule_of_jax_is_strict() -> None:
    """With and without static arguments."""
    assert infer_static_args(plain, Options(static="jax")).strict
    assert infer_static_args(plain, Options(static="jax", static_argnums=(1,))).strict
    assert not infer_static_args(plain, Options(static_argnums=(1,))).strict


def test_statics_are_true_when_there_are_any() -> None:
    """The usual call asks only that."""
    assert not NO_STATIC_ARGS
    assert statics({0}, set())
    assert statics(set(), {"n"})
