"""Moves programs to other devices than those that they were compiled for, without compiling."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from jaxd_server.compilation.compiling.program import Program, Programs, moved_name
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.jax_compat import programs as jax_programs
from jaxd_server.jax_compat.placement import index_of, moved
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.memory import resident_bytes


class NotMoved(Exception):
    """A program that has to be compiled for the other device; the text says why."""


class ProgramMover:
    """Moves programs. Safe from any thread.

    Args:
        programs: those in memory.
        program_cache: those on disk; None where nothing is kept.
    """

    def __init__(self, programs: Programs, program_cache: ProgramCache | None) -> None:
        self._programs = programs
        self._program_cache = program_cache

    def on(
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

        return self._programs.obtain(moved_name(program.id, device), make)

    def _moved(self, program: Program, device: int) -> Program:
        try:
            if self._program_cache is not None:
                return self._program_cache.program(program.id, device)
        except LookupError:
            pass  # it is not written yet, or never will be
        started, before = time.monotonic(), resident_bytes()
        try:
            if not program.is_original:
                raise NotMoved("XLA writes only what it compiled")  # noqa: TRY301  as the others
            call = moved(program.compiled, device)
        except Exception as error:
            if jax_programs.is_out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}"
            log_event("program_not_moved", program=program.id.hex(), device=device, reason=reason)
            raise NotMoved(reason) from error
        return Program(
            program.id,
            call,
            program.compile_s,
            time.monotonic() - started,
            max(0, resident_bytes() - before),
            jax_programs.device_bytes(call),
            (jax.devices()[device].id,),
            is_original=False,
        )
