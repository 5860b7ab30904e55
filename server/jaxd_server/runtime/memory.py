"""What this process takes of the machine's memory, and how it gives some back."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import threading
from collections.abc import Callable
from contextlib import suppress

from jaxd_server.runtime.threads.executors import process_timers

_DEFAULT_MAX_MAPS = 65530
_MAPS_PER_PROGRAM = 1000
"""Far more than one is known to take: 3 a tiny one, 150 a large one, on a CPU."""

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Of this container, in the two versions of cgroups."""

_USUAL_FILES = 1024

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> int:
    """The memory of the machine, or of the container when that is less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            sizes.append(int(file.read()))  # no such file, or "max"
    return min(sizes)


def allow_files(count: int) -> None:
    """Lets this process open so many files beside its usual ones, as far as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _USUAL_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def resident_bytes(pid: int | None = None) -> int:
    """Bytes of physical memory that this process, or another, has; 0 where unknown."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _max_maps() -> int:
    try:
        with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _DEFAULT_MAX_MAPS


def map_pressure() -> float:
    """The share of `vm.max_map_count` that this process uses; 0 where there is no such limit.

    Takes about a millisecond for each thousand maps, without holding up other threads.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            chunks = iter(lambda: file.read(1 << 16), b"")
            return sum(chunk.count(b"\n") for chunk in chunks) / _max_maps()
    except OSError:
        return 0.0


class MapGauge:
    """Says when the memory maps get too many, and counts them only when they may be.

    Args:
        share: of `vm.max_map_count`, how much is not too many.
        pressure: what the share is now.
    """

    def __init__(self, share: float, pressure: Callable[[], float] = map_pressure) -> None:
        self._share = share
        self._pressure = pressure
        self._unseen = 0  # programs that may be added before it can be too many

    def added(self) -> bool:
        """Whether there may be too many now that a program was added. From one thread at a time."""
        self._unseen -= 1
        return self._unseen < 0 and self.is_high()

    def is_high(self) -> bool:
        """Whether there are too many; counts them."""
        spare = self._share - self._pressure()
        self._unseen = max(0, int(spare * _max_maps() / _MAPS_PER_PROGRAM))
        return spare < 0


def trim() -> None:
    """Returns memory that was freed to the system, which glibc does not do by itself."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def release_memory() -> None:
    """Frees what only the garbage collector finds, too. Holds up every thread, for 0.1 s or so."""
    gc.collect()
    trim()


class Trimmer:
    """Returns memory to the system some time after it was freed; safe from any thread.

    Not for each program that is dropped, because it takes some 30 ms. Without the garbage
    collector: a dropped program is in no cycle, and looking for others would hold up every call.

    Args:
        delay_s: seconds to wait for more to be freed.
    """

    def __init__(self, delay_s: float = 5.0) -> None:
        self._delay_s = delay_s
        self._is_due = False
        self._lock = threading.Lock()  # guards _is_due

    def freed(self) -> None:
        """Something was."""
        with self._lock:
            was_due, self._is_due = self._is_due, True
        if not was_due:
            process_timers.after(self._delay_s, self._trim)

    def _trim(self) -> None:
        with self._lock:
            self._is_due = False
        trim()
