"""Loads an example with `jax.jit` where it says `persistent_call`, and compares results."""

from __future__ import annotations

import ast
import runpy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MethodType
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


def in_plain_jax(file: Path) -> Mapping[str, Any]:
    """What an example defines; its functions are those of `jax.jit`."""
    with (
        mock.patch.object(jaxd, "persistent_call", plain),
        mock.patch.object(jaxd, "vmap_auto", plain_vmap_auto),
    ):
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
    return Plain(function, config or {}, jit, options)


class Plain:
    """A function under `jax.jit`, and what a persistent one has beside, by jax's own."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: Mapping[str, Any],
        jit: Callable[..., Any] = jax.jit,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.__wrapped__ = function
        self._jit = jit
        self._jitted = jit(function, **(options or {}))
        self._config = config

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as settings:
            for name, value in self._config.items():
                settings.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
            leaves, structure = jax.tree.flatten((args, kwargs))
            if self._jit is not jax.jit or all(map(_is_traceable, leaves)):
                return self._jitted(*args, **kwargs)
            return self._with_static_leaves(leaves, structure)

    def _with_static_leaves(self, leaves: list[Any], structure: Any) -> Any:
        """What jax cannot trace belongs to the function that it is given."""

        def function(traced: Mapping[int, Any]) -> Any:
            args, kwargs = structure.unflatten([traced.get(i, x) for i, x in enumerate(leaves)])
            return self.__wrapped__(*args, **kwargs)

        return jax.jit(function)({i: x for i, x in enumerate(leaves) if _is_traceable(x)})

    def jaxpr(self, *args: Any) -> str:
        return str(jax.make_jaxpr(self.__wrapped__)(*args))

    def jvp(self, *pair: Any) -> Any:
        return self._derived(lambda *pair: jax.jvp(self.__wrapped__, *pair))(*pair)

    def vjp(self, *primals: Any) -> Any:
        def pulled_back(primals: Any, cotangents: Any) -> Any:
            return jax.vjp(self.__wrapped__, *primals)[1](cotangents)

        return self(*primals), partial(self._derived(pulled_back), primals)

    def __getattr__(self, name: str) -> Any:
        if name not in ("grad", "value_and_grad", "vmap", "jacfwd", "jacrev", "hessian"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._derived(
            getattr(jax, name)(self.__wrapped__, *args, **kwargs)
        )

    def _derived(self, function: Callable[..., Any]) -> Plain:
        return Plain(function, self._config, self._jit)


def _is_traceable(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | float | complex | int)


def plain_vmap_auto(function: Callable[..., Any], batch_size: int) -> Callable[..., Any]:
    """`jax.vmap` along the first axis of all that has so many entries there."""

    def axis(leaf: Any) -> int | None:
        return 0 if np.shape(leaf)[:1] == (batch_size,) else None

    return lambda *args: jax.jit(jax.vmap(function, jax.tree.map(axis, args)))(*args)


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
