"""How jax objects travel: as a name, or as what makes them again on the server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from jaxd_protocol.errors import PackingError
from jaxd_protocol.jax_objects.decomposition import aval_of_literal, partitions_of
from jaxd_protocol.jax_objects.jit_objects import jit_extras, jit_options, make_jit
from jaxd_protocol.jax_objects.names import JAX_TYPES, NAMED_KINDS, kind_of, name_of_jax_object
from jaxd_protocol.jax_objects.structures import make_structure, structure_nodes
from jaxd_protocol.packages.importable import find_object


def reduce_jax(value: Any) -> Any:
    """What `pickle` needs to make a jax object again, as `__reduce__` would return it.

    `NotImplemented` for what is not of jax, where jax's own pickling does it, and for a primitive
    of the user's own.

    Raises:
        PackingError: when the object belongs to the process that made it.
    """
    kind = kind_of(value)
    if kind is None or kind not in _REDUCERS:
        return NotImplemented
    name = name_of_jax_object(value) if kind in NAMED_KINDS else None
    return _REDUCERS[kind](value) if name is None else (find_object, name)


def _jit(value: Any) -> Any:
    made = (make_jit, (value._fun, jit_options(value)))
    extras = jit_extras(value)
    return (*made, extras, None, None, _set_attributes) if extras else made


def _reduce_in_two_steps(value: Any) -> Any:
    """The object before its functions, which may reach it again through their globals."""
    kept = {name: item for name, item in vars(value).items() if name not in _OMITTED_ATTRIBUTES}
    return _make_empty, (kind_of(value),), kept, None, None, _set_attributes


_OMITTED_ATTRIBUTES = frozenset({"__annotations__", "__doc__", "__type_params__"})


def _make_empty(kind: str) -> Any:
    import jax  # noqa: F401

    module, name = JAX_TYPES[kind]
    return object.__new__(find_object(module, name))


def _set_attributes(value: Any, state: dict[str, Any]) -> None:
    vars(value).update(state)


def _find_device(platform: str, index: int) -> Any:
    import jax

    try:
        devices = jax.devices(platform)
    except RuntimeError:
        devices = []
    found = next((device for device in devices if device.id == index), None)
    if found is not None:
        return found
    raise PackingError(
        f"the function names the device {platform}:{index}, and the server has only "
        f"{', '.join(f'{device.platform}:{device.id}' for device in jax.devices())}: "
        "leave the device out, or name one of those"
    )


def _exported(value: Any) -> Any:
    try:
        data = bytes(value.serialize(vjp_order=0 if value._get_vjp is None else 1))
    except ImportError as error:
        raise PackingError(
            "a jax.export.Exported travels in serialised form, which needs the package "
            "flatbuffers: pip install flatbuffers, on both ends"
        ) from error
    return _load_exported, (data,)


def _load_exported(data: bytes) -> Any:
    from jax import export

    return export.deserialize(bytearray(data))


def _literal_array(value: Any) -> Any:
    # jax's own `__reduce__` puts a bool in the place of the type, up to 0.11 at least.
    import numpy

    return type(value), (numpy.asarray(value), aval_of_literal(value))


def _partition_spec(value: Any) -> Any:
    # before jax 0.9 it is pickled by a function that later ones have elsewhere
    if hasattr(value, "partitions"):
        return NotImplemented
    axes = {name: getattr(value, name, None) for name in ("unreduced", "reduced")}
    axes = {name: each for name, each in axes.items() if each}
    make: Any = type(value)
    return (partial(make, **axes) if axes else make), partitions_of(value)


def _none() -> None:
    """In the place of a traceback."""


def _refuse(what: str, instead: str) -> Callable[[Any], NoReturn]:
    def reduce(value: Any) -> NoReturn:
        raise PackingError(f"{what} ({value!s:.60}) belongs to the process that made it: {instead}")

    return reduce


def _make_cache(function: Any) -> Any:
    import jax  # noqa: F401

    return find_object("jax._src.util", "weakref_lru_cache")(function)


_REDUCERS: dict[str, Callable[[Any], Any]] = {
    "jit": _jit,
    "custom_jvp": _reduce_in_two_steps,
    "custom_vjp": _reduce_in_two_steps,
    "custom_vmap": _reduce_in_two_steps,
    "ufunc": _reduce_in_two_steps,
    "primitive": lambda _: NotImplemented,  # its rules go with it
    "cache": lambda cache: (_make_cache, (cache.__wrapped__,)),
    "tree structure": lambda structure: (make_structure, (structure_nodes(structure),)),
    "partition spec": _partition_spec,
    "device": lambda device: (_find_device, (device.platform, device.id)),
    "exported": _exported,
    "literal array": _literal_array,
    # jax compares it by identity, and pickles a copy
    "automatic layout": lambda _: (find_object, ("jax.experimental.layout", "Layout.AUTO")),
    "traceback": lambda _: (_none, ()),
    "lowered": _refuse("a lowered program", "capture the function and let the server lower it"),
    "compiled": _refuse("a compiled program", "capture the function and let the server compile it"),
    "tracer": _refuse("a jax tracer", "pass the value as an argument"),
}
