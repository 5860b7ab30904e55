"""Installed modules, with what is patched into them in the client's process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jaxd_protocol.pickling.unpack.private_modules import PrivateModules


class PatchedModule(ModuleType):
    """An installed module with some attributes of a client's; all others are the server's own."""

    def __init__(self, real: ModuleType, attributes: Mapping[str, Any]) -> None:
        super().__init__(real.__name__, real.__doc__)
        for name in ("__package__", "__path__", "__spec__", "__file__"):
            if hasattr(real, name):
                vars(self)[name] = getattr(real, name)
        vars(self)["_jaxd_real"] = real
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_jaxd_real"], name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(vars(self)["_jaxd_real"])} - {"_jaxd_real"})


def installed_module(name: str) -> ModuleType:
    """A module of the server's own."""
    importlib.import_module(name)
    return sys.modules[name]


def patched_module(blob: PrivateModules, name: str, attributes: Mapping[str, Any]) -> ModuleType:
    """The installed module; with the client's attributes on top where the server's differ."""
    real = installed_module(name)
    if all(_same(vars(real).get(each, real), value) for each, value in attributes.items()):
        return real
    known = blob.patched_modules.get(name)
    if known is None:
        known = blob.patched_modules[name] = PatchedModule(real, attributes)
    return known


def _same(mine: Any, theirs: Any) -> bool:
    if mine is theirs:
        return True
    if type(mine) is not type(theirs):
        return False
    try:
        return bool(mine == theirs)
    except Exception:  # noqa: BLE001  arrays have no truth value, a user's == may do anything
        return False
