"""Schedules garbage collection so that it delays no warm calls.

Tracing holds the interpreter lock. A thread that reads a warm call gets it when the tracing thread
releases it, by default after five milliseconds, and loses it again at each system call. Tracing
also makes so many objects that the garbage collector, which cannot be interrupted, runs all the
time. So the switch interval is short in a worker, and garbage is collected when no call is running.
See docs/decisions/0011-warm-calls-beside-tracing.md for the measurements.
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
from collections.abc import Callable
from typing import Final

from jaxd_protocol.base.process import start_daemon
from jaxd_server.execution.admission import Admission

_SWITCH_INTERVAL_S: Final = 5e-6
_POLL_S: Final = 0.25
_CHORES: Final = 240
_LONG: Final = 12
_YOUNG: Final = 1
_WORTHWHILE: Final = 5_000
_TOO_MANY: Final = 1_000_000


class GcScheduler:
    """Decides when garbage is collected in this process.

    Args:
        admission: of the calls.
        chores: called about once a minute.
        polls: called several times a second; has to be quick.
    """

    def __init__(
        self,
        admission: Admission,
        chores: Callable[[], None] = lambda: None,
        polls: Callable[[], None] = lambda: None,
    ) -> None:
        self._admission = admission
        self._chores = chores
        self._polls = polls
        self._quiet_polls = 0
        self._is_aged = False  # whether there are objects that only a full collection examines

    def start(self) -> None:
        """Starts; to be called when all modules are imported."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        gc.collect()
        gc.freeze()  # imported modules stay: they are not examined again
        gc.disable()
        start_daemon("jaxd-housekeeper", self._work)

    def _work(self) -> None:
        for polls in itertools.count(1):
            time.sleep(_POLL_S)
            self.poll()
            self._polls()
            if polls % _CHORES == 0:
                self._chores()

    def poll(self) -> bool:
        """Collects if there is garbage and no call is running; returns whether it did.

        Collects young objects when no call is running, and all when none has run for a while.
        """
        new = gc.get_count()[0]
        self._quiet_polls = 0 if self._admission.is_busy else self._quiet_polls + 1
        if new > _TOO_MANY or (new > _WORTHWHILE and self._quiet_polls):
            gc.collect(_YOUNG)
            self._is_aged = True
            return True
        if self._is_aged and self._quiet_polls >= _LONG:
            gc.collect()
            self._is_aged = False
            return True
        return False
