"""Warnings of the server about calls, issued as Python warnings, each once."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import forget_after_fork
from jaxd_protocol.errors import CompileAdvice, SharedDeviceWarning, SkewWarning

_EVERYWHERE = frozenset({"jax", "jaxlib", "numpy"})
"""Nearly every function needs them: said once, not once for each function."""

_MAX_CALLS = 256
"""Calls with something to say of which nobody took it; those were given up."""


_ANY = "any function"

_CATEGORIES: Mapping[str, type[Warning]] = {
    "advice": CompileAdvice,
    "device": SharedDeviceWarning,
}
"""Of what is not about packages."""


class _Notice(NamedTuple):
    function: str
    package: str
    text: str
    category: str = ""


class Notices:
    """Collects warnings in the reading thread, and issues them in the thread of the call.

    Only there may a warning become an exception. Thread-safe.

    Attributes:
        waiting: whether there may be anything to issue; cheap to ask.
    """

    def __init__(self) -> None:
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the calls of the parent, as the child of a fork must."""
        self._lock = threading.Lock()  # guards all of these
        self.waiting = False
        self._said: set[_Notice] = set()
        self._of_calls = BoundedDict[tuple[object, int], list[_Notice]](_MAX_CALLS)
        self._of_server: list[_Notice] = []
        self._later = BoundedDict[tuple[object, int], list[Callable[[], object]]](_MAX_CALLS)

    def later(self, connection: object, number: int, act: Callable[[], object]) -> None:
        """Has `act` called in the thread whose call this is, when its reply is here."""
        with self._lock:
            self._later.setdefault((connection, number), []).append(act)
            self.waiting = True

    def event(self, connection: object, number: int, content: dict[str, Any]) -> None:
        """Notes what the server says of call `number` of a connection; warns of nothing yet."""
        words = (str(content.get(name, "")) for name in _Notice._fields)
        with self._lock:
            self._of_calls.setdefault((connection, number), []).append(_Notice(*words))
            self.waiting = True

    def compare(self, theirs: Mapping[str, str]) -> None:
        """Notes which packages that this process has loaded the server has in other versions."""
        with self._lock:
            for name in sorted(_EVERYWHERE & theirs.keys()):
                ours = getattr(sys.modules.get(name), "__version__", theirs[name])
                if ours != theirs[name]:
                    text = (
                        f"{name} is {ours} here and {theirs[name]} on the server: results come "
                        "from the server's."
                    )
                    self._of_server.append(_Notice(_ANY, name, text))
                    self.waiting = True

    def of_device(self, text: str) -> None:
        """Notes that this process and the server are in each other's way on a device."""
        with self._lock:
            self._of_server.append(_Notice(_ANY, "", text, "device"))
            self.waiting = True

    def issue(self, connection: object, number: int) -> None:
        """Warns, in the line that called, of what was heard of this call and of the server.

        Raises:
            Warning: where the user's filters turn it into an error.
        """
        with self._lock:
            acts = self._later.pop((connection, number), [])
            heard = self._of_server + self._of_calls.pop((connection, number), [])
            self._of_server = []
            self.waiting = bool(self._of_calls or self._later)
            fresh = [notice for notice in heard if self._is_new(notice)]
        for act in acts:
            act()
        for notice in fresh:
            from jaxd.request.stacklevel import users_level

            category = _CATEGORIES.get(notice.category, SkewWarning)
            warnings.warn(notice.text, category, users_level())

    def _is_new(self, notice: _Notice) -> bool:
        once = notice.function and notice.package in _EVERYWHERE
        what = _Notice("", notice.package, "") if once else notice
        new = what not in self._said
        self._said.add(what)
        return new
