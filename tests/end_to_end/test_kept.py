"""What a restart costs: a load, and nothing else. Counted, and with the right results."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd import Client, connect
from tests.end_to_end.counting import BUILT, LOADED, WARM, costs
from tests.live_server import LiveServer

pytestmark = pytest.mark.soak

X = np.linspace(0.5, 2.0, 6, dtype=np.float32)
MATRIX = (X[:, None] * X[None, :] + np.diag(X + 3)).astype(np.float32)


class Point(NamedTuple):
    x: Any
    y: Any


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    w: Any
    b: Any


@jax.tree_util.register_pytree_with_keys_class
class State:
    """As flax makes them: a class of the client's own, with something that is no array."""

    def __init__(self, step: Any, params: Any, name: str) -> None:
        self.step, self.params, self.name = step, params, name

    def tree_flatten_with_keys(self) -> Any:
        keys = (jax.tree_util.GetAttrKey("step"), jax.tree_util.GetAttrKey("params"))
        return tuple(zip(keys, (self.step, self.params), strict=True)), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: Any) -> Any:
        step, params = children
        return cls(step, params, name)


@dataclass(frozen=True)
class Setting:
    width: int


def move(p: Point, by: Any) -> Point:
    return Point(p.x + by, Point(p.y, None))


def advance(s: State) -> State:
    return State(s.step + 1, {"w": s.params["w"] * 2, "more": (s.step,)}, s.name + "!")


def wide(x: Any, setting: Setting, times: int = 2) -> Any:
    return x * setting.width * times


def sampled(key: Any) -> Any:
    return jax.random.normal(key, (5,)), jax.random.split(key)


def in_64_bits(x: Any) -> Any:
    return (x / 3).astype(jnp.float64).sum(), jnp.arange(3)


def solved(m: Any) -> Any:
    q, r = jnp.linalg.qr(m)
    return jnp.linalg.inv(m), jnp.linalg.svd(m)[1], jnp.linalg.cholesky(m), q @ r


class Case(NamedTuple):
    """A call, and with what options."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = (X,)
    kwargs: dict[str, Any] = {}  # noqa: RUF012  never changed
    options: dict[str, Any] = {}  # noqa: RUF012  the same


CASES: dict[str, Case] = {
    "array": Case(lambda x: jnp.tanh(x) * 2),
    "numbers": Case(lambda a, b: (a * b, a), (2, 0.5)),
    "static": Case(wide, (X, Setting(3)), {"times": 4}, {"static_argnames": ("setting", "times")}),
    "named tuples": Case(move, (Point(X, 1.0), X)),
    "dataclass": Case(lambda m: Layer(m.b, {"w": m.w}), (Layer(X, X * 2),)),
    "own class": Case(advance, (State(np.int32(1), {"w": X}, "state"),)),
    "typed keys": Case(sampled, (jax.random.key(3),)),
    "rbg keys": Case(sampled, (jax.random.key(3, impl="rbg"),)),
    "x64": Case(in_64_bits, (X.astype(np.float64),), {}, {"config": {"jax_enable_x64": True}}),
    "donated": Case(lambda x: x + 1, (X,), {}, {"donate_argnums": 0}),
    "lapack": Case(solved, (MATRIX,)),
    "eigenvalues": Case(lambda m: jnp.linalg.eigh(m)[0], (MATRIX,)),
    "fft": Case(lambda x: jnp.fft.ifft(jnp.fft.fft(x) * 2), (X,)),
    "sorted": Case(lambda x: (jnp.sort(-x), jax.lax.top_k(x, 2)), (X,)),
    "large": Case(jnp.cumsum, (np.ones((300, 1000), np.float32),)),
    "constants": Case(lambda x: x + MATRIX.sum(0)),
    "no result": Case(lambda x: None),
}


def printed(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    return x + 1


def on_host(x: Any) -> Any:
    return jax.pure_callback(lambda v: np.asarray(v) + 1, jax.typeof(x), x)


def in_order(x: Any) -> Any:
    return io_callback(lambda v: np.asarray(v) + 1, jax.typeof(x), x, ordered=True)


CALLBACKS: dict[str, Callable[[Any], Any]] = {
    "debug.print": printed,
    "pure_callback": on_host,
    "io_callback": in_order,
}


def nan_in_line_two(mode: str, x: Any, key: Any = None) -> Any:
    assert mode == "static"
    y = x - x
    return y / y  # the line


@dataclass
class Seen:
    """What one worker was seen to do.

    Attributes:
        cost: what each call took, by its name.
        again: what the same call took at once afterwards.
        results: what it returned.
        asked: what its client was asked.
        before, after: what `why` said around it.
        warnings: lines of the server's log.
    """

    cost: dict[str, dict[str, int]]
    again: dict[str, dict[str, int]]
    results: dict[str, Any]
    asked: dict[str, list[str]]
    before: dict[str, Any]
    after: dict[str, Any]
    warnings: list[Any]


def look(client: Client) -> Seen:
    """Calls everything twice, and leaves when all of it is on disk."""
    seen = Seen({}, {}, {}, {}, {}, {}, [])
    all_cases = CASES | {name: Case(function) for name, function in CALLBACKS.items()}
    for name, case in all_cases.items():
        step = client.persistent_call(case.function, **case.options)
        question = client.caller.answer_request
        with patch.object(client.caller, "answer_request", wraps=question) as asked:
            seen.before[name] = step.why(*case.args, **case.kwargs)
            with costs(client) as seen.cost[name]:
                result = step(*case.args, **case.kwargs)
            seen.results[name] = client.get(result)  # the server will be gone
            with costs(client) as seen.again[name]:
                step(*case.args, **case.kwargs)
            seen.asked[name] = [call.args[0] for call in asked.call_args_list]
            seen.after[name] = step.why(*case.args, **case.kwargs)
    client.persistent_call(lambda x: x).warm(X)  # returns when all is on disk
    return seen


@pytest.fixture(scope="module")
def lives() -> Iterator[dict[str, Seen]]:
    """The first worker, one after a restart, and one after a kill."""
    directory = Path(tempfile.mkdtemp(prefix="jaxd-", dir="/tmp"))
    seen = {}
    first = LiveServer(directory)
    try:
        with connect(first.unix) as client:
            seen["first"] = look(client)
    finally:
        assert first.close() == 0
    second = LiveServer(directory, name="t")
    try:
        with connect(second.unix) as client:
            seen["restarted"] = look(client)
            os.kill(second.worker_pid(), signal.SIGKILL)
            second.wait_for("worker_ready", 2)
            seen["replaced"] = look(client)
    finally:
        assert second.close() == 0
    for each in seen.values():
        each.warnings += [*warnings_in(first), *warnings_in(second)]
    yield seen
    shutil.rmtree(directory)


def warnings_in(server: LiveServer) -> list[Any]:
    """What the log holds that says why something was not loaded."""
    return [line for line in server.lines if line.get("level") in ("warning", "error")]


def structure(tree: Any) -> Any:
    return jax.tree.structure(tree)


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are of the same structure and type, bit by bit."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    return structure(one) == structure(other) and all(
        a.dtype == b.dtype and _bytes(a) == _bytes(b) for a, b in zip(leaves, others, strict=True)
    )


def _bytes(leaf: Any) -> bytes:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_a_restart_costs_a_load(lives: dict[str, Seen], name: str) -> None:
    """No trace, no lowering, no compilation, no question; and the same bits."""
    first, *later = lives.values()
    assert first.cost[name] == BUILT
    for seen in later:
        costs_seen = seen.cost[name], seen.again[name], seen.asked[name]
        assert costs_seen == (LOADED, WARM, []), f"{seen.before[name]}\n{seen.warnings}"
        assert same_bits(seen.results[name], first.results[name])


@pytest.mark.parametrize("name", CASES)
def test_what_is_loaded_computes_what_jit_does(lives: dict[str, Seen], name: str) -> None:
    """In the classes of the client."""
    function, args, kwargs, options = CASES[name]
    with jax.enable_x64("x64" in name):
        jitted = jax.jit(function, static_argnames=options.get("static_argnames"))
        expected = jitted(*args, **kwargs)
        result = lives["restarted"].results[name]
        assert structure(result) == structure(expected)
        for one, other in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            assert one.dtype == other.dtype
            if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                assert _bytes(one) == _bytes(other)
            else:
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_why_knows_what_is_on_disk(lives: dict[str, Seen], name: str) -> None:
    """Before the call it says so; after it, that the program is ready."""
    told = {life: (seen.before[name], seen.after[name]) for life, seen in lives.items()}
    verdicts = {life: (one.verdict, other.verdict) for life, (one, other) in told.items()}
    assert verdicts == {
        "first": ("compile", "hit"),
        "restarted": ("load", "hit"),
        "replaced": ("load", "hit"),
    }


@pytest.mark.parametrize("name", CALLBACKS)
def test_callbacks_are_made_again(lives: dict[str, Seen], name: str) -> None:
    """Compiled anew on jax 0.10, only traced on 0.11; the code comes from disk, and why says so."""
    first, *later = lives.values()
    is_found = jax.__version_info__ >= (0, 11)
    again = {"traces": 1, "lowers": 1, "xla_cache_hits" if is_found else "compiles": 1}
    assert first.cost[name] == BUILT
    for seen in later:
        assert (seen.cost[name], seen.again[name], seen.asked[name]) == (again, WARM, [])
        np.testing.assert_array_equal(seen.results[name], X + 1)
        assert seen.before[name].verdict == "compile"
        assert any("each new worker makes it again" in text for text in seen.before[name].advice)
        assert seen.after[name].verdict == "hit"


def test_the_line_of_a_nan_is_named_after_a_restart(start_live: Callable[..., LiveServer]) -> None:
    """By running what was kept of the function, on arrays of jax's: numpy and Python divide too."""
    for is_restarted in (False, True):
        server = start_live(name=f"restarted-{is_restarted}")
        with connect(server.unix) as client:
            step = client.persistent_call(
                nan_in_line_two, static_argnums=0, config={"jax_debug_nans": True}
            )
            for key in ({}, {"key": jax.random.key(1)}):
                for x in (X, 1.5):
                    with costs(client) as spent:
                        step.warm("static", x, **key)
                    assert (spent == LOADED) is is_restarted
                    with pytest.raises(FloatingPointError) as caught:
                        step("static", x, **key)
                    told = "".join(traceback.format_exception(caught.value))
                    assert "return y / y  # the line" in told
        assert server.close() == 0
