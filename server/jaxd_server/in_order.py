"""Jobs one after the other, in a thread that lives only while there are some.

What a connection still has to send is such a line: a send blocks for as long as the client likes,
and a client that does not read keeps nobody but itself. The calls of a session on its values are
another.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["InOrder"]

Job = Callable[[], None]


class InOrder:
    """Does jobs, which must not raise, in the order in which they came. Thread-safe.

    Args:
        name: what its thread is called.
        linger_s: how long the thread waits for another job before it ends.
    """

    def __init__(self, name: str = "jaxd-send", linger_s: float = 0.0) -> None:
        self._name = name
        self._linger_s = linger_s
        self._waiting: deque[Job] = deque()
        self._works = False  # whether some thread is in charge of what waits
        self._lingers = False  # whether a thread that has nothing to do is still there
        self._handed = False  # whether that one is in charge again
        self._changed = threading.Condition()  # guards all of the above

    def __len__(self) -> int:
        """How many wait behind the one that is being done."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being done."""
        return not self._works

    def put(self, job: Job) -> None:
        """Has `job` called when its turn comes; does not wait for that."""
        with self._changed:
            self._waiting.append(job)
            if self._works:
                return
            needs_thread = self._hand_on()
        if needs_thread:
            self._go_on()

    def try_now(self, job: Job) -> bool:
        """Does `job` in this thread if nothing else is being done or waits; whether it did."""
        with self._changed:
            if self._works:
                return False
            self._works = True
        job()
        with self._changed:
            self._works = False
            needs_thread = bool(self._waiting) and self._hand_on()
        if needs_thread:
            self._go_on()
        return True

    def _hand_on(self) -> bool:
        """Puts a thread in charge of what waits; whether that has to be a new one."""
        self._works = True
        if self._lingers and not self._handed:
            self._handed = True
            self._changed.notify()
            return False
        return True

    def _go_on(self) -> None:
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:  # the system has no more threads
            self._run()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._waiting and not self._linger():
                    return
                job = self._waiting.popleft()
            job()
            del job  # it may hold large arrays, and this thread may wait

    def _linger(self) -> bool:
        """Waits for another job; whether there is one for this thread. The lock is held."""
        self._works = False
        if not self._linger_s:
            return False
        self._lingers = True
        self._changed.wait_for(lambda: self._handed, self._linger_s)
        self._lingers = False
        was_handed, self._handed = self._handed, False
        return was_handed
