"""From a function and its arguments to a program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import InternalError
from jaxd_protocol.jax_objects.arrays import weak_array
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import dynamic
from jaxd_server.codec.arguments import leaves_of
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT, Emit
from tests.server.in_process import PipelineHarness, function_of

X = np.ones(3, np.float32)


def lower(
    harness: PipelineHarness, function: Any, *args: Any, emit: Emit = SILENT, **options: Any
) -> LoweredFunction:
    """A function that is traced and lowered for these arguments."""
    known = function_of(function, Options(**options))
    arguments: Any = (args, {})
    structure = jax.tree.structure(dynamic(arguments, known.statics))
    return harness.compiler.lower(function, known.name, known.options, arguments, structure, emit)


def compile_it(harness: PipelineHarness, lowered: LoweredFunction, **options: Any) -> Program:
    """What it compiles to."""
    return harness.compiler.compile(lowered, "it", Options(**options), SILENT)


def build(harness: PipelineHarness, function: Any, *args: Any, **options: Any) -> Executable:
    """An executable for these arguments."""
    lowered = lower(harness, function, *args, **options)
    program = compile_it(harness, lowered, **options)
    config = Options(**options).config
    return Executable("it", b"k", program, lowered.form, config, structure=lowered.structure)


def call(executable: Executable, function: Any, *args: Any, **options: Any) -> Any:
    """Its result, in the structure that the function gave it."""
    leaves = leaves_of(dynamic((args, {}), function_of(function, Options(**options)).statics))
    return executable.structure.unflatten(executable(leaves))


def counts(harness: PipelineHarness) -> list[int]:
    """Traces, lowerings and compilations so far."""
    snapshot = harness.counters.snapshot()
    return [int(snapshot[name]) for name in ("traces", "lowers", "compiles")]


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
def test_a_build_traces_lowers_and_compiles_once_and_its_calls_never(
    harness: PipelineHarness, name: str
) -> None:
    """Whatever the arguments and the options are: a call finds what the build made."""
    function, args, options = CASES[name]
    expected = (
        None if name == "x64" else jax.jit(function, **Options(**options).jit_arguments())(*args)
    )
    before = counts(harness)
    executable = build(harness, function, *args, **options)
    assert np.subtract(counts(harness), before).tolist() == [1, 1, 1]
    for _ in range(3):
        result = call(executable, function, *args, **options)
        if expected is not None:
            np.testing.assert_array_equal(result, expected)
    assert np.subtract(counts(harness), before).tolist() == [1, 1, 1]


def test_equal_programs_have_one_name_and_other_programs_others(harness: PipelineHarness) -> None:
    """Whatever the functions are called."""

    def one(x: Any) -> Any:
        return x * 2 + 1

    def another(y: Any) -> Any:
        doubled = y * 2
        return doubled + 1

    first, second = lower(harness, one, X), lower(harness, another, X)
    assert first.program == second.program
    assert first.obstacle is second.obstacle is None
    others = [
        lower(harness, one, X[:2]),
        lower(harness, lambda x: x * 2 - 1, X),
        lower(harness, one, np.ones(3), config=(("jax_enable_x64", True),)),
        lower(harness, one, X, donate_argnums=(0,)),
    ]
    assert len({each.program for each in (first, *others)}) == 5


def _named(x: Any) -> Any:
    return x


def test_arguments_that_jax_takes_in_another_order_are_refused(harness: PipelineHarness) -> None:
    """A program that is called with the wrong leaves would give wrong results."""
    wrong = jax.tree.structure(((X, X), {}))
    with pytest.raises(InternalError, match="in another order"):
        harness.compiler.lower(_named, "_named", Options(), ((X,), {}), wrong, SILENT)


def test_a_closed_compiler_counts_no_more() -> None:
    """jax compiles on, for others."""
    counters = Counters()
    compiler = Compiler(counters, 1)
    compiler.close()
    jax.jit(lambda x: x - 17)(X)
    assert counters.snapshot()["compiles"] == 0
