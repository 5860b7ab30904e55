"""Clients that are connected and do nothing: they cost no thread, and are as others afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.connection.control_client import send_request
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until

pytestmark = [pytest.mark.own_server, pytest.mark.slow]  # its threads are counted

StartLive = Callable[..., LiveServer]

MANY = 20
"""Clients of one process; there is a process for each kind of address."""

CROWD = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
import jaxd

def double(x):
    return x * 2

count, address = int(sys.argv[1]), sys.argv[2]
clients = [jaxd.connect(address) for _ in range(count)]
doubles = [client.persistent_call(double) for client in clients]
kept = [client.put([float(i)]) for i, client in enumerate(clients)]
print("come", flush=True)
for line in sys.stdin:
    with ThreadPoolExecutor(count) as pool:
        found = list(pool.map(lambda i: float(doubles[i](float(i))), range(count)))
        found += list(pool.map(lambda i: float(doubles[i](kept[i][0])), range(count)))
    print(json.dumps(found == [2.0 * i for i in range(count)] * 2), flush=True)
"""


class Crowd:
    """A process with many clients."""

    def __init__(self, server: LiveServer, address: str, count: int = MANY) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CROWD, str(count), address],
            env=server.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "come\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def begin(self) -> None:
        """All of its clients call at once."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def is_right(self) -> bool:
        """Whether all the calls that were begun had the right results."""
        return json.loads(self._line()) is True

    def leave(self) -> None:
        """As a program that is done."""
        self.process.communicate(timeout=60)


@contextmanager
def crowds(server: LiveServer, *addresses: str) -> Iterator[list[Crowd]]:
    """One at each address."""
    with ExitStack() as stack:
        found = [Crowd(server, address) for address in addresses]
        for crowd in found:
            stack.enter_context(crowd.process)
            stack.callback(crowd.process.kill)
        yield found


def worker(server: LiveServer) -> dict[str, Any]:
    """Its status, for which no client has to be connected."""
    reply = send_request(control_path(Address.parse(server.unix)), {"ask": "status"})
    assert reply is not None
    found: dict[str, Any] = reply["worker"]
    return found


def rest(server: LiveServer, count: int) -> None:
    """Returns when so many clients are connected, and all are idle."""
    until(
        lambda: (
            [worker(server)[name] for name in ("connections", "idle_connections")] == [count] * 2
        )
    )


def threads_of(pid: int) -> int:
    """How many a process has."""
    return len(os.listdir(f"/proc/{pid}/task"))


def test_idle_clients_need_no_threads(start_live: StartLive) -> None:
    """Over each kind of connection; they are counted, are right when all call, and may leave."""
    server = start_live("--build-in", "worker")
    pid = server.worker_pid()
    with connect(server.unix) as client:
        client.persistent_call(lambda x: x * 2)(1.0)
        rest(server, 1)
        few = threads_of(pid) + 8  # threads for calls stay
        with crowds(server, server.unix, server.tcp, server.tls) as come:
            for _ in range(2):
                rest(server, 3 * MANY + 1)
                until(lambda: threads_of(pid) <= few)
                for crowd in come:
                    crowd.begin()
                assert [crowd.is_right() for crowd in come] == [True] * 3
            rest(server, 3 * MANY + 1)
            come[0].process.kill()
            come[1].leave()
            until(lambda: worker(server)["connections"] == MANY + 1)
            come[2].begin()
            assert come[2].is_right()
        until(lambda: worker(server)["connections"] == 1)


def test_a_server_stops_with_idle_clients(start_live: StartLive) -> None:
    """At once, and as any other time."""
    server = start_live("--build-in", "worker")
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server.unix)) for _ in range(8)]
        rest(server, len(clients))
        assert server.close() == 0


def test_idle_clients_find_the_next_worker(start_live: StartLive) -> None:
    """Whether the one that they were connected to was replaced, or has died."""
    server = start_live("--build-in", "worker")
    with ExitStack() as stack:
        ways: list[Client] = [
            stack.enter_context(connect(address, token=TOKEN))
            for address in (server.unix, server.tcp, server.tls)
        ]
        doubles = [client.persistent_call(lambda x: x * 2) for client in ways]
        assert [float(double(1.0)) for double in doubles] == [2.0] * 3
        rest(server, 3)
        command = [sys.executable, "-P", "-m", "jaxd.cli", "restart"]
        subprocess.run(command, env=server.environment, check=True, capture_output=True)
        assert [float(double(2.0)) for double in doubles] == [4.0] * 3
        rest(server, 3)
        os.kill(server.worker_pid(), signal.SIGKILL)
        assert [float(double(3.0)) for double in doubles] == [6.0] * 3


def test_a_resumed_session_may_rest_again(start_live: StartLive) -> None:
    """What it holds stays, over rests and connections."""
    server = start_live("--build-in", "worker")
    with connect(server.tls, token=TOKEN) as client:
        kept, session = client.put(np.ones(3, "f4")), client.info()["session"]
        total = client.persistent_call(lambda x: x.sum())
        for _ in range(2):
            rest(server, 1)
            assert float(total(kept)) == 3.0
            client.caller.session.connection().shut()
            assert client.info()["session"] == session
            assert worker(server)["sessions"] == 1
