"""Calls of `map`: sent ahead by the thread that takes their results, which reads the replies."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.connection.shared_reader import SharedReader
from jaxd.dispatch.async_call import AsyncCall, SentCall
from jaxd_protocol.errors import FallbackWarning
from tests.client.dispatch.test_async_call import places
from tests.client.tracing.test_fallback import Unpackable, local
from tests.end_to_end.gates import Gate, stop_at
from tests.live_server import LiveServer, live_server
from tests.server.staging import until

NUMBERS = [float(i) for i in range(100)]


def known(client: Client, function: Callable[[Any], Any]) -> Any:
    """The persistent function, whose calls with a number have been answered before."""
    made = client.persistent_call(function)
    made(0.0)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each time that the connection's own thread read what had come."""
    found: list[None] = []
    read = SharedReader.read_available

    def noting(reader: SharedReader, *, in_background: bool = False) -> None:
        found.append(None)
        read(reader, in_background=in_background)

    monkeypatch.setattr(SharedReader, "read_available", noting)
    return found


def test_the_thread_that_takes_the_results_sends_the_calls(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is a future, once one like it was answered."""
    double = known(client, lambda x: x * 2)
    futures: list[AsyncCall] = []
    send = AsyncCall.send

    def noting(call: AsyncCall) -> None:
        futures.append(call)
        send(call)

    monkeypatch.setattr(AsyncCall, "send", noting)
    assert list(map(float, double.map(NUMBERS))) == [2 * x for x in NUMBERS]
    assert not futures


def test_calls_go_out_together(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred calls, in far fewer system calls than calls."""
    double = known(client, lambda x: x * 2)
    writer = client.caller.session.connection()._channel.writer
    sent: list[int] = []
    send_some = writer._send_some

    def counting(views: Any, counts: list[int], descriptors: Any) -> None:
        send_some(views, counts, descriptors)
        sent.append(counts[-1])

    monkeypatch.setattr(writer, "_send_some", counting)
    assert len(list(double.map(NUMBERS))) == len(NUMBERS)
    assert len(sent) <= len(NUMBERS) / 8


def test_an_item_does_not_wait_for_the_next_one(client: Client, gate: Gate) -> None:
    """An iterator that has the next item only when the server works on the first."""
    double = known(client, lambda x: x * 2)
    stopping = client.persistent_call(stop_at(gate.path))
    sent = threading.Event()

    def items() -> Iterator[float]:
        yield 1.0
        with gate.reached():
            sent.set()
        yield 2.0

    assert [float(x) for x in stopping.map(items())] == [2.0, 3.0]
    assert sent.is_set()
    assert [float(x) for x in double.map(iter([1.0, 2.0]))] == [2.0, 4.0]


def test_results_that_nobody_takes_hold_up_no_other_call(
    live: LiveServer, reads: list[None]
) -> None:
    """A map that stands still gives its places back, because its replies are read all the same."""
    with connect(live.unix) as client:
        double = known(client, lambda x: x * 2)
        before = places(client)
        results = double.map(NUMBERS)
        assert float(next(results)) == 0.0
        until(lambda: places(client) == before)
        assert [float(double.submit(x).result()) for x in NUMBERS[:40]] == [
            2 * x for x in NUMBERS[:40]
        ]
        assert [float(x) for x in results] == [2 * x for x in NUMBERS[1:]]
        assert reads


@pytest.mark.slow
def test_fewer_places_than_calls_that_go_out_together() -> None:
    """Those that have the places go out when another one waits for a place."""
    with live_server("--slots", "4") as live, connect(live.unix) as client:
        double = known(client, lambda x: x * 2)
        assert [float(x) for x in double.map(NUMBERS)] == [2 * x for x in NUMBERS]


def test_an_item_that_runs_here_does_not_keep_the_others_back(client: Client) -> None:
    """It is no call on the server, and the last one."""
    function = local(client, lambda x, by: x * getattr(by, "factor", by), static_argnums=1)
    function(0.0, 2.0)
    with pytest.warns(FallbackWarning):
        found = list(function.map([1.0, 2.0, 3.0], [2.0, 2.0, Unpackable(5.0)]))
    assert [float(x) for x in found] == [2.0, 4.0, 15.0]


@pytest.mark.slow
def test_a_map_that_is_given_up_leaves_nothing_behind() -> None:
    """Places and the results on the server of the calls that were sent ahead."""
    with live_server() as live, connect(live.unix) as client:
        grow = client.persistent_call(lambda x: np.float32(1) * x + np.zeros(1 << 18, np.float32))
        np.asarray(grow(0.0))

        before = places(client)
        results: Any = grow.map(NUMBERS)
        next(results)
        results.close()
        until(lambda: places(client) == before)
        until(lambda: client.caller.session.ask("statistics")["values"] == 0)


def test_a_connection_that_is_lost_loses_no_result(live: LiveServer) -> None:
    """Calls that were sent ahead are made again, each once, in their order."""
    with connect(live.unix) as client:
        double = known(client, lambda x: x * 2)
        results = double.map(NUMBERS)
        found = [float(next(results)) for _ in range(10)]
        client.caller.session.connection().shut()
        assert found + [float(x) for x in results] == [2 * x for x in NUMBERS]


def test_an_error_is_that_of_its_item(client: Client) -> None:
    """Those before it have their results; those after it are given up."""

    def positive(x: Any) -> Any:
        if x.shape == (3,):
            raise ValueError("three")
        return x.sum()

    function = client.persistent_call(positive)
    function(np.ones(1))
    function(np.ones(2))
    before = places(client)
    results = function.map([np.ones(1), np.ones(2), np.ones(3), np.ones(1)])
    assert [float(next(results)) for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(ValueError, match="three"):
        next(results)
    until(lambda: places(client) == before)


def test_a_large_argument_may_be_overwritten(client: Client) -> None:
    """Its call is no such one: the data has to be where it is until the reply comes."""
    total = client.persistent_call(lambda x: x.sum())
    array = np.zeros(1 << 16, np.float32)
    total(array)

    def refilled() -> Iterator[Any]:
        for i in range(8):
            array[:] = i
            yield array

    assert [float(x) for x in total.map(refilled())] == [float(i << 16) for i in range(8)]


def test_an_interrupt_of_who_takes_results_ends_the_map(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was sent is cancelled or released, and the connection is as before."""
    double = known(client, lambda x: x * 2)
    before = places(client)
    taken = itertools.count()
    result = SentCall.result

    def interrupted(call: SentCall) -> Any:
        if next(taken) == 5:
            raise KeyboardInterrupt
        return result(call)

    monkeypatch.setattr(SentCall, "result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(double.map(NUMBERS))
    monkeypatch.undo()
    until(lambda: places(client) == before)
    assert [float(x) for x in double.map(NUMBERS)] == [2 * x for x in NUMBERS]
