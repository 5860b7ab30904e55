"""What equinox and flax keep about a class outside of the class, and how to register it again.

Private names: `equinox._module._module` with `_module_info`, `_ModuleInfo`, `_has_dataclass_init`
and `_abstract_module_registry`; `equinox._module._flatten.generate_flatten_functions`;
`flax.serialization._STATE_DICT_REGISTRY`; the classes of `flax.nnx` that register their
subclasses. tests/shared/jax_objects/test_libraries.py notices when they move.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from functools import partial
from typing import Any

_EQUINOX = "equinox._module._module"
_SERIALIZATION = "flax.serialization"

FLAX_HOOKS = {
    "flax.nnx.pytreelib": "Pytree",
    "flax.nnx.variablelib": "Variable",
    "flax.nnx.statelib": "State",
}
"""The classes of `flax.nnx`, by module, that register each subclass with flax and jax."""


def library_registration(cls: type) -> tuple[str, tuple[Any, ...]] | None:
    """Which library registers the class, and what it was told; None when none does."""
    equinox = sys.modules.get(_EQUINOX)
    if equinox is not None and cls in equinox._module_info:
        is_abstract = cls in equinox._abstract_module_registry
        return "equinox", (equinox._has_dataclass_init[cls], is_abstract)
    if _flax_hook(cls) is not None:
        return "flax.nnx", (getattr(cls, "_pytree__is_pytree", None),)
    return None


def register_with_library(cls: type, library: str, told: tuple[Any, ...]) -> None:
    """Registers a class that has arrived as its library does when the class is defined."""
    if library == "equinox":
        _register_with_equinox(cls, *told)
    else:
        _register_with_flax(cls, *told)


def state_dict_of(cls: type) -> tuple[Any, Any] | None:
    """The functions with which flax saves and restores instances; None when it does not."""
    serialization = sys.modules.get(_SERIALIZATION)
    return None if serialization is None else serialization._STATE_DICT_REGISTRY.get(cls)


def register_serialization(cls: type, functions: tuple[Any, Any]) -> None:
    """Tells flax how to save and restore instances of a class that has arrived."""
    serialization = importlib.import_module(_SERIALIZATION)
    serialization.register_serialization_state(cls, *functions, override=True)


def _register_with_equinox(cls: type, has_dataclass_init: bool, is_abstract: bool) -> None:
    import jax

    equinox = importlib.import_module(_EQUINOX)
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields)
    equinox._module_info[cls] = equinox._ModuleInfo(names_tuple=names, names_set=frozenset(names))
    equinox._has_dataclass_init[cls] = has_dataclass_init
    if is_abstract:
        equinox._abstract_module_registry.add(cls)
    flatten, with_keys, unflatten = importlib.import_module(
        "equinox._module._flatten"
    ).generate_flatten_functions(cls, fields)
    jax.tree_util.register_pytree_with_keys(
        cls,
        flatten_with_keys=with_keys,
        flatten_func=flatten,
        unflatten_func=partial(unflatten, cls),
    )


def _flax_hook(cls: type) -> Any:
    for base in cls.__mro__[1:]:
        name = FLAX_HOOKS.get(base.__module__)
        if name is not None and base.__name__ == name:
            return vars(base).get("__init_subclass__")
    return None


def _register_with_flax(cls: type, is_pytree: bool | None) -> None:
    """Runs flax's hook over the finished class, and undoes what it does to the class itself."""
    before = dict(vars(cls))
    # The hook reads annotations, which may name things that this process does not have.
    cls.__annotations__ = {}
    arguments = {} if is_pytree is None else {"pytree": is_pytree}
    _flax_hook(cls).__func__(cls, **arguments)
    for name in set(vars(cls)) - set(before):
        delattr(cls, name)
    for name, value in before.items():
        if vars(cls)[name] is not value:
            setattr(cls, name, value)
