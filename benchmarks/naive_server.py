"""The straightforward persistent server, for comparison: `python -m benchmarks.naive_server`.

An rpyc `ThreadedServer` with rpyc's defaults, whose one method takes a function and its arguments
as cloudpickle bytes and keeps one `jax.jit` per distinct function bytes. It differs from the
well-known sketch of this idea in one point, which makes it faster: the result returns as bytes
too, where returning the array itself would make a proxy and a round trip for every access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
import jax
import numpy as np
import rpyc
from rpyc.utils.server import ThreadedServer

from benchmarks.answering import serve_until_input_closes


class NaiveFunctions(rpyc.Service):  # type: ignore[misc]  # rpyc has no types
    """One connection's functions."""

    def __init__(self) -> None:
        super().__init__()
        self._compiled: dict[bytes, Callable[..., Any]] = {}

    def exposed_call(self, function: bytes, arguments: bytes, keywords: bytes) -> bytes:
        """The pickled numpy result of calling the pickled function."""
        if function not in self._compiled:
            self._compiled[function] = jax.jit(cloudpickle.loads(function))
        positional, named = cloudpickle.loads(arguments), cloudpickle.loads(keywords)
        result = self._compiled[function](*positional, **named)
        answer: bytes = cloudpickle.dumps(np.asarray(result))
        return answer


def main() -> None:
    """Serves a free loopback port until the input closes."""
    server = ThreadedServer(NaiveFunctions, hostname="127.0.0.1", port=0)
    server.listener.listen()  # before the port is printed: start() listens again, later
    serve_until_input_closes(server.start, port=server.port)


if __name__ == "__main__":
    main()
