"""Registration of our arrays with jax, and the pytree classes that this process has registered.

Nodes of trees are unflattened as this process has registered their class with jax. Mappings need no
jax. The rest uses `PyTreeDef.from_node_data_and_children`, which jax does not document.

jax accepts an object as an array when it is an instance of `jax.Array`, when its class has an
abstract value, and when its class can be canonicalized. The first is done by a subclass; the other
two are private tables, named here and nowhere else. The registration happens in a process that has
imported jax, when it first uses one of our arrays.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from jaxd.interop.jax_runtime import loaded_jax, outside_trace
from jaxd.interop.lazy_array import ArrayLike
from jaxd_protocol.errors import ResultError
from jaxd_protocol.pytree.decoder import FLAX_MAPPINGS


def is_registered(cls: type) -> bool:
    """Whether instances of a class can be made: by itself, or because jax is imported."""
    if cls in MAPPINGS:
        return True
    _register_of_chex(cls)
    try:
        return loaded_jax() is not None and _structure(cls, None, 0) is not None
    except (RuntimeError, ValueError):  # which of them depends on the version
        return False


def _register_of_chex(cls: type) -> None:
    """As the first instance of a dataclass of chex does it: this process may have made none."""
    chex = sys.modules.get("chex")
    restore = vars(cls).get("__setstate__")
    if chex is not None and getattr(restore, "__module__", None) == "chex._src.dataclass":
        chex.register_dataclass_type_with_jax_tree_util(cls)  # once; it keeps what it has done


def unflatten(cls: type, aux: Any, children: list[Any]) -> Any:
    """An instance, made as `jax.jit` makes those that it returns.

    Raises:
        ResultError: when the class does not take these.
    """
    try:
        if cls in MAPPINGS:
            return MAPPINGS[cls](aux, children)
        _check_fields(cls, aux, children)
        return _structure(cls, aux, len(children)).unflatten(children)
    except Exception as error:
        raise ResultError(
            f"the result holds a {cls.__module__}.{cls.__qualname__}, which cannot be made here: "
            f"{error}. Return dicts, lists and tuples from the function."
        ) from error


def _check_fields(cls: type, aux: Any, children: list[Any]) -> None:
    """Raises unless a dataclass has as many fields: jaxlib reads beyond too few children."""
    if "__dataclass_fields__" not in dir(cls):
        return
    from jaxd_protocol.jax_objects.registrations import class_registration

    found = class_registration(cls)
    if found is not None and found.style == "dataclass":
        data, static = found.parts
        if type(aux) is not tuple or (len(children), len(aux)) != (len(data), len(static)):
            raise ValueError(f"it has {len(data)} children and {len(static)} static fields")


def structure(tree: Any) -> Any:
    """The structure of a tree.

    Raises:
        ResultError: when jax is not imported, or cannot take the tree apart.
    """
    jax = loaded_jax()
    if jax is None:
        raise ResultError(
            "the result holds the structure of a tree, which only jax can make: import jax here, "
            "or return dicts, lists and tuples from the function."
        )
    try:
        return jax.tree.structure(tree)
    except Exception as error:
        raise ResultError(
            f"the result holds the structure of a tree, which cannot be made here: {error}. "
            "Return dicts, lists and tuples from the function."
        ) from error


def _structure(cls: type, aux: Any, count: int) -> Any:
    tools = loaded_jax().tree_util
    leaf = tools.tree_structure(0)
    make = tools.PyTreeDef.from_node_data_and_children
    return make(tools.default_registry, (cls, aux), [leaf] * count)


def mapping_class(module: str, name: str) -> type | None:
    """The class of that name whose instances are keys and values; None when it is no such."""
    if (module, name) in FLAX_MAPPINGS and module in sys.modules:
        found: type = getattr(sys.modules[module], name)
        MAPPINGS.setdefault(
            found, lambda keys, children: found(dict(zip(keys, children, strict=True)))
        )
    return next(
        (cls for cls in MAPPINGS if (cls.__module__, cls.__qualname__) == (module, name)), None
    )


def _default_dict(aux: Any, children: list[Any]) -> Any:
    factory, keys = aux
    return defaultdict(factory, zip(keys, children, strict=True))


MAPPINGS: Final[dict[type, Callable[[Any, list[Any]], Any]]] = {
    dict: lambda keys, children: dict(zip(keys, children, strict=True)),
    OrderedDict: lambda keys, children: OrderedDict(zip(keys, children, strict=True)),
    defaultdict: _default_dict,
}
"""Classes whose instances are keys and values, for which jax is not needed."""


@lru_cache(maxsize=8)
def leaf_class(cls: type[ArrayLike]) -> type[ArrayLike]:
    """`cls` as a subclass of `jax.Array`, registered with jax, which must be loaded.

    Its attributes are those of `cls`; those of `jax.Array` alone are forwarded to the array itself,
    but `aval` and `sharding`, which `jnp.zeros_like` and `jax.eval_shape` use, move no data.
    """
    base = loaded_jax().Array
    theirs = [name for name in vars(base) if name != "__slots__" and not hasattr(cls, name)]
    forwards = {name: _array_attribute(name) for name in theirs}
    known = {
        "aval": property(_abstract),
        "sharding": property(_default_device),
        "_committed": False,  # else jit would compile for it what it has compiled for arrays
    }
    names = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    found = type(cls.__name__, (cls, base), forwards | known | names)
    for each in (cls, found):  # arrays that are older than the import of jax stay `cls`
        register(each)
    return found


def register(cls: type[ArrayLike]) -> None:
    """Registers a class with jax; if its tables have moved, `jax.jit(f)(x)` refuses the array."""
    with suppress(KeyError, AttributeError):
        sys.modules["jax._src.core"].pytype_aval_mappings[cls] = _abstract
        dtypes = sys.modules["jax._src.dtypes"]
        if hasattr(dtypes, "register_canonicalize_value_handler"):
            dtypes.register_canonicalize_value_handler(cls, _as_jax)
        else:  # before jax 0.10
            dtypes.canonicalize_value_handlers[cls] = _as_jax


@lru_cache(maxsize=1)
def array_class() -> type:
    """The class that the arrays of jax have, but for tracers and typed PRNG keys."""
    return type(outside_trace(loaded_jax().device_put, 0))


@lru_cache(maxsize=16)
def key_dtype(impl: str) -> Any:
    """The dtype of typed PRNG keys. Computes nothing."""
    jax = loaded_jax()
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _array_attribute(name: str) -> property:
    return property(
        lambda self: getattr(self._materialized(), name), doc=f"As `{name}` of the array."
    )


def _abstract(array: Any) -> Any:
    """The shape and dtype of an array as jax has them."""
    shaped = loaded_jax().core.ShapedArray
    return shaped(array.shape, array.dtype, weak_type=array.weak_type)


def _default_device(_: Any) -> Any:
    return _sharding_on(loaded_jax().config.jax_default_device)


@lru_cache(maxsize=8)
def _sharding_on(_: Any) -> Any:
    return outside_trace(loaded_jax().device_put, 0).sharding


def _as_jax(array: Any) -> Any:
    return array.__jax_array__()
