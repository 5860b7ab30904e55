"""How jax takes our arrays wherever it takes its own.

jax takes an object for an array in three ways: it is an instance of `jax.Array`, its class has an
abstract value, and its class has a way to become an array. The first is a subclass; the other two
are private tables, named here and nowhere else. All of it happens in a process that has imported
jax, when an array of ours first meets it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import lru_cache
from typing import Any

from jaxd.array_like import ArrayLike
from jaxd.jax_side import at_once, loaded_jax

__all__ = ["array_class", "key_dtype", "leaf_class", "register"]


@lru_cache(maxsize=8)
def leaf_class(cls: type[ArrayLike]) -> type[ArrayLike]:
    """`cls` as a subclass of `jax.Array`, known to jax. Call it once jax is loaded.

    Its attributes are those of `cls`; what only `jax.Array` has, the array itself answers, but for
    `aval` and `sharding`, which `jnp.zeros_like` and `jax.eval_shape` ask for: nothing moves.
    """
    base = loaded_jax().Array
    theirs = [name for name in vars(base) if name != "__slots__" and not hasattr(cls, name)]
    forwards = {name: _ask_the_array(name) for name in theirs}
    known = {
        "aval": property(_abstract),
        "sharding": property(_where_it_would_lie),
        "_committed": False,  # else jit would compile for it what it has compiled for arrays
    }
    names = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    found = type(cls.__name__, (cls, base), forwards | known | names)
    for each in (cls, found):  # arrays that are older than the import of jax stay `cls`
        register(each)
    return found


def register(cls: type[ArrayLike]) -> None:
    """Tells jax about a class; where its tables have moved, `jax.jit(f)(x)` refuses the array."""
    with suppress(KeyError, AttributeError):
        sys.modules["jax._src.core"].pytype_aval_mappings[cls] = _abstract
        sys.modules["jax._src.dtypes"].register_canonicalize_value_handler(cls, _as_jax)


@lru_cache(maxsize=1)
def array_class() -> type:
    """The class that the arrays of jax have."""
    return type(at_once(loaded_jax().device_put, 0))


@lru_cache(maxsize=16)
def key_dtype(impl: str) -> Any:
    """The dtype of typed PRNG keys. Computes nothing."""
    jax = loaded_jax()
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype


def _ask_the_array(name: str) -> property:
    return property(lambda self: getattr(self._touched(), name), doc=f"As `{name}` of the array.")


def _abstract(array: Any) -> Any:
    """The shape and dtype of an array as jax has them."""
    shaped = loaded_jax().core.ShapedArray
    return shaped(array.shape, array.dtype, weak_type=array.weak_type)


def _where_it_would_lie(_: Any) -> Any:
    return _sharding_on(loaded_jax().config.jax_default_device)


@lru_cache(maxsize=8)
def _sharding_on(_: Any) -> Any:
    return at_once(loaded_jax().device_put, 0).sharding


def _as_jax(array: Any) -> Any:
    return array.__jax_array__()
