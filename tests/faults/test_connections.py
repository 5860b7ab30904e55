"""Connections that are cut, reset, swallowed, slow, or bring one byte at a time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd import Client, connect, errors
from tests.end_to_end.gates import in_thread
from tests.end_to_end.passing_on import Way
from tests.faults.others import answers_correctly, unharmed
from tests.faults.proxy import Fault, Proxy
from tests.live_server import TOKEN, LiveServer, live_server
from tests.server.staging import until

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


def test_a_connection_swallows_a_submitted_call_on_arrays(
    server: LiveServer, proxy: Proxy, client: Client
) -> None:
    """It ends by its timeout_s as well, and leaves no array on the server once that is heard."""
    kept = client.put(np.ones(LARGE // 32, np.float32))
    double = client.persistent_call(lambda x: x * 2, results="remote", timeout_s=0.5)
    assert float(np.asarray(double(kept))[0]) == 2
    with unharmed(server, 1):
        proxy.strike("hold", "down", 0)
        with pytest.raises(errors.DeadlineExceeded):
            double.submit(kept).result(20)
        proxy.heal()
        assert answers_correctly(client)


@pytest.mark.parametrize("way", ["state", "submitted", "plain"])
def test_a_server_cannot_be_reached_for_a_while(
    server: LiveServer, proxy: Proxy, client: Client, way: str
) -> None:
    """Twenty times 0.4 s with the port closed, in a loop: no call fails, and no state is lost."""
    with unharmed(server, 1):
        outages = in_thread(_many_outages, proxy, 20)
        if way == "plain":
            while not outages.done():
                assert answers_correctly(client)
        else:
            add = client.persistent_call(lambda s, x: s + x, donate_argnums=0, results="remote")
            state, count = client.put(np.zeros(LARGE // 32, np.float32)), 0
            while not outages.done():
                one = np.float32(1)
                state = add.submit(state, one).result(50) if way == "submitted" else add(state, one)
                count += 1
            assert (np.asarray(state) == count).all()
            del state
        assert outages.result(50)
        assert answers_correctly(client)


def _many_outages(proxy: Proxy, count: int) -> bool:
    pause = threading.Event().wait
    for _ in range(count):
        proxy.shut()
        pause(0.4)
        proxy.open_again()
        pause(0.3)
    return True


@pytest.mark.parametrize("way", ["plain", "several", "submitted", "arrays", "waited for"])
def test_a_server_accepts_connections_and_says_nothing(way: str) -> None:
    """In an outage each call ends by its own time, typed, also while another one waits longer."""
    with live_server() as server:  # its own: what sessions before have left would hide a result
        port = int(server.tcp.rpartition(":")[2])
        with Proxy(port) as proxy, connect(proxy.address, token=TOKEN) as client:
            _call_through_an_outage(server, proxy, client, way)


def _call_through_an_outage(server: LiveServer, proxy: Proxy, client: Client, way: str) -> None:
    kept = client.put(np.ones(LARGE // 32, np.float32))
    given = np.ones(3, np.float32) if way in ("arrays", "waited for") else kept
    add = client.persistent_call(lambda x: x + 1, results="remote")
    timed = client.persistent_call(lambda x: x + 1, results="remote", timeout_s=1.0)
    for each in (kept, given):
        assert float(np.asarray(add(each))[0]) == float(np.asarray(timed(each))[0]) == 2
    until(lambda: client.statistics().values == 1)
    with unharmed(server, 1):
        proxy.strike("hold", "down", 0)
        others = [in_thread(lambda: np.asarray(add(kept)))] if way == "several" else []
        future: Any = None
        if way in ("submitted", "arrays"):
            future = timed.submit(given)
        elif way == "waited for":
            future = in_thread(timed, given)
        if way != "plain":
            assert proxy.struck.wait(30)
        proxy.cut()
        future = future or in_thread(timed, given)
        with pytest.raises(errors.DeadlineExceeded):
            future.result(15)
        proxy.heal()
        proxy.cut()
        assert all(float(one.result(50)[0]) == 2 for one in others)
        assert answers_correctly(client)
        until(lambda: client.statistics().values == 1)


def test_a_server_cannot_be_reached_for_longer_than_a_session_lasts() -> None:
    """A call with a state that it was given for good says that this is gone, not: repeat it."""
    with live_server("--session-grace-s", "0.5") as server:
        port = int(server.tcp.rpartition(":")[2])
        with Proxy(port) as proxy, connect(proxy.address, token=TOKEN) as client:
            add = client.persistent_call(lambda s, x: s + x, donate_argnums=0, results="remote")
            state = client.put(np.zeros(LARGE, np.float32))
            assert answers_correctly(client)
            proxy.strike("hold", "down", 0)
            waiting = in_thread(lambda: np.asarray(add(state, np.float32(1))))
            assert proxy.struck.wait(30)
            proxy.shut()
            proxy.heal()
            with pytest.raises(errors.ValuesLost) as caught:
                waiting.result(30)
            assert not caught.value.may_repeat
            proxy.open_again()
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
            if number % 4 == 0:  # a result that comes home: one that stays would, as the session
                client.persistent_call(lambda x: x.sum()).submit(np.ones(LARGE, np.float32))
                return True
            return answers_correctly(client)

    with unharmed(server, 1):
        visits = [in_thread(visit, number) for number in range(40)]
        assert all(one.result(50) for one in visits)


@pytest.mark.parametrize("moment", ["asked", "while it runs", "while it calls", "answered"])
def test_a_connection_ends_while_a_call_calls_back(
    server: LiveServer, proxy: Proxy, client: Client, moment: str
) -> None:
    """On arrays: it goes on when there is a connection again, and no function is called twice."""
    drawn, held = list[int](), list[Any]()
    double = client.persistent_call(lambda x: x * 2, results="remote")

    def draw() -> Any:
        drawn.append(len(drawn))
        if drawn[-1] == 1 and moment == "asked":
            proxy.strike("cut", "down", 3)  # the next question
        if drawn[-1] == 2 and moment == "answered":
            proxy.strike("cut", "up", 3)
        if drawn[-1] == 2 and moment.startswith("while"):
            proxy.cut()
        if drawn[-1] == 2 and moment == "while it calls":
            assert float(np.asarray(double(held[0]))[0]) == 14.0
        return np.float32(drawn[-1])

    def draws(state: Any) -> Any:
        total = state
        for place in range(5):  # the same question each time
            item = io_callback(draw, jax.ShapeDtypeStruct((), np.float32), ordered=True)
            total = total + item * 10.0**place
        return total

    with unharmed(server, 1):
        held.append(client.put(np.full(3, 7, np.float32)))
        state = client.put(np.zeros(3, np.float32))
        made = client.persistent_call(draws, donate_argnums=0, results="remote")(state)
        assert np.asarray(made).tolist() == [43210.0] * 3
        assert drawn == [0, 1, 2, 3, 4]
        assert answers_correctly(client)
        held.clear()
        del state, made
