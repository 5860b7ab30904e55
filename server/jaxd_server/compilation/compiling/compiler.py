"""From a function and its arguments to a program: trace, lower, and compile.

Each function is traced through a function object of its own. jax keys its caches on the identity
of that object, so nothing of one build is found by another, whose settings may be others.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from jaxd_protocol.errors import (
    ArgumentError,
    ConfigurationError,
    InternalError,
    ResultError,
)
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.program_identity import program_text
from jaxd_protocol.messages.recorded_reads import RecordedRead
from jaxd_server.codec.arguments import Arguments, structure_of
from jaxd_server.codec.results import ResultLayout, result_layout
from jaxd_server.compilation.compiling.builds import BuildRoom
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.jax_compat.compilation_cache import Compilations
from jaxd_server.jax_compat.config import pinned, restore_defaults
from jaxd_server.jax_compat.lowered import (
    Obstacle,
    device_ids,
    has_effects,
    inputs_of_results,
    out_leaves,
    program_id,
)
from jaxd_server.jax_compat.lowered_transfer import unpack_lowered
from jaxd_server.jax_compat.placement import is_bound, move_lowered
from jaxd_server.jax_compat.programs import compile_flat, cost_by_name, memory_by_use
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.imported_packages import Dependencies
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.user_code.interrupt import run_interruptibly
from jaxd_server.user_code.jax_callbacks import watch_callbacks
from jaxd_server.user_code.mutation_guard import NO_GUARD, MutationGuard, installed_guard
from jaxd_server.user_code.output import CallOutput, capture_warnings, output_to


class Compiled(NamedTuple):
    """A program that another process has compiled.

    Attributes:
        program: its bytes.
        compile_s: seconds that it took.
        is_bound: whether its devices are part of what it is.
    """

    program: Serialized
    compile_s: float
    is_bound: bool


class Elsewhere(Protocol):
    """Another process that compiles a lowered function."""

    def compile(self, device: int) -> Compiled | None:
        """The program, for a device of that index if it names none; None: it has to be made here.

        Raises:
            Exception: what the compiler raises, as a `ForwardedFailure`.
        """

    def loaded(self, seconds: float) -> None:
        """Takes note of how long this process took to load that program."""

    def hand_over(self) -> Any:
        """The lowered function for this process to compile; see `LoweredFunction.lowered`.

        Raises:
            NotTransferable: when there is no such thing.
            InternalError: when this process must not compile it.
        """


@dataclass(frozen=True, slots=True)
class LoweredFunction:
    """A function that was traced and lowered for one signature.

    Attributes:
        program: sixteen bytes that equal programs have in common.
        obstacle: why the program can be neither shared nor kept, if so.
        form: how its results travel.
        structure: jax's structure of its results.
        trace_s: seconds that this took.
        lowered: jax's own, or the bytes of one that another process has lowered; None where only
            that one has it.
        reads: what was read of the client's process, for this trace and before it.
        dependencies: the packages that it may have run in that process; None of one of this.
        elsewhere: the process that compiles it; None: this one.
        host_state: see `Program`.
    """

    program: bytes
    obstacle: Obstacle | None
    form: ResultLayout
    structure: Any
    trace_s: float
    lowered: Any
    reads: tuple[RecordedRead, ...] = ()
    dependencies: Dependencies | None = None
    elsewhere: Elsewhere | None = None
    host_state: str | None = None


def _check_order(name: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise InternalError(
            f"jax takes the arguments of {name} in another order than jaxd passes them. "
            "Please report this with the arguments of the call."
        )


def received(program: bytes, lowered: Any) -> LoweredFunction:
    """A program that another process has lowered; how its results travel is not known here.

    Args:
        program: sixteen bytes that name it.
        lowered: see `LoweredFunction`.
    """
    form = result_layout([], structure_of(((), {})))
    return LoweredFunction(program, None, form, None, 0.0, lowered)


class Shown(NamedTuple):
    """A question about a function.

    Attributes:
        stage: `jaxpr`, `lowered`, `program` or `compiled`.
        dialect: of the text of a lowered one.
        places: whether that names the lines of the source.
    """

    stage: str
    dialect: str
    places: bool


class Compiler:
    """Traces, lowers and compiles, a few functions at a time.

    Args:
        counters: where traces, lowerings and compilations are counted.
        builds: how many functions at once; XLA uses all cores for each anyway.

    Attributes:
        room: to be held while something is built.
    """

    def __init__(self, counters: Counters, builds: int) -> None:
        self._counters = counters
        self.room = BuildRoom(builds)
        self._compilations = Compilations(
            lambda seconds: counters.add(compiles=1),
            lambda: counters.add(xla_cache_hits=1),
        )

    def close(self) -> None:
        """Stops listening to jax."""
        self._compilations.close()

    def lower(
        self,
        function: Callable[..., Any],
        name: str,
        options: Options,
        arguments: Arguments,
        structure: Any,
        emit: Emit,
        captured: MutationGuard = NO_GUARD,
    ) -> LoweredFunction:
        """Traces and lowers a function.

        Args:
            function: what is traced.
            name: its name.
            options: how it is to be compiled.
            arguments: those of the call, static ones included.
            structure: jax's structure of the traced ones, as the program will be called.
            emit: takes the event of the stage.
            captured: what the function reaches, and must not change.

        Raises:
            Interrupted: when it was, see `run_interruptibly`.
            Exception: whatever the function raises while it is traced, and jax's own errors.
            LostUpdateError: when it changes what it reaches, a static argument, or jax itself.
            Busy: when jax was changed, and functions were traced beside it.
            ResultError: when its result cannot travel.
        """
        started = time.monotonic()
        emit("stage", {"stage": "trace", "function": name})
        statics = MutationGuard.of_statics(arguments, captured.ignored)
        try:
            with (
                pinned(options.config),
                jax.log_compiles(True),
                output_to(CallOutput(emit)),
                installed_guard.kept(captured),
                captured.kept(),
                statics.kept(),
            ):
                capture_warnings()
                jitted = jax.jit(self._private(function), **options.jit_arguments())
                args, kwargs = arguments
                traced = run_interruptibly(lambda: jitted.trace(*args, **kwargs))
                emit("stage", {"stage": "lower", "function": name})
                lowered = run_interruptibly(traced.lower)
                self._counters.add(lowers=1)
                program, obstacle = program_id(lowered, options)
        finally:
            changed = restore_defaults()
        if changed:
            raise _changed_settings(name, changed)
        _check_order(name, lowered.in_tree, structure)
        form = result_layout(out_leaves(lowered), lowered.out_tree, inputs_of_results(traced))
        state = None if obstacle is None else watch_callbacks(traced.jaxpr, captured, statics)
        took = time.monotonic() - started
        self._counters.add(trace_s=took)
        return LoweredFunction(
            program, obstacle, form, lowered.out_tree, took, lowered, host_state=state
        )

    def compile(
        self, function: LoweredFunction, name: str, options: Options, emit: Emit, device: int = 0
    ) -> Program:
        """Compiles a lowered function, for a device of that index if it names none itself.

        Raises:
            Exception: what jax raises.
        """
        emit("stage", {"stage": "compile", "function": name})
        started, before = time.monotonic(), resident_bytes()
        with pinned(options.config), jax.log_compiles(True), output_to(CallOutput(emit)):
            lowered = function.lowered
            if isinstance(lowered, bytes):
                lowered = unpack_lowered(lowered)
            bound = is_bound(lowered)
            if device and not bound:
                lowered = move_lowered(lowered, device)
            compiled = compile_flat(lowered)
        took = time.monotonic() - started
        self._counters.add(compile_s=took)
        calls_python = function.obstacle == "callbacks"
        return Program(
            function.program,
            compiled,
            compile_s=took,
            host_bytes=max(0, resident_bytes() - before),
            devices=device_ids(lowered),
            is_bound=bound,
            is_written=function.obstacle is None,
            calls_python=calls_python,
            calls_back=calls_python and has_effects(lowered),
            host_state=function.host_state,
        )

    def show(
        self,
        function: Callable[..., Any],
        options: Options,
        arguments: Arguments,
        shown: Shown,
        captured: MutationGuard = NO_GUARD,
    ) -> dict[str, Any]:
        """What becomes of a function; nothing of it is kept.

        Args:
            function: what is traced.
            options: how it is compiled.
            arguments: those of the call, static ones included.
            shown: what is wanted.
            captured: what the function reaches, and must not change.

        Returns:
            What the stage says, as JSON values.

        Raises:
            Exception: whatever the function raises while it is traced, and jax's own errors.
        """
        args, kwargs = arguments
        statics = MutationGuard.of_statics(arguments, captured.ignored)
        try:
            with (
                pinned(options.config),
                installed_guard.kept(captured),
                captured.kept(),
                statics.kept(),
            ):
                jitted = jax.jit(self._private(function), **options.jit_arguments())
                if shown.stage == "jaxpr":
                    traced = run_interruptibly(lambda: jitted.trace(*args, **kwargs))
                    return {"text": str(traced.jaxpr)}
                lowered = run_interruptibly(lambda: jitted.lower(*args, **kwargs))
                self._counters.add(lowers=1)
                if shown.stage == "compiled":
                    return _analysed(lowered.compile())
                if shown.stage == "program":
                    return _identified(lowered, options)
                return _described(lowered, shown)
        except TypeError as error:
            raise explained(error) from error
        finally:
            restore_defaults()

    def _private(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def private(*args: Any, **kwargs: Any) -> Any:
            self._counters.add(traces=1)
            return function(*args, **kwargs)

        return private


def _changed_settings(name: str, changed: list[str]) -> ConfigurationError:
    return ConfigurationError(
        f"{name} changed {', '.join(changed)} for the whole server while it was traced; that was "
        "undone. Give the function its settings instead: "
        f"persistent_call(config={{{changed[0]!r}: …}}), or use jax's context managers inside it."
    )


def explained(error: TypeError) -> TypeError:
    """jax's own complaint about arguments and results, with what to do about it."""
    text = str(error)
    if "not a valid JAX type" in text and "returned a value" in text:
        return ResultError(
            f"{text}\nReturn arrays and numbers (in dicts, lists, tuples) from the function, and "
            "make text and other objects from them after the call."
        )
    if "as an abstract array" in text or "not a valid JAX type" in text:
        return ArgumentError(
            f"{text}\nPass arrays and numbers, or declare the argument in static_argnames."
        )
    return error


def _described(lowered: Any, shown: Shown) -> dict[str, Any]:
    return {
        "text": lowered.as_text(shown.dialect, debug_info=shown.places),
        "cost": cost_by_name(lowered.cost_analysis()),
        "result": result_layout(out_leaves(lowered), lowered.out_tree).skeleton.hex(),
    }


def _identified(lowered: Any, options: Options) -> dict[str, Any]:
    """What a client compares with the program that it lowers itself."""
    name, obstacle = program_id(lowered, options)
    return {"id": None if obstacle else name.hex(), "text": program_text(lowered, options)}


def _analysed(compiled: Any) -> dict[str, Any]:
    return {
        "text": compiled.as_text(),
        "cost": cost_by_name(compiled.cost_analysis()),
        "memory": memory_by_use(compiled.memory_analysis()),
    }
