"""Compiled programs in memory: functions that lower to the same program share one."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_server.jax_compat.lowered import VERSIONS
from jaxd_server.jax_compat.programs import Flat, device_bytes, direct, run_bytes
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.runtime.threads.executors import SingleFlight


@dataclass(slots=True, eq=False, weakref_slot=True)
class Program:
    """A compiled program: flat arrays in, flat arrays out. Freed when its last executable is.

    Attributes:
        id: sixteen bytes that equal programs have in common.
        compiled: the program as jax has it.
        compile_s: seconds that it took to compile, in whichever process that was.
        load_s: seconds that it took to read it from disk; 0 when it was compiled here.
        host_bytes: by how much the process grew for it.
        devices: ids of those that it runs on.
        is_original: whether XLA compiled it for this process, here or in a builder; else it was
            read from disk, or comes from jax's own cache.
        written: its bytes where a builder compiled it: these are what is kept and moved.
        is_bound: whether its devices are part of what it is; else it may be moved to another.
        is_written: whether it can be written, to disk or to move it.
        calls_python: whether it calls Python while it runs.
        calls_back: whether it does so for an effect; such programs run one at a time.
        host_state: what the Python that it calls reads here which its client may change, in words;
            None: nothing.
        call: runs it.
        device_bytes: what it takes on the device.
        run_bytes: what a call takes of the machine's memory, where that is much; else 0.
    """

    id: bytes
    compiled: Flat
    compile_s: float = 0.0
    load_s: float = 0.0
    host_bytes: int = 0
    devices: tuple[int, ...] = ()
    is_original: bool = True
    written: Serialized | None = None
    is_bound: bool = False
    is_written: bool = True
    calls_python: bool = False
    calls_back: bool = False
    host_state: str | None = None
    call: Flat = field(init=False)
    device_bytes: int = field(init=False)
    run_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        is_spread = len(self.devices) > 1 and not self.calls_python  # which may start others
        run = direct(self.compiled)
        self.call = _one_at_a_time(run) if is_spread else run
        self.device_bytes = device_bytes(self.compiled)
        self.run_bytes = run_bytes(self.compiled)

    @classmethod
    def loaded(
        cls,
        id: bytes,  # noqa: A002  the field's name
        compile_s: float,
        read: Callable[[], tuple[Flat, tuple[int, ...]]],
        **about: Any,
    ) -> Program:
        """A program that is read, with what that takes; raises as `read`.

        Args:
            id: see `Program`.
            compile_s: likewise.
            read: reads it; returns it, and the ids of its devices.
            about: the other fields.
        """
        started, before = time.monotonic(), resident_bytes()
        call, devices = read()
        load_s, host_bytes = time.monotonic() - started, max(0, resident_bytes() - before)
        return cls(id, call, compile_s, load_s, host_bytes, devices, **about)


_spread: Final = threading.Lock()
"""Held while a program is started on several devices.

The devices wait for each other within it, so all of them have to start such programs in one order.
"""


def _one_at_a_time(run: Flat) -> Flat:
    def in_turn(*leaves: Any) -> list[Any]:
        with _spread:
            return run(*leaves)

    return in_turn


def identity_of(program: Program) -> dict[str, Any]:
    """What names a program for a client that lowers the same function itself, for JSON.

    Returns:
        Its `id` in hex, or None where it is like no other; whether it `calls_python`; on how many
        `devices` it runs; and the `jax` and `jaxlib` that have made it.
    """
    return {
        "id": program.id.hex() if program.is_written else None,
        "calls_python": program.calls_python,
        "devices": len(program.devices),
        **VERSIONS,
    }


def moved_name(id: bytes, device: int) -> bytes:  # noqa: A002
    """The name of a program that was moved to another device."""
    return id + device.to_bytes(4, "big")


class Programs:
    """The programs that some executable holds. Keeps none alive; safe from any thread."""

    def __init__(self) -> None:
        self._programs: weakref.WeakValueDictionary[bytes, Program] = weakref.WeakValueDictionary()
        self._flights: SingleFlight[bytes, Program] = SingleFlight()
        self._lock = threading.Lock()  # guards _programs: its own upkeep is not atomic

    def find(self, name: bytes) -> Program | None:
        """The program of that name, while something holds it."""
        with self._lock:
            return self._programs.get(name)

    def obtain(self, name: bytes, make: Callable[[], Program]) -> Program:
        """The program of that name; `make` makes it when there is none, once for all callers.

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
        """Removes this one from the table."""
        with self._lock:
            for name in [name for name, one in self._programs.items() if one is program]:
                del self._programs[name]
