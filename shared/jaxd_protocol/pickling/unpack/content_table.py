"""Interned classes and callables of a server's clients, each once per content.

A class that arrives twice, from two calls or two clients, is one class here, so that tree
structures stay equal and nothing is traced again. It is never changed after it was made.
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
        content: its content id, sixteen bytes.
        qualname, module: as in the client's process.
    """

    content: bytes
    qualname: str
    module: str


class ContentTable:
    """Classes (kept for ever) and callables (the least recently used of 4,096 goes first).

    Thread-safe: an object that is being made is visible only to the thread that makes it, and the
    others wait.
    """

    def __init__(self, max_callables: int = _MAX_CALLABLES) -> None:
        self._making = threading.RLock()  # held while code is unpacked: its classes are half made
        self._classes: dict[tuple[bytes, str], dict[str, type]] = {}  # by module below that
        self._class_ids: dict[int, bytes] = {}
        self._pending: dict[ClassId, tuple[type, bool]] = {}  # guarded by _making; filled or not
        self._depth = 0
        self._lock = threading.Lock()  # guards the three below
        self._callables = BoundedDict[bytes, Any](max_callables)
        self._callable_ids: dict[int, bytes] = {}

    @contextmanager
    def unpacking(self) -> Iterator[None]:
        """Around the unpacking of code: its classes are added when all of it has arrived."""
        with self._making:
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    for name, (cls, _) in self._pending.items():
                        self._classes.setdefault(name[:2], {})[name.module] = cls
                        self._class_ids[id(cls)] = name.content
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._pending.clear()

    def discard_wrong(self, is_right: Callable[[ClassId, type], bool]) -> None:
        """Releases classes of this unpacking that do not match their ids."""
        for name, (cls, _) in list(self._pending.items()):
            if not is_right(name, cls):
                del self._pending[name]

    def class_of(self, name: ClassId, make: Callable[[], type]) -> type:
        """The class of that id, made at the first call; only inside `unpacking`."""
        found = self.find_class(name)
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
        """A complete class; a script may be `__main__` in one process and a module in another."""
        modules = self._classes.get(name[:2], {})
        exact = modules.get(name.module)
        if exact is not None:
            return exact
        is_main = name.module in _MAIN_MODULES
        others = [cls for module, cls in modules.items() if is_main or module in _MAIN_MODULES]
        return others[0] if len(others) == 1 else None

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
        """The content id of a class or callable of a client; None for anything else."""
        if isinstance(value, type):
            return self._class_ids.get(id(value))
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
"""The content table of this process."""
