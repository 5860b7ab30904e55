"""The present state of a worker: all of it, or the part that one principal may see."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, Final

from jaxd_server.cache.disk_usage import DiskUsage
from jaxd_server.compilation.compiling.compiler import Compiler
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.jax_compat.devices import arrays_in_use, in_words, whole_device
from jaxd_server.processes.worker.retirement import AbandonedWork
from jaxd_server.rpc.sessions import Sessions
from jaxd_server.rpc.worker_context import WorkerContext
from jaxd_server.runtime.counters import Counts
from jaxd_server.values.store import ValueStore

_OF_THE_SERVER: Final = ("epoch", "phase", "idle_s", "disk_bytes", "disk_files")
"""The entries of a status that contain nothing about clients."""

_NAMED: Final = 3
"""How many of the largest programs are named."""


class WorkerStatus:
    """Collects the state of all components of a worker. Safe from any thread.

    Args:
        worker_context: shared by all connections.
        sessions: the open sessions.
        compiler: has the queue of builds.
        abandoned_work: cancelled work that still runs.
        disk: the size of the cache on disk.
        store: says what there is to see of the store that is shared; None: there is none.
        counts_of: the counts that a principal may see; None: those of all principals.
    """

    def __init__(
        self,
        worker_context: WorkerContext,
        sessions: Sessions,
        compiler: Compiler,
        abandoned_work: AbandonedWork,
        disk: DiskUsage,
        store: Callable[[], dict[str, Any] | None],
        counts_of: Callable[[str], Counts | None],
    ) -> None:
        self._worker_context = worker_context
        self._pipeline = worker_context.pipeline
        self._sessions = sessions
        self._compiler = compiler
        self._abandoned_work = abandoned_work
        self._disk = disk
        self._store = store
        self._counts_of = counts_of
        self._counted = -1, 0

    def now(self) -> dict[str, Any]:
        """The present state, beside the counters."""
        running = self._pipeline.admission.running()
        values = self._worker_context.values
        disk = self._disk.now()
        return {
            "executables": len(self._pipeline.executables),
            "programs": self._count_programs(),
            "functions": len(self._pipeline.functions),
            "connections": self._sessions.connections,
            "idle_connections": len(self._worker_context.idle_connections),
            "sessions": len(self._sessions),
            "principals": self._sessions.by_principal(),
            "values": len(values),
            "value_bytes": values.nbytes,
            "content_bytes": values.contents.nbytes,
            "running_calls": len(running),
            "running": running,
            "left_behind": self._abandoned_work.rows(),
            "held_calls": len(self._worker_context.backlog),
            "queued_calls": len(self._worker_context.runners),
            "queued_builds": len(self._compiler.room),
            "idle_s": 0.0 if running else round(self._idle_s(), 3),
            "disk_bytes": disk.bytes,
            "disk_files": disk.files,
            "store": self._store(),
            **self._worker_context.traffic.totals(),
            **({} if self._pipeline.has_device else {"has_device": False}),
        }

    def _count_programs(self) -> int:
        """How many the executables have; counted when others are there."""
        executables = self._pipeline.executables
        if self._counted[0] != executables.version:
            version, ready = executables.version, executables.all()
            self._counted = version, len({id(executable.program) for executable in ready})
        return self._counted[1]

    def shown(self, status: dict[str, Any], principal: str) -> dict[str, Any]:
        """The part of a status that a principal may see: nothing about others.

        Args:
            status: all of it, with the counters, `epoch` and `phase`.
            principal: the one that requests it.
        """
        own = self._counts_of(principal)
        if own is None:
            return status
        rows = [row for row in status["principals"] if row["principal"] == principal]
        sees = self._pipeline.build_log.known_functions.visibility(principal)
        known = [one for one in self._pipeline.executables.all() if sees(one.key)]
        return {
            **{name: status[name] for name in _OF_THE_SERVER},
            **self._pipeline.counters.snapshot(own),
            **self._worker_context.traffic.totals(principal),
            **self._worker_context.values.of(principal),
            "connections": sum(row["connections"] for row in rows),
            "sessions": sum(row["sessions"] for row in rows),
            "executables": len(known),
            "programs": len({id(one.program) for one in known}),
            "functions": len({one.key for one in known}),
            "running": [],
            "principals": rows,
        }

    def _idle_s(self) -> float:
        """Seconds since the last call, or since the last client disconnected if that was later."""
        return min(self._pipeline.counters.idle_s, self._sessions.quiet_s)


def memory_in_use(executables: Iterable[Executable], values: ValueStore) -> str:
    """The present use of memory, in a few sentences.

    Args:
        executables: those that are in memory.
        values: arrays that clients hold.
    """
    executables = list(executables)
    arrays = arrays_in_use()
    programs: dict[Program, list[str]] = {}
    for one in executables:
        programs.setdefault(one.program, []).append(one.name)
    total = sum(map(_bytes_of, programs))
    text = (
        f"Now {_counted(len(arrays), 'array')} of {in_words(sum(arrays))} and "
        f"{_counted(len(programs), 'program')} of {in_words(total)} are in memory"
    )
    largest = heapq.nlargest(_NAMED, programs, key=_bytes_of)
    if largest and len({one.principal for one in executables}) == 1:  # no names of others
        named = (f"{programs[one][0]} with {in_words(_bytes_of(one))}" for one in largest)
        text += f", the largest: {', '.join(named)}"
    text = f"{text}. {whole_device()}"
    if not len(values):
        return text
    held = f"{in_words(values.nbytes)} in {len(values)}"
    return f"{text} Values that clients hold take {held}; `jaxd values` lists them."


def _bytes_of(program: Program) -> int:
    """The memory of a program without arrays: of the device, or of the host on a CPU."""
    return program.device_bytes or program.host_bytes


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
