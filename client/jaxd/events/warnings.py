"""Warnings of the server about calls, issued as Python warnings, each once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import (
    CompileAdvice,
    SharedDeviceWarning,
    SkewWarning,
    ValuesDiedWarning,
)

_SHARED_PACKAGES = frozenset({"jax", "jaxlib", "numpy"})
"""Nearly every function needs them: warned of once, not once for each function."""

_MAX_CALLS = 256
"""Calls with warnings that are not issued yet; more are those of abandoned calls."""

_CATEGORIES: Mapping[str, type[Warning]] = {
    "advice": CompileAdvice,
    "device": SharedDeviceWarning,
    "memory": ValuesDiedWarning,
}
"""Categories of the warnings that are not about packages."""


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
        self._of_server: list[Callable[[], object]] = []
        self._of_calls = BoundedDict[tuple[object, int], list[Callable[[], object]]](_MAX_CALLS)

    def run_later(self, connection: object, number: int, act: Callable[[], object]) -> None:
        """Calls `act` in the thread of the call once its reply has arrived."""
        with self._lock:
            self._of_calls.setdefault((connection, number), []).append(act)
            self.has_pending = True

    def event(self, connection: object, number: int, content: dict[str, Any]) -> None:
        """Adds a warning of the server about call `number` of a connection; issues nothing yet."""
        words = (str(content.get(name, "")) for name in _PendingWarning._fields)
        self.run_later(connection, number, partial(self._warn_once, _PendingWarning(*words)))

    def compare_versions(self, theirs: Mapping[str, str]) -> None:
        """Adds a warning for each package of which this process and the server differ."""
        for name in sorted(_SHARED_PACKAGES & theirs.keys()):
            ours = getattr(sys.modules.get(name), "__version__", theirs[name])
            if ours != theirs[name]:
                self._add(
                    f"{name} is {ours} here and {theirs[name]} on the server: results come "
                    "from the server's.",
                    package=name,
                )

    def add_device_warning(self, text: str) -> None:
        """Adds a warning that this process and the server use the same device."""
        self._add(text, category="device")

    def add_memory_warning(self, notice: str) -> None:
        """Adds a warning that this process's arrays died, and of what; it may need none of them."""
        self._add(
            f"the arrays of this process on the server died with its worker, {notice}.",
            category="memory",
        )

    def _add(self, text: str, package: str = "", category: str = "") -> None:
        warning = _PendingWarning("any function", package, text, category)
        with self._lock:
            self._of_server.append(partial(self._warn_once, warning))
            self.has_pending = True

    def issue(self, connection: object, number: int) -> None:
        """Issues the warnings about this call and about the server, at the line of the call.

        Raises:
            Warning: where the user's filters turn it into an error.
        """
        with self._lock:
            acts = self._of_server + self._of_calls.pop((connection, number), [])
            self._of_server = []
            self.has_pending = bool(self._of_calls)
        for act in acts:
            act()

    def _warn_once(self, warning: _PendingWarning) -> None:
        is_shared = warning.function and warning.package in _SHARED_PACKAGES
        what = _PendingWarning("", warning.package, "") if is_shared else warning
        with self._lock:
            if what in self._issued:
                return
            self._issued.add(what)
        from jaxd_protocol.packages.installed import warn_user

        category = _CATEGORIES.get(warning.category, SkewWarning)
        warn_user(warning.text, category)
