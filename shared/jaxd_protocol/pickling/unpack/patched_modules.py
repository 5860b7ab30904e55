"""Installed modules as the code of a client finds them on a server, where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


class PatchedModule(ModuleType):
    """An installed module with some attributes of a client's; the others are the server's own."""

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
