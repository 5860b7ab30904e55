"""The name under which an object of an installed module can be imported.

The `__module__` and `__qualname__` of an object do not always lead to it: on Python 3.11
`jax.Array` has the name `jaxlib._jax.Array` in the module `jax`. So each name is tried and counts
only when it leads to this very object.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, NamedTuple

from jaxd_protocol.packages.installed import is_local_module

_missing = object()


class _IndexedModule(NamedTuple):
    """What a module had when it was looked at.

    Attributes:
        name: of the module.
        ids: of its objects, in its own order.
        names: of the objects, by id; the first of each.
    """

    name: str
    ids: tuple[int, ...]
    names: dict[int, str]


# Where an object was found, by its id. A hint: each use looks there again, so a stale entry is
# harmless. Only objects that a module holds get in, so the table does not grow with calls.
_known_names: dict[int, tuple[str, str]] = {}
# For each package, how many modules there were when it was indexed, and its modules, public ones
# first.
_indexes: dict[str, tuple[int, list[_IndexedModule]]] = {}


def importable_name(value: Any) -> tuple[str, str] | None:
    """Module and dotted name that lead to `value` itself; None when there are none.

    Only installed modules count: what a local module holds travels by value. The module is one
    that is in `sys.modules`, so that `importlib.import_module` can find it on the other end.
    """
    hint = _known_names.get(id(value))
    if hint is not None and _look_up(*hint) is value:
        return hint
    found = _declared_name(value)
    if found is not None:
        _known_names[id(value)] = found
    return found


def name_within(package: str, value: Any) -> tuple[str, str] | None:
    """Where in the loaded modules of `package` this very object is; public modules come first.

    For objects without a `__qualname__`. The first call indexes all modules of the package.
    """
    sought = id(value)
    for module in _index(package):
        name = module.names.get(sought)
        if name is not None:
            return (module.name, name) if _look_up(module.name, name) is value else None
    return None


def find_object(module: str, name: str) -> Any:
    """The object of that name, importing the module if need be; without a name, the module.

    Raises:
        ImportError: when this process has no such module, or the module no such name.
    """
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part, _missing)
        if found is _missing:
            raise ImportError(
                f"the server's {module} has no {name}: install the caller's version of "
                f"{module.partition('.')[0]} on the server"
            )
    return found


def _declared_name(value: Any) -> tuple[str, str] | None:
    module = getattr(value, "__module__", None)
    if not isinstance(module, str):
        return None
    root, inner = _loaded_part(module)
    if not root or is_local_module(root):
        return None
    for name in _names(value):
        if _look_up(root, inner + name) is value:
            return root, inner + name
    # The types of None, of functions and the like have `builtins` as module, and are in `types`.
    return name_within("types", value) if module == "builtins" else None


def _loaded_part(module: str) -> tuple[str, str]:
    # `jaxlib._jax.pytree` is an attribute of an extension module and not in `sys.modules`.
    root, inner = module, ""
    while root and root not in sys.modules:
        root, _, last = root.rpartition(".")
        inner = f"{last}.{inner}"
    return root, inner


def _names(value: Any) -> list[str]:
    declared = [getattr(value, attribute, None) for attribute in ("__qualname__", "__name__")]
    names = [name for name in declared if isinstance(name, str) and name]
    return list(dict.fromkeys([*names, *(name.rpartition(".")[2] for name in names)]))


def _look_up(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module, _missing)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except Exception:  # noqa: BLE001 - a module's own __getattr__ may raise anything
            return _missing
    return found


def _index(package: str) -> list[_IndexedModule]:
    count, known = _indexes.get(package, (0, []))
    if count != len(sys.modules):
        count = len(sys.modules)
        known = _indexed(package, {module.name: module for module in known})
        _indexes[package] = count, known
    return known


def _indexed(package: str, known: dict[str, _IndexedModule]) -> list[_IndexedModule]:
    """The modules of a package; those that have what they had are not indexed again."""
    prefix = package + "."
    names = [name for name in sys.modules.copy() if name == package or name.startswith(prefix)]
    found = []
    for name in sorted(names, key=lambda name: ("._" in name, name.count("."), name)):
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            before = known.get(name)
            if before is None or before.ids != tuple(map(id, vars(module).values())):
                content = vars(module).copy()
                ids = tuple(map(id, content.values()))
                by_id = dict(zip(reversed(ids), reversed(content), strict=True))
                before = _IndexedModule(name, ids, by_id)
            found.append(before)
    return found
