"""Where programs come from: memory, disk, another device, or the compiler."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, Final

from jaxd_protocol.base.process import start_daemon, usable_processors
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.compiling.program import Program, Programs, moved_name
from jaxd_server.compilation.disk_cache.programs import NotStored, ProgramCache
from jaxd_server.compilation.eviction import Limits, excess_bytes, host_bytes_of
from jaxd_server.jax_compat.compilation_cache import bypassed, hits_in_thread
from jaxd_server.jax_compat.placement import are_several, index_of, read_program
from jaxd_server.jax_compat.programs import (
    Loaded,
    NotSerializable,
    is_out_of_memory,
    load,
    serialized,
)
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.logs import log_event


class NotMoved(Exception):
    """A program that has to be compiled for the other device; the text says why."""


class ProgramSource:
    """Provides programs, each made once for all functions that have it. Safe from any thread.

    Args:
        compiler: compiles.
        counters: where it is counted that a program was shared.
        program_cache: what is on disk; None where nothing is kept.

    Attributes:
        known: what is in memory.
        ahead: those of them that no call has asked for yet, by their ids; each access is atomic.
    """

    def __init__(
        self, compiler: Compiler, counters: Counters, program_cache: ProgramCache | None
    ) -> None:
        self.known = Programs()
        self.ahead: dict[bytes, Program] = {}
        self._compiler = compiler
        self._counters = counters
        self._program_cache = program_cache

    def moved(self, program: Program, device: int) -> Program | None:
        """A program for another device; None when it has to be compiled for that."""
        try:
            return self._on(program, device)
        except NotMoved:
            return None

    def stored(self, id: bytes, device: int) -> Program | None:  # noqa: A002  the field's name
        """A program that is in memory or on disk, for a device; None when it is in neither."""
        try:
            found = self.known.obtain(id, lambda: self._read(id, device))
            self.ahead.pop(id, None)  # from here on its executable holds it
            return self._on(found, device)
        except (NotStored, NotMoved):
            return None

    def read_ahead(self, id: bytes) -> Program | None:  # noqa: A002
        """Has a program in memory before a call asks for it; None: it was, or cannot be read.

        Raises:
            JaxRuntimeError: when the device has no room for it.
        """
        if self.known.find(id) is None:
            with suppress(NotStored):
                self.known.obtain(id, lambda: self._held(id))
                return self.ahead.get(id)
        return None

    def _held(self, id: bytes) -> Program:  # noqa: A002
        """A program that is on disk, held until a call asks for it."""
        found = self.ahead[id] = self._read(id, 0)
        return found

    def of(
        self, request: BuildRequest, lowered: LoweredFunction, *, is_kept: bool
    ) -> tuple[Program, bool]:
        """The program of a lowered function, and whether it had to be compiled.

        One that is to be kept is not looked for in jax's own cache: what comes from there cannot be
        written again.

        Args:
            request: of which function, for whom and for which device.
            lowered: what came of it.
            is_kept: whether the program is to be written to disk.

        Raises:
            Interrupted: when no call waits for it any longer.
            Exception: jax's own errors.
        """
        compiled: list[Any] = []
        device = request.device

        def compile_it() -> Program:
            compiled.append(None)
            made = self._compiled_elsewhere(request, lowered)
            return made or self._compiled_here(request, lowered, is_kept=is_kept)

        def read_or_compile() -> Program:
            try:
                return self._read(lowered.program, device)
            except NotStored:
                return compile_it()

        if lowered.obstacle is not None:
            return compile_it(), True
        found = None
        while found is None:
            try:
                found = self.known.obtain(lowered.program, read_or_compile)
            except NotStored:
                continue  # waited for a call that only looked whether it is on disk
        self.ahead.pop(lowered.program, None)
        program = self._on(found, device, compile_it)
        if not compiled:
            self._counters.add(programs_shared=1)
        return program, bool(compiled)

    def _compiled_here(
        self, request: BuildRequest, lowered: LoweredFunction, *, is_kept: bool
    ) -> Program:
        """A program that this process compiles, also of what another one has lowered.

        Raises:
            NotTransferable: when the other one cannot hand it over.
            InternalError: when this process must not compile it.
            Exception: jax's own errors.
        """
        function, before = request.function, hits_in_thread()
        if lowered.elsewhere is not None:
            lowered = replace(lowered, lowered=lowered.elsewhere.hand_over())
        with bypassed() if is_kept else nullcontext():
            program = self._compiler.compile(
                lowered, function.name, function.options, request.emit, request.device
            )
        program.is_original = hits_in_thread() == before
        return program

    def _compiled_elsewhere(
        self, request: BuildRequest, lowered: LoweredFunction
    ) -> Program | None:
        """A program that a builder compiles; None where this process has to."""
        if lowered.elsewhere is None:
            return None
        made = lowered.elsewhere.compile(request.device)
        if made is None:
            return None
        # Where this function is not kept, another one that has the same program may be later.
        is_needed = self._program_cache is not None or are_several()
        try:
            found = Program.loaded(
                lowered.program,
                made.compile_s,
                lambda: (load(*made.program), made.program.devices),
                is_bound=made.is_bound,
                written=made.program if is_needed else None,
            )
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            log_event("builder_refused", function=request.function.name, reason=reason)
            return None
        lowered.elsewhere.loaded(found.load_s)
        return found

    def bytes_of(self, program: Program) -> Serialized:
        """The bytes of a program: those of the process that compiled it, written once.

        Raises:
            NotSerializable: when there are none.
        """
        written = program.written
        if written is not None:
            return written
        if self._program_cache is not None and program.is_written:
            with suppress(NotStored):
                return self._program_cache.bytes_of(program.id)
        if not program.is_original:
            raise NotSerializable("it was read from bytes that are not on disk any more.")
        return serialized(program.compiled, program.devices)

    def discard(self, program: Program) -> None:
        """Drops a program that failed to run, and stops loading it from disk.

        The file stays until the program that is made instead takes its place.
        """
        self.known.forget(program)
        found = self.known.find(program.id)
        is_replaced = found is not None and found.is_original
        if self._program_cache is not None and not is_replaced:
            self._program_cache.distrust_program(program.id)

    def _read(self, id: bytes, device: int) -> Program:  # noqa: A002
        """A program that is on disk."""
        if self._program_cache is None:
            raise NotStored(id.hex())
        return self._program_cache.program(id, device)

    def _on(
        self, program: Program, device: int, compile_it: Callable[[], Program] | None = None
    ) -> Program:
        """The program for a device: itself when that is where it runs, or when it is bound.

        Args:
            program: for any device.
            device: the index of the one that it is wanted on.
            compile_it: makes it where it cannot be moved; None: then this raises.

        Raises:
            NotMoved: when it cannot be moved.
            Exception: what `compile_it` raises.
        """
        if program.is_bound or not program.devices or index_of(program.devices[0]) == device:
            return program
        if not program.is_written:
            raise NotMoved("it calls what is only in this process")

        def make() -> Program:
            try:
                return self._moved(program, device)
            except NotMoved:
                if compile_it is None:
                    raise
                return compile_it()

        return self.known.obtain(moved_name(program.id, device), make)

    def _moved(self, program: Program, device: int) -> Program:
        with suppress(NotStored):  # it is not written yet, or never will be
            return self._read(program.id, device)

        def read() -> tuple[Loaded, tuple[int, ...]]:
            if not program.is_original:
                raise NotMoved("XLA writes only what it compiled")
            written = program.written or serialized(program.compiled, program.devices)
            return read_program(written, device)

        try:
            return Program.loaded(program.id, program.compile_s, read, is_original=False)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            log_event("program_not_moved", program=program.id.hex(), device=device, reason=reason)
            raise NotMoved(reason) from error


_PRELOADING_THREADS: Final = 4


class Preloader:
    """Loads the programs that were used last before calls ask for them, as `--preload` says.

    A pool of the reclaimer: what no call has asked for yet is given up where memory is short.

    Args:
        source: gets the programs.
        program_cache: where they are; None where nothing is kept.
        count: how many at most.
        limits: of all programs; half of their bytes may be loaded ahead.
        held: the programs that calls have asked for, and which count for the limits as well.
        relieve: called after each.
    """

    def __init__(
        self,
        source: ProgramSource,
        program_cache: ProgramCache | None,
        count: int,
        limits: Limits,
        held: Callable[[], Iterable[Program]],
        relieve: Callable[[], object],
    ) -> None:
        self._source = source
        self._program_cache = program_cache
        self._left = count
        self._limits = limits
        self._host_bytes = limits.host_bytes // 2
        self._device_bytes = limits.device_bytes // 2
        self._held = held
        self._relieve = relieve
        self._is_stopped = False
        self._loaded = 0
        self._working = 0
        self._ids: Iterator[bytes] = iter(())
        self._lock = threading.Lock()  # guards all that changes

    def start(self) -> None:
        """Loads in the background."""
        if not self._left:
            return
        if self._program_cache is None:
            log_event("preload_refused", reason="nothing is kept on disk")
            return
        self._ids = self._program_cache.recent_programs()
        started = time.monotonic()
        self._working = min(_PRELOADING_THREADS, usable_processors(), self._left)
        for _ in range(self._working):
            start_daemon("jaxd-preload", self._work, started)

    def __len__(self) -> int:
        return len(self._source.ahead)

    def shrink(self) -> int:
        """Gives up what has no room beside the programs that calls have asked for."""
        ahead = list(self._source.ahead.values())
        if not ahead:
            return 0
        host_bytes, device_bytes = excess_bytes(self._limits, {*self._held(), *ahead})
        count = 0
        while ahead and max(host_bytes, device_bytes) > 0:
            program = ahead.pop()
            host_bytes -= host_bytes_of(program)
            device_bytes -= program.device_bytes
            count += 1
        return self.reclaim(count) if count else 0

    def reclaim(self, count: int) -> int:
        """Gives up to `count` programs up, those that were used longest ago first, and ends."""
        self.stop()
        ahead = self._source.ahead
        chosen = list(reversed(list(ahead)))[:count]
        return sum(ahead.pop(name, None) is not None for name in chosen)

    def stop(self) -> None:
        """Loads no more."""
        with self._lock:
            self._is_stopped = True

    def _work(self, started: float) -> None:
        with suppress(OSError, AttributeError):  # calls go first; not every system can do so
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        try:
            while (name := self._next()) is not None:
                self._load(name)
        except Exception as error:  # noqa: BLE001  calls load what they need by themselves
            self.stop()
            reason = f"{type(error).__name__}: {error}"
            log_event("preload_ended", reason=reason)
        with self._lock:
            self._working -= 1
            is_last = not self._working
        if is_last:
            seconds = round(time.monotonic() - started, 3)
            log_event("preloaded", programs=self._loaded, seconds=seconds)

    def _next(self) -> bytes | None:
        with self._lock:
            if self._is_stopped or not self._left:
                return None
            self._left -= 1
            return next(self._ids, None)

    def _load(self, name: bytes) -> None:
        program = self._source.read_ahead(name)
        with self._lock:
            if program is None:
                self._left += 1  # another one in its place
                return
            self._loaded += 1
            self._host_bytes -= host_bytes_of(program)
            self._device_bytes -= program.device_bytes
            if min(self._host_bytes, self._device_bytes) < 0:
                self._is_stopped = True
        self._relieve()
