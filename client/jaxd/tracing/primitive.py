"""A persistent call as an operation of jax, so that jax can transform the code around it.

Each rule asks the call for another one, which the server derives; nothing is computed here. All
names that jax keeps for those who extend it, and that this takes, are in this file: `Primitive`,
`ad`, `batching`, `mlir` and their tables. The primitive is made when a tracer first meets a
persistent function, in a process that has imported jax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol


class Aval(NamedTuple):
    """What is known of an array before it is there.

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
        import jax

        return bool(jax.numpy.issubdtype(jax.numpy.dtype(self.dtype), jax.numpy.inexact))


class Operation(Protocol):
    """A call of arrays alone, of which other calls can be derived."""

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """What it returns."""

    def eager(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Makes the call; gives what jax takes for arrays."""

    def callback(self, arrays: Sequence[Any], weak: Sequence[bool]) -> Sequence[Any]:
        """Makes the call out of a running program: numpy arrays, and nothing of jax."""

    def mapped(self, axes: tuple[int | None, ...], size: int) -> Operation:
        """The call for many, its outputs along axis 0."""

    def differentiated(self, given: tuple[bool, ...]) -> Operation:
        """The tangents of its outputs that have one; those of the given inputs come behind."""

    def transposed(
        self, linear: tuple[bool, ...], avals: tuple[Aval, ...], given: tuple[bool, ...]
    ) -> Operation:
        """The cotangents of the linear inputs; those of the given outputs come behind the rest."""


def bind(call: Operation, arrays: Sequence[Any]) -> list[Any]:
    """What a call returns for arrays, some of which are tracers.

    Raises:
        BaseException: what the call raised, when jax makes it now.
    """
    found: list[Any] = _primitive().bind(*arrays, call=call)
    return found


@lru_cache(maxsize=1)
def _primitive() -> Any:
    """The primitive, with all its rules."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    made: Any = Primitive("persistent_call")
    made.multiple_results = True
    made.def_impl(lambda *arrays, call: list(call.eager(arrays)))
    made.def_abstract_eval(lambda *_, call: [_shaped_array(one) for one in call.outputs])
    ad.primitive_jvps[made] = _jvp_rule(made, ad)
    ad.primitive_transposes[made] = _transpose_rule(made, ad)
    batching.primitive_batchers[made] = _batching_rule(made)
    mlir.register_lowering(made, _lowering_rule(mlir))
    return made


def _shaped_array(aval: Aval) -> Any:
    import jax

    dtype = jax.numpy.dtype(aval.dtype)
    return jax.core.ShapedArray(aval.shape, dtype, weak_type=aval.weak)


_Rule = Callable[..., Any]


def _jvp_rule(primitive: Any, ad: Any) -> _Rule:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], *, call: Operation) -> Any:
        values = primitive.bind(*primals, call=call)
        given = tuple(type(tangent) is not ad.Zero for tangent in tangents)
        if not any(given):
            return values, [_zero_tangent(ad, value) for value in values]
        moving = [tangent for tangent in tangents if type(tangent) is not ad.Zero]
        moved = iter(primitive.bind(*primals, *moving, call=call.differentiated(given)))
        pairs = zip(values, call.outputs, strict=True)
        return values, [
            next(moved) if aval.is_differentiable else _zero_tangent(ad, value)
            for value, aval in pairs
        ]

    return jvp


def _zero_tangent(ad: Any, value: Any) -> Any:
    """The tangent of what does not move."""
    import jax

    aval: Any = jax.typeof(value)
    return ad.Zero(aval.to_tangent_aval())


def _transpose_rule(primitive: Any, ad: Any) -> _Rule:
    def transpose(cotangents: Sequence[Any], *inputs: Any, call: Operation) -> Any:
        linear = tuple(ad.is_undefined_primal(one) for one in inputs)
        given = tuple(type(one) is not ad.Zero for one in cotangents)
        if not any(given):
            return [ad.Zero(one.aval) if ad.is_undefined_primal(one) else None for one in inputs]
        avals = tuple(_aval(one.aval) for one in inputs if ad.is_undefined_primal(one))
        rest = [one for one in inputs if not ad.is_undefined_primal(one)]
        coming = [one for one in cotangents if type(one) is not ad.Zero]
        found = iter(primitive.bind(*rest, *coming, call=call.transposed(linear, avals, given)))
        return [next(found) if wanted else None for wanted in linear]

    return transpose


def _aval(aval: Any) -> Aval:
    return Aval(tuple(aval.shape), aval.dtype.name, bool(aval.weak_type))


def _batching_rule(primitive: Any) -> _Rule:
    def batch(inputs: Sequence[Any], axes: Sequence[int | None], *, call: Operation) -> Any:
        size = next(
            one.shape[axis] for one, axis in zip(inputs, axes, strict=True) if axis is not None
        )
        found = primitive.bind(*inputs, call=call.mapped(tuple(axes), size))
        return found, [0] * len(found)

    return batch


def _lowering_rule(mlir: Any) -> _Rule:
    """A call back into this process, which may not touch jax while the program waits for it."""

    def lower(context: Any, *inputs: Any, call: Operation) -> Any:
        weak = tuple(bool(aval.weak_type) for aval in context.avals_in)

        def back(*arrays: Any) -> tuple[Any, ...]:
            return tuple(call.callback(arrays, weak))

        results, _, _ = mlir.emit_python_callback(
            context,
            back,
            None,
            list(inputs),
            context.avals_in,
            context.avals_out,
            has_side_effect=False,
        )
        return results

    return lower
