"""The memory of machine, container and process: how much there is, and how some is returned."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from jaxd_server.runtime.threads.executors import process_timers

_DEFAULT_MAX_MAPS = 65530
_MAPS_PER_PROGRAM = 1000
"""Far more than any takes: a tiny one takes 3, a large one 150, on a CPU."""

_CGROUP: Final = "/sys/fs/cgroup"
_CONTAINERS: Final = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory/", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""The files of the two versions of cgroups."""

_CGROUP_LIMITS: Final = tuple(f"{_CGROUP}/{folder}{limit}" for folder, limit, *_ in _CONTAINERS)
"""The limit of this container."""

_USUAL_FILES = 1024

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def machine_bytes() -> int:
    """The memory of the machine, or of the container when that is less."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            sizes.append(int(_read(path)))  # no such file, or "max"
    return min(sizes)


def host_use(root: str = _CGROUP, meminfo: str = "/proc/meminfo") -> float:
    """The share of the memory of machine or container that is in use; 0 where unknown."""
    return max((1 - spare / total for spare, total in _sizes(root, meminfo)), default=0.0)


def host_spare(root: str = _CGROUP, meminfo: str = "/proc/meminfo") -> int:
    """The available bytes of machine or container; `sys.maxsize` where unknown."""
    return min((spare for spare, _ in _sizes(root, meminfo)), default=sys.maxsize)


def _sizes(root: str, meminfo: str) -> Iterator[tuple[int, int]]:
    """The available and total bytes of the machine, and of the container if there is one."""
    with suppress(OSError, ValueError, IndexError, KeyError):
        rows = _read(meminfo).splitlines()
        sizes = {row.split(":")[0]: int(row.split()[1]) << 10 for row in rows}
        yield sizes["MemAvailable"], sizes["MemTotal"]
    for folder, limit, used, idle in _CONTAINERS:
        with suppress(OSError, ValueError, IndexError):
            most = int(_read(f"{root}/{folder}{limit}"))  # "max" where there is none
            rows = _read(f"{root}/{folder}memory.stat").splitlines()
            # without the page cache of idle files, which the system drops by itself
            spare = {row.split()[0]: int(row.split()[1]) for row in rows}.get(idle, 0)
            taken = max(0, int(_read(f"{root}/{folder}{used}")) - spare)
            yield max(0, most - taken), most
            return


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def allow_files(count: int) -> None:
    """Raises the limit of open files by so many, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _USUAL_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))


def resident_bytes(pid: int | None = None) -> int:
    """The resident bytes of this process, or of another; 0 where unknown."""
    try:
        return int(_read(f"/proc/{pid or 'self'}/statm").split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _max_maps() -> int:
    try:
        return int(_read("/proc/sys/vm/max_map_count"))
    except (OSError, ValueError):
        return _DEFAULT_MAX_MAPS


def map_pressure() -> float:
    """The share of `vm.max_map_count` that this process uses; 0 where there is no such limit.

    Takes about a millisecond for each thousand maps, without delaying other threads.
    """
    try:
        with open("/proc/self/maps", "rb") as file:
            chunks = iter(lambda: file.read(1 << 16), b"")
            return sum(chunk.count(b"\n") for chunk in chunks) / _max_maps()
    except OSError:
        return 0.0


class MapGauge:
    """Reports when there are too many memory maps; counts them only when there may be.

    Args:
        share: the allowed share of `vm.max_map_count`.
        pressure: the present share.
    """

    def __init__(self, share: float, pressure: Callable[[], float] = map_pressure) -> None:
        self._share = share
        self._pressure = pressure
        self._unseen = 0  # programs that may be added before the next count

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
    """Returns freed memory to the system, which glibc does not do by itself."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def release_memory() -> None:
    """Collects garbage and trims. Delays every thread by about 0.1 s."""
    gc.collect()
    trim()


class Trimmer:
    """Returns memory to the system some time after it was freed; safe from any thread.

    Not for each dropped program, because it takes some 30 ms. Without the garbage collector: a
    dropped program is in no cycle, and a collection would delay every call.

    Args:
        delay_s: seconds during which further freed memory is awaited.
    """

    def __init__(self, delay_s: float = 5.0) -> None:
        self._delay_s = delay_s
        self._is_due = False
        self._lock = threading.Lock()  # guards _is_due

    def freed(self) -> None:
        """Memory was freed."""
        with self._lock:
            was_due, self._is_due = self._is_due, True
        if not was_due:
            process_timers.after(self._delay_s, self._trim)

    def _trim(self) -> None:
        with self._lock:
            self._is_due = False
        trim()
