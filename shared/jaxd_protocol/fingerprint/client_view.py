"""The process view of a client, as it was reported to the server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

from jaxd_protocol.fingerprint.model import Source
from jaxd_protocol.packages.installed import is_local_module
from jaxd_protocol.packages.packages import Package


class ClientProcess(NamedTuple):
    """The client's process, as reported to a server: it replays what the client decided.

    Attributes:
        salt, packages, local, carried: what the client said.
        modules: the client's local modules, as they arrived.
        sources: those of them that are not imported yet.
    """

    salt: bytes
    packages: Mapping[str, Package]
    local: Mapping[str, bool]
    carried: frozenset[str]
    modules: Mapping[str, ModuleType] = {}
    sources: Mapping[str, Source] = {}

    def is_local(self, module: str) -> bool:
        """What the client reported; a module that it did not reach is checked in this process."""
        said = self.local.get(module)
        return is_local_module(module) if said is None else said

    def package(self, module: str) -> Package | None:
        """The client's version."""
        parts = module.split(".")
        names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        return next((self.packages[name] for name in names if name in self.packages), None)

    def module(self, name: str) -> ModuleType | None:
        """The client's own module before one of this process."""
        came = self.modules.get(name)
        return came or (None if self.is_local(name) else sys.modules.get(name))

    def source(self, name: str) -> Source | None:
        """The source that came with the function."""
        return self.sources.get(name)

    def carries(self, module: ModuleType, name: str, value: Any) -> bool:
        """What the client said."""
        return f"{module.__name__}:{name}" in self.carried
