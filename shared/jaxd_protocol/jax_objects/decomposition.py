"""What a jax object is made of: by that it is hashed, and made again; and what an array holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn

from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.jax_objects.jit_objects import (
    jit_extras,
    jit_options,
    jit_parts,
    make_jit,
    own_names,
)
from jaxd_protocol.jax_objects.names import (
    COPIED_ATTRIBUTES,
    JAX_TYPES,
    NAMED_KINDS,
    attribute,
    is_of_jax,
    kind_of,
    name_of_jax_object,
)
from jaxd_protocol.jax_objects.registrations import rules_of
from jaxd_protocol.jax_objects.structures import make_structure, structure_nodes
from jaxd_protocol.packages.importable import find_object


class ObjectParts(NamedTuple):
    """A jax object in parts.

    Attributes:
        kind: what it is: ``jit``, ``mesh``.
        settings: names and plain literals, the same in every process: None, bool, int, float, str,
            bytes and tuples of them.
        children: labels and objects whose content counts as well.
        is_value: whether it is nothing but its content, so that it does not matter whether two
            places hold one object or two equal ones.
    """

    kind: str
    settings: tuple[tuple[str, Any], ...] = ()
    children: tuple[tuple[str, Any], ...] = ()
    is_value: bool = False


def decompose(value: Any) -> ObjectParts | None:
    """The parts of a jax object; None when it is of no known kind.

    Arrays are not taken apart here: see `array_content`. What has a name in an installed package
    (`jnp.sin`, a primitive) is that name, as long as the name leads to this very object.
    """
    kind = kind_of(value)
    take_apart = None if kind is None or kind not in _KINDS else _KINDS[kind].parts
    if kind is None or take_apart is None:
        return None
    name = name_of_jax_object(value) if kind in NAMED_KINDS else None
    if name is not None:
        return ObjectParts(kind, (("module", name[0]), ("name", name[1])))
    parts = take_apart(value)
    return ObjectParts(
        kind,
        tuple(part for part in parts.items() if _is_literal(part[1])),
        tuple(part for part in parts.items() if not _is_literal(part[1])),
        kind not in _KINDS_WITH_IDENTITY,
    )


def reduce_jax(value: Any) -> Any:
    """What `pickle` needs to make a jax object again, as `__reduce__` would return it.

    `NotImplemented` for what is not of jax, where jax's own pickling does it, and for a primitive
    of the user's own.

    Raises:
        PackingError: when the object belongs to the process that made it.
    """
    kind = kind_of(value)
    reduce = None if kind is None or kind not in _KINDS else _KINDS[kind].reduce
    if reduce is None:
        return NotImplemented
    name = name_of_jax_object(value) if kind in NAMED_KINDS else None
    return reduce(value) if name is None else (find_object, name)


# All other kinds jax compares by content, and makes equal ones anew or not as it likes.
_KINDS_WITH_IDENTITY = NAMED_KINDS | {"closed jaxpr", "exported", "jaxpr", "partial"}
_LITERAL_TYPES = (bool, int, float, str, bytes)


def _is_literal(value: Any) -> bool:
    if type(value) is tuple:
        return all(_is_literal(item) for item in value)
    return value is None or type(value) in _LITERAL_TYPES


def _attributes(*names: str) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name.strip("_"): getattr(value, name, None) for name in names}


def _state_parts(value: Any) -> dict[str, Any]:
    state = vars(value)
    kept = state.keys() - COPIED_ATTRIBUTES | own_names(value, state.get("fun"))
    return {name: state[name] for name in sorted(kept)}


def _partial_parts(value: Any) -> dict[str, Any]:
    own = {f"own {name}": content for name, content in vars(value).items()}
    return {"func": value.func, "args": value.args, "keywords": value.keywords, **own}


def _primitive_parts(primitive: Any) -> dict[str, Any]:
    rules = {f"rule {':'.join(place)}": rule for place, rule in rules_of(primitive).items()}
    return _state_parts(primitive) | rules


def _tree_parts(structure: Any) -> dict[str, Any]:
    # Leaf and None by letter, other nodes by their number of children, parents first.
    nodes = list(_nodes(structure))
    parts: dict[str, Any] = {"nodes": tuple(shape for shape, _ in nodes)}
    for i, (_, data) in enumerate(nodes):
        if data is not None:
            parts |= {f"class {i}": data[0], f"data {i}": data[1]}
    return parts


def _nodes(structure: Any) -> Iterator[tuple[Any, Any]]:
    data, children = structure.node_data(), structure.children()
    if data is None:
        yield "leaf", None
    else:
        yield len(children), data
    for child in children:
        yield from _nodes(child)


def _mesh_parts(mesh: Any) -> dict[str, Any]:
    return {
        "axis_names": mesh.axis_names,
        "axis_types": tuple(kind.name for kind in mesh.axis_types),
        "shape": tuple(mesh.devices.shape),
        # The empty mesh, which jax has where no mesh is set, holds a None.
        "devices": tuple(
            None if device is None else (device.platform, device.id) for device in mesh.devices.flat
        ),
    }


def _abstract_mesh_parts(mesh: Any) -> dict[str, Any]:
    return {
        "axis_names": mesh.axis_names,
        "axis_types": tuple(kind.name for kind in mesh.axis_types),
        "shape": tuple(mesh.axis_sizes),
        "device": getattr(mesh, "abstract_device", None),
    }


def partitions_of(spec: Any) -> tuple[Any, ...]:
    """The partitions of a `PartitionSpec`, which have no public name before jax 0.9."""
    return tuple(spec.partitions if hasattr(spec, "partitions") else spec._partitions)


def _spec_parts(spec: Any) -> dict[str, Any]:
    kind = getattr(spec, "unreduced_kind", None)
    free = type(spec).UNCONSTRAINED
    return {
        # True is no axis name, so it can stand for "unconstrained".
        "partitions": tuple(True if part is free else part for part in partitions_of(spec)),
        "unreduced": tuple(sorted(spec.unreduced, key=str)),
        "reduced": tuple(sorted(spec.reduced, key=str)),
        "unreduced_kind": None if kind is None else kind.name,
    }


def _literal_array_parts(array: Any) -> dict[str, Any]:
    import numpy

    return {"data": numpy.asarray(array), "aval": aval_of_literal(array)}


def aval_of_literal(array: Any) -> Any:
    """The type of a literal array, which has none of its own before jax 0.10."""
    if hasattr(array, "aval"):
        return array.aval
    return attribute("jax.core", "ShapedArray")(array.shape, array.dtype, array.weak_type)


def _exported_parts(exported: Any) -> dict[str, Any]:
    names = [name for name in exported.__dataclass_fields__ if name != "_get_vjp"]
    parts = {name.strip("_"): getattr(exported, name) for name in names}
    for name in _SHOWN_AS_TEXT:
        parts[name] = tuple(str(item) for item in parts[name])
    return parts | {"has_vjp": exported._get_vjp is not None}


# traced programs: the text of a jaxpr leaves parameters out and shows addresses of functions

_CONTEXT = (
    "compute_type",
    "threefry_partitionable",
    "xla_metadata",
    "cur_abstract_mesh",
    "cur_layout_mode",
    "remove_size_one_mesh_axis",
)


def jaxpr_parts(jaxpr: Any) -> dict[str, Any]:
    """The equations of a program; each variable has the number of its first appearance."""
    numbering = _Numbering()
    parts: dict[str, Any] = {
        "constvars": numbering.all(jaxpr.constvars),
        "invars": numbering.all(jaxpr.invars),
    }
    for i, eqn in enumerate(jaxpr.eqns):
        parts[f"primitive {i}"] = eqn.primitive
        parts[f"inputs {i}"] = numbering.all(eqn.invars)
        parts[f"outputs {i}"] = numbering.all(eqn.outvars)
        parts[f"params {i}"] = dict(eqn.params)
        parts[f"context {i}"] = tuple(getattr(eqn.ctx, name, None) for name in _CONTEXT)
    parts["outvars"] = numbering.all(jaxpr.outvars)
    parts["effects"] = tuple(sorted(str(effect) for effect in jaxpr.effects))
    parts |= {f"type {i}": aval for i, aval in enumerate(numbering.types)}
    parts |= {f"literal {i}": value for i, value in enumerate(numbering.literals)}
    # Where constants travel inside the program (jax 0.11), they are part of it.
    if getattr(jaxpr, "consts", None):
        parts["consts"] = tuple(jaxpr.consts)
    return parts


class _Numbering:
    """Numbers for variables, in order of appearance; literals count down from -1."""

    def __init__(self) -> None:
        self.types: list[Any] = []
        self.literals: list[Any] = []
        self._numbers: dict[int, int] = {}

    def all(self, atoms: Any) -> tuple[int, ...]:
        return tuple(self._number(atom) for atom in atoms)

    def _number(self, atom: Any) -> int:
        if hasattr(atom, "val"):
            self.literals.append((atom.val, atom.aval))
            return -len(self.literals)
        number = self._numbers.get(id(atom))
        if number is None:
            number = self._numbers[id(atom)] = len(self.types)
            self.types.append(atom.aval)
        return number


_SHOWN_AS_TEXT = (
    "in_shardings_hlo",
    "out_shardings_hlo",
    "ordered_effects",
    "unordered_effects",
    "disabled_safety_checks",
)

# made again ---------------------------------------------------------------------------------------


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


class _Kind(NamedTuple):
    """What objects of one kind are made of, and how they are made again.

    Attributes:
        parts: by name; None: they have no content.
        reduce: as `__reduce__`; None: as jax pickles them.
    """

    parts: Callable[[Any], dict[str, Any]] | None
    reduce: Callable[[Any], Any] | None = None


_STATE = _Kind(_state_parts, _reduce_in_two_steps)

_KINDS: dict[str, _Kind] = {
    "jit": _Kind(jit_parts, _jit),
    "custom_jvp": _STATE,
    "custom_vjp": _STATE,
    "custom_vmap": _STATE,
    "ufunc": _Kind(
        lambda ufunc: {"name": ufunc.__name__, **ufunc._ufunc__static_props}, _reduce_in_two_steps
    ),
    "primitive": _Kind(_primitive_parts, lambda _: NotImplemented),  # its rules go with it
    "cache": _Kind(_attributes("__wrapped__"), lambda cache: (_make_cache, (cache.__wrapped__,))),
    "tree structure": _Kind(
        _tree_parts, lambda structure: (make_structure, (structure_nodes(structure),))
    ),
    "device": _Kind(
        _attributes("platform", "id"), lambda device: (_find_device, (device.platform, device.id))
    ),
    "mesh": _Kind(_mesh_parts),
    "abstract mesh": _Kind(_abstract_mesh_parts),
    "named sharding": _Kind(_attributes("mesh", "spec", "_memory_kind", "_logical_device_ids")),
    "single device sharding": _Kind(_attributes("_device", "_memory_kind")),
    "partition spec": _Kind(_spec_parts, _partition_spec),
    "shape": _Kind(
        _attributes("shape", "dtype", "sharding", "_dll", "weak_type", "manual_axis_type", "is_ref")
    ),
    "abstract array": _Kind(
        _attributes(
            *("shape", "dtype", "sharding", "layout", "weak_type", "manual_axis_type"),
            "memory_space",
        )
    ),
    "exported": _Kind(_exported_parts, _exported),
    "random implementation": _Kind(lambda impl: impl._asdict()),
    "key type": _Kind(_attributes("_impl")),
    "partial": _Kind(_partial_parts),
    "traceback": _Kind(lambda _: {}, lambda _: (_none, ())),
    # jax compares it by identity, and pickles a copy
    "automatic layout": _Kind(
        lambda _: {}, lambda _: (find_object, ("jax.experimental.layout", "Layout.AUTO"))
    ),
    "closed jaxpr": _Kind(lambda closed: {"jaxpr": closed.jaxpr, "consts": tuple(closed.consts)}),
    "jaxpr": _Kind(jaxpr_parts),
    "literal array": _Kind(_literal_array_parts, _literal_array),
    "lowered": _Kind(
        None, _refuse("a lowered program", "capture the function and let the server lower it")
    ),
    "compiled": _Kind(
        None, _refuse("a compiled program", "capture the function and let the server compile it")
    ),
    "tracer": _Kind(None, _refuse("a jax tracer", "pass the value as an argument")),
}


class ArrayContent(NamedTuple):
    """The content of a jax array.

    Attributes:
        dtype: name of the element type of `data`.
        shape: shape of `data`; for keys, it is one axis longer than the array's.
        weak: whether the type gives way to others in promotion.
        implementation: of a typed random key, the name of its generator; else None.
        data: a numpy array.
    """

    dtype: str
    shape: tuple[int, ...]
    weak: bool
    implementation: str | None
    data: Any


def array_content(value: Any) -> ArrayContent | None:
    """The content of a jax array, or of what stands for one; None when the value is none.

    Raises:
        TracerError: when the value is a tracer, which has no content.
        PackingError: when the array was donated or deleted, or lies in part on other machines.
    """
    if type(value) is ArrayContent:
        return value
    if not is_of_jax(type(value)):
        return None
    if kind_of(value) == "tracer":
        raise TracerError(
            "a jax tracer cannot be sent: it stands for a value inside of jax.jit, jax.grad or the "
            "like, and a function captures it, or an object holds it that jax does not take apart. "
            "Pass the value as an argument of its own, or make the function or the object outside "
            "of what is traced"
        )
    if not isinstance(value, attribute("jax", "Array")):
        return None
    _check_readable(value)
    weak = bool(getattr(value.aval, "weak_type", False))
    implementation = None
    if kind_of(value.dtype) == "key type":
        implementation = value.dtype._impl.name
        with attribute("jax", "ensure_compile_time_eval")():  # the caller may be traced
            value = attribute("jax", "random").key_data(value)
    import numpy

    data = numpy.asarray(value)
    return ArrayContent(data.dtype.name, data.shape, weak, implementation, data)


def _check_readable(array: Any) -> None:
    if array.is_deleted():
        raise PackingError(
            "a function captures a jax array that has been deleted or donated: "
            "capture one that still holds its values"
        )
    if not array.is_fully_addressable:
        raise PackingError(
            "a function captures a jax array that lies in part on other machines: "
            "pass it as an argument, or capture a local copy"
        )
    what = "a jax array that a function captures, or an object holds,"
    check_one_device(array.sharding, what, "capture numpy.asarray of it")


def check_one_device(sharding: Any, what: str, instead: str) -> None:
    """Returns when an array of jax lies as a server would place it: whole, on one device.

    How an array is spread over devices is part of its type where the axes of its mesh are explicit
    (`jax.sharding.AxisType`), and decides where the result lies. A server has other devices.

    Args:
        sharding: that of the array, or of its type; None where it has none.
        what: begins the error's text.
        instead: what to write.

    Raises:
        PackingError: when it is spread, or has a type that says so.
    """
    if sharding is None or kind_of(sharding) == "single device sharding":
        return
    mesh: Any = getattr(sharding, "mesh", None)
    is_type = kind_of(mesh) == "abstract mesh"
    count = mesh.size if is_type else len(sharding.device_set)
    is_explicit = any(kind.name == "Explicit" for kind in getattr(mesh, "axis_types", ()))
    is_whole = count == 1 and all(axis is None for axis in getattr(sharding, "spec", ()))
    if (count > 1 and not is_type) or (is_explicit and not is_whole):
        raise PackingError(
            f"{what} is placed on devices of this process: {sharding}. A server has others, and "
            f"types and results depend on it: {instead}, and say inside of the function how it is "
            "spread over the server's (jax.lax.with_sharding_constraint), or run the function here "
            "with JAXD_INLINE=1"
        )
