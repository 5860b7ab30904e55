"""A traced call, and the calls that jax derives from it: batched, differentiated, transposed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.dispatch.local_runs import runs_locally
from jaxd.interop.jax_runtime import PRNGKeys, loaded_jax, map_leaves, to_jax
from jaxd.interop.lazy_array import ArrayLike
from jaxd.request.arguments import ArgumentEncoder
from jaxd.request.function_snapshot import FunctionSpec
from jaxd.tracing.fallback import may_follow, note_local_run, reason_of
from jaxd.tracing.inline import local_jax_settings
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import TracerError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.jit.transforms import (
    Transformation,
    apply_transformations,
    display_name,
    encode_transformation,
    untransformed,
)
from jaxd_protocol.pytree.leaves import WIDE_DTYPES

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.call_request import CallSettings
    from jaxd.results.reader import ResultsAs


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Aval(NamedTuple):
    """The abstract value of an array.

    Attributes:
        shape: dimensions.
        dtype: name of the dtype.
        weak: whether the type gives way to others in promotion.
    """

    shape: tuple[int, ...]
    dtype: str
    weak: bool = False

    @property
    def is_differentiable(self) -> bool:
        """Whether there are tangents of it."""
        numpy: Any = loaded_jax().numpy
        return bool(numpy.issubdtype(numpy.dtype(self.dtype), numpy.inexact))


@dataclass(frozen=True, eq=False)
class CallOutline:
    """The call that a program makes, without the arrays in it.

    Attributes:
        caller: of the server.
        spec: the function, without donation.
        settings: of its calls.
        structure: jax's structure of the arguments that are not static.
        leaves: the leaves of the arguments that are no inputs, by place; None at the others.
        inputs: of each leaf, "" for an array, the name of a generator for the numbers of random
            keys, None for what is no input.
        args, kwargs: the arguments that are static; None at the others.
        name: equal for equal calls, so that jax finds cached programs.
    """

    caller: Caller
    spec: FunctionSpec
    settings: CallSettings
    structure: Any
    leaves: tuple[Any, ...]
    inputs: tuple[str | None, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: Any = None

    @property
    def static_positions(self) -> frozenset[int]:
        """Those of the arguments that are static, counted from the first."""
        return self.spec.statics.at(len(self.args))

    def filled(self, inputs: Sequence[Any]) -> _Arguments:
        """The arguments with these values as inputs."""
        waiting = iter(inputs)
        leaves = [
            fixed if kind is None else next(waiting)
            for fixed, kind in zip(self.leaves, self.inputs, strict=True)
        ]
        jax: Any = loaded_jax()
        positional, named = jax.tree.unflatten(self.structure, leaves)
        traced, static = iter(positional), self.static_positions
        args = [x if i in static else next(traced) for i, x in enumerate(self.args)]
        return tuple(args), {**self.kwargs, **named}


@dataclass(frozen=True, eq=False)
class TracedCall:
    """The call itself, or one derived from it by jax's transformations.

    Attributes:
        outline: the call that the program makes.
        outputs: the abstract values of the results of this one.
        sent: which of the call's inputs come first among the arrays of this one.
        stages: the transformations that the server applies, in order.
        inputs: for each output the inputs that it may be computed from, as bits of a number; None:
            each from all.
    """

    outline: CallOutline
    outputs: tuple[Aval, ...]
    sent: tuple[int, ...]
    stages: tuple[Transformation, ...] = ()
    inputs: tuple[int, ...] | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TracedCall)
            and self.outline.name == other.outline.name
            and self.stages == other.stages
            and self.outputs == other.outputs
        )

    def __hash__(self) -> int:
        return hash((self.outline.name, self.stages, self.outputs))

    def __repr__(self) -> str:
        """As shown in a jaxpr."""
        spec = self.outline.spec
        stages = (*Options.from_bytes(spec.options).transformations, *self.stages)
        return display_name(spec.snapshot.name, stages)

    # for the rules of the primitive ------------------------------------------------------------

    def mapped(
        self, axes: tuple[int | None, ...], size: int
    ) -> tuple[TracedCall, tuple[int | None, ...]]:
        """The call for many, and the axes of its outputs: 0, or None of what is the same for all.

        That is what is computed from no mapped input, as under `jax.jit`.
        """
        moving = sum(1 << i for i, axis in enumerate(axes) if axis is not None)
        inputs = self.inputs or (moving,) * len(self.outputs)
        found = tuple(0 if each & moving else None for each in inputs)
        outputs = tuple(
            one if axis is None else one._replace(shape=(size, *one.shape))
            for one, axis in zip(self.outputs, found, strict=True)
        )
        options = {"axes": axes, **({"out_axes": found} if None in found else {})}
        made = self._with_stage("flat_vmap", options, outputs)
        return replace(made, inputs=self.inputs), found

    def differentiated(self, given: tuple[bool, ...]) -> TracedCall:
        """The tangents of its differentiable outputs; tangents of the given inputs come last."""
        outputs = tuple(one for one in self.outputs if one.is_differentiable)
        return self._with_stage("flat_jvp", {"given": given}, outputs)

    def transposed(
        self, linear: tuple[bool, ...], avals: tuple[Aval, ...], given: tuple[bool, ...]
    ) -> TracedCall:
        """The cotangents of the linear inputs; cotangents of the given outputs come last."""
        shapes = tuple(map(tuple, avals))
        options = {"linear": linear, "shapes": shapes, "given": given}
        pairs = zip(self.sent, linear, strict=False)  # the others come behind
        sent = tuple(number for number, moves in pairs if not moves)
        return replace(self._with_stage("flat_transpose", options, avals), sent=sent)

    def _with_stage(
        self, name: str, options: dict[str, Any], outputs: tuple[Aval, ...]
    ) -> TracedCall:
        stages = (*self.stages, encode_transformation(name, options))
        return replace(self, outputs=outputs, stages=stages, inputs=None)

    # the call ----------------------------------------------------------------------------------

    def eager(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Makes the call; returns arrays that jax accepts.

        In this process, where a plain call of the function would run here as well.

        Raises:
            BaseException: what the function raised.
            JaxdError: when the call could not be made.
        """
        jax: Any = loaded_jax()
        wanted = self.outline.settings.results
        given = [_whole(x) if isinstance(x, jax.Array) else jax.numpy.asarray(x) for x in arrays]
        fallback, session = self.outline.settings.fallback, self.outline.caller.session
        reason = _refused.get((self, fallback))
        if reason is None:
            try:
                return self._call(given, "jax" if wanted == "numpy" else wanted)
            except Exception as error:
                if not may_follow(error) or not runs_locally(session, fallback):
                    raise
                reason = reason_of(error)
                if None not in self.outline.inputs:  # else no other call equals it
                    _refused[self, fallback] = reason
        return self._run_here(reason, given)

    def _run_here(self, reason: str, arrays: Sequence[Any]) -> Sequence[Any]:
        spec = self._derived_spec() if self.stages else self.outline.spec
        made: Sequence[Any] = _jitted()(self, *arrays)
        self.outline.caller.session.count_fallback(new_function=False)
        options = Options.from_bytes(spec.options)
        note_local_run(spec.snapshot.function, options, repr(self), reason)
        return made

    def callback(self, arrays: Sequence[Any], weak: Sequence[bool]) -> Sequence[Any]:
        """Makes the call from a running program, which may not use jax: with numpy arrays.

        Raises:
            BaseException: as `eager`; it is kept for `jaxd.last_error`.
        """
        given = [
            _JaxArray(x, is_weak) if is_weak or x.dtype.name in WIDE_DTYPES else x
            for x, is_weak in zip(arrays, weak, strict=True)
        ]
        try:
            return self._call(given, "numpy")
        except BaseException as error:
            record_last_error(error)
            raise

    def inlined(self, *arrays: Any) -> list[Any]:
        """What it computes, in this process: for jax to trace where it looks into the program.

        Raises:
            Exception: what the function raises.
        """
        spec, (args, kwargs) = self._spec_and_arguments(arrays)
        transformations = Options.from_bytes(spec.options).transformations
        function = apply_transformations(untransformed(spec.snapshot.function), transformations)
        args, kwargs = map_leaves(_as_keys, (args, kwargs))
        with local_jax_settings(self.outline.settings.config):
            leaves = loaded_jax().tree.leaves(function(*args, **kwargs))
        return [_key_data(leaf) for leaf in leaves if not _is_float0(leaf)]

    def check_runs_here(self) -> None:
        """What checkify makes of the function is computed in this process.

        Raises:
            TracerError: when calls of the function do not run in this process.
        """
        caller, settings = self.outline.caller, self.outline.settings
        if not runs_locally(caller.session, settings.fallback):
            raise TracerError(
                f"{self!r} runs on the server, so checkify cannot check what is in it: checks in "
                "the function, of divisions, indices and NaN would be left out. Let it run in this "
                "process (fallback='local'), or give checkify the plain function, which is its "
                "__wrapped__."
            )

    def _call(self, arrays: Sequence[Any], results: ResultsAs) -> Sequence[Any]:
        caller, settings = self.outline.caller, self.outline.settings
        spec, (args, kwargs) = self._spec_and_arguments(arrays)
        call = caller.encode(spec, args, kwargs, settings.timeout_s, results, settings.strict)
        jax: Any = loaded_jax()
        leaves = jax.tree.leaves(caller.call(call))
        return [_key_data(leaf) for leaf in leaves if not _is_float0(leaf)]

    def _spec_and_arguments(self, arrays: Sequence[Any]) -> tuple[FunctionSpec, _Arguments]:
        """The function with the stages applied, and what it is called with."""
        if self.stages:
            return self._derived_spec(), self._derived_arguments(arrays)
        return self.outline.spec, self._own_arguments(arrays)

    def _own_arguments(self, arrays: Sequence[Any]) -> _Arguments:
        """The arguments of the program's own call."""
        kinds = [kind for kind in self.outline.inputs if kind is not None]
        inputs = [PRNGKeys(kind, x) if kind else x for kind, x in zip(kinds, arrays, strict=True)]
        return self.outline.filled(inputs)

    def _derived_arguments(self, arrays: Sequence[Any]) -> _Arguments:
        """The arguments of a derived call: the further arrays are its first argument."""
        count = sum(kind is not None for kind in self.outline.inputs)
        inputs: list[Any] = [False] * count  # in place of those that are not sent
        for number, array in zip(self.sent, arrays, strict=False):
            inputs[number] = array
        args, kwargs = self.outline.filled(inputs)
        return (tuple(arrays[len(self.sent) :]), *args), kwargs

    def _derived_spec(self) -> FunctionSpec:
        """The function with the stages applied."""
        spec, positions = self.outline.spec, self.outline.static_positions
        options = Options.from_bytes(spec.options)
        statics = StaticArgs(frozenset(i + 1 for i in positions), spec.statics.names)
        flat = {
            "inputs": self.outline.inputs,
            "sent": self.sent,
            "static_argnums": tuple(sorted(positions)),
            "static_argnames": tuple(sorted(spec.statics.names)),
        }
        transformations = (
            *options.transformations,
            encode_transformation("flat", flat),
            *self.stages,
        )
        options = options._replace(
            static_argnums=tuple(sorted(statics.positions)) if statics else None,
            static_argnames=tuple(sorted(statics.names)) if statics else None,
            transformations=transformations,
        )
        return FunctionSpec(spec.snapshot, options, statics)


_refused: Final = BoundedDict[tuple[TracedCall, str | None], str](256)
"""Calls that a server has refused and that run here, and their `fallback`: why."""


@cache
def _jitted() -> Any:
    """What runs a call in this process, compiled once for equal calls."""
    jax: Any = loaded_jax()
    return jax.jit(TracedCall.inlined, static_argnums=0)


class _JaxArray(ArrayLike):
    """The data of an array of jax."""

    def __init__(self, array: Any, weak_type: bool) -> None:
        self._array = array
        self.weak_type = weak_type
        self.shape = array.shape
        self.dtype = array.dtype

    def _materialized(self) -> Any:
        return self._array


def _encode(encoder: ArgumentEncoder, value: _JaxArray) -> None:
    import numpy

    encoder.array(numpy.ascontiguousarray(value).reshape(value.shape), value.weak_type, True)


ArgumentEncoder.types[_JaxArray] = _encode


def _is_float0(leaf: Any) -> bool:
    """Whether it is a float0 array, which has no data."""
    jax: Any = loaded_jax()
    return bool(getattr(leaf, "dtype", None) == jax.dtypes.float0)


def _whole(array: Any) -> Any:
    """The array, gathered where it is spread over several devices of this process."""
    jax: Any = loaded_jax()
    if type(array.sharding) is jax.sharding.SingleDeviceSharding:
        return array
    return to_jax(jax.device_get(array), bool(array.weak_type))


def _as_keys(leaf: Any) -> Any:
    """The leaf; for numbers of random keys the keys, also of tracers, which `to_jax_keys` lacks."""
    if type(leaf) is not PRNGKeys:
        return leaf
    jax: Any = loaded_jax()
    return jax.random.wrap_key_data(leaf.data, impl=leaf.impl)


def _key_data(leaf: Any) -> Any:
    """The array; for random keys their numbers."""
    if type(leaf) is PRNGKeys:
        return leaf.data
    jax: Any = loaded_jax()
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


# the error that jax wraps ------------------------------------------------------------------------

_last_error: Final[list[BaseException]] = []


def last_error() -> BaseException | None:
    """The exception of the last persistent call that failed inside of a client's own `jax.jit`.

    jax raises an error of its own there, which quotes this one. The remote traceback is in its
    notes. None when no such call has failed in this process. Safe from any thread.
    """
    # without its frames: they hold arrays of a program that has ended, whose memory may be gone
    return _last_error[-1].with_traceback(None) if _last_error else None


def record_last_error(error: BaseException) -> None:
    """Keeps an exception for `last_error`, in place of the one before."""
    _last_error[:] = [error]
