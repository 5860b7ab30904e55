"""Compiled programs in memory: functions that lower to the same program share one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

from jaxd_server.runtime.threads.single_flight import SingleFlight


class Program:
    """A compiled program: flat arrays in, flat arrays out. Freed when its last executable is.

    Attributes:
        id: sixteen bytes that equal programs have in common.
        call: runs it.
        compiled: the same, as jax has it.
        compile_s: seconds that it took to compile, in whichever process that was.
        load_s: seconds that it took to read it from disk; 0 when it was compiled here.
        host_bytes: by how much the process grew for it.
        device_bytes: what it takes on the device.
        run_bytes: what a call takes of the machine's memory, where that is much; else 0.
        devices: ids of those that it runs on.
        is_original: whether XLA compiled it in this process: only then it can be written to disk.
        calls_python: whether it calls Python while it runs.
        calls_back: whether it does so for an effect; such programs run one at a time.
        is_bound: whether its devices are part of what it is; else it may be moved to another.
        is_written: whether it can be written, to disk or to move it.
    """

    __slots__ = (
        "__weakref__",
        "call",
        "calls_back",
        "calls_python",
        "compile_s",
        "compiled",
        "device_bytes",
        "devices",
        "host_bytes",
        "id",
        "is_bound",
        "is_original",
        "is_written",
        "load_s",
        "run_bytes",
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
        self.compiled = call
        self.call = _one_at_a_time(call) if len(devices) > 1 else call
        self.compile_s = compile_s
        self.load_s = load_s
        self.host_bytes = host_bytes
        self.device_bytes = device_bytes
        self.devices = devices
        self.is_original = is_original
        self.is_bound = False
        self.is_written = True
        self.run_bytes = 0
        self.calls_back = False
        self.calls_python = False


_spread: Final = threading.Lock()
"""Held while a program is started on several devices.

These wait for each other inside of it, so all of them have to start such programs in one order.
"""


def _one_at_a_time(run: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def in_turn(*leaves: Any) -> list[Any]:
        with _spread:
            return run(*leaves)

    return in_turn


def moved_name(id: bytes, device: int) -> bytes:  # noqa: A002
    """What a program is called that was moved to another device."""
    return id + device.to_bytes(4, "big")


class Programs:
    """The programs that some executable holds. Keeps none alive; safe from any thread."""

    def __init__(self) -> None:
        self._programs: weakref.WeakValueDictionary[bytes, Program] = weakref.WeakValueDictionary()
        self._flights: SingleFlight[bytes, Program] = SingleFlight()
        self._lock = threading.Lock()  # guards _programs: its own upkeep is not atomic

    def __len__(self) -> int:
        with self._lock:
            return len(self._programs)

    def find(self, name: bytes) -> Program | None:
        """The program of that name, while something holds it."""
        with self._lock:
            return self._programs.get(name)

    def obtain(self, name: bytes, make: Callable[[], Program]) -> Program:
        """The program of that name; `make` makes it when there is none, once for all who ask.

        Args:
            name: its id: one for any device; or its `moved_name`.
            make: makes it.

        Raises:
            Exception: what `make` raises, in every caller that waited for it.
        """
        return self._flights.run(name, lambda: self.find(name), lambda: self._keep(name, make()))

    def _keep(self, name: bytes, program: Program) -> Program:
        with self._lock:
            self._programs[name] = program
        return program

    def forget(self, program: Program) -> None:
        """Gives this one to nobody any more."""
        with self._lock:
            for name in [name for name, one in self._programs.items() if one is program]:
                del self._programs[name]

    def all(self) -> list[Program]:
        """Those that there are."""
        with self._lock:
            return list(self._programs.values())
