"""jax's profiler in this process: one profile at a time, in the files that XProf reads."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from contextlib import suppress
from typing import NamedTuple

import jax

from jaxd_protocol.errors import Busy, ConfigurationError
from jaxd_protocol.messages.calls import CLOCK_MARK, MAX_PROFILE_S


class ProfileFile(NamedTuple):
    """A file of a profile.

    Attributes:
        name: its path in the folder of the profile.
        data: its content.
    """

    name: str
    data: bytes


class Profiler:
    """Makes profiles of this process. Thread-safe."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._timer: threading.Timer | None = None
        self._is_running = False
        self._lock = threading.Lock()  # guards these; held while jax starts, or writes the files

    def start(self, seconds: int) -> None:
        """Starts a profile, which ends at `stop`, or after so many seconds.

        Args:
            seconds: at most ten minutes; its client may be gone by then.

        Raises:
            Busy: while there is another one.
            Exception: what jax raises where it cannot.
        """
        with self._lock:
            if self._is_running:
                raise Busy("the server makes a profile already. Try again when that is over.")
            self._clear()
            folder = self._folder = tempfile.TemporaryDirectory(prefix="jaxd-profile-")
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # each call of a Python function: it slows them down
            jax.profiler.start_trace(folder.name, profiler_options=options)
            self._is_running = True
            with jax.profiler.TraceAnnotation(f"{CLOCK_MARK}{time.monotonic_ns()}"):
                pass
            timer = self._timer = threading.Timer(min(max(seconds, 1), MAX_PROFILE_S), self._end)
            timer.daemon = True
            timer.start()

    def stop(self) -> list[ProfileFile]:
        """The files of the profile, which is over now.

        Raises:
            ConfigurationError: when there is none.
            Exception: what jax raises where it cannot write them.
        """
        self._end()
        with self._lock:
            if self._folder is None:
                raise ConfigurationError("there is no profile to fetch. Start one first.")
            root = self._folder.name
            paths = [os.path.join(at, name) for at, _, names in os.walk(root) for name in names]
            found = [ProfileFile(os.path.relpath(path, root), _content(path)) for path in paths]
            self._clear()
            return found

    def _end(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            if self._is_running:
                self._is_running = False
                jax.profiler.stop_trace()

    def _clear(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            with suppress(OSError):
                folder.cleanup()


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
