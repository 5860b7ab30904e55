"""How a jax object is taken apart, so that its content can be hashed; and what an array holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.jax_objects.jit_objects import jit_parts
from jaxd_protocol.jax_objects.names import (
    COPIED_ATTRIBUTES,
    NAMED_KINDS,
    attribute,
    is_of_jax,
    kind_of,
    name_of_jax_object,
)
from jaxd_protocol.jax_objects.registrations import rules_of


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
    if kind is None or kind not in _PARTS_OF_KIND:
        return None
    name = name_of_jax_object(value) if kind in NAMED_KINDS else None
    if name is not None:
        return ObjectParts(kind, (("module", name[0]), ("name", name[1])))
    parts = _PARTS_OF_KIND[kind](value)
    return ObjectParts(
        kind,
        tuple(part for part in parts.items() if _is_literal(part[1])),
        tuple(part for part in parts.items() if not _is_literal(part[1])),
        kind not in _KINDS_WITH_IDENTITY,
    )


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
    return {name: state[name] for name in sorted(state) if name not in COPIED_ATTRIBUTES}


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

_PARTS_OF_KIND: dict[str, Callable[[Any], dict[str, Any]]] = {
    "jit": jit_parts,
    "custom_jvp": _state_parts,
    "custom_vjp": _state_parts,
    "custom_vmap": _state_parts,
    "ufunc": lambda ufunc: {"name": ufunc.__name__, **ufunc._ufunc__static_props},
    "primitive": _primitive_parts,
    "cache": _attributes("__wrapped__"),
    "tree structure": _tree_parts,
    "device": _attributes("platform", "id"),
    "mesh": _mesh_parts,
    "abstract mesh": _abstract_mesh_parts,
    "named sharding": _attributes("mesh", "spec", "_memory_kind", "_logical_device_ids"),
    "single device sharding": _attributes("_device", "_memory_kind"),
    "partition spec": _spec_parts,
    "shape": _attributes(
        "shape", "dtype", "sharding", "_dll", "weak_type", "manual_axis_type", "is_ref"
    ),
    "abstract array": _attributes(
        "shape", "dtype", "sharding", "layout", "weak_type", "manual_axis_type", "memory_space"
    ),
    "exported": _exported_parts,
    "random implementation": lambda impl: impl._asdict(),
    "key type": _attributes("_impl"),
    "partial": _attributes("func", "args", "keywords"),
    "traceback": lambda _: {},
    "automatic layout": lambda _: {},
    "closed jaxpr": lambda closed: {"jaxpr": closed.jaxpr, "consts": tuple(closed.consts)},
    "jaxpr": jaxpr_parts,
    "literal array": _literal_array_parts,
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
