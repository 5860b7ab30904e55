"""Somebody who watches a server, from `begin` to `end`: `watching ADDRESS`."""

from __future__ import annotations

import sys
import threading

import jaxd
from benchmarks.answering import answer_requests
from jaxd import Watch


class Watcher:
    """Watches a server in a thread of its own, twice a second."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._seen: Watch | None = None

    def begin(self, _: int) -> float:
        """Begins to watch; the first view is there when this returns."""
        self._seen = jaxd.watch(self._address)
        threading.Thread(target=self._look, args=(self._seen,), daemon=True).start()
        return 0.0

    def _look(self, seen: Watch) -> None:
        for _ in seen:
            pass

    def end(self, _: int) -> float:
        """Ends it."""
        if self._seen is not None:
            self._seen.close()
        return 0.0


def main() -> None:
    """Watches when it is told to until the input closes."""
    watcher = Watcher(sys.argv[1])
    answer_requests({"begin": watcher.begin, "end": watcher.end})


if __name__ == "__main__":
    main()
