"""A jax object as text that is equal for equal content, made only of the functions under test."""

from __future__ import annotations

import hashlib
from types import FunctionType
from typing import Any

import numpy as np

from jaxd_protocol.jax_objects.decomposition import array_content, decompose
from jaxd_protocol.packages.importable import importable_name


def digest(value: Any) -> str:
    """A hash of the text, to hand between processes."""
    return hashlib.blake2b(repr(StructureDigest().show(value)).encode(), digest_size=8).hexdigest()


class StructureDigest:
    """One walk; what it meets again has a number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def show(self, value: Any) -> Any:
        """Nested tuples of plain values."""
        if isinstance(value, str | int | float | bytes | bool | None | np.dtype):
            return str(type(value).__name__), str(value)
        object_parts = decompose(value)
        if isinstance(value, tuple) or (object_parts is not None and object_parts.is_value):
            return self._once(value)
        if id(value) in self._numbers:
            return "again", self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        self._kept.append(value)
        return self._once(value)

    def _once(self, value: Any) -> Any:
        object_parts = decompose(value)
        if object_parts is not None:
            children = tuple((label, self.show(child)) for label, child in object_parts.children)
            return object_parts.kind, object_parts.settings, children
        content = array_content(value)
        if content is not None:
            return *content[:4], content.data.tobytes()
        if isinstance(value, list | tuple):
            return type(value).__name__, tuple(self.show(item) for item in value)
        if isinstance(value, dict):
            return tuple((key, self.show(item)) for key, item in value.items())
        return self._other(value)

    def _other(self, value: Any) -> Any:
        name = importable_name(value)
        if name is not None:
            return name
        if isinstance(value, FunctionType):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            return value.__code__.co_code, tuple(self.show(cell) for cell in cells)
        try:
            reduced = value.__reduce_ex__(4)
        except TypeError as error:
            raise TypeError(f"no content: {type(value)} {value}") from error
        return reduced if isinstance(reduced, str) else tuple(map(self.show, reduced[:3]))
