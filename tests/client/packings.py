"""Records what a module packs."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from jaxd_protocol.pickling.pack.arguments import pack

if TYPE_CHECKING:
    import pytest


def record_packings(monkeypatch: pytest.MonkeyPatch, module: ModuleType, store: str) -> list[Any]:
    """All that `module` packs from now on, in order; it has packed nothing yet.

    Args:
        monkeypatch: undoes it.
        module: has `pack`.
        store: the name of what it remembers there.
    """
    found: list[Any] = []

    def noted(value: Any, what: str) -> Any:
        found.append(value)
        return pack(value, what)

    monkeypatch.setattr(module, "pack", noted)
    monkeypatch.setattr(module, store, {})
    return found
