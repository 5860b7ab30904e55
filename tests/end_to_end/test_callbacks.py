"""What programs call back runs in the process that called them, on its own objects."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd import Client, connect
from jaxd.errors import CallbackError, ConnectionLost
from tests.live_server import LiveServer

X = np.float32(1)
SCALAR: Any = np.zeros((), np.float32)

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


class History:
    """Holds what nobody could send anywhere."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.lock = threading.Lock()

    def add(self, value: Any, scale: float = 1.0) -> None:
        with self.lock:
            self.values.append(float(value) * scale)


history = History()


def note(value: Any, name: str = "", **more: Any) -> None:
    """Is given to jax."""
    seen.append((name, float(value), more))


def append(x: Any) -> Any:
    jax.debug.callback(seen.append, x)
    return x


def in_lambda(x: Any) -> Any:
    jax.debug.callback(lambda v: seen.append(float(v)), x)
    return x


def by_name(x: Any) -> Any:
    jax.debug.callback(note, x, "loss", ordered=True, kind="train")
    return x


def nested(x: Any) -> Any:
    scale, table = 3, np.arange(3)

    def tell(value: Any, more: int = 2) -> None:
        seen.append((float(value), scale, more, table.tolist()))

    jax.debug.callback(tell, x)
    return x


def method(x: Any) -> Any:
    io_callback(history.add, None, x)
    return x


def given_partly(x: Any) -> Any:
    jax.debug.callback(partial(note, name="part"), x)
    return x


def looping(x: Any) -> Any:
    def tell(i: Any, v: Any) -> None:
        seen.append((int(i), float(v)))

    def body(carry: Any, i: Any) -> Any:
        jax.debug.callback(tell, i, carry, ordered=True)
        return carry * 2, None

    return jax.lax.scan(body, x, jnp.arange(3))[0]


CASES: dict[str, tuple[Any, list[Any]]] = {
    "a method of a list": (append, [1.0, 2.0]),
    "a lambda": (in_lambda, [1.0, 2.0]),
    "a function": (by_name, [("loss", v, {"kind": "train"}) for v in (1.0, 2.0)]),
    "a nested function": (nested, [(v, 3, 2, [0, 1, 2]) for v in (1.0, 2.0)]),
    "a partial": (given_partly, [("part", v, {}) for v in (1.0, 2.0)]),
    "in a loop": (looping, [(i, v * 2**i) for v in (1.0, 2.0) for i in range(3)]),
}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_here_and_on_the_objects_of_today(client: Client, name: str) -> None:
    """What it has filled is not in the key: nothing is traced a second time."""
    function, wanted = CASES[name]
    f = client.persistent_call(function)
    f(np.float32(1))
    before = client.statistics().traces
    f(np.float32(2))
    seen.append("after")
    assert seen == [*wanted, "after"]
    assert client.statistics().traces == before


def test_io_callbacks_return_values_of_here(client: Client) -> None:
    """In order, and from a method of an object that could not be sent."""
    history.values.clear()

    def scaled(x: Any) -> Any:
        def scale(v: Any) -> Any:
            history.add(v)
            return np.float32(v * len(history.values))

        x = io_callback(scale, SCALAR, x, ordered=True)
        return io_callback(scale, SCALAR, x + 1, ordered=True)

    f = client.persistent_call(scaled)
    assert [float(f(X)), float(f(X))] == [4.0, 16.0]
    assert history.values == [1.0, 2.0, 1.0, 4.0]
    client.persistent_call(method)(X)
    assert history.values[-1] == 1.0


def test_arrays_and_trees_arrive_as_they_are(client: Client) -> None:
    """Large ones as well, and text beside them."""
    found: list[Any] = []

    def send(x: Any) -> Any:
        tree = {"w": jnp.ones((300, 300)), "b": (x, "text")}
        jax.debug.callback(lambda t, n: found.append((t, n)), tree, 3)
        return x

    client.persistent_call(send)(X)
    ((tree, three),) = found
    assert np.asarray(tree["w"]).sum() == 90_000
    assert isinstance(tree["w"], jax.Array)
    assert (float(tree["b"][0]), tree["b"][1], int(three)) == (1.0, "text", 3)


def collector(into: list[Any]) -> Any:
    """Functions with the same code, and so the same key, that fill different lists."""

    def collect(x: Any) -> Any:
        jax.debug.callback(into.append, x)
        return x

    return collect


def test_functions_of_the_same_key_call_back_their_own(live: LiveServer) -> None:
    """Of one process, also at the same time, and of two clients: the program is shared."""
    lists: list[list[Any]] = [[], [], []]
    with connect(live.unix) as one, connect(live.unix) as two:
        f, g = (one.persistent_call(collector(into)) for into in lists[:2])
        h = two.persistent_call(collector(lists[2]))
        f(X)
        before = one.statistics().traces
        futures = [(f, g, h)[i % 3].submit(np.float32(i)) for i in range(30)]
        for future in futures:
            future.result()
        assert one.statistics().traces == before
    assert [sorted(map(int, each)) for each in lists] == [
        [0, 1, *range(3, 30, 3)],
        list(range(1, 30, 3)),
        list(range(2, 30, 3)),
    ]


def test_a_list_that_the_program_reads_counts(client: Client) -> None:
    """What is traced decides; that it is given to a callback as well changes nothing."""

    def counted(x: Any) -> Any:
        jax.debug.callback(seen.append, x)
        return x + len(seen)

    f = client.persistent_call(counted)
    assert [float(f(X)) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert len(seen) == 3


def test_prints_and_callbacks_are_in_order(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    """A print before a callback is seen before it."""

    def both(x: Any) -> Any:
        for i in range(3):
            jax.debug.print("program {i}", i=i, ordered=True)
            jax.debug.callback(lambda v: print("callback", int(v)), i, ordered=True)
        return x

    client.persistent_call(both)(X)
    assert capsys.readouterr().out == "".join(f"program {i}\ncallback {i}\n" for i in range(3))


def fails(x: Any) -> Any:
    def fail(v: Any) -> Any:
        raise KeyError("of the callback")

    return io_callback(fail, SCALAR, x)


@pytest.mark.parametrize("submit", [False, True])
def test_an_error_in_a_callback_is_the_cause_of_that_of_the_call(
    client: Client, submit: bool
) -> None:
    """As an object of this process, with its own traceback; and the next call works."""
    f = client.persistent_call(fails)
    with pytest.raises(jax.errors.JaxRuntimeError, match="of the callback") as caught:
        f.submit(X).result() if submit else f(X)
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.__traceback__ is not None
    client.persistent_call(append)(X)
    assert seen == [1.0]


def test_a_callback_may_call_persistent_functions(client: Client) -> None:
    """While the program that has called it waits for it."""
    double = client.persistent_call(lambda x: x * 2)

    def outer(x: Any) -> Any:
        return io_callback(lambda v: np.asarray(double(v)), SCALAR, x) + 1

    assert float(client.persistent_call(outer)(np.float32(5))) == 11.0


def test_callbacks_in_callbacks_are_refused(client: Client) -> None:
    """One would wait for the turn of the other."""
    inner = client.persistent_call(append)

    def outer(x: Any) -> Any:
        return io_callback(lambda v: np.asarray(inner(v)), SCALAR, x)

    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        client.persistent_call(outer)(X)
    assert isinstance(caught.value.__cause__, CallbackError)
    assert "one would wait for the other" in str(caught.value.__cause__)


def test_a_callback_may_use_jax(client: Client) -> None:
    """This process's own."""

    def outer(x: Any) -> Any:
        return io_callback(lambda v: np.asarray(jnp.sin(v)), SCALAR, x)

    assert float(client.persistent_call(outer)(X)) == pytest.approx(np.sin(1.0))


def test_pure_callbacks_run_on_the_server(client: Client) -> None:
    """With a library that only the server needs."""

    def nearest(points: Any, at: Any) -> Any:
        def find(points: Any, at: Any) -> Any:
            from scipy.spatial import KDTree

            return np.int32(KDTree(points).query(at)[1])

        return jax.pure_callback(find, np.zeros((), np.int32), points, at)

    points = np.array([[0, 0], [1, 1], [5, 5]], np.float32)
    assert int(client.persistent_call(nearest)(points, points[1] + 0.1)) == 1


@pytest.mark.soak
def test_a_call_that_has_called_back_is_not_repeated(start_live: Any) -> None:
    """Its effects would happen twice. Without any, it is."""
    server = start_live()
    pids = [server.worker_pid()]

    def kill(value: Any) -> Any:
        seen.append(float(value))
        os.kill(pids[0], signal.SIGKILL)
        threading.Event().wait(0.2)  # nothing answers any more
        return value

    def deadly(x: Any) -> Any:
        return io_callback(kill, SCALAR, x)

    with connect(server.unix) as client:
        with pytest.raises(ConnectionLost, match="after it had called back functions"):
            client.persistent_call(deadly)(X)
        assert seen == [1.0]
        client.persistent_call(append)(X)
    assert seen == [1.0, 1.0]


def test_nan_search_calls_nothing_twice(client: Client) -> None:
    """The line that makes the NaN is found all the same."""

    def logs(x: Any) -> Any:
        jax.debug.callback(seen.append, x)
        return jnp.log(x)

    f = client.persistent_call(logs, config={"jax_debug_nans": True})
    with pytest.raises(FloatingPointError, match="nan") as caught:
        f(np.float32(-1))
    assert "return jnp.log(x)" in "".join(traceback.format_exception(caught.value))
    assert len(seen) == 1
