"""Interned classes and callables of a server's clients, each once per content.

A class that arrives twice, from two calls or two clients, is one class here, so that tree
structures stay equal and nothing is traced again. It is never written to after it was made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict

_MAX_CALLABLES: Final = 4096
_MAIN_MODULES: Final = frozenset({"__main__", "__mp_main__"})


class ClassId(NamedTuple):
    """What names a class on the wire.

    Attributes:
        content: sixteen bytes over all that it means.
        qualname, module: what it is called, and where it was written.
    """

    content: bytes
    qualname: str
    module: str


class _ClassTable:
    """Classes by id. A script may be `__main__` in one process and a module in the next."""

    def __init__(self) -> None:
        self._found: dict[tuple[bytes, str], dict[str, type]] = {}
        self._ids: dict[int, ClassId] = {}

    def find(self, name: ClassId) -> type | None:
        homes = self._found.get(name[:2], {})
        exact = homes.get(name.module)
        if exact is not None:
            return exact
        if name.module in _MAIN_MODULES:
            others = list(homes.values())
        else:
            others = [homes[main] for main in _MAIN_MODULES & homes.keys()]
        return others[0] if len(others) == 1 else None

    def add(self, name: ClassId, cls: type) -> None:
        self._found.setdefault((name.content, name.qualname), {})[name.module] = cls
        self._ids[id(cls)] = name

    def content_id_of(self, cls: type) -> ClassId | None:
        return self._ids.get(id(cls))


class ContentTable:
    """Classes (kept for ever) and callables (the least recently used of 4,096 goes first).

    Safe to use from several threads: what is being made is seen only by the thread that makes
    it, and the others wait.
    """

    def __init__(self, max_callables: int = _MAX_CALLABLES) -> None:
        self._making = threading.RLock()  # held while code is unpacked: its classes are half made
        self._classes = _ClassTable()
        self._pending: dict[ClassId, tuple[type, bool]] = {}  # guarded by _making; filled or not
        self._depth = 0
        self._lock = threading.Lock()  # guards the three below
        self._callables = BoundedDict[bytes, Any](max_callables)
        self._callable_ids: dict[int, bytes] = {}

    @contextmanager
    def unpacking(self) -> Iterator[None]:
        """Around the unpacking of code: its classes count when all of it has arrived."""
        with self._making:
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    for name, (cls, _) in self._pending.items():
                        self._classes.add(name, cls)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._pending.clear()

    def discard_wrong(self, is_right: Callable[[ClassId, type], bool]) -> None:
        """Releases classes that came in this unpacking and do not match their ids."""
        for name, (cls, _) in list(self._pending.items()):
            if not is_right(name, cls):
                del self._pending[name]

    def class_of(self, name: ClassId, make: Callable[[], type]) -> type:
        """The class of that id, made at the first call; only inside `unpacking`."""
        found = self._classes.find(name)
        if found is not None:
            return found
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = (make(), False)
        return pending[0]

    def fill_once(self, cls: type, fill: Callable[[], None]) -> None:
        """Completes a class that was made in this unpacking, once; no other is touched."""
        for name, (pending, filled) in self._pending.items():
            if pending is cls and not filled:
                self._pending[name] = (cls, True)
                fill()
                return

    def find_class(self, name: ClassId) -> type | None:
        """A complete class."""
        return self._classes.find(name)

    def callable_of(self, content: bytes, make: Callable[[], Any]) -> Any:
        """The callable of that content, made at the first call."""
        found = self._callable(content)
        if found is None:
            with self._making:
                found = self._callable(content)
                if found is None:
                    found = make()
                    self._keep(content, found)
        return found

    def content_id_of(self, value: Any) -> bytes | None:
        """The content id by which a class or callable came here; None for everything else."""
        if isinstance(value, type):
            name = self._classes.content_id_of(value)
            return None if name is None else name.content
        with self._lock:
            return self._callable_ids.get(id(value))

    def _callable(self, content: bytes) -> Any:
        with self._lock:
            return self._callables.use(content)

    def _keep(self, content: bytes, value: Any) -> None:
        with self._lock:
            oldest = self._callables.put(content, value)
            self._callable_ids[id(value)] = content
            if oldest is not None:
                self._callable_ids.pop(id(oldest), None)


content_table: Final = ContentTable()
"""That of this process."""
