"""Programs that answer calls are compared with what the client's own jax makes of the functions."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.errors import ConfigurationError, StaleProgramError
from jaxd.tracing import verification
from tests.end_to_end.several_devices import EIGHT
from tests.ids import stable_id
from tests.live_server import LiveServer

X = np.arange(6, dtype="f4").reshape(2, 3)
FOUND = ("verified_programs", "stale_programs", "incomparable_programs")


@pytest.fixture
def verifying(live: LiveServer) -> Iterator[Client]:
    """A client that compares, of the common server."""
    with connect(live.unix, verify=True) as client:
        yield client


def found_by(client: Client, act: Callable[[], Any]) -> tuple[int, ...]:
    """How many programs are verified, stale and incomparable after `act`, more than before."""
    before, _, after = client.statistics(), act(), client.statistics()
    return tuple(getattr(after, name) - getattr(before, name) for name in FOUND)


# agreement ---------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A function, its options and some of its calls.

    Attributes:
        name: for people.
        function: what is called.
        calls: makes each call of the persistent function.
        options: of `persistent_call`.
        under: settings of jax.
        programs: how many are made.
    """

    name: str
    function: Callable[..., Any]
    calls: Callable[[Any], Any]
    options: dict[str, Any] = {}  # noqa: RUF012  never changed
    under: Callable[[], Any] = nullcontext
    programs: int = 1


@jax.jit
def _halved(x: Any) -> Any:
    return jnp.where(x > 0, x / 2, x)


def _affine(x: Any, w: Any = 2.0, *, b: Any = 0) -> Any:
    return {"y": (_halved(x) * w + b,), "n": x.size}


def _powers(x: Any, n: int, names: Any = ()) -> Any:
    return {name: x**n for name in names} or x**n


def _step(state: Any, batch: Any) -> Any:
    w, count = state["w"], state["count"]
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((batch @ w) ** 2))(w)
    return {"w": w - 0.1 * gradient, "count": count + 1}, loss


def _noise(key: Any, shape: Any) -> Any:
    return jax.random.normal(key, shape), jax.random.split(key)


def _scanned(x: Any) -> Any:
    def body(carry: Any, row: Any) -> Any:
        return jax.lax.cond(
            row.sum() > 3, lambda c: c + row, lambda c: c * _halved(row), carry
        ), row

    return jax.lax.scan(body, jnp.zeros(3), x)


def _large_constant(x: Any) -> Any:
    return x + np.arange(3000, dtype="f4").reshape(1000, 3)[:2] @ np.eye(3, dtype="f4")


def _solved(x: Any) -> Any:
    return jnp.linalg.solve(x @ x.T + 3 * jnp.eye(2), jnp.ones(2)), jnp.sort(x), jnp.fft.fft(x)


@jaxd.persistent_call
def _inner(x: Any, kind: str = "sin") -> Any:
    return getattr(jnp, kind)(x)


def _outer(x: Any) -> Any:
    return _inner(x) + _inner(x, kind="cos") + _inner(np.ones(3, "f4"))


class _Model:
    def __init__(self) -> None:
        self.scale = 3.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale


def _sum_of_squares(x: Any) -> Any:
    return (x**2).sum()


def _recurrent(x: Any) -> Any:
    return jax.checkpoint(lambda v: jnp.tanh(v).sum())(x), jax.jvp(jnp.sin, (x,), (x,))


def _transformed(make: Callable[[Any], Any], *args: Any) -> Callable[[Any], Any]:
    return lambda f: make(f)(*args)


AGREEING = (
    Case("kwargs", _affine, lambda f: [f(X), f(X, b=1), f(X, w=X), f(x=X, w=1)], programs=4),
    Case("dtypes", _affine, lambda f: [f(X.astype(t)) for t in ("f8", "i4", "?", "c8")], programs=4),
    Case("numbers", _affine, lambda f: [f(jnp.float32(1)), f(jnp.asarray(1.0)), f(np.float32(1))], programs=2),
    Case("weak types", _affine, lambda f: [f(jnp.asarray(1.0) * jnp.ones(2), 1), f(jnp.ones(2), 1)]),
    Case("static", _powers, lambda f: [f(X, 2), f(X, n=3, names=("a", "b"))], {"static_argnames": "n"}, programs=2),
    Case("static by content", _powers, lambda f: f(X, 2, names=["a", "b"])),
    Case("donated", _step, lambda f: f({"w": jnp.ones(3), "count": 0}, X), {"donate_argnums": 0}),
    Case("values", _step, lambda f: jaxd.get(f.remote(f.remote({"w": np.ones(3, "f4"), "count": 0}, X)[0], X))),
    Case("keys", _noise, lambda f: [f(jax.random.key(0), (2,)), f(jax.random.PRNGKey(0), (2,))], {"static_argnums": 1}, programs=2),
    Case("control flow", _scanned, lambda f: f(X)),
    Case("large constants", _large_constant, lambda f: f(X)),
    Case("native code", _solved, lambda f: f(X)),
    Case("other persistent functions", _outer, lambda f: f(X)),
    Case("an object that is called", _Model(), lambda f: f(X)),
    Case("partial", partial(_affine, b=3), lambda f: f(X)),
    Case("lambda", lambda x: (lambda y: y + 1)(x), lambda f: f(X)),
    Case("nested transformations", _recurrent, lambda f: f(X)),
    Case("f.grad", _sum_of_squares, lambda f: f.grad()(X)),
    Case("f.vmap", _sum_of_squares, lambda f: [f.vmap()(X), f.grad().vmap(in_axes=1)(X)], programs=2),
    Case("f.hessian", _sum_of_squares, lambda f: f.hessian()(X[0])),
    Case("jax.grad", _sum_of_squares, _transformed(jax.grad, X), programs=2),
    Case("jax.vmap", _sum_of_squares, _transformed(jax.vmap, X)),
    Case("jax.jit", _sum_of_squares, _transformed(lambda f: jax.jit(lambda x: f(x) + 1), X)),
    Case("x64", _affine, lambda f: [f(X.astype("f8")), f(1.0, 2)], {}, partial(jax.enable_x64, True), 2),
    Case("config", _affine, lambda f: f(X.astype("f8")), {"config": {"jax_enable_x64": True}}),
    Case("precision", lambda x: x @ x.T, lambda f: f(X), {}, partial(jax.default_matmul_precision, "highest")),
    Case("options", _affine, lambda f: f(X), {"keep_unused": True, "compiler_options": {"xla_cpu_enable_fast_math": True}}),
)  # fmt: skip


@pytest.mark.parametrize("case", AGREEING, ids=lambda case: stable_id(case.name))
def test_ordinary_functions_agree(verifying: Client, case: Case) -> None:
    """No false alarm, and nothing that could not be compared."""
    function = verifying.persistent_call(case.function, extra_key="verified", **case.options)
    with case.under():
        found = found_by(verifying, lambda: case.calls(function))
        assert found == (case.programs, 0, 0)
        assert found_by(verifying, lambda: case.calls(function)) == (0, 0, 0)  # once is enough
