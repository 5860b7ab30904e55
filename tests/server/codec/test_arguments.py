from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_protocol.messages.function_manifest import parameter_names
from jaxd_server.codec.arguments import donated_leaves, parse_arguments
from tests.server.in_process import encode

X: Any = np.ones(3, np.float32)


def two(state: Any, batch: Any, scale: Any = 1.0) -> Any:
    return jax.tree.map(lambda leaf: leaf * scale, (state, batch))


def anything(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def by_name(state: Any, *, batch: Any) -> Any:
    return state, batch


CASES: list[tuple[Callable[..., Any], dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    (two, {}, (X, X), {}),
    (two, {"donate_argnums": 0}, (X, X), {}),
    (two, {"donate_argnums": (0, 1)}, ({"a": X, "b": [X, None]}, X), {}),
    (two, {"donate_argnums": -2}, (X, X), {}),
    (two, {"donate_argnums": 0}, (), {"batch": X, "state": X}),
    (two, {"donate_argnums": 1}, (X,), {"batch": X}),
    (two, {"donate_argnames": "state"}, (X, X), {}),
    (two, {"donate_argnames": ("batch", "state")}, (X,), {"batch": (X, X)}),
    (two, {"donate_argnums": 0, "donate_argnames": "batch"}, (X, X), {}),
    (two, {"donate_argnums": 0, "donate_argnames": "batch"}, (X,), {"batch": X}),
    (two, {"donate_argnums": 2}, (X, X), {}),
    (anything, {"donate_argnums": 1}, (X, X), {"a": X}),
    (anything, {"donate_argnames": "a"}, (X, X), {"a": X, "b": X}),
    (by_name, {"donate_argnames": "batch"}, (X,), {"batch": X}),
    (by_name, {"donate_argnums": 0}, (X,), {"batch": X}),
]


def as_tuple(value: Any) -> Any:
    """Options hold tuples."""
    return value if isinstance(value, tuple) or value is None else (value,)


@pytest.mark.parametrize(("function", "given", "args", "kwargs"), CASES)
def test_what_is_given_up_is_what_jax_gives_up(
    function: Callable[..., Any], given: Any, args: Any, kwargs: Any
) -> None:
    """By position, by name, from the end, and both for the same parameter."""
    skeleton, _, _ = encode(args, kwargs)
    layout = parse_arguments(skeleton)
    options = Options(**{name: as_tuple(value) for name, value in given.items()})
    found = donated_leaves(layout, options, parameter_names(function))
    lowered = jax.jit(function, **given).trace(*args, **kwargs)
    flags = [info.donated for info in jax.tree.leaves(lowered.lower().args_info)]
    numbers = layout.build(list(range(len(layout.leaves))))
    assert found == {n for n, flag in zip(jax.tree.leaves(numbers), flags, strict=True) if flag}


def test_static_arguments_are_none_of_them() -> None:
    """They are no leaves; nothing is given up while jax looks for NaNs."""

    def step(n: int, x: Any) -> Any:
        return x * n

    options = Options(static_argnums=(0,), donate_argnums=(1,))
    skeleton, _, _ = encode((3, X), {}, infer_static_args(step, options))
    names = tuple(inspect.signature(step).parameters)
    assert donated_leaves(parse_arguments(skeleton), options, names) == {0}
    skeleton, _, _ = encode((X, X))
    options = Options(donate_argnums=(0,), config=(("jax_debug_nans", True),))
    assert donated_leaves(parse_arguments(skeleton), options, ("state", "batch")) == frozenset()
    with jax.debug_nans(True):
        lowered = jax.jit(two, donate_argnums=0).lower(X, X)
    assert not any(info.donated for info in jax.tree.leaves(lowered.args_info))
