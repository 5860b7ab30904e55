"""Connections that are cut, reset, swallowed, slow, or bring one byte at a time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

from jaxd import Client, connect, errors
from tests.end_to_end.gates import in_thread
from tests.end_to_end.passing_on import Way
from tests.faults.others import answers_correctly, unharmed
from tests.faults.proxy import Fault, Proxy
from tests.live_server import TOKEN, LiveServer, live_server

pytestmark = pytest.mark.faults

LARGE: Final = 1 << 20
"""Numbers of four bytes."""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One for all rows: each leaves it as it was."""
    with live_server() as server:
        yield server


@pytest.fixture
def proxy(server: LiveServer) -> Iterator[Proxy]:
    """In between a client and the server."""
    with Proxy(int(server.tcp.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[Client]:
    """A client behind the proxy, which has called before."""
    with connect(proxy.address, token=TOKEN) as client:
        assert answers_correctly(client)
        yield client


def doubled(client: Client, size: int) -> bool:
    x = np.arange(size, dtype=np.float32)
    double = client.persistent_call(lambda x: x * 2, results="numpy")
    return bool((double(x) == x * 2).all())


@pytest.mark.parametrize("fault", ["cut", "reset"])
@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("after", [0, 3, 40, 2 * LARGE])
def test_a_connection_ends(
    server: LiveServer, proxy: Proxy, client: Client, fault: Fault, way: Way, after: int
) -> None:
    """After so many bytes: the call is repeated unseen and right."""
    assert doubled(client, LARGE)
    with unharmed(server, 1):
        proxy.strike(fault, way, after)
        assert doubled(client, LARGE)
        assert proxy.struck.is_set()
        assert answers_correctly(client)


@pytest.mark.parametrize("fault", ["bytes", "slow"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_connection_is_slow(
    server: LiveServer, proxy: Proxy, client: Client, fault: Fault, way: Way
) -> None:
    """One byte at a time, or 8 KiB and a pause: right, and others do not wait."""
    with unharmed(server, 1):
        proxy.strike(fault, way, 0)
        assert doubled(client, 2000 if fault == "bytes" else LARGE)
        proxy.heal()


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize("after", [0, 2 * LARGE])
def test_a_connection_swallows_what_is_sent(
    server: LiveServer, proxy: Proxy, client: Client, way: Way, after: int
) -> None:
    """A call with timeout_s ends by it; once the network says what is lost, the next is right."""
    assert doubled(client, LARGE)
    with unharmed(server, 1):
        proxy.strike("hole", way, after)
        x = np.ones(LARGE, np.float32)
        double = client.persistent_call(lambda x: x * 2, results="numpy", timeout_s=0.5)
        with pytest.raises(errors.DeadlineExceeded):
            double(x)
        waiting = in_thread(doubled, client, LARGE)
        proxy.heal()
        proxy.cut()
        assert waiting.result(50)
        assert answers_correctly(client)


@pytest.mark.parametrize("said", [b"", b"J", b"JAXD", b"JAXD\0\x40{", b"GET / HTTP/1.1\r\n\r\n"])
def test_a_peer_that_says_nothing_sensible(server: LiveServer, said: bytes) -> None:
    """And stays, or leaves: nobody else waits."""
    with unharmed(server, 1):
        stays = socket.create_connection(("127.0.0.1", int(server.tcp.rpartition(":")[2])))
        leaves = socket.create_connection(("127.0.0.1", int(server.tcp.rpartition(":")[2])))
        stays.sendall(said)
        leaves.sendall(said)
        leaves.close()
        with connect(server.tcp, token=TOKEN) as client:
            assert answers_correctly(client)
        stays.close()


def test_many_connections_come_and_go_at_once(server: LiveServer) -> None:
    """Forty clients, some of which leave in the middle of a call."""

    def visit(number: int) -> Any:
        with connect(server.unix) as client:
            if number % 4 == 0:
                client.persistent_call(lambda x: x + 1).submit(np.ones(LARGE, np.float32))
                return True
            return answers_correctly(client)

    with unharmed(server, 1):
        visits = [in_thread(visit, number) for number in range(40)]
        assert all(one.result(50) for one in visits)
