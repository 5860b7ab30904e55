"""Each error is that of `jax.jit`, in a process that may have no jax."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from jaxd.api.options import (
    check_arguments,
    check_function,
    inline_of,
    names_of,
    packed_shardings,
    positions_of,
)
from jaxd_protocol.jit.options import Options


def plain(x: Any, n: int, flag: bool = True) -> Any:
    """A function as they usually are."""
    return x


def mixed(x: Any, /, n: int, *rest: Any, flag: bool = True, **more: Any) -> Any:
    """One with every kind of parameter."""
    return x


def generator(x: Any) -> Iterator[Any]:
    yield x


@pytest.mark.parametrize(
    "function",
    [plain, functools.partial(plain, n=1), "text".upper, max, jax.jit(plain), type("C", (), {})],
)
def test_what_can_be_called_can_be_traced(function: Any) -> None:
    """Classes and objects too."""
    check_function(function)


@pytest.mark.parametrize(
    "function",
    [3, "text", None, staticmethod(plain), generator, functools.partial(generator, 1)],
    ids=["number", "text", "none", "staticmethod", "generator", "partial generator"],
)
def test_what_cannot_is_refused_as_jax_does(function: Any) -> None:
    """With the same type of error, and its first words."""
    with pytest.raises(TypeError) as theirs:
        jax.jit(function)
    with pytest.raises(TypeError) as ours:
        check_function(function)
    assert str(ours.value).startswith(str(theirs.value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (1, (1,)), ((0, 2), (0, 2)), ([1], (1,)), (np.int64(1), (1,)), (True, (1,))],
)
def test_positions(value: Any, expected: Any) -> None:
    """Integers of any kind, alone or several."""
    assert positions_of(value) == expected
    several: Any = np.array([1, 2])
    assert positions_of(several) == (1, 2)


@pytest.mark.parametrize("value", ["x", 1.5, (None,), (1.5,)])
def test_positions_are_integers(value: Any) -> None:
    """As jax says."""
    with pytest.raises(TypeError):
        jax.jit(plain, static_argnums=value)
    with pytest.raises(TypeError):
        positions_of(value)


def test_names() -> None:
    """Text, alone or several; the order of a set says nothing."""
    assert names_of(None) is None
    assert names_of("n") == ("n",)
    assert names_of(["n", "flag"]) == ("n", "flag")
    assert names_of({"n", "flag"}) == ("flag", "n")
    wrong: Any
    for wrong in (1, [1]):
        with pytest.raises(TypeError):
            names_of(wrong)


_FITTING: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (plain, {}),
    (plain, {"static_argnums": (1,)}),
    (plain, {"static_argnums": (-3,)}),
    (plain, {"static_argnames": ("flag",)}),
    (plain, {"static_argnums": (1,), "donate_argnums": (0,)}),
    (mixed, {"static_argnums": (7,)}),
    (mixed, {"static_argnames": ("other",)}),
    (functools.partial(plain, n=1), {"static_argnames": ("flag",)}),
    (max, {"static_argnums": (7,)}),
]


@pytest.mark.parametrize(("function", "given"), _FITTING)
def test_parameters_that_there_are(function: Any, given: dict[str, Any]) -> None:
    """jax takes them too."""
    jax.jit(function, **given)
    check_arguments(function, Options(**given))


_WRONG: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (plain, {"static_argnums": (3,)}),
    (plain, {"static_argnums": (-4,)}),
    (plain, {"donate_argnums": (5,)}),
    (plain, {"static_argnames": ("other",)}),
    (plain, {"donate_argnames": ("other",)}),
    (mixed, {"static_argnames": ("x",)}),
    (mixed, {"donate_argnames": ("rest",)}),
    (plain, {"static_argnums": (1,), "donate_argnums": (1,)}),
    (plain, {"static_argnames": ("n",), "donate_argnums": (1,)}),
    (functools.partial(plain, n=1), {"static_argnums": (2,)}),
    (max, {"donate_argnames": ("x",)}),
]


@pytest.mark.parametrize(("function", "given"), _WRONG)
def test_parameters_that_there_are_not(function: Any, given: dict[str, Any]) -> None:
    """The error is jax's, word for word."""
    with pytest.raises(ValueError, match=r"Jitted|intersect|signature") as theirs:
        jax.jit(function, **given)
    with pytest.raises(ValueError, match=r"Jitted|intersect|signature") as ours:
        check_arguments(function, Options(**given))
    assert str(ours.value) == str(theirs.value)


def test_inline() -> None:
    """Yes or no as jax reads it; a member of `jax.Inline`, where jax has that, by its value."""

    class Inline(enum.Enum):
        LATE = "jax_late"

    assert [inline_of(value) for value in (True, 0, "yes", Inline.LATE)] == [
        True,
        False,
        True,
        "jax_late",
    ]


def test_shardings_are_packed_the_same_way_each_time() -> None:
    """So that the key is the same in each process; None is as if they were not given."""
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    one, other = (
        packed_shardings("in_shardings", (jax.sharding.NamedSharding(mesh, spec), None))
        for _ in range(2)
    )
    assert one == other != b""
    assert packed_shardings("in_shardings", [jax.sharding.NamedSharding(mesh, spec), None]) == one
    assert packed_shardings("in_shardings", None) == b""


def test_what_is_no_sharding_is_refused() -> None:
    """As jax does it; without jax there is none."""
    with pytest.raises(TypeError, match="in_shardings leaf specifications are expected"):
        packed_shardings("in_shardings", ("x", None))
    program = (
        "from jaxd.api.options import packed_shardings\n"
        "try: packed_shardings('out_shardings', 'x')\n"
        "except TypeError: print('refused')\n"
    )
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert found.stdout == b"refused\n"
