"""The same call under `jax.jit` and under `persistent_call(static="jax")`, side by side."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxd import Client
from tests.end_to_end.conformance import CASES, NESTED, Case


class Leaf(NamedTuple):
    """All that jax knows of an array."""

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    data: bytes


class Outcome(NamedTuple):
    """What a call came to: a structure with leaves, or an error."""

    structure: str = ""
    leaves: tuple[Leaf, ...] = ()
    error: type[BaseException] | None = None
    said: str = ""


def leaf_of(array: Any) -> Leaf:
    """An array, bit for bit."""
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(array))
    else:
        data = np.asarray(array)
    weak = bool(getattr(array, "weak_type", False))
    return Leaf(str(array.dtype), array.shape, weak, data.tobytes())


def outcome(call: Callable[[], Any]) -> Outcome:
    """Its result, or its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax warns of donated arrays that cannot be reused
            leaves, structure = jax.tree.flatten(call())
        return Outcome(str(structure), tuple(map(leaf_of, leaves)))
    except Exception as error:  # noqa: BLE001  which one is what is compared
        return Outcome(error=type(error), said=str(error))


def same(ours: Outcome, theirs: Outcome) -> None:
    """Asserts that they are equal; an error of ours may be a kind of theirs."""
    if theirs.error is None:
        assert ours == theirs
    else:
        assert ours.error is not None, f"jax raises {theirs.error}: {theirs.said}"
        assert issubclass(ours.error, theirs.error), (ours.error, ours.said, theirs.error)


def strict(client: Client) -> Callable[..., Any]:
    """What takes the place of `jax.jit`."""
    return functools.partial(client.persistent_call, static="jax")


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_call_comes_to_what_it_does_under_jit(client: Client, case: Case) -> None:
    """Result, dtype, weak type, structure of the tree; type of the error."""
    args = case.args() if callable(case.args) else case.args

    def under(make: Callable[..., Any]) -> Outcome:
        return outcome(lambda: make(case.function, **case.options)(*args, **case.kwargs))

    with jax.enable_x64(case.x64):
        same(under(strict(client)), under(jax.jit))


@pytest.mark.parametrize("name", NESTED)
def test_a_function_inside_of_another_is_as_under_jit(client: Client, name: str) -> None:
    """It keeps its rules, and is one call of the server with the outer one."""
    build = NESTED[name]
    before = client.statistics().calls
    ours = outcome(lambda: build(strict(client))(2.0))
    assert client.statistics().calls == before + 1
    same(ours, outcome(lambda: build(jax.jit)(2.0)))


def test_the_last_of_them_is_what_jax_cannot_do(client: Client) -> None:
    """A big-endian array keeps its numbers, where jax takes its bytes for others."""
    array = np.arange(3, dtype=">f4")
    assert np.asarray(strict(client)(lambda x: x)(array)).tolist() == [0.0, 1.0, 2.0]
