"""Calls on arrays of the server that a callback makes: they belong to the call that calls back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxd
from jaxd import Client, connect
from jaxd.connection.control_client import send_request
from jaxd.errors import CallbackError
from jaxd.remote_values import call_pipeline
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.end_to_end.gates import advice, in_thread
from tests.live_server import LiveServer
from tests.server.staging import until

LARGE: Final = 1 << 15
"""Numbers of four bytes that are too many to come home by themselves."""

STEPS: Final = 12
"""More than are in flight at a time."""

PATIENCE_S: Final = 60

WAYS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "call": lambda function, array: function(array),
    "submit": lambda function, array: function.submit(array).result(),
    "map": lambda function, array: list(function.map([array, array]))[1],
    "remote": lambda function, array: function.remote(array),
}

SCALAR: Final = jax.ShapeDtypeStruct((), np.float32)


@pytest.fixture(params=["0", "3600"], ids=["arrays die", "arrays are made again"])
def client(
    live: LiveServer, runtime: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client whose arrays are, or are not, made again when a worker ends."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", request.param)
    with connect(live.unix) as client:
        yield client


def ones(client: Client, value: float = 1.0) -> Any:
    """An array on the server."""
    return client.put(np.full(LARGE, value, np.float32))


def total(x: Any) -> Any:
    """What a callback asks for."""
    return x.mean()


def within(future: Future[Any]) -> Any:
    """The result of what must not wait for itself."""
    return future.result(PATIENCE_S)


@pytest.mark.parametrize("outer", ["called", "submitted"])
@pytest.mark.parametrize("way", WAYS)
def test_a_callback_makes_calls_on_arrays(client: Client, way: str, outer: str) -> None:
    """Those that are there; while more calls wait behind the one that calls back."""
    ask, found, other = client.persistent_call(total), list[float](), ones(client, 3.0)

    def look(n: Any) -> Any:
        found.append(float(WAYS[way](ask, other)))
        return np.float32(n + found[-1])

    def step(state: Any, n: Any) -> Any:
        return state + io_callback(look, SCALAR, n)

    train = client.persistent_call(step, donate_argnums=0)

    def loop() -> Any:
        state = ones(client, 0.0)
        for number in range(STEPS):
            n = np.float32(number)
            state = train(state, n) if outer == "called" else train.submit(state, n).result()
        return float(state[0])

    assert within(in_thread(loop)) == sum(range(STEPS)) + 3.0 * STEPS
    assert found == [3.0] * STEPS


def test_what_a_callback_makes_is_there_afterwards(client: Client) -> None:
    """It may be kept, and given to calls that were made meanwhile and to later ones."""
    double, kept = client.persistent_call(lambda x: x * 2), list[Any]()
    other = ones(client)

    def look(_: Any) -> None:
        kept.append(double.remote(kept[-1] if kept else other))

    def step(state: Any) -> Any:
        jax.debug.callback(look, state[0], ordered=True)
        return state + 1

    train = client.persistent_call(step, donate_argnums=0)

    def loop() -> list[float]:
        state = ones(client)
        for _ in range(STEPS):
            state = train(state)
        state.block_until_ready()
        return [float(each[0]) for each in kept]

    assert within(in_thread(loop)) == [2.0 ** (n + 1) for n in range(STEPS)]


class Held:
    """A step whose callback does something once the step has returned its result in this process.

    Args:
        client: whose functions these are.
        ask: what it does with the result; its error is kept.
    """

    def __init__(self, client: Client, ask: Callable[[Any, Any], Any]) -> None:
        self.errors: list[BaseException | None] = []
        self._has_returned = threading.Event()
        self._result: Any = None
        self._taken: Any = None

        def look(n: Any) -> Any:
            if n:
                assert self._has_returned.wait(PATIENCE_S)
                try:
                    ask(self._taken, self._result)
                except Exception as error:  # noqa: BLE001  it is what is looked at
                    self.errors.append(error)
                else:
                    self.errors.append(None)
            return n

        def held(state: Any, n: Any) -> Any:
            return state + io_callback(look, SCALAR, n)

        self._step = client.persistent_call(held)
        self._start = ones(client)

    def run(self) -> float:
        """The number in the result."""
        before = self._step(self._start, np.float32(0.0))  # the next one returns before it has run
        self._taken = before
        self._result = self._step(before, np.float32(1.0))
        self._has_returned.set()
        return float(self._result[0])


ASKS: Final[dict[str, Callable[[Client], Callable[[Any, Any], Any]]]] = {
    "call": lambda client: lambda _, result: client.persistent_call(total)(result),
    "submit": lambda client: lambda _, result: client.persistent_call(total).submit(result),
    "map": lambda client: lambda _, result: [*client.persistent_call(total).map([result])],
    "fetch": lambda client: lambda _, result: np.asarray(result),
    "get": lambda client: lambda _, result: jaxd.get([result]),
    "part": lambda client: lambda _, result: result[:3],
    "wait": lambda client: lambda _, result: jaxd.wait(result),
    "wait for all": lambda client: lambda *_: client.caller.session.values().calls.wait_for_all(),
    "donate": lambda client: (
        lambda taken, _: client.persistent_call(total, donate_argnums=0)(taken)
    ),
}


@pytest.mark.parametrize("way", ASKS)
def test_what_would_wait_for_itself_is_refused(client: Client, way: str) -> None:
    """With what to do instead; and the call that has called back goes on."""
    held = Held(client, ASKS[way](client))
    assert within(in_thread(held.run)) == 2.0
    (error,) = held.errors
    assert isinstance(error, CallbackError)
    assert "held has called back" in str(error)
    assert "one would wait for the other" in str(error)
    assert "after the call has returned" in advice(error)


def test_arrays_that_the_call_only_takes_may_be_used(client: Client) -> None:
    """As long as they are not given away."""
    seen = list[float]()

    def ask(taken: Any, _: Any) -> None:
        seen.extend((float(client.persistent_call(total)(taken)), float(np.asarray(taken)[0])))

    held = Held(client, ask)
    assert within(in_thread(held.run)) == 2.0
    assert (seen, held.errors) == ([1.0, 1.0], [None])


def test_a_callback_may_donate_what_no_other_call_takes(client: Client) -> None:
    """As in any call."""
    spare = ones(client, 7.0)
    more = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    held = Held(client, lambda *_: more(spare))
    assert within(in_thread(held.run)) == 2.0
    assert held.errors == [None]
    assert spare.is_deleted()


@pytest.mark.slow
def test_a_call_of_arrays_of_here_may_call_back_as_well(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a call on arrays of the server waits until it may call back itself."""
    monkeypatch.setattr(call_pipeline, "CALLBACK_WAIT_S", 0.5)
    begun, sent = _events()
    ask, other = client.persistent_call(total), ones(client)
    waiting, found = list[Any](), list[Any]()

    def look(n: Any) -> Any:
        begun.set()
        assert sent.wait(PATIENCE_S)
        found.append(float(ask(other)))
        with pytest.raises(CallbackError, match="one would wait for the other"):
            np.asarray(waiting[0])
        return n

    def plain(n: Any) -> Any:
        return io_callback(look, SCALAR, n) + 1

    def turning(state: Any) -> Any:
        jax.debug.callback(found.append, state[0])
        return state + 1

    def outer() -> Any:
        return float(client.persistent_call(plain)(np.float32(4.0)))

    turn = client.persistent_call(turning)
    warm = turn(other)
    warm.block_until_ready()
    found.clear()
    result = in_thread(outer)
    assert begun.wait(PATIENCE_S)
    waiting.append(turn(warm))
    sent.set()
    assert within(result) == 5.0
    assert float(waiting[0][0]) == 3.0
    assert found == [1.0, 2.0]


def _events() -> tuple[threading.Event, threading.Event]:
    return threading.Event(), threading.Event()


@pytest.mark.slow
def test_the_worker_ends_while_a_callback_asks(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both calls are made again, and the callback is not."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "3600")
    server, count = start_live(), list[int]()
    with connect(server.unix) as client:
        ask, other = client.persistent_call(total), ones(client, 5.0)
        float(ask(other))

        def look(n: Any) -> Any:
            count.append(int(n))
            if n == 2.0:
                os.kill(server.worker_pid(), signal.SIGKILL)
            return np.float32(float(ask(other)) + n)

        def step(state: Any, n: Any) -> Any:
            return state + io_callback(look, SCALAR, n)

        train = client.persistent_call(step, donate_argnums=0)

        def loop() -> float:
            state = ones(client, 0.0)
            for number in range(4):
                state = train(state, np.float32(number))
            return float(state[0])

        assert within(in_thread(loop)) == sum(range(4)) + 4 * 5.0
    assert count == [0, 1, 2, 3]


def test_arrays_are_freed_behind_calls_of_callbacks(client: Client) -> None:
    """Also where they were dropped while the call still ran that calls back."""
    ask, before = client.persistent_call(total), client.statistics().values

    def look(n: Any) -> Any:
        return np.float32(float(ask(ones(client, float(n)))))

    def step(state: Any, n: Any) -> Any:
        return state + io_callback(look, SCALAR, n)

    train = client.persistent_call(step, donate_argnums=0)

    def loop() -> float:
        state = ones(client, 0.0)
        for number in range(STEPS):
            state = train(state, np.float32(number))
        return float(state[0])

    assert within(in_thread(loop)) == sum(range(STEPS))
    until(lambda: client.statistics().values <= before)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0", "3600"], ids=["arrays die", "arrays are made again"])
def test_a_callback_asks_while_its_worker_gives_way(
    start_live: Callable[..., LiveServer], seconds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that calls back ends where it began, and so does what its callback asks for."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", seconds)
    server, (begun, replaced) = start_live(), _events()
    with connect(server.unix) as client:
        ask, other = client.persistent_call(total), ones(client, 3.0)

        def look(n: Any) -> Any:
            if n:
                begun.set()
                assert replaced.wait(PATIENCE_S)
            return np.float32(float(ask(other)))

        def step(state: Any, n: Any) -> Any:
            return state.mean() + io_callback(look, SCALAR, n)

        run = client.persistent_call(step, results="numpy")
        assert float(run(other, np.float32(0.0))) == 6.0
        running = in_thread(run, other, np.float32(1.0))
        assert begun.wait(PATIENCE_S)
        path = control_path(Address.parse(server.unix))
        answer: Any = send_request(path, {"ask": "restart", "force": True}, is_slow=True)
        assert answer["epoch"] == 2
        server.wait_for("worker_ready", 2)
        replaced.set()
        assert float(within(running)) == 6.0
        server.wait_for("worker_exited", 1, epoch=1, exit_code=0)
        if seconds != "0":
            assert float(run(other, np.float32(0.0))) == 6.0
