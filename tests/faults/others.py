"""Clients that have nothing to do with a fault, and must not notice it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxd import Client, connect
from jaxd.connection.control_client import send_request
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.end_to_end.gates import in_thread
from tests.levels import Levels
from tests.live_server import LiveServer
from tests.server.staging import until

_MORE_FILES = 8
"""Open files that a worker may have gained: of its disk cache, of a thread's pipe."""


def triple(x: Any) -> Any:
    return x * 3


def answers_correctly(client: Client, size: int = 5) -> bool:
    """Whether a call of this client has the right answer."""
    x = np.arange(size, dtype=np.float32)
    found = client.persistent_call(triple, results="numpy")(x)
    return bool((found == x * 3).all())


def host_status(server: LiveServer) -> Any:
    """What `jaxd status` shows."""
    return send_request(control_path(Address.parse(server.unix)), {"ask": "status"})


@contextmanager
def unharmed(server: LiveServer, others: int = 2) -> Iterator[None]:
    """Others call all the time; afterwards their answers were right, and nothing is left behind.

    That is: the next call is right, no call runs, and there are no more connections, sessions that
    are connected, arrays or open files than before.
    """
    with connect(server.unix) as watcher:
        assert answers_correctly(watcher)
        before = watcher.statistics()
        pid = server.worker_pid()
        files = Levels.of(pid).files
        with _calling(server, others) as wrong:
            yield
        assert not wrong, wrong
        assert answers_correctly(watcher)
        until(lambda: watcher.statistics().connections <= before.connections)
        until(lambda: watcher.statistics().values <= before.values)
        until(lambda: not host_status(server)["worker"].get("running"))
        if server.worker_pid() == pid:
            until(lambda: Levels.of(pid).files <= files + _MORE_FILES)


@contextmanager
def _calling(server: LiveServer, count: int) -> Iterator[list[Any]]:
    wrong: list[Any] = []
    done = threading.Event()
    calls = [0] * count

    def call(number: int) -> None:
        with connect(server.unix) as client:
            while not done.is_set():
                try:
                    if not answers_correctly(client, 3 + calls[number] % 2 * 40_000):
                        wrong.append(f"wrong after {calls[number]}")
                except BaseException as error:  # noqa: BLE001  none is expected
                    wrong.append(error)
                    return
                calls[number] += 1

    running = [in_thread(call, number) for number in range(count)]

    def go_on(more: int) -> Callable[[], bool]:
        start = list(calls)
        return lambda: (
            bool(wrong) or all(now >= then + more for now, then in zip(calls, start, strict=True))
        )

    until(go_on(4))
    try:
        yield wrong
        until(go_on(4))
    finally:
        done.set()
        for one in running:
            one.result(50)
