"""What one connection still has to send: a client that does not read keeps nobody but itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Outbox"]


class Outbox:
    """Sends in order, in a thread that lives only while there is something to send.

    A send blocks for as long as the client likes. The threads that run and build calls are shared
    by all connections, so they leave their replies here instead. Thread-safe.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._sends = False
        self._lock = threading.Lock()  # guards both of the above

    def __len__(self) -> int:
        """How many wait behind the one that is being sent."""
        return len(self._waiting)

    def put(self, send: Callable[[], None]) -> None:
        """Has `send`, which must not raise, called when its turn comes; does not wait for that."""
        with self._lock:
            self._waiting.append(send)
            is_first, self._sends = not self._sends, True
        if is_first:
            try:
                threading.Thread(target=self._run, name="jaxd-send", daemon=True).start()
            except RuntimeError:  # the system has no more threads
                self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._sends = False
                    return
                send = self._waiting.popleft()
            send()
