"""Warnings of the server about calls, issued as Python warnings, each once."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import CompileAdvice, SharedDeviceWarning, SkewWarning

_SHARED_PACKAGES = frozenset({"jax", "jaxlib", "numpy"})
"""Nearly every function needs them: said once, not once for each function."""

_MAX_CALLS = 256
"""Calls with something to say of which nobody took it; those were given up."""


_ANY_FUNCTION = "any function"

_CATEGORIES: Mapping[str, type[Warning]] = {
    "advice": CompileAdvice,
    "device": SharedDeviceWarning,
}
"""Of what is not about packages."""


class _PendingWarning(NamedTuple):
    function: str
    package: str
    text: str
    category: str = ""


class WarningQueue:
    """Collects warnings in the reading thread, and issues them in the thread of the call.

    Only there may a warning become an exception. Thread-safe.

    Attributes:
        has_pending: whether there may be anything to issue; cheap to ask.
    """

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forgets the calls of the parent, as the child of a fork must."""
        self._lock = threading.Lock()  # guards all of these
        self.has_pending = False
        self._issued: set[_PendingWarning] = set()
        self._call_warnings = BoundedDict[tuple[object, int], list[_PendingWarning]](_MAX_CALLS)
        self._server_warnings: list[_PendingWarning] = []
        self._deferred = BoundedDict[tuple[object, int], list[Callable[[], object]]](_MAX_CALLS)

    def run_later(self, connection: object, number: int, act: Callable[[], object]) -> None:
        """Has `act` called in the thread whose call this is, when its reply is here."""
        with self._lock:
            self._deferred.setdefault((connection, number), []).append(act)
            self.has_pending = True

    def event(self, connection: object, number: int, content: dict[str, Any]) -> None:
        """Notes what the server says of call `number` of a connection; warns of nothing yet."""
        words = (str(content.get(name, "")) for name in _PendingWarning._fields)
        with self._lock:
            self._call_warnings.setdefault((connection, number), []).append(_PendingWarning(*words))
            self.has_pending = True

    def compare_versions(self, theirs: Mapping[str, str]) -> None:
        """Notes which packages that this process has loaded the server has in other versions."""
        with self._lock:
            for name in sorted(_SHARED_PACKAGES & theirs.keys()):
                ours = getattr(sys.modules.get(name), "__version__", theirs[name])
                if ours != theirs[name]:
                    text = (
                        f"{name} is {ours} here and {theirs[name]} on the server: results come "
                        "from the server's."
                    )
                    self._server_warnings.append(_PendingWarning(_ANY_FUNCTION, name, text))
                    self.has_pending = True

    def add_device_warning(self, text: str) -> None:
        """Notes that this process and the server are in each other's way on a device."""
        with self._lock:
            self._server_warnings.append(_PendingWarning(_ANY_FUNCTION, "", text, "device"))
            self.has_pending = True

    def issue(self, connection: object, number: int) -> None:
        """Warns, in the line that called, of what was heard of this call and of the server.

        Raises:
            Warning: where the user's filters turn it into an error.
        """
        with self._lock:
            acts = self._deferred.pop((connection, number), [])
            heard = self._server_warnings + self._call_warnings.pop((connection, number), [])
            self._server_warnings = []
            self.has_pending = bool(self._call_warnings or self._deferred)
            fresh = [notice for notice in heard if self._is_new(notice)]
        for act in acts:
            act()
        for notice in fresh:
            from jaxd.request.stacklevel import user_stacklevel

            category = _CATEGORIES.get(notice.category, SkewWarning)
            warnings.warn(notice.text, category, user_stacklevel())

    def _is_new(self, notice: _PendingWarning) -> bool:
        once = notice.function and notice.package in _SHARED_PACKAGES
        what = _PendingWarning("", notice.package, "") if once else notice
        new = what not in self._issued
        self._issued.add(what)
        return new
