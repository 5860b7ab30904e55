"""From a function and its arguments to a program."""

from __future__ import annotations

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import ConfigurationError, InternalError, ResultError
from jaxd_protocol.jax_objects.arrays import weak_array
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import dynamic
from jaxd_server.codec.arguments import leaves_of
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT, Emit
from tests.server.builds import live_executables
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


def test_keyword_arguments_belong_to_the_call(harness: PipelineHarness) -> None:
    """They are traced by name, in the order of jax's leaves."""
    arguments: Any = ((X,), {"scale": 2.0, "add": 1.0})
    lowered = harness.compiler.lower(
        lambda x, *, scale, add: x * scale + add,
        "it",
        Options(),
        arguments,
        jax.tree.structure(arguments),
        SILENT,
    )
    program = compile_it(harness, lowered)
    (result,) = program.call(*leaves_of(((X,), {"scale": 3.0, "add": 5.0})))
    assert result.tolist() == [8, 8, 8]
    assert counts(harness) == [1, 1, 1]


def test_settings_are_in_force_while_it_is_built_and_while_it_runs(
    harness: PipelineHarness,
) -> None:
    """And not in this thread afterwards."""
    executable = build(harness, lambda x: x * 2, np.ones(3), config=(("jax_enable_x64", True),))
    assert executable([np.ones(3)])[0].dtype == np.float64
    assert jnp.asarray(np.ones(1)).dtype == np.float32


@pytest.mark.slow
def test_dropping_executables_frees_their_programs(harness: PipelineHarness) -> None:
    """All ten of one function that lives on."""

    def step(x: Any) -> Any:
        return jnp.tanh(x) * 2

    args = [np.ones(size, np.float32) for size in range(1, 11)]
    for one in args:
        jnp.tanh(one)  # programs of the test's own, compiled before we count
    gc.collect()
    before = live_executables()
    executables = [build(harness, step, one) for one in args]
    for executable, one in zip(executables, args, strict=True):
        executable([one])
    assert live_executables() == before + 10
    del executables, executable
    gc.collect()
    assert live_executables() == before


def test_dropping_one_executable_leaves_the_others_of_its_function(
    harness: PipelineHarness,
) -> None:
    """They share no entry of jax's caches."""

    def triple(x: Any) -> Any:
        return x * 3

    first, second = (build(harness, triple, X) for _ in range(2))
    assert counts(harness) == [2, 2, 2]
    del first
    gc.collect()
    assert second([X])[0].tolist() == [3, 3, 3]
    assert counts(harness) == [2, 2, 2]


def test_what_the_function_raises_is_raised(harness: PipelineHarness) -> None:
    """In its own type; the trace counts, a lowering or a compilation did not happen."""

    def fail(x: Any) -> Any:
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        lower(harness, fail, X)
    assert counts(harness) == [1, 0, 0]


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


def test_a_program_knows_what_it_costs(harness: PipelineHarness) -> None:
    """In seconds, which the counters add up, and in bytes."""
    lowered = lower(harness, lambda x: jnp.sin(x) @ jnp.cos(x), X)
    program = compile_it(harness, lowered)
    snapshot = harness.counters.snapshot()
    assert lowered.trace_s > 0
    assert program.compile_s > 0
    assert snapshot["trace_s"] == pytest.approx(lowered.trace_s)
    assert snapshot["compile_s"] == pytest.approx(program.compile_s)
    assert program.id == lowered.program
    assert program.load_s == 0
    assert min(program.host_bytes, program.device_bytes) >= 0


def test_each_stage_is_reported(harness: PipelineHarness) -> None:
    """With the function's name."""
    events: list[tuple[str, Any]] = []

    def emit(kind: str, content: Any) -> None:
        events.append((kind, content))

    lowered = lower(harness, _named, X, emit=emit)
    harness.compiler.compile(lowered, "_named", Options(), emit)
    assert events == [
        ("stage", {"stage": "trace", "function": "_named"}),
        ("stage", {"stage": "lower", "function": "_named"}),
        ("stage", {"stage": "compile", "function": "_named"}),
    ]


def _named(x: Any) -> Any:
    return x


def test_settings_that_a_function_changes_are_set_back_and_reported(
    harness: PipelineHarness,
) -> None:
    """They would be in force for everybody else."""

    def rude(x: Any) -> Any:
        jax.config.update("jax_debug_nans", True)
        return x

    with pytest.raises(ConfigurationError, match=r"rude changed jax_debug_nans"):
        lower(harness, rude, X)
    assert not jax.config.values["jax_debug_nans"]


@jax.tree_util.register_pytree_node_class
class Knot:
    """Holds itself, so nothing that is written from its start to its end can be it."""

    def __init__(self, x: Any) -> None:
        self.x, self.self = x, self

    def tree_flatten(self) -> Any:
        """One leaf."""
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Any) -> Any:
        """From that leaf."""
        return cls(*leaves)


def test_a_result_that_cannot_travel_is_refused_before_it_is_compiled(
    harness: PipelineHarness,
) -> None:
    """Its structure is known once it is traced."""
    with pytest.raises(ResultError, match="cannot be sent as data"):
        lower(harness, Knot, X)
    assert counts(harness) == [1, 1, 0]


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
