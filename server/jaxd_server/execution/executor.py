"""Running a program on the device, and what is done about it when that fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.executables import Executables
from jaxd_server.compilation.functions.table import Functions
from jaxd_server.execution.call import Reply
from jaxd_server.execution.memory_room import MemoryReservations, OutOfMemoryHandler
from jaxd_server.execution.nan_search import find_nan
from jaxd_server.execution.run import Run
from jaxd_server.jax_compat.programs import is_nan_error, is_out_of_memory, is_runtime_error
from jaxd_server.runtime.logs import log_event


class BrokenProgram(Exception):
    """A program that was read from disk does not run; it was dropped."""


class Executor:
    """Runs programs on the device, once more where memory could be freed. Thread-safe.

    Args:
        functions: where a function is found whose result is not a number.
        executables: where a broken program is dropped.
        oom_handler: makes room on the device.
        discard: drops a broken program from disk.
    """

    def __init__(
        self,
        functions: Functions,
        executables: Executables,
        oom_handler: OutOfMemoryHandler,
        discard: Callable[[Executable], None],
    ) -> None:
        self._functions = functions
        self._executables = executables
        self._oom_handler = oom_handler
        self._discard = discard
        self._memory_reservations = MemoryReservations(lambda: oom_handler.spare)

    def dispatch(self, run: Run) -> None:
        """Hands a run to the device.

        Raises:
            BrokenProgram: when the call is to be answered anew.
            Exception: what jax raises.
        """
        nbytes = run.executable.program.run_bytes
        if not nbytes:
            return self._dispatched(run)
        with self._memory_reservations.beside(run, nbytes):
            self._oom_handler.make_room_for(nbytes)
            return self._dispatched(run)

    def _dispatched(self, run: Run) -> None:
        try:
            return run.dispatch()
        except Exception as error:  # noqa: BLE001  raised again but for one
            # and not the error itself, whose frames hold arrays
            failure = self._out_of_memory(run, error)
        return self._oom_handler.retry(run.dispatch, failure)

    def deliver(self, run: Run) -> Reply:
        """The reply, once the device is done.

        Raises:
            BrokenProgram: when the call is to be answered anew.
            Exception: what jax raises.
        """
        try:
            return run.deliver()
        except Exception as error:  # noqa: BLE001  as above
            failure = self._out_of_memory(run, error)

        def once_more() -> Reply:
            run.dispatch()
            return run.deliver()

        return self._oom_handler.retry(once_more, failure)

    def _out_of_memory(self, run: Run, error: Exception) -> str:
        """What jax says when there is no room, and making some may help; else raises."""
        if self._oom_handler.are_gone(run.leaves):
            run.give_up()
            raise error
        if is_nan_error(error):
            raise find_nan(run.call, self._functions, self._executables) from error
        if run.executable.program.calls_back:
            raise error  # what it has called must not be called once more
        if not is_out_of_memory(error):
            self._discard_if_broken(run.executable, error)
            raise error
        return str(error)

    def _discard_if_broken(self, executable: Executable, error: Exception) -> None:
        """Drops a program that was read from disk and does not run; nothing in one is the user's.

        Raises:
            BrokenProgram: when it was one.
        """
        if executable.program.is_original or not is_runtime_error(error):
            return
        log_event("program_broken", level=logging.WARNING, name=executable.name, reason=str(error))
        self._executables.discard(executable)
        self._discard(executable)
        raise BrokenProgram from error
