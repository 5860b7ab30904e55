"""Making a class of the user's own again, from its parts.

What a class statement sets in motion (a metaclass's `__new__`, the `__init_subclass__` of a base,
a library's decorator) has run where the class was defined, and its effects are in the class's
namespace. Running it again over a namespace that is still empty would do something else: flax
would register a dataclass without fields, a registry of the user's would hold the class twice, a
hook with arguments would fail. So the class is made without it; `finish_class` then repeats what
a library keeps outside of the class.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# Held while hooks of base classes are replaced. Other threads may define subclasses meanwhile:
# the replacement looks at the thread.
_hooks_lock = threading.RLock()


def build_class(
    meta: type, name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]
) -> type:
    """A new class without running any code of its metaclass, its bases or their libraries.

    Args:
        meta: the metaclass.
        name: the class's name.
        bases: what the class has as `__bases__`.
        namespace: what cannot be set later: `__slots__` and its like.
    """
    # Python 3.12's `Generic` has its hook in C. An empty `__orig_bases__` keeps it content.
    whole = {"__orig_bases__": ()} | dict(namespace)
    with _hooks_lock, _disabled_hooks(bases):
        cls: type = _new(meta)(meta, name, bases, whole)
    if "__orig_bases__" not in namespace:
        type.__delattr__(cls, "__orig_bases__")
    return cls


def _new(meta: type) -> Any:
    if issubclass(meta, abc.ABCMeta):
        return abc.ABCMeta.__new__
    # The nearest one in C: a metaclass may be an extension's.
    for base in meta.__mro__:
        found = vars(base).get("__new__")
        if found is not None and not isinstance(found, staticmethod):
            return found
    return type.__new__


def _hook_owners(bases: tuple[type, ...]) -> list[type]:
    owners = dict.fromkeys(owner for base in bases for owner in base.__mro__)
    return [owner for owner in owners if isinstance(_hook_of(owner), classmethod)]


def _hook_of(owner: type) -> Any:
    return vars(owner).get("__init_subclass__")


@contextmanager
def _disabled_hooks(bases: tuple[type, ...]) -> Iterator[None]:
    kept = {owner: _hook_of(owner) for owner in _hook_owners(bases)}
    for owner, hook in kept.items():
        type.__setattr__(owner, "__init_subclass__", _in_other_threads(hook))
    try:
        yield
    finally:
        for owner, hook in kept.items():
            type.__setattr__(owner, "__init_subclass__", hook)


def _in_other_threads(hook: Any) -> Any:
    builder = threading.get_ident()

    def instead(cls: type, /, **arguments: Any) -> None:
        if threading.get_ident() != builder:
            hook.__get__(None, cls)(**arguments)

    return classmethod(instead)
