"""Calls with tracers: the call becomes an operation of the program that jax traces.

The server is asked once for the form of the result; then the call is bound as a primitive, whose
rules make derivatives and mapped calls on the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from jaxd.dispatch.warm import encode_warm_request, result_form_of
from jaxd.interop.jax_runtime import PRNGKeys, loaded_jax
from jaxd.interop.lazy_array import LazyArray
from jaxd.request.function_snapshot import FunctionSpec
from jaxd.tracing.derived_call import Aval, CallOutline, TracedCall
from jaxd.tracing.primitive import bind
from jaxd_protocol.errors import ResultError, TracerError
from jaxd_protocol.jax_objects.decomposition import check_one_device
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import FailureOrigin, origin_of, set_origin
from jaxd_protocol.pytree import Layout

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.call_request import CallRequest, CallSettings


def call_traced(
    caller: Caller,
    spec: FunctionSpec,
    settings: CallSettings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settle: Callable[[CallRequest], CallRequest],
    instead: Callable[[], Any] | None = None,
) -> Any:
    """The result of a call, as tracers where it depends on them.

    Args:
        caller: of the server.
        spec: the function.
        settings: of its calls.
        args: positional arguments.
        kwargs: keyword arguments.
        settle: replaces the function of a call by the one that such arguments select.
        instead: makes a call whose program calls Python, which a derivative would do once more.

    Raises:
        TracerError: when a tracer is where no array can be.
        PackingError: when the type of an array says how it is spread over devices.
        BaseException: what the function raises while it is traced on the server, and, where jax
            makes the call at once, what the call raises.
    """
    try:
        call, form, arrays = _prepared(caller, spec, settings, args, kwargs, settle)
    except Exception as error:
        if not origin_of(error).phase:
            set_origin(error, FailureOrigin("packing"))
        raise
    if form.calls_python and instead is not None:
        return instead()
    return form.built(bind(call, arrays))


def _prepared(
    caller: Caller,
    spec: FunctionSpec,
    settings: CallSettings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    settle: Callable[[CallRequest], CallRequest],
) -> tuple[TracedCall, _ResultLayout, list[Any]]:
    """The call, the layout of its result, and the arrays that it takes."""
    outline, taken = _split_call(caller, spec, settings, args, kwargs)
    standing, named = outline.filled([one.shape_struct for one in taken])
    warming = settle(encode_warm_request(caller, spec, standing, named, settings.strict))
    outline = replace(outline, spec=_without_donation(warming.spec))
    outline = replace(outline, name=_outline_key(outline, warming))
    caller.register(outline.spec)
    form = _result_layout(caller, warming._replace(spec=outline.spec))
    known = None not in outline.inputs and len(form.inputs) == len(form.outputs)
    inputs = form.inputs if known else None
    call = TracedCall(outline, form.outputs, tuple(range(len(taken))), inputs=inputs)
    return call, form, [one.array for one in taken]


def _outline_key(outline: CallOutline, warming: CallRequest) -> Any:
    """Equal for calls that differ in their arrays only; static values are part of the skeleton.

    Leaves that are no inputs may differ in their content, so a call with such equals no other.
    """
    if any(kind is None for kind in outline.inputs):
        return object()
    settings = outline.settings
    how = settings.results, settings.timeout_s, settings.strict
    return outline.caller, outline.spec.key, warming.skeleton, how


def _split_call(
    caller: Caller,
    spec: FunctionSpec,
    settings: CallSettings,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[CallOutline, list[_TracedInput]]:
    """The call without its arrays, and the arrays."""
    jax: Any = loaded_jax()
    numbers, names = spec.statics.at(len(args)), spec.statics.names
    _refuse_static_tracers(spec, args, kwargs)
    leaves, structure = jax.tree.flatten(
        (
            [value for i, value in enumerate(args) if i not in numbers],
            {name: value for name, value in kwargs.items() if name not in names},
        )
    )
    taken = [_traced_input(leaf) for leaf in leaves]
    outline = CallOutline(
        caller,
        spec,
        settings,
        structure,
        tuple(None if one else leaf for leaf, one in zip(leaves, taken, strict=True)),
        tuple(one.kind if one else None for one in taken),
        tuple(value if i in numbers else None for i, value in enumerate(args)),
        {name: value for name, value in kwargs.items() if name in names},
    )
    return outline, [one for one in taken if one]


def _refuse_static_tracers(
    spec: FunctionSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    jax: Any = loaded_jax()
    numbers, names = spec.statics.at(len(args)), spec.statics.names
    given = [(f"argument {i}", x) for i, x in enumerate(args) if i in numbers]
    given += [(f"argument {name!r}", x) for name, x in kwargs.items() if name in names]
    for which, value in given:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(value)):
            raise TracerError(
                f"{which} of {spec.snapshot.name} is static, so its value decides about the "
                "program; here it is a tracer, whose value is not known before the program runs. "
                "Take it out of static_argnums and static_argnames, or give jax.jit, grad or vmap "
                "around this call a plain value for it."
            )


def _without_donation(spec: FunctionSpec) -> FunctionSpec:
    """The function without donation: derivatives need what it would give up."""
    options = Options.from_bytes(spec.options)
    kept = options._replace(donate_argnums=None, donate_argnames=None)
    return spec if kept == options else FunctionSpec(spec.snapshot, kept, spec.statics)


# what goes in ------------------------------------------------------------------------------------


class _TracedInput(NamedTuple):
    """A leaf that is an input of the traced call.

    Attributes:
        array: for jax.
        kind: "" for an array, the name of a generator for the numbers of random keys.
        shape_struct: replaces it where only its shape counts.
    """

    array: Any
    kind: str
    shape_struct: Any


def _traced_input(leaf: Any) -> _TracedInput | None:
    """The leaf as an input; None when jax cannot trace it."""
    import numpy

    jax: Any = loaded_jax()
    if type(leaf) is PRNGKeys:
        return _TracedInput(jax.numpy.asarray(leaf.data), leaf.impl, leaf)
    if isinstance(leaf, jax.Array):
        sharding = getattr(jax.typeof(leaf), "sharding", None)
        check_one_device(sharding, "a tracer", "make its mesh with AxisType.Auto")
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            stands = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            return _TracedInput(jax.random.key_data(leaf), str(jax.random.key_impl(leaf)), stands)
        return _TracedInput(leaf, "", _shape_struct(leaf))
    numbers = bool, int, float, complex, numpy.ndarray, numpy.generic, LazyArray
    if isinstance(leaf, numbers):
        array = jax.numpy.asarray(leaf)
        return _TracedInput(array, "", _shape_struct(array))
    return None


@dataclass(frozen=True)
class _JaxArraySpec:
    """The spec of an array of jax, which `jax.ShapeDtypeStruct` is not: jax narrows what it names.

    Attributes:
        shape, dtype, weak_type: those of the array.
    """

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool
    is_jax: ClassVar = True


def _shape_struct(array: Any) -> _JaxArraySpec:
    return _JaxArraySpec(array.shape, array.dtype, bool(array.weak_type))


# what comes out ----------------------------------------------------------------------------------


class _ResultLayout(NamedTuple):
    """The layout of a traced call's result.

    Attributes:
        layout: its structure.
        order: the numbers of its arrays on the wire, in jax's order.
        calls_python: whether the program that makes it calls Python.
        inputs: for each array in that order the arguments that it may be computed from, as bits of
            a number; empty: that is not known.
    """

    layout: Layout
    order: tuple[int, ...]
    calls_python: bool
    inputs: tuple[int, ...]

    @property
    def outputs(self) -> tuple[Aval, ...]:
        """The abstract values of its arrays; of random keys those of their numbers."""
        leaves = [self.layout.leaves[number] for number in self.order]
        return tuple(Aval(leaf.shape, leaf.dtype, leaf.weak) for leaf in leaves)

    def built(self, arrays: list[Any]) -> Any:
        """The result."""
        jax: Any = loaded_jax()
        found: list[Any] = [None] * len(arrays)
        for number, array in zip(self.order, arrays, strict=True):
            leaf = self.layout.leaves[number]
            is_key = leaf.tag == "K"
            found[number] = jax.random.wrap_key_data(array, impl=leaf.impl) if is_key else array
        return self.layout.build(found)


def _result_layout(caller: Caller, warming: CallRequest) -> _ResultLayout:
    """The layout of a call's result; the server is asked once for such calls."""
    snapshot = warming.spec.snapshot
    name = warming.spec.key + warming.skeleton
    known = snapshot.forms.get(name)
    if known is None:
        known = snapshot.forms[name] = result_form_of(caller, warming)
    skeleton, calls_python, inputs = known
    jax: Any = loaded_jax()
    with snapshot.pickling_context():
        layout = snapshot.reader.layout(skeleton)
        found = jax.tree.leaves(layout.build(range(len(layout.leaves))))
        order = tuple(leaf for leaf in found if type(leaf) is int)  # float0 is known already
    if sorted(map(str, order)) != sorted(map(str, range(len(layout.leaves)))):
        raise ResultError(
            f"the result of {snapshot.name} holds an object that jax does not take apart in this "
            "process, so it cannot be transformed here. Import the module that registers its "
            "class with jax, or return dicts, lists and tuples from the function."
        )
    return _ResultLayout(layout, order, calls_python, tuple(inputs[i] for i in order if inputs))
