"""Compiled programs in memory: functions that lower to the same program share one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from jaxd_server.single_flight import SingleFlight

__all__ = ["Program", "Programs"]


class Program:
    """A compiled program: flat arrays in, flat arrays out. Freed when its last executable is.

    Attributes:
        id: sixteen bytes that equal programs have in common.
        call: runs it.
        compile_s: seconds that it took to compile, in whichever process that was.
        load_s: seconds that it took to read it from disk; 0 when it was compiled here.
        host_bytes: by how much the process grew for it.
        device_bytes: what it takes on the device.
        devices: ids of those that it runs on.
        is_original: whether XLA compiled it in this process: only then it can be written to disk.
        calls_python: whether it calls Python while it runs.
        calls_back: whether it does so for an effect; such programs run one at a time.
    """

    __slots__ = (
        "__weakref__",
        "call",
        "calls_back",
        "calls_python",
        "compile_s",
        "device_bytes",
        "devices",
        "host_bytes",
        "id",
        "is_original",
        "load_s",
    )

    def __init__(
        self,
        id: bytes,  # noqa: A002  the field's name
        call: Callable[..., list[Any]],
        compile_s: float = 0.0,
        load_s: float = 0.0,
        host_bytes: int = 0,
        device_bytes: int = 0,
        devices: tuple[int, ...] = (),
        is_original: bool = True,
    ) -> None:
        self.id = id
        self.call = call
        self.compile_s = compile_s
        self.load_s = load_s
        self.host_bytes = host_bytes
        self.device_bytes = device_bytes
        self.devices = devices
        self.is_original = is_original
        self.calls_back = False
        self.calls_python = False


class Programs:
    """The programs that some executable holds. Keeps none alive; safe from any thread."""

    def __init__(self) -> None:
        self._programs: weakref.WeakValueDictionary[bytes, Program] = weakref.WeakValueDictionary()
        self._flights: SingleFlight[bytes, Program] = SingleFlight()
        self._lock = threading.Lock()  # guards _programs: its own upkeep is not atomic

    def __len__(self) -> int:
        with self._lock:
            return len(self._programs)

    def find(self, id: bytes) -> Program | None:  # noqa: A002
        """The program of that name, while something holds it."""
        with self._lock:
            return self._programs.get(id)

    def obtain(self, id: bytes, make: Callable[[], Program]) -> Program:  # noqa: A002
        """The program of that name; `make` makes it when there is none, once for all who ask.

        Raises:
            Exception: what `make` raises, in every caller that waited for it.
        """
        return self._flights.run(id, lambda: self.find(id), lambda: self._keep(make()))

    def _keep(self, program: Program) -> Program:
        with self._lock:
            self._programs[program.id] = program
        return program

    def forget(self, program: Program) -> None:
        """Gives this one to nobody any more."""
        with self._lock:
            if self._programs.get(program.id) is program:
                del self._programs[program.id]

    def all(self) -> list[Program]:
        """Those that there are."""
        with self._lock:
            return list(self._programs.values())
