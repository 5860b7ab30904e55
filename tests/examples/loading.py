"""Loads an example as it is, or with `jax.jit` where it says `persistent_call`."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import jaxd
from tests.live_server import ROOT

EXAMPLES = ROOT / "examples"


def techniques_of(file: Path) -> list[str]:
    """The names in the `TECHNIQUES` of an example, without running it."""
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "TECHNIQUES":
            assert isinstance(statement.value, ast.Tuple)
            return [ast.unparse(name) for name in statement.value.elts]
    raise AssertionError(f"{file.name} has no TECHNIQUES")


def on_the_server(file: Path, address: str) -> Mapping[str, Any]:
    """What an example defines; its functions run on that server."""
    with mock.patch.dict("os.environ", {"JAXD_SERVER": address}):
        return runpy.run_path(str(file), run_name=file.stem)


def in_plain_jax(file: Path) -> Mapping[str, Any]:
    """What an example defines; its functions are those of `jax.jit`."""
    with mock.patch.object(jaxd, "persistent_call", plain):
        return runpy.run_path(str(file), run_name=file.stem)


def plain(
    function: Callable[..., Any] | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    jit: Callable[..., Any] = jax.jit,
    **options: Any,
) -> Any:
    """`jax.jit` with the same options, under jax's settings for this function."""
    if function is None:
        return partial(plain, config=config, jit=jit, **options)
    jitted = jit(function, **options)
    if config is None:
        return jitted

    def call(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as settings:
            for name, value in config.items():
                settings.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
            return jitted(*args, **kwargs)

    return call


def assert_equal(found: Any, expected: Any) -> None:
    """The same tree, with the same bits in each leaf."""
    structure: Any
    expected_structure: Any
    leaves, structure = jax.tree.flatten(found)
    others, expected_structure = jax.tree.flatten(expected)
    assert structure == expected_structure
    for leaf, other in zip(leaves, others, strict=True):
        if isinstance(other, str):
            assert leaf == other
            continue
        mine, theirs = data_of(leaf), data_of(other)
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
        assert mine.tobytes() == theirs.tobytes(), f"{mine} is not {theirs}"


def data_of(leaf: Any) -> Any:
    """The numbers of an array, or those that a key is made of."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)
