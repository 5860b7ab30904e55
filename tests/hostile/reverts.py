"""The fixes that a run can revert in its victim, to show that it finds what they fix.

Each name stands for one hole; its function puts back, in the process that it is called in, what
was allowed before the fix.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final


def _loaded(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found


def _results() -> None:
    """A result may hold an instance of any loaded class, and anything that has a name."""
    from jaxd.results import local_objects

    def node(self: Any, module: str, name: str) -> Any:
        found = _loaded(module, name)
        return found if isinstance(found, type) else None

    def brought(self: Any, module: str, name: str) -> Any:
        found = _loaded(module, name)
        return local_objects._missing if found is None else found

    changed: Any = local_objects.LocalObjects
    changed._installed_node = node
    changed._installed_object = brought
    changed._FINDERS = {**changed._FINDERS, "i": brought}


class _Finder:
    """Finds the target that a server names: from any object to whatever hangs there."""

    def __init__(self, snapshot: Any) -> None:
        self._objects = snapshot._walk_result.reach.numbered

    def at(self, callback_target: Any) -> Any:
        """What is there."""
        kind, *rest = callback_target
        return getattr(self, f"_{kind}")(*rest)

    def _object(self, number: int) -> Any:
        return self._objects[number]

    def _get(self, owner: Any, name: str) -> Any:
        return getattr(self.at(owner), name)

    def _partial(self, function: Any, args: Any, named: Any) -> Any:
        return functools.partial(self.at(function), *map(self.at, args))

    def _value(self, value: Any) -> Any:
        return value

    def _array(self, value: Any) -> Any:
        import numpy as np

        return np.array(value)


def _callback_targets() -> None:
    """A callback may be aimed at anything that the function reaches, and at methods of data."""
    from jaxd.events import jax_callbacks

    before: Any = jax_callbacks._resolve

    def aimed(snapshot: Any, given: Any, skeleton: bytes, blob: bytes, buffers: Any) -> Any:
        with snapshot.pickling_context():
            callback_target, *_, args, kwargs = snapshot.reader.read(
                skeleton, blob, buffers, "auto"
            )
        if type(callback_target) is bytes:
            return before(snapshot, given, skeleton, blob, buffers)
        return _Finder(snapshot).at(callback_target), args, kwargs

    changed: Any = jax_callbacks
    changed._resolve = aimed


def _warnings() -> None:
    """The file that a server's warning names is opened here."""
    from jaxd.events import output

    changed: Any = output
    changed.display_file = lambda file: file


def _reads() -> None:
    """A client tells a server whatever it asks of its process."""
    from jaxd.request import process_answers

    answers: dict[str, Any] = {
        "variable": lambda _, name: sys.modules["os"].environ.get(name),
        "file": lambda _, name: process_answers._content(name),
    }
    changed: Any = process_answers
    changed._ANSWERS = {**process_answers._ANSWERS, **answers}


REVERTS: Final[Mapping[str, Callable[[], None]]] = {
    "C1": _results,
    "C2": _callback_targets,
    "R": _reads,
    "W": _warnings,
}
"""By the hole that each opens again."""


def revert(names: Iterable[str]) -> None:
    """Puts back what was allowed before these fixes."""
    for name in names:
        REVERTS[name]()
