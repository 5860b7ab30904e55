"""What programs call back runs in the process that called them, on its own objects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from jaxd import Client, connect
from jaxd.errors import CallbackError, ConnectionLost, FallbackWarning, LostUpdateError
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


class Model:
    """Its methods read it, and give methods of it."""

    def __init__(self) -> None:
        self.scale = np.float32(2)
        self.history = History()

    def step(self, x: Any) -> Any:
        """Is called on an object that the function reaches."""
        jax.debug.callback(self.history.add, x)
        return x * self.scale

    def step_in_place(self, x: Any) -> Any:
        """Holds its object."""
        jax.debug.callback(lambda v: self.history.add(v, 10), x)
        return x * self.scale

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model)


model = Model()


def on_an_object(x: Any) -> Any:
    return model.step_in_place(model.step(x))


def one_of_two(x: Any, add: bool = True) -> Any:
    jax.debug.callback(note if add else print, x)
    return x


def with_helpers(x: Any) -> Any:
    import textwrap

    log = history

    def shown(v: Any) -> str:
        return textwrap.indent(str(float(v)), "=")

    def tell(v: Any) -> None:
        log.add(v)
        seen.append((shown(v), log.values[-1]))

    jax.debug.callback(tell, x)
    return x


def spread(x: Any) -> Any:
    jax.debug.callback(note, *(x, "loss"), kind="k")
    return x


def given(x: Any, log: Any, name: str) -> Any:
    jax.debug.callback(log, x)
    jax.debug.callback(lambda v: log(v, name), x)
    return x


SEEN_BY_THE_CODE: dict[str, tuple[Any, Any]] = {
    "methods of an object that is read": (on_an_object, [1.0, 20.0]),
    "bound methods": (model.step, [1.0]),
    "a conditional": (one_of_two, [("", 1.0, {})]),
    "what is beside it": (with_helpers, [("=1.0", 1.0)]),
    "arguments in a list": (spread, [("loss", 1.0, {"kind": "k"})]),
}


@pytest.mark.parametrize("case", SEEN_BY_THE_CODE)
def test_what_the_code_says_is_called(client: Client, case: str) -> None:
    """On the objects of this process, and what is computed is right."""
    model.history.values.clear()
    function, wanted = SEEN_BY_THE_CODE[case]
    assert float(client.persistent_call(function)(X)) == float(function(X))
    jax.effects_barrier()
    found = seen + model.history.values
    assert sorted(map(repr, found)) == sorted(map(repr, wanted * 2))  # by both


def test_arguments_are_called_as_they_are_here(client: Client) -> None:
    """Functions and methods, which each call brings itself."""
    f = client.persistent_call(given)
    history.values.clear()
    f(X, note, "a")
    f(np.float32(2), note, name="a")
    client.persistent_call(given_once)(X, log=history.add)
    client.persistent_call(given_once)(np.float32(2), history.add)
    assert seen == [(name, v, {}) for v in (1.0, 2.0) for name in ("", "a")]
    assert history.values == [1.0, 2.0]


def given_once(x: Any, log: Any) -> Any:
    jax.debug.callback(log, x)
    return x


def told(log: Any, x: Any) -> None:
    """A helper, which nobody can see through."""
    jax.debug.callback(log, x)


def by_helper(x: Any) -> Any:
    told(note, x)
    return x


def method_by_helper(x: Any) -> Any:
    told(history.add, x)
    told(partial(history.add, scale=2), x)
    return x


def list_by_helper(x: Any) -> Any:
    told(seen.append, x)
    return x


def held_by_helper(x: Any) -> Any:
    def inner(log: Any) -> None:
        jax.debug.callback(lambda v: log(v + 1), x)

    inner(note)
    return x


def by_attribute(x: Any) -> Any:
    told(model.history.add, x)
    return x * model.scale


LISTED: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a function": (by_helper, [note], [("", 1.0, {})]),
    "a method": (method_by_helper, [print, history.add], [1.0, 2.0]),
    "a method of a list": (list_by_helper, [seen.append], [1.0]),
    "a function in a cell": (held_by_helper, [note], [("", 2.0, {})]),
    "an attribute": (by_attribute, [model.history.add], [1.0]),
}


@pytest.mark.parametrize("case", LISTED)
def test_what_is_listed_is_called(client: Client, case: str) -> None:
    """Though the code does not say it; and what it has filled is not in the key."""
    function, callbacks, wanted = LISTED[case]
    found: list[Any] = []
    f = client.persistent_call(function, callbacks=callbacks)
    for _ in range(2):
        history.values.clear()
        model.history.values.clear()
        traces = client.statistics().traces
        f(X)
        found += seen + history.values + model.history.values
        seen[:] = ["filled"]
    assert client.statistics().traces == traces
    assert [each for each in found if each != "filled"] == wanted * 2


@pytest.mark.parametrize("case", LISTED)
def test_without_the_list_it_is_refused_at_once(client: Client, case: str) -> None:
    """While the function is traced, and with what to do."""
    with pytest.raises(CallbackError, match=r"callbacks="):
        client.persistent_call(LISTED[case][0])(X)
    assert not seen


def test_clients_with_other_lists_share_the_program(live: LiveServer) -> None:
    """Each has its own called."""
    lists: list[list[Any]] = [[], []]

    def of(into: list[Any]) -> Any:
        def f(x: Any) -> Any:
            told(into.append, x)
            return x + 7

        return f

    with connect(live.unix) as one, connect(live.unix) as two:
        one.persistent_call(of(lists[0]), callbacks=[lists[0].append])(X)
        before = two.statistics().traces
        two.persistent_call(of(lists[1]), callbacks=[lists[1].append])(np.float32(2))
        assert two.statistics().traces == before
    assert [list(map(float, each)) for each in lists] == [[1.0], [2.0]]


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


CACHE: dict[str, float] = {}


def _noting(heard: list[float]) -> Callable[..., Any]:
    """A function whose pure callback appends to a list, as its contract forbids."""

    def note(value: Any) -> Any:
        heard.append(float(value))
        return value

    return lambda x: jax.pure_callback(note, SCALAR, x) + 1


def test_what_a_pure_callback_changes_is_not_lost(client: Client) -> None:
    """The call runs in the process that has the list, each time; once where it is an error."""
    heard: list[float] = []
    function = client.persistent_call(_noting(heard), fallback="error")
    for _ in range(2):
        with pytest.raises(LostUpdateError, match="changes a list, 'heard', in what it gives"):
            function(X)
    assert heard == []
    here = client.persistent_call(_noting(heard), fallback="local")
    with pytest.warns(FallbackWarning, match="LostUpdateError"):
        assert float(here(X)) == 2.0
    assert float(here(np.float32(5))) == 6.0
    assert heard == [1.0, 5.0]


def test_a_variable_that_is_assigned_after_the_callback_was_given(client: Client) -> None:
    """Is as it is when the program runs, at each call."""

    def function(x: Any) -> Any:
        scale = 1.0
        y = jax.pure_callback(lambda v: np.float32(v * scale), SCALAR, x)
        scale = 2.0
        return y

    served = client.persistent_call(function, fallback="error")
    assert [float(served(X)) for _ in range(3)] == [2.0] * 3


def test_what_a_pure_callback_changes_and_is_ignored(client: Client) -> None:
    """A cache is one of the server's; and what it changes of its own is nobody else's."""

    def cached(value: Any) -> Any:
        buffer = [value]
        CACHE.setdefault("first", float(value))
        buffer.append(value)
        return np.float32(sum(buffer))

    def function(x: Any) -> Any:
        return jax.pure_callback(cached, SCALAR, x)

    ignoring = client.persistent_call(function, ignore="CACHE", fallback="error")
    assert [float(ignoring(np.float32(each))) for each in (1, 2)] == [2.0, 4.0]
    assert CACHE == {}


def test_a_call_with_other_effects_is_not_made_again(client: Client) -> None:
    """Where its pure callback changed something: that is an error."""
    heard: list[float] = []
    seen.clear()

    def function(x: Any) -> Any:
        io_callback(seen.append, None, x, ordered=True)
        return _noting(heard)(x)

    with pytest.raises(LostUpdateError, match="'heard'"):
        client.persistent_call(function, fallback="local")(X)
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("results", ["auto", "numpy"])
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "not kept"])
def test_a_call_that_has_called_back_when_its_worker_ends(
    start_live: Any, monkeypatch: pytest.MonkeyPatch, is_kept: bool, results: Any
) -> None:
    """It is repeated, and answered from the record; where there is none, that is an error."""
    if not is_kept:
        monkeypatch.setenv("JAXD_SNAPSHOT_S", "0")
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
        function = client.persistent_call(deadly, results=results)
        if is_kept:
            assert float(function(X)) == 1.0
        else:
            with pytest.raises(ConnectionLost, match="after it had called back functions"):
                function(X)
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


KILLED = """
import sys
import numpy as np
from jaxd import connect

def wait(x):
    print("called", flush=True)
    sys.stdin.read()

def call(x):
    import jax
    jax.debug.callback(wait, x)
    return x

client = connect(sys.argv[1])
client.persistent_call(call)(client.put(np.ones(8, "f4"))).block_until_ready()
"""


@pytest.mark.slow
def test_a_client_that_was_killed_in_a_callback_keeps_nobody_waiting(live: LiveServer) -> None:
    """Over TLS nothing tells that it will not come back, and its session has a minute left."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, live.tls],
        env=live.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"called\n"
        process.kill()
    with connect(live.unix) as client:
        client.persistent_call(append, timeout_s=40)(X)
    assert seen == [1.0]
