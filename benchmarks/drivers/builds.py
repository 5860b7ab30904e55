"""A client that keeps a server busy with new functions: `builds ADDRESS BLOCKS`."""

from __future__ import annotations

import sys
import threading
from typing import Any

from benchmarks.answering import answer_requests
from benchmarks.programs.train import make_arguments, train_step
from jaxd import Client, connect


class Builds:
    """New train steps, one after another, each traced, lowered and compiled by the server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._arguments = make_arguments()
        self._count = 0
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread()

    def begin(self, _: int) -> float:
        """Starts, and returns once the server is at the first one."""
        self._stop.clear()
        self._first.clear()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._first.wait()
        return 0.0

    def end(self, _: int) -> float:
        """Lets the last one finish."""
        self._stop.set()
        self._thread.join()
        return 0.0

    def _work(self) -> None:
        while not self._stop.is_set():
            self._count += 1
            call = self._client.persistent_call(_new(self._count)).submit(*self._arguments)
            self._first.set()
            call.result()


def _new(count: int) -> Any:
    def step(params: Any, momentum: Any, x: Any, y: Any) -> Any:
        return train_step(params, momentum, x * count, y)[0]

    return step


def main() -> None:
    """Starts and stops builds on request."""
    builds = Builds(connect(sys.argv[1]))
    answer_requests({"begin": builds.begin, "end": builds.end})


if __name__ == "__main__":
    main()
