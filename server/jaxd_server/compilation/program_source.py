"""Where programs come from: memory, disk, another device, or the compiler."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiler, LoweredFunction
from jaxd_server.compilation.compiling.program import Program, Programs
from jaxd_server.compilation.device_copies import NotMoved, ProgramMover
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.jax_compat.compilation_cache import bypassed, hits_in_thread
from jaxd_server.runtime.counters import Counters


class _NotStored(Exception):
    """A program is not on disk, or what is there cannot be loaded."""


class ProgramSource:
    """Has each program made once, however many functions have it. Safe from any thread.

    Args:
        compiler: compiles.
        counters: where it is counted that a program was shared.
        program_cache: what is on disk; None where nothing is kept.

    Attributes:
        known: what is in memory.
    """

    def __init__(
        self, compiler: Compiler, counters: Counters, program_cache: ProgramCache | None
    ) -> None:
        self.known = Programs()
        self._compiler = compiler
        self._counters = counters
        self._program_cache = program_cache
        self._mover = ProgramMover(self.known, program_cache)

    def moved(self, program: Program, device: int) -> Program | None:
        """A program for another device; None when it has to be compiled for that."""
        try:
            return self._mover.on(program, device)
        except NotMoved:
            return None

    def stored(self, id: bytes, device: int) -> Program | None:  # noqa: A002  the field's name
        """A program that is in memory or on disk, for a device; None when it is in neither."""
        try:
            found = self.known.obtain(id, lambda: self._read(id, device))
            return self._mover.on(found, device)
        except (_NotStored, NotMoved):
            return None

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
            Interrupted: when nobody waits for it any more.
            Exception: jax's own errors.
        """
        compiled: list[Any] = []
        function, device = request.function, request.device

        def compile_it() -> Program:
            compiled.append(None)
            before = hits_in_thread()
            with bypassed() if is_kept else nullcontext():
                program = self._compiler.compile(
                    lowered, function.name, function.options, request.emit, device
                )
            program.is_original = hits_in_thread() == before
            return program

        def read_or_compile() -> Program:
            try:
                return self._read(lowered.program, device)
            except _NotStored:
                return compile_it()

        if lowered.obstacle is not None:
            program = compile_it()
            program.is_written = False
            return program, True
        found = None
        while found is None:
            try:
                found = self.known.obtain(lowered.program, read_or_compile)
            except _NotStored:
                continue  # waited for somebody who only looked whether it is on disk
        program = self._mover.on(found, device, compile_it)
        if not compiled:
            self._counters.add(programs_shared=1)
        return program, bool(compiled)

    def discard(self, program: Program) -> None:
        """Forgets a program that does not run, and loads it from disk no more.

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
            raise _NotStored
        try:
            return self._program_cache.program(id, device)
        except LookupError:
            raise _NotStored from None
