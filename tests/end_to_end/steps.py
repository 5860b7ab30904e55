"""Functions that are cheap to build, and what a call of one costs a server."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from jaxd import Client
from tests.end_to_end.counting import costs
from tests.live_server import LiveServer

SHARED: Final = {"traces": 1, "lowers": 1, "programs_shared": 1}

X: Final = np.array([0.5, 1, 2, 4, 8], np.float32)
"""Products of these are exact, however they are computed."""


class Steps:
    """Functions that only differ in a number, by that number."""

    @staticmethod
    def make(number: int) -> Callable[[Any], Any]:
        def step(x: Any) -> Any:
            return x * number + 0.5

        step.__name__ = step.__qualname__ = f"step_{number}"
        return step

    def cost(self, client: Client, number: int) -> tuple[dict[str, int], bool]:
        """What a call took, and whether the client was asked; it returned what it should."""
        step = client.persistent_call(self.make(number))
        question = client.caller.answer_request
        with (
            patch.object(client.caller, "answer_request", wraps=question) as asked,
            costs(client) as cost,
        ):
            np.testing.assert_array_equal(step(X), self.make(number)(X))
        return cost, asked.called

    def settle(self, client: Client) -> None:
        """Returns when all that was built is on disk."""
        client.persistent_call(lambda x: x).warm(X)


def kill(server: LiveServer) -> None:
    """Ends the worker as the kernel would, and returns when the next one is there."""
    ready = sum(line["event"] == "worker_ready" for line in server.lines)
    os.kill(server.worker_pid(), signal.SIGKILL)
    server.wait_for("worker_ready", ready + 1)
