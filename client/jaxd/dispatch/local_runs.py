"""Whether calls run in this process that the server cannot answer, how many, and which did before.

A function that no server can answer is walked over, packed and refused before it runs here. In test
suites that would be so in each run, and in each worker of xdist. So it is written down, and the
next process runs it here at once, as it would have done in the end. It is tried again when a file
of the user's code, the installed packages or the server are others than they were then, and after a
day.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final, Protocol

from jaxd.connection.settings import Settings
from jaxd.interop.jax_runtime import (
    import_jax,
    jax_changes,
    loaded_jax,
    started_platform,
)
from jaxd_protocol import __version__
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import ConfigurationError, JaxdError
from jaxd_protocol.network.local_server import cache_root, make_private_directory
from jaxd_protocol.packages.installed import content_of, is_local_file, is_local_module

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


def has_several_devices(servers: str) -> bool:
    """Whether jax has several devices here; no accelerator is taken to find it out.

    Args:
        servers: the kind of the server's devices.
    """
    return default_platform(servers) is not None and loaded_jax().device_count() > 1


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


# in a run before ----------------------------------------------------------------------------------

_VALID_S: Final = 86_400.0
_MAX_KEPT: Final = 4096
_MANY: Final = 5
_MAX_REASON: Final = 300
_MOST_WRAPPERS: Final = 16


class FunctionRuns:
    """The runs of the functions of one place in the source.

    Attributes:
        place: file, line and qualified name, and what a library has made of it.
        code: file and line: those of a library that jits functions of its own around the user's.
        calls: calls that this process has made.
        here: of these, the ones that it has run itself, since the server could not answer them.
        traced: of these, the ones that became a part of a program of this process.
        reason: of the first that ran here.
        was_known: whether a run before has said so, or other functions of the same code.
    """

    def __init__(self, place: str, code: str) -> None:
        self.place = place
        self.code = code
        self.calls = self.here = self.traced = 0
        self.reason = ""
        self.was_known = False

    def is_refused(self) -> bool:
        """Whether no server has answered any of the calls."""
        return self.here > 0 and self.here + self.traced >= self.calls


class FormerRuns:
    """What is known of former runs, and what is to be known of this one. Any thread may ask."""

    def __init__(self) -> None:
        self._begun_s = time.time()
        self._runs: dict[str, FunctionRuns] = {}
        self._known: dict[object, dict[str, tuple[str, float]]] = {}  # by server
        self._modules: set[str] = set()  # those whose age counts in _newest_s
        self._newest_s = 0.0

    def of(self, function: Callable[..., Any]) -> FunctionRuns | None:
        """Those of a function; None where its code has no place in a file of the user's.

        What a library has made of one, as `jax.grad(f)`, has the place of that, and the names of
        what has made it. The wrappers of a library of the user's own, as of `equinox.filter_jit`,
        have one place for all functions.
        """
        made_by: list[str] = []
        code: Any = getattr(function, "__code__", None)
        while code is None or not _is_of_the_user(code.co_filename):
            inner = getattr(function, "__wrapped__", None)
            if inner is None or len(made_by) == _MOST_WRAPPERS:
                return None
            made_by.append(type(function).__name__ if code is None else code.co_name)
            function, code = inner, getattr(inner, "__code__", None)
        name = getattr(function, "__qualname__", code.co_name)
        line = f"{code.co_filename}:{code.co_firstlineno}"
        found = FunctionRuns(":".join([line, name, *made_by]), line)
        return self._runs.setdefault(found.place, found)

    def refusal(self, runs: FunctionRuns, server: object) -> str | None:
        """Why no server could answer the function before; None where one is to be asked.

        Args:
            runs: of the function.
            server: the address of the server that would be asked; None for the local one.
        """
        known = self._known.get(server)
        if known is None:
            file = _file_for(server)
            known = self._known[server] = {} if file is None else _read(file)
        if runs.place not in known:
            return self._refusal_of_code(runs)
        reason, noted_s = known[runs.place]
        is_old = noted_s < time.time() - _VALID_S or noted_s <= self._newest_file_s()
        runs.was_known = not is_old
        return None if is_old else reason

    def _refusal_of_code(self, runs: FunctionRuns) -> str | None:
        """Why many functions of the same code were refused, where that was always so, and the same.

        This one is not written down for it: it was not tried.
        """
        others = [each for each in self._runs.copy().values() if each.code == runs.code]
        refused = [each.reason for each in others if each.is_refused() and not each.was_known]
        is_answered = any(
            each.calls > each.here + each.traced for each in others if each is not runs
        )
        if is_answered or len(refused) < _MANY or len({*refused}) > 1:
            return None
        runs.was_known = True
        return refused[0]

    def forget(self) -> None:
        """Forgets what the functions did so far; their entries stay theirs."""
        for runs in self._runs.copy().values():
            runs.calls = runs.here = runs.traced = 0

    def write(self, server: object) -> None:
        """Writes down which functions no server could answer in this process.

        None where code of the user's has stood in jax itself, a thread was in a context of a
        library, or one has settings: that says nothing of the functions.
        """
        file = None if jax_changes.were_found or _has_state() else _file_for(server)
        if file is None:
            return
        found = {
            place: known
            for place, known in _read(file).items()
            if known[1] > self._begun_s - _VALID_S
        }
        before = found.copy()
        for runs in self._runs.copy().values():
            if runs.is_refused():
                if not runs.was_known:  # else the age of what was tried remains
                    found.pop(runs.place, None)
                    found[runs.place] = runs.reason[:_MAX_REASON], self._begun_s
            elif runs.calls:
                found.pop(runs.place, None)
        if found != before:
            _write(file, dict(list(found.items())[-_MAX_KEPT:]))

    def _newest_file_s(self) -> float:
        """When the newest file of the user's modules that are loaded was changed."""
        if len(sys.modules) != len(self._modules):
            for name in sys.modules.keys() - self._modules:
                self._modules.add(name)
                file = content_of(name).get("__file__")
                if isinstance(file, str) and is_local_module(name):
                    with suppress(OSError):
                        self._newest_s = max(self._newest_s, os.stat(file).st_mtime)
        return self._newest_s


def _is_of_the_user(file: str) -> bool:
    return os.path.isabs(file) and is_local_file(file)


former_runs: Final = FormerRuns()
"""Of this process."""


def _has_state() -> bool:
    """Whether libraries have had something in this process that a server does not have."""
    if loaded_jax() is None:
        return False
    from jaxd.interop.library_state import library_contexts, library_settings  # not without jax

    return library_contexts.were_found or bool(library_settings.changed())


def _file_for(server: object) -> str | None:
    """The file for this environment and that server; None where nothing is to be kept."""
    root = cache_root()
    jax = content_of("jax").get("__file__")
    if root is None or not isinstance(jax, str):
        return None
    try:
        installed_ns = os.stat(os.path.dirname(os.path.dirname(jax))).st_mtime_ns
        folder = make_private_directory(os.path.join(root, "refused"))
    except (OSError, ConfigurationError):
        return None
    parts = (__version__, sys.version, sys.prefix, installed_ns, server)
    name = blake2b(repr(parts).encode(), digest_size=8).hexdigest()
    return os.path.join(folder, f"{name}.json")


def _read(file: str) -> dict[str, tuple[str, float]]:
    found: dict[str, tuple[str, float]] = {}
    with suppress(OSError, ValueError, TypeError), open(file, encoding="utf-8") as opened:
        for place, reason, noted_s in json.load(opened):
            found[str(place)] = str(reason), float(noted_s)
    return found


def _write(file: str, found: dict[str, tuple[str, float]]) -> None:
    rows = [[place, *each] for place, each in found.items()]
    with suppress(OSError):  # no room: the next run tries again
        draft = f"{file}.{os.getpid()}"
        with open(draft, "w", encoding="utf-8") as opened:
            json.dump(rows, opened)
        os.replace(draft, file)
