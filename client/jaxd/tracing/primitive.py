"""A persistent call as an operation of jax, so that jax can transform the code around it.

Each rule returns another call, which the server derives; nothing is computed here. All names of
jax's extension interface that this client uses are in this file: `Primitive`, `ad`, `batching`,
`mlir` and their tables, and, of jax's private modules, the rules of
`jax.experimental.checkify`. The primitive is made when a persistent function is first called with a
tracer, in a process that has imported jax.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

from jaxd.tracing.derived_call import Aval, TracedCall


def bind(call: TracedCall, arrays: Sequence[Any]) -> list[Any]:
    """The results of a call for arrays, some of which are tracers.

    Raises:
        BaseException: what the call raised, when jax makes it at once.
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
    ad.primitive_jvps[made] = partial(_jvp, made)
    ad.primitive_transposes[made] = partial(_transpose, made)
    batching.primitive_batchers[made] = partial(_batch, made)
    mlir.register_lowering(made, _lower)
    _register_checks(made)
    return made


def _shaped_array(aval: Aval) -> Any:
    import jax

    dtype = jax.numpy.dtype(aval.dtype)
    return jax.core.ShapedArray(aval.shape, dtype, weak_type=aval.weak)


def _jvp(
    primitive: Any, primals: Sequence[Any], tangents: Sequence[Any], *, call: TracedCall
) -> Any:
    from jax.interpreters import ad

    values = primitive.bind(*primals, call=call)
    given = tuple(type(tangent) is not ad.Zero for tangent in tangents)
    if not any(given):
        return values, [_zero_tangent(value) for value in values]
    moving = [tangent for tangent in tangents if type(tangent) is not ad.Zero]
    moved = iter(primitive.bind(*primals, *moving, call=call.differentiated(given)))
    pairs = zip(values, call.outputs, strict=True)
    return values, [
        next(moved) if aval.is_differentiable else _zero_tangent(value) for value, aval in pairs
    ]


def _zero_tangent(value: Any) -> Any:
    """The tangent of a constant."""
    import jax
    from jax.interpreters import ad

    aval: Any = jax.typeof(value)
    return ad.Zero(aval.to_tangent_aval())


def _transpose(
    primitive: Any, cotangents: Sequence[Any], *inputs: Any, call: TracedCall
) -> list[Any]:
    from jax.interpreters import ad

    linear = tuple(ad.is_undefined_primal(one) for one in inputs)
    given = tuple(type(one) is not ad.Zero for one in cotangents)
    if not any(given):
        return [ad.Zero(one.aval) if ad.is_undefined_primal(one) else None for one in inputs]
    avals = tuple(_aval(one.aval) for one in inputs if ad.is_undefined_primal(one))
    rest = [one for one in inputs if not ad.is_undefined_primal(one)]
    coming = [one for one in cotangents if type(one) is not ad.Zero]
    found = iter(primitive.bind(*rest, *coming, call=call.transposed(linear, avals, given)))
    return [next(found) if wanted else None for wanted in linear]


def _aval(aval: Any) -> Aval:
    return Aval(tuple(aval.shape), aval.dtype.name, bool(aval.weak_type))


def _batch(
    primitive: Any, inputs: Sequence[Any], axes: Sequence[int | None], *, call: TracedCall
) -> Any:
    pairs = zip(inputs, axes, strict=True)
    size = next(one.shape[axis] for one, axis in pairs if axis is not None)
    mapped, found = call.mapped(tuple(axes), size)
    return primitive.bind(*inputs, call=mapped), found


def _register_checks(primitive: Any) -> None:
    """Lets checkify look into the function; it takes what it does not know for free of errors.

    Uses jax's private table of its rules, which has no public name.
    """
    from jax._src import checkify

    checkify.error_checks[primitive] = partial(_check, primitive)


def _check(primitive: Any, *arguments: Any, call: TracedCall) -> Any:
    """The error that the values show so far, and the results.

    A function without a `check` of its own is traced here as well: a server would leave out its
    `debug_check` without a word.

    Since jax 0.11 the first argument is a context, which goes into all that is called below.
    """
    import jax
    from jax._src import checkify

    at = next(i for i, each in enumerate(arguments) if isinstance(each, checkify.Error))
    context, (error, enabled, *inputs) = arguments[:at], arguments[at:]
    program = jax.make_jaxpr(call.inlined)(*inputs)
    has_own = any(isinstance(effect, checkify.ErrorEffect) for effect in program.effects)
    if not has_own and not enabled - checkify.user_checks:
        return error, primitive.bind(*inputs, call=call)
    call.check_runs_here()
    return checkify.checkify_jaxpr(*context, program, enabled, error, *inputs)


def _lower(context: Any, *inputs: Any, call: TracedCall) -> Any:
    """A call back into this process, which may not touch jax while the program waits for it."""
    from jax.interpreters import mlir

    weak = tuple(bool(aval.weak_type) for aval in context.avals_in)

    def back(*arrays: Any) -> tuple[Any, ...]:
        return tuple(call.callback(arrays, weak))

    avals = context.avals_in, context.avals_out
    results, _, _ = mlir.emit_python_callback(
        context, back, None, list(inputs), *avals, has_side_effect=False
    )
    return results
