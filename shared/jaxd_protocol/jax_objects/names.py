"""Where the types of jax are that walk and packing handle, most of them by public names.

And the names of jax objects without a `__qualname__`: primitives, caches, universal functions.

Nothing here imports jax. An object of a jax type can only exist where jax is loaded, so its
modules are looked up among those that are; tests/shared/jax_objects/test_names.py notices when a
name has moved.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.packages.importable import importable_name, name_within
from jaxd_protocol.packages.installed import content_of, is_local_module

JAX_TYPES: dict[str, tuple[str, str]] = {
    "custom_jvp": ("jax", "custom_jvp"),
    "custom_vjp": ("jax", "custom_vjp"),
    "custom_vmap": ("jax.custom_batching", "custom_vmap"),
    "ufunc": ("jax.numpy", "ufunc"),
    "tree structure": ("jax.tree_util", "PyTreeDef"),
    "device": ("jax", "Device"),
    "mesh": ("jax.sharding", "Mesh"),
    "abstract mesh": ("jax.sharding", "AbstractMesh"),
    "named sharding": ("jax.sharding", "NamedSharding"),
    "single device sharding": ("jax.sharding", "SingleDeviceSharding"),
    "partition spec": ("jax.sharding", "PartitionSpec"),
    "shape": ("jax", "ShapeDtypeStruct"),
    "abstract array": ("jax.core", "ShapedArray"),
    "exported": ("jax.export", "Exported"),
    "partial": ("jax.tree_util", "Partial"),
    "lowered": ("jax.stages", "Lowered"),
    "compiled": ("jax.stages", "Compiled"),
    "tracer": ("jax.core", "Tracer"),
    # Public in `jax.extend`, which `import jax` does not load.
    "primitive": ("jax._src.core", "Primitive"),
    "closed jaxpr": ("jax._src.core", "ClosedJaxpr"),
    "jaxpr": ("jax._src.core", "Jaxpr"),
    "random implementation": ("jax._src.random.prng", "PRNGImpl"),
    # Without a public name.
    "jit": ("jaxlib._jax", "PjitFunction"),
    "tree registry": ("jaxlib._jax.pytree", "PyTreeRegistry"),
    "key type": ("jax._src.random.prng", "KeyTy"),
    "traceback": ("jaxlib._jax", "Traceback"),
    "automatic layout": ("jax._src.layout", "AutoLayoutSingleton"),
    "literal array": ("jax._src.literals", "TypedNdArray"),
    "cache": ("jaxlib.weakref_lru_cache", "WeakrefLRUCache"),
}
"""What we call a type of jax, with its name in a module that is loaded where jax is."""

COPIED_ATTRIBUTES = frozenset(
    {"__annotations__", "__doc__", "__module__", "__name__", "__qualname__", "__type_params__"}
)
"""Names and texts that `functools.wraps` copies; they decide nothing."""

NAMED_KINDS = frozenset(
    {"jit", "custom_jvp", "custom_vjp", "custom_vmap", "ufunc", "primitive", "cache"}
)
"""Kinds of which a library may hold an object under a name, as `jnp.sin`."""
_kinds: dict[type, str | None] = {}


def attribute(module: str, name: str) -> Any:
    """The attribute of a loaded module, or of a loaded extension's inner one; None without it."""
    found = sys.modules.get(module)
    if found is None:
        outer, _, inner = module.rpartition(".")
        found = getattr(sys.modules.get(outer), inner, None)
    return getattr(found, name, None)


def is_of_jax(cls: type) -> bool:
    """Whether jax itself defines the type."""
    module = getattr(cls, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ("jax", "jaxlib")


def kind_of(value: Any) -> str | None:
    """What kind of jax object the value is, as `JAX_TYPES` calls it; None for everything else.

    A subclass counts when it is one of jax's own, as primitives and tracers have.
    """
    cls = type(value)
    try:
        return _kinds[cls]
    except KeyError:
        if not is_of_jax(cls):
            return None
    found = {attribute(*where): kind for kind, where in JAX_TYPES.items()}
    _kinds[cls] = next((found[base] for base in cls.__mro__ if base in found), None)
    return _kinds[cls]


def name_of_jax_object(value: Any) -> tuple[str, str] | None:
    """Module and name of a jax object in an installed package; None when it has none.

    First by its own name and module, then among the content of the packages that it may be from.
    """
    name = importable_name(value)
    if name is not None or is_local_module(getattr(value, "__module__", None)):
        return name
    for package in dict.fromkeys(_packages(value)):
        found = name_within(package, value)
        if found is not None:
            return found
    # code of a library may compare primitives by identity, and the rules of one may be all of jax
    places = places_of(value) if kind_of(value) == "primitive" else ()
    return min((each for each in places if not is_local_module(each[0])), default=None)


def places_of(value: Any) -> tuple[tuple[str, str], ...]:
    """The loaded modules that have an object, and its names there."""
    known = _places.get(id(value))
    count = len(sys.modules)
    if known is None or known[0] is not value or known[1] != count:
        found = [
            (module, name)
            for module in sys.modules.copy()
            for name, each in content_of(module).copy().items()
            if each is value
        ]
        known = _places[id(value)] = value, count, tuple(found)
    return known[2]


_MAX_PLACES = 64
_places = BoundedDict[int, tuple[Any, int, tuple[tuple[str, str], ...]]](_MAX_PLACES)


def _packages(value: Any) -> Iterator[str]:
    yield "jax"
    for holder in (value, *getattr(value, "__dict__", {}).values()):
        module = getattr(holder, "__module__", None)
        if isinstance(module, str) and not is_local_module(module):
            yield module.partition(".")[0]
