"""The memory of machine, container and process: how much there is, and how some is returned."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from jaxd_server.runtime.threads.executors import process_timers

_DEFAULT_MAX_MAPS = 65530
_MAPS_PER_PROGRAM = 1000
"""Far more than any takes: a tiny one takes 3, a large one 150, on a CPU."""

_CGROUPS: Final = "/sys/fs/cgroup"
_OWN_CGROUP: Final = "/proc/self/cgroup"


class _CgroupFiles(NamedTuple):
    """The names of files of one version of cgroups; `idle` is a row of `memory.stat`."""

    limit: str
    used: str
    kills: str
    idle: str


_FIRST: Final = _CgroupFiles(
    *("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    "total_inactive_file",
)
_SECOND: Final = _CgroupFiles("memory.max", "memory.current", "memory.events", "inactive_file")

_OF_KILLS: Final = {_FIRST: [_FIRST.kills], _SECOND: [f"{_SECOND.kills}.local", _SECOND.kills]}
"""Files that count kills, the first one without those of the cgroups below."""

_USUAL_FILES = 1024

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def machine_bytes(root: str = _CGROUPS, own: str = _OWN_CGROUP) -> int:
    """The memory of the machine, or what this process may have of it when that is less.

    That is the least limit of its cgroup and of all above that: of a container, a job of a batch
    system, a service or a login session.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES]
    for folder, files in _cgroups(root, own):
        with suppress(OSError, ValueError):
            sizes.append(int(_read(f"{folder}/{files.limit}")))  # no such file, or "max"
    return min(sizes)


def host_use(root: str = _CGROUPS, meminfo: str = "/proc/meminfo", own: str = _OWN_CGROUP) -> float:
    """The share that is in use of the machine's memory, or of a cgroup's; 0 where unknown."""
    return max((1 - spare / total for spare, total in _sizes(root, meminfo, own)), default=0.0)


def host_spare(root: str = _CGROUPS, meminfo: str = "/proc/meminfo", own: str = _OWN_CGROUP) -> int:
    """The bytes that this process can still have; `sys.maxsize` where unknown."""
    return min((spare for spare, _ in _sizes(root, meminfo, own)), default=sys.maxsize)


class OomCount(NamedTuple):
    """How many processes of a cgroup were killed for want of memory.

    Attributes:
        path: of the file that says so.
        kills: how many so far.
    """

    path: str
    kills: int


def oom_kills(
    root: str = _CGROUPS, vmstat: str = "/proc/vmstat", own: str = _OWN_CGROUP
) -> OomCount | None:
    """How many processes of the own cgroup were killed for want of memory.

    A process is counted where it was, whosever limit was reached: so what happens in other
    containers, jobs and sessions is not. For a process in no cgroup, those of the machine. None
    where the system does not say.
    """
    paths = [
        f"{folder}/{name}" for folder, files in _cgroups(root, own) for name in _OF_KILLS[files]
    ]
    found = ((path, _kills_in(path)) for path in (*paths, vmstat))
    return next((OomCount(path, kills) for path, kills in found if kills is not None), None)


def _kills_in(path: str) -> int | None:
    """What a file says of that; None when it says nothing."""
    with suppress(OSError, ValueError, IndexError):
        rows = (row.split() for row in _read(path).splitlines())
        return next((int(row[1]) for row in rows if row[0] == "oom_kill"), None)
    return None


class OomWatch:
    """Whether the system may have killed a process for want of memory.

    Args:
        pid: of the process, which runs.
        clock: seconds that only grow.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._own = f"/proc/{pid}/cgroup"
        self._clock = clock
        self._seen: deque[tuple[float, OomCount]] = deque()
        self.look()

    def look(self) -> None:
        """Notes the count of its cgroup; to be called often while it runs."""
        found, now = oom_kills(own=self._own), self._clock()
        if found is not None:
            self._seen.append((now, found))
        while len(self._seen) > 1 and self._seen[1][0] <= now - _RECENT_S:
            self._seen.popleft()

    def has_counted(self) -> bool | None:
        """Whether its cgroup has counted one in the last seconds; None where that is not known.

        To be asked when it has ended. Its cgroup is not asked for any more: the system says
        another one of a process that has ended.
        """
        if not self._seen:
            return None
        path = self._seen[-1][1].path
        kills = _kills_in(path)
        before = (count.kills for _, count in self._seen if count.path == path)
        return None if kills is None else kills > min(before)


_RECENT_S: Final = 10.0
"""A process that is killed may take seconds to end, and its cgroup is looked at once a second."""


_KEPT_SHARE: Final = 0.75
_LEAST_SHARE: Final = 0.125


class MemoryLoss(NamedTuple):
    """What is known of workers that the system has ended for want of memory.

    Attributes:
        held: bytes of the values of one, the least of all times.
        session: the client that held most of them at the last time; empty when none held any.
        principal: whose client that is.
        nbytes: of its values.
    """

    held: int
    session: str = ""
    principal: str = ""
    nbytes: int = 0

    @classmethod
    def from_message(cls, message: Any) -> MemoryLoss | None:
        """What the host has sent; None when there was no such worker."""
        return cls(**message) if isinstance(message, Mapping) else None

    def lowered(self, limit: int) -> int:
        """What values may take from now on: three quarters of what was held, an eighth at least.

        Args:
            limit: what they may take otherwise.
        """
        return min(limit, max(int(limit * _LEAST_SHARE), int(self.held * _KEPT_SHARE)))

    def notice_for(self, session: str | None, principal: str, limit: int) -> str:
        """What a client is told that held most; empty for others.

        Args:
            session: that it wants to resume.
            principal: whose client it is.
            limit: what values may take now.
        """
        if not session or (session, principal) != (self.session, self.principal):
            return ""
        return (
            f"which the system ended because memory was short, while this client held most of it, "
            f"{self.nbytes / _MIB:,.1f} MiB in arrays (all arrays of the server may take "
            f"{limit / _MIB:,.1f} MiB now)"
        )


_MIB: Final = 1 << 20


def _cgroups(root: str, own: str) -> list[tuple[str, _CgroupFiles]]:
    """The folders of the own cgroup and of all above it that may exist, as far as memory goes.

    A container sees its own as the root, whatever `own` says.
    """
    roots = [(root, _SECOND), (f"{root}/memory", _FIRST)]
    found: list[tuple[str, _CgroupFiles]] = []
    with suppress(OSError, ValueError):
        for line in _read(own).splitlines():
            _, controllers, path = line.split(":", 2)
            parts = [part for part in path.split("/") if part not in ("", "..")]
            if not controllers:
                bases = [(root, _SECOND), (f"{root}/unified", _SECOND)]
            else:
                bases = roots[1:] if "memory" in controllers.split(",") else []
            for base, files in bases:
                above = range(len(parts), 0, -1)
                found += [("/".join([base, *parts[:count]]), files) for count in above]
    return [*found, *roots]


def _sizes(root: str, meminfo: str, own: str) -> Iterator[tuple[int, int]]:
    """The available and total bytes of the machine, and of each cgroup that has a limit."""
    with suppress(OSError, ValueError, IndexError, KeyError):
        rows = _read(meminfo).splitlines()
        sizes = {row.split(":")[0]: int(row.split()[1]) << 10 for row in rows}
        yield sizes["MemAvailable"], sizes["MemTotal"]
    for folder, files in _cgroups(root, own):
        with suppress(OSError, ValueError, IndexError):
            most = int(_read(f"{folder}/{files.limit}"))  # "max" where there is none
            rows = _read(f"{folder}/memory.stat").splitlines()
            # without the page cache of idle files, which the system drops by itself
            spare = {row.split()[0]: int(row.split()[1]) for row in rows}.get(files.idle, 0)
            taken = max(0, int(_read(f"{folder}/{files.used}")) - spare)
            yield max(0, most - taken), most


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
        self._due = threading.Lock()  # held while a trim is due

    def freed(self) -> None:
        """Memory was freed."""
        if self._due.acquire(blocking=False):
            process_timers.after(self._delay_s, self._trim)

    def _trim(self) -> None:
        self._due.release()
        trim()
