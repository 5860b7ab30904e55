from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import cloudpickle
import numpy as np
import pytest
from rpyc.utils.factory import unix_connect

from jaxd_server.rpc.endpoint import ClientExits, ClientLife, _started
from tests.server.in_process import InProcessServer
from tests.server.staging import until


def test_open_connections_outlive_a_closed_endpoint(in_process_server: InProcessServer) -> None:
    """A worker that drains finishes what runs."""
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    assert float(double(1.0)) == 2.0
    for endpoint in in_process_server.endpoints:
        endpoint.close()
    assert float(double(4.0)) == 8.0


def test_a_stock_client_is_a_connection_and_counts_as_traffic(
    in_process_server: InProcessServer,
) -> None:
    """So that a server that serves only such clients does not stop for idleness."""
    with unix_connect(in_process_server.unix.removeprefix("unix://")) as stock:
        assert stock.root.ping() == "pong"
        status = in_process_server.parts.status.now()
        assert status["connections"] == status["sessions"] == 1
        assert status["bytes_received"] > 0
        assert status["bytes_sent"] > 0
    until(lambda: in_process_server.parts.status.now()["connections"] == 0)
    assert in_process_server.parts.status.now()["sessions"] == 0


def test_what_a_stock_client_sends_counts_towards_the_budget(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is given back, also when the client dies in the middle of a message."""
    budget, held = in_process_server.parts._worker_context.budget, list[int]()
    answer = in_process_server.parts.pipeline.answer

    def watched(*args: Any) -> Any:
        held.append(budget.used)
        return answer(*args)

    monkeypatch.setattr(in_process_server.parts.pipeline, "answer", watched)
    numbers = np.random.default_rng(0).random(10_000)  # rpyc would compress zeros away
    data = [*map(cloudpickle.dumps, (lambda x: x[0], (numbers,), {}))]
    with unix_connect(in_process_server.unix.removeprefix("unix://")) as stock:
        stock.root.call(*data)
        until(lambda: budget.used == 0)
    assert held[0] > 50_000
    with in_process_server.raw() as sock:
        sock.sendall(struct.pack("!LB", 1_000_000, 0) + bytes(10))
        until(lambda: budget.used > 1_000_000)
    until(lambda: budget.used == 0)


@pytest.fixture
def other_end() -> Iterator[Callable[[], tuple[socket.socket, subprocess.Popen[bytes]]]]:
    """Starts a process that connects to a Unix socket, and returns our end of it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/s")
        listener.listen()
        text = f"""import socket
sock = socket.socket(socket.AF_UNIX)
sock.connect({folder + "/s"!r})
sock.recv(1)"""
        opened: list[socket.socket] = []

        def start() -> tuple[socket.socket, subprocess.Popen[bytes]]:
            process = subprocess.Popen([sys.executable, "-c", text])
            opened.append(listener.accept()[0])
            return opened[-1], process

        yield start
        for sock in opened:
            sock.close()


def test_whether_a_client_has_ended_is_known_of_its_process(other_end: Any) -> None:
    """A later one with the same id is another. Behind a relay, or over TCP, nothing is known."""
    sock, process = other_end()
    life = ClientLife.of(sock, process.pid)
    assert life is not None
    assert (life.has_ended(), life._replace(started="1").has_ended()) == (False, True)
    assert ClientLife.of(sock, process.pid + 1) is ClientLife.of(sock, None) is None
    with socket.socket() as tcp:
        assert ClientLife.of(tcp, os.getpid()) is None
    process.kill()
    assert life.has_ended()  # although nobody has waited for it
    process.wait()
    assert life.has_ended()
    assert ClientLife.of(sock, process.pid) is None


def _my_life() -> ClientLife:
    started = _started(os.getpid())
    assert started is not None
    return ClientLife(os.getpid(), started)


def test_a_connection_ends_with_the_process_of_its_client(other_end: Any) -> None:
    """Not before, and none other; whoever else has the other end."""
    (sock, process), exits = other_end(), ClientExits()
    lives = (ClientLife.of(sock, process.pid), _my_life(), None)
    before = len(os.listdir("/proc/self/fd"))
    pairs = [socket.socketpair() for _ in range(3)]
    with ExitStack() as stack:
        for (ours, _), one in zip(pairs, lives, strict=True):
            stack.enter_context(exits.watching(one, ours))
        exits.poll()
        for ours, _ in pairs:
            ours.send(b"x")
        process.kill()
        process.wait()
        exits.poll()
        with pytest.raises(BrokenPipeError):
            pairs[0][0].send(b"x")
        for ours, _ in pairs[1:]:
            ours.send(b"x")
    exits.poll()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before + 1  # what polls stays
