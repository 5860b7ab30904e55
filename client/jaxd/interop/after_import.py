"""Calls back when modules are imported, without importing them."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from types import ModuleType
from typing import Any


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls back when one of some modules has been imported; to be put into `sys.meta_path`.

    Args:
        names: of the modules.
        imported: is called with the module.
    """

    def __init__(self, names: Container[str], imported: Callable[[ModuleType], None]) -> None:
        self._names = names
        self._imported = imported
        self._searching = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec that others find, with a loader that calls back."""
        if fullname not in self._names or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            spec = next(self._found(fullname, path, target), None)
        finally:
            self._searching.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self._imported)
        return spec

    def _found(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> Iterator[importlib.machinery.ModuleSpec]:
        for finder in list(sys.meta_path):
            spec = finder.find_spec(fullname, path, target) if finder is not self else None
            if spec is not None:
                yield spec


class _CallingLoader(importlib.abc.Loader):
    """Loads as another loader does, puts that one back, and calls back."""

    def __init__(
        self, loader: importlib.abc.Loader, imported: Callable[[ModuleType], None]
    ) -> None:
        self._loader = loader
        self._imported = imported

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)  # `get_source` and others, for who only looks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """What the other loader creates."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module as the other loader does."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._imported(module)
