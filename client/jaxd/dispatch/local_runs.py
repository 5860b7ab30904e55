"""Whether calls run in this process that the server cannot answer, and how many did."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any, Final, Protocol

from jaxd.connection.settings import Settings
from jaxd.interop.jax_runtime import import_jax, loaded_jax, started_platform
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import ConfigurationError, JaxdError

_REPORT_INTERVAL_S: Final = 1.0


class ServerSession(Protocol):
    """What is asked of a session, see `jaxd.dispatch.session.Session`."""

    settings: Settings

    @property
    def platform(self) -> str:
        """What kind of device the server computes on."""

    def current(self) -> Any:
        """Connects where it is not connected; raises `JaxdError` where it cannot."""


def runs_locally(session: ServerSession, chosen: str | None, *, is_connected: bool = False) -> bool:
    """Whether calls that the server cannot answer run in this process; jax is imported then.

    Args:
        session: with the server.
        chosen: the option of the function.
        is_connected: whether the server has just answered, so that nobody has to wait for it.
    """
    chosen = chosen or session.settings.fallback
    if chosen == "error" or (chosen is None and loaded_jax() is None):
        return False
    if chosen == "local" and started_platform() is not None:
        return True
    try:
        if not is_connected:
            session.current()  # which keeps jax of this process off the GPU of a server beside it
    except JaxdError:
        if chosen is None:
            return False
    if chosen is None:
        return default_platform(session.platform) == session.platform
    with suppress(JaxdError):
        import_jax(ConfigurationError, "fallback='local' needs jax in this process.")
    return loaded_jax() is not None


def default_platform(servers: str) -> str | None:
    """The kind of jax's default device here; no accelerator is taken to find it out."""
    device = loaded_jax().config.jax_default_device
    if device is not None:
        return str(getattr(device, "platform", device))
    found = started_platform()
    return str(loaded_jax().default_backend()) if found is None and servers == "cpu" else found


class FallbackCounts:
    """The counts of such calls that were not reported yet to the server. Thread-safe.

    Attributes:
        pending: whether there are any; cheap to ask.
    """

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forgets those of the parent, which reports them itself."""
        self._lock = threading.Lock()  # guards all of these
        self._calls = self._functions = 0
        self._next_s = 0.0
        self.pending = False

    def add(self, *, new_function: bool) -> bool:
        """Counts one call; whether the counts are to be reported now."""
        with self._lock:
            self._calls += 1
            self._functions += new_function
            self.pending = True
            return time.monotonic() >= self._next_s

    def take(self) -> tuple[int, int]:
        """The numbers of calls and of functions that are to be reported; they are zero then."""
        with self._lock:
            found = self._calls, self._functions
            self._calls = self._functions = 0
            self._next_s = time.monotonic() + _REPORT_INTERVAL_S
            self.pending = False
            return found
