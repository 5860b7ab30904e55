"""Where things are in jax: every private name of jax that the walk and the packing rely on.

Nothing here imports jax. An object of a jax type can only exist where jax is loaded, so its
modules are looked up among those that are; tests/shared/test_jax_objects.py notices when a name
has moved.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["JAX_TYPES", "attribute", "is_of_jax", "kind_of"]

JAX_TYPES: dict[str, tuple[str, str]] = {
    "jit": ("jaxlib._jax", "PjitFunction"),
    "custom_jvp": ("jax._src.custom_derivatives", "custom_jvp"),
    "custom_vjp": ("jax._src.custom_derivatives", "custom_vjp"),
    "custom_vmap": ("jax._src.custom_batching", "custom_vmap"),
    "ufunc": ("jax._src.numpy.ufunc_api", "ufunc"),
    "primitive": ("jax._src.core", "Primitive"),
    "tree structure": ("jaxlib._jax.pytree", "PyTreeDef"),
    "tree registry": ("jaxlib._jax.pytree", "PyTreeRegistry"),
    "device": ("jaxlib._jax", "Device"),
    "mesh": ("jax._src.mesh", "Mesh"),
    "abstract mesh": ("jax._src.mesh", "AbstractMesh"),
    "named sharding": ("jax._src.named_sharding", "NamedSharding"),
    "single device sharding": ("jax._src.sharding_impls", "SingleDeviceSharding"),
    "partition spec": ("jax._src.partition_spec", "PartitionSpec"),
    "shape": ("jax._src.api", "ShapeDtypeStruct"),
    "abstract array": ("jax._src.core", "ShapedArray"),
    "exported": ("jax._src.export._export", "Exported"),
    "random implementation": ("jax._src.random.prng", "PRNGImpl"),
    "key type": ("jax._src.random.prng", "KeyTy"),
    "partial": ("jax._src.tree_util", "Partial"),
    "traceback": ("jaxlib._jax", "Traceback"),
    "closed jaxpr": ("jax._src.core", "ClosedJaxpr"),
    "jaxpr": ("jax._src.core", "Jaxpr"),
    "automatic layout": ("jax._src.layout", "AutoLayoutSingleton"),
    "literal array": ("jax._src.literals", "TypedNdArray"),
    "cache": ("jaxlib.weakref_lru_cache", "WeakrefLRUCache"),
    "lowered": ("jax._src.stages", "Lowered"),
    "compiled": ("jax._src.stages", "Compiled"),
    "tracer": ("jax._src.core", "Tracer"),
}
"""What we call a type of jax, with the module that defines it and its name there."""

_LIBRARY = frozenset({"jax", "jaxlib"})
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
    return isinstance(module, str) and module.partition(".")[0] in _LIBRARY


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
