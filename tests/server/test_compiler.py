from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.calls import Options
from jaxd_server.compiler import Compiler, Executable
from jaxd_server.jax_private import live_executables, weak_array
from jaxd_server.progress import SILENT
from jaxd_server.statistics import Counters
from tests.server.in_process import Kitchen, function_of
from tests.server.staging import PATIENCE_S, join, start, until, waiting

X = np.ones(3, np.float32)


def build(kitchen: Kitchen, function: Any, *args: Any, **options: Any) -> Executable:
    """An executable for these arguments."""
    return kitchen.compiler.build(function_of(function, Options(**options)), args, {}, SILENT)


CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "numpy": (lambda x: x + 1, (X,), {}),
    "jax": (lambda x: x + 1, (jnp.ones(3),), {}),
    "number": (lambda x: x + 1, (1.5,), {}),
    "weak": (lambda x: x + 1, (weak_array(X),), {}),
    "key": (lambda key: jax.random.uniform(key) + 1, (jax.random.key(0),), {}),
    "tree": (lambda tree: tree["a"] + tree["b"][0], ({"b": [X], "a": 1.0},), {}),
    "nothing": (lambda: jnp.ones(3), (), {}),
    "static": (lambda n, x: x * n, (3, X), {"static_argnums": (0,)}),
    "static name": (lambda x, n: x * n, (X, 3), {"static_argnames": ("n",)}),
    "donated": (lambda x: x + 1, (X,), {"donate_argnums": (0,)}),
    "kept": (lambda x, y: x + 1, (X, X), {"keep_unused": True}),
    "dropped": (lambda x, y: x + 1, (X, X), {}),
    "x64": (lambda x: x + 1, (np.ones(3),), {"config": (("jax_enable_x64", True),)}),
    "inner jit": (lambda x: jax.jit(jnp.sin)(x) + jnp.linspace(0, 1, 3), (X,), {}),
    "callback": (
        lambda x: jax.pure_callback(lambda v: v, X, x),
        (X,),
        {},
    ),
    "options": (
        lambda x: x + 1,
        (X,),
        {"compiler_options": (("xla_embed_ir_in_executable", True),)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_build_traces_and_compiles_once_and_its_calls_never(kitchen: Kitchen, name: str) -> None:
    """Whatever the arguments and the options are: a call finds what the build made."""
    function, args, options = CASES[name]
    expected = (
        None if name == "x64" else jax.jit(function, **Options(**options).jit_arguments())(*args)
    )
    before = kitchen.counts()
    executable = build(kitchen, function, *args, **options)
    assert np.subtract(kitchen.counts(), before).tolist() == [1, 1]
    for _ in range(3):
        result = executable(args, {})
        if expected is not None:
            np.testing.assert_array_equal(result, expected)
    assert np.subtract(kitchen.counts(), before).tolist() == [1, 1]


def test_keyword_arguments_belong_to_the_call(kitchen: Kitchen) -> None:
    """They are traced by name."""
    function = function_of(lambda x, *, scale: x * scale)
    executable = kitchen.compiler.build(function, (X,), {"scale": 2.0}, SILENT)
    assert executable((X,), {"scale": 3.0}).tolist() == [3, 3, 3]
    assert kitchen.counts() == (1, 1)


def test_settings_are_in_force_while_it_is_built_and_while_it_runs(kitchen: Kitchen) -> None:
    """And not in this thread afterwards."""
    executable = build(
        kitchen, lambda x: x * 2, np.ones(3), config=(("jax_enable_x64", True),)
    )  # fmt: skip
    assert executable((np.ones(3),), {}).dtype == np.float64
    assert jnp.asarray(np.ones(1)).dtype == np.float32


def test_dropping_executables_frees_their_programs(kitchen: Kitchen) -> None:
    """All ten of one function that lives on."""

    def step(x: Any) -> Any:
        return jnp.tanh(x) * 2

    function = function_of(step)
    args = [(np.ones(size, np.float32),) for size in range(1, 11)]
    for one in args:
        jnp.tanh(one[0])  # programs of the test's own, compiled before we count
    gc.collect()
    before = live_executables()
    executables = [kitchen.compiler.build(function, one, {}, SILENT) for one in args]
    for executable, one in zip(executables, args, strict=True):
        executable(one, {})
    assert live_executables() == before + 10
    del executables, executable
    gc.collect()
    assert live_executables() == before


def test_dropping_one_executable_leaves_the_others_of_its_function(kitchen: Kitchen) -> None:
    """They share no entry of jax's caches."""
    function = function_of(lambda x: x * 3)
    first, second = (kitchen.compiler.build(function, (X,), {}, SILENT) for _ in range(2))
    assert kitchen.counts() == (2, 2)
    del first
    gc.collect()
    assert second((X,), {}).tolist() == [3, 3, 3]
    assert kitchen.counts() == (2, 2)


def test_what_the_function_raises_is_raised(kitchen: Kitchen) -> None:
    """In its own type; the trace counts, a compilation did not happen."""

    def fail(x: Any) -> Any:
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        build(kitchen, fail, X)
    assert kitchen.counts() == (1, 0)


def test_a_failed_build_gives_its_place_to_the_next() -> None:
    """Also when only one may be built at a time."""
    kitchen = Kitchen(builds=1)

    def fail(x: Any) -> Any:
        raise ZeroDivisionError

    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            build(kitchen, fail, X)
    assert build(kitchen, lambda x: x, X)((X,), {}).tolist() == [1, 1, 1]
    kitchen.close()


def test_only_so_many_are_built_at_once() -> None:
    """The others wait for a place, and all are built in the end."""
    kitchen = Kitchen(builds=2)
    lock, release = threading.Lock(), threading.Event()
    tracing: list[int] = []
    peak: list[int] = []

    def slow(x: Any) -> Any:
        with lock:
            tracing.append(1)
            peak.append(len(tracing))
        assert release.wait(PATIENCE_S)
        with lock:
            tracing.pop()
        return x + 1

    threads = [start(build, kitchen, slow, X) for _ in range(5)]
    until(lambda: len(tracing) == 2)
    until(lambda: waiting(kitchen.compiler._room._cond) == 3)  # type: ignore[attr-defined]
    assert len(tracing) == 2
    release.set()
    join(threads)
    assert max(peak) == 2
    assert kitchen.counts() == (5, 5)
    kitchen.close()


def test_a_build_reports_how_far_it_is(kitchen: Kitchen) -> None:
    """Each stage with the function's name."""
    events: list[tuple[str, Any]] = []
    kitchen.compiler.build(
        function_of(_named), (X,), {}, lambda kind, content: events.append((kind, content))
    )
    assert {kind for kind, _ in events} == {"stage"}
    assert [content["stage"] for _, content in events] == ["trace", "compile", "run"]
    assert {content["function"] for _, content in events} == {"_named"}


def _named(x: Any) -> Any:
    return x


def test_how_long_it_took_is_known(kitchen: Kitchen) -> None:
    """For each executable, and added up over all of them."""
    executables = [build(kitchen, lambda x: x + 4, X) for _ in range(2)]
    assert all(executable.build_s > 0 for executable in executables)
    total = sum(executable.build_s for executable in executables)
    assert kitchen.counters.snapshot()["build_s"] == pytest.approx(total)


def test_the_first_call_says_nothing_of_how_long_calls_take() -> None:
    """It pays for what is done only once; later ones are smoothed."""
    executable = Executable("step", None, ())
    smoothed = []
    for seconds in (10.0, 1.0, 2.0):
        executable.took(seconds)
        smoothed.append(executable.run_s)
    assert smoothed == [None, 1.0, 1.25]
    assert executable.calls == 3


def test_a_closed_compiler_counts_no_more() -> None:
    """jax compiles on, for others."""
    counters = Counters()
    compiler = Compiler(counters, 1)
    compiler.close()
    jax.jit(lambda x: x - 17)(X)
    assert counters.snapshot()["compiles"] == 0
