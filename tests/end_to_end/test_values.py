"""Values that stay on the server: which do, when calls on them return, and how they end."""

from __future__ import annotations

import gc
import traceback
from collections import namedtuple
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, RemoteArray
from jaxd.errors import (
    ArgumentError,
    DeadlineExceeded,
    LimitExceeded,
    ValueDeleted,
    ValuesFull,
)
from jaxd.remote_values.call_pipeline import MAX_IN_FLIGHT
from tests.end_to_end.gates import Gate, in_thread
from tests.server.in_process import InProcessServer
from tests.server.staging import until

LARGE: Final = 1 << 15
"""Numbers of four bytes that are too many to come home by themselves."""

Pair = namedtuple("Pair", "left right")  # noqa: PYI024  users have them


@pytest.fixture
def client(in_process_server: InProcessServer) -> Client:
    """A client of it."""
    return in_process_server.client()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function stops while it runs."""
    return Gate(tmp_path / "gate")


def held(in_process_server: InProcessServer) -> int:
    """How many values there are."""
    return len(in_process_server.parts._worker_context.values)


def x64() -> AbstractContextManager[Any]:
    """Numbers of 64 bits, as this version of jax has it."""
    new: Any = getattr(jax, "enable_x64", None)
    old: Any = getattr(jax.experimental, "enable_x64", None)
    found: AbstractContextManager[Any] = old() if new is None else new(True)
    return found


def numbers(array: Any) -> Any:
    """Those of an array or of PRNG keys."""
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(jaxd.get(array)) if is_key else array)


def structure(tree: Any) -> Any:
    """The structure of a tree."""
    return jax.tree.structure(tree)


def look(array: Any) -> tuple[Any, ...]:
    """What an array is, but for its numbers."""
    return array.dtype, array.shape, getattr(array, "weak_type", False)


def handle(client: Client, value: float = 1.0) -> RemoteArray:
    """A large array on the server."""
    put: RemoteArray = client.put(np.full(LARGE, value, np.float32))
    return put


def waiting_at(gate: Gate) -> Callable[[Any], Any]:
    """Adds one; waits at the gate while it runs on negative numbers."""

    def pass_gate(x: Any) -> Any:
        if np.ravel(x)[0] < 0:
            Path(gate.path).read_bytes()
        return np.asarray(x)

    def step(x: Any) -> Any:
        return jax.pure_callback(pass_gate, jax.typeof(x), x) + 1

    return step


def failing_on(number: float) -> Callable[[Any], Any]:
    """Adds one; fails while it runs when it is given this number."""

    def look(x: Any) -> Any:
        if np.ravel(x)[0] == number:
            raise ArithmeticError("that number again")
        return np.asarray(x)

    def step(x: Any) -> Any:
        return jax.pure_callback(look, jax.typeof(x), x) + 1

    return step


# what stays ---------------------------------------------------------------------------------------


def test_small_results_come_home_and_large_ones_stay(client: Client) -> None:
    """The bound is 64 kB, and lies on the side of those that come home."""

    def both() -> Any:
        return jnp.zeros(1 << 14, jnp.float32), jnp.zeros((1 << 14) + 1, jnp.float32)

    here, there = client.persistent_call(both)()
    assert [isinstance(one, RemoteArray) for one in (here, there)] == [False, True]
    assert isinstance(here, jax.Array)


@pytest.mark.parametrize("form", ["numpy", "jax"])
def test_results_that_are_wanted_here(client: Client, form: Any) -> None:
    """All of them come home, also when the call takes values."""
    double = client.persistent_call(lambda x: x * 2, results=form)
    for argument in (np.ones(LARGE, np.float32), handle(client)):
        result = double(argument)
        assert not isinstance(result, RemoteArray)
        assert isinstance(result, np.ndarray if form == "numpy" else jax.Array)
        np.testing.assert_array_equal(result, np.full(LARGE, 2))


def test_results_that_are_wanted_there(client: Client, in_process_server: InProcessServer) -> None:
    """However small, by option or by method."""
    by_option = client.persistent_call(lambda x: x + 1, results="remote")(1.0)
    by_method = client.persistent_call(lambda x: x + 1).remote(1.0)
    assert isinstance(by_option, RemoteArray)
    assert isinstance(by_method, RemoteArray)
    assert held(in_process_server) == 2
    assert float(by_option) == float(by_method) == 2.0


@pytest.mark.slow
def test_every_structure_comes_as_it_was(client: Client) -> None:
    """With what is in it: keys, weak types, small dtypes, nothing, and arrays without data."""

    def grow(x: Any) -> Any:
        return {
            "pair": Pair(x, [x.astype(jnp.bfloat16), None]),
            "key": jax.random.key(3),
            "keys": jax.random.split(jax.random.key(4), LARGE),
            "none": jnp.zeros((0, 7)),
            "weak": jnp.full(LARGE, 2.0).astype(float) * 1,
            "bool": x > 0,
        }

    call = client.persistent_call(grow)
    expected = jax.jit(grow)(jnp.ones(LARGE))
    for argument in (np.ones(LARGE, np.float32), handle(client), handle(client)):
        found = call(argument)
        assert structure(found) == structure(expected)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert look(one) == look(other)
            np.testing.assert_array_equal(numbers(one), numbers(other))


def test_without_a_server_arrays_are_just_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAXD_INLINE=1 makes all of it jax's own."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    double = jaxd.persistent_call(lambda x: x * 2)
    placed = jaxd.put({"x": np.ones(3)})
    for result in (double(placed["x"]), double.remote(placed["x"])):
        assert not isinstance(result, RemoteArray)
        np.testing.assert_array_equal(jaxd.get(jaxd.wait(result)), np.full(3, 2.0))


# calls that return before they have run -----------------------------------------------------------


def test_a_call_on_a_value_returns_before_it_has_run(client: Client, gate: Gate) -> None:
    """Once it is known what its result looks like; the result is there when it is touched."""
    step = client.persistent_call(waiting_at(gate))
    step(handle(client))
    stuck = step(handle(client, -1.0))
    after = step(step(stuck))
    with gate.reached():
        touched = in_thread(np.asarray, after)
        assert not touched.done()
    np.testing.assert_array_equal(touched.result(30), np.full(LARGE, 2))


def test_only_so_many_run_ahead(client: Client, gate: Gate) -> None:
    """The next one waits until the first is done."""
    step = client.persistent_call(waiting_at(gate))
    more = client.persistent_call(lambda x: x * 2)
    more(step(handle(client))).block_until_ready()
    made: list[Any] = []

    def run() -> None:
        made.append(step(handle(client, -1.0)))
        for _ in range(MAX_IN_FLIGHT):
            made.append(more(made[-1]))

    running = in_thread(run)
    with gate.reached():
        until(lambda: len(made) == MAX_IN_FLIGHT)
        assert not running.done()
    running.result(30)
    np.testing.assert_array_equal(np.asarray(made[-1]), np.zeros(LARGE))


@pytest.mark.slow
def test_a_deadline_makes_a_call_wait_for_its_result(client: Client, gate: Gate) -> None:
    """And what comes after the deadline leaves nothing behind."""
    slow = client.persistent_call(waiting_at(gate), timeout_s=1.0)
    slow(handle(client))
    x = handle(client, -1.0)
    late = in_thread(slow, x)
    with gate.reached(), pytest.raises(DeadlineExceeded):
        late.result(30)
    quick = client.persistent_call(lambda x: x * 2)
    np.testing.assert_array_equal(np.asarray(quick(x)), np.full(LARGE, -2))


@pytest.mark.slow
def test_a_result_that_nobody_waits_for_any_more_is_let_go(
    client: Client, in_process_server: InProcessServer, gate: Gate
) -> None:
    """Of a plain call, of one on values and of a submitted one, after their deadlines."""
    slow = client.persistent_call(waiting_at(gate), timeout_s=1.0)
    slow(handle(client))
    for argument in (np.full(LARGE, -1.0, np.float32), handle(client, -1.0)):
        late = in_thread(slow, argument)
        with gate.reached(), pytest.raises(DeadlineExceeded):
            late.result(30)
    del argument, late
    future = slow.submit(np.full(LARGE, -1.0, np.float32))
    with gate.reached(), pytest.raises(DeadlineExceeded):
        future.result()
    quick = client.persistent_call(lambda x: x * 2)
    quick(quick(handle(client))).block_until_ready()  # reads what has come meanwhile
    gc.collect()
    until(lambda: held(in_process_server) == 0)


def test_failures_are_raised_where_a_result_is_used(client: Client) -> None:
    """At the first touch, by the next call and by wait; with the traceback of what failed."""
    step = client.persistent_call(failing_on(5.0))
    good = step(handle(client))
    bad = step(handle(client, 5.0))
    worse = step(bad)
    uses: list[Callable[[], Any]] = [
        lambda: np.asarray(bad),
        lambda: step(bad),
        lambda: jaxd.wait([good, worse]),
        lambda: np.asarray(worse),
        lambda: jaxd.get({"x": worse}),
        lambda: client.put({"x": worse}, name="worse"),
        lambda: worse[:3],
    ]
    for use in uses:
        with pytest.raises(Exception, match="that number again") as caught:
            use()
        assert "in look" in "".join(traceback.format_exception(caught.value))
    np.testing.assert_array_equal(np.asarray(step(good)), np.full(LARGE, 3))


@pytest.mark.slow
def test_threads_have_their_own_states_on_one_client(client: Client) -> None:
    """Each of their steps is run once, in order."""
    step = client.persistent_call(lambda state, i: state * 2 % 1_000_003 + i, donate_argnums=0)

    def train(first: int) -> tuple[int, int]:
        state: Any = client.put(np.full(LARGE, first, np.int32))
        expected = first
        for i in range(40):
            state, expected = step(state, np.int32(i)), expected * 2 % 1_000_003 + i
        return int(np.asarray(state)[7]), expected

    with ThreadPoolExecutor(8) as threads:
        for found, expected in threads.map(train, range(8)):
            assert found == expected


# donation -----------------------------------------------------------------------------------------


def donor(client: Client) -> Any:
    """A function that takes its first argument for good."""

    def step(x: Any, y: Any) -> Any:
        return x + y

    return client.persistent_call(step, donate_argnums=0)


def test_a_donated_array_is_dead_at_once(client: Client) -> None:
    """The first time as well as later, and it says who has it."""
    step = donor(client)
    for x in (handle(client), handle(client), handle(client)):
        step(x, np.float32(1.0))
        assert x.is_deleted()
        with pytest.raises(ValueDeleted, match=r"donated to .*step,"):
            np.asarray(x)
        with pytest.raises(ValueDeleted, match=r"donated to .*step,"):
            step(x, np.float32(1.0))


def test_what_was_here_first_is_dead_at_once_when_it_is_there(client: Client) -> None:
    """A call on another value has shown what the result looks like, and has taken nothing."""
    step = donor(client)
    y = handle(client)
    step(np.ones(LARGE, np.float32), y)
    x = handle(client)
    step(x, y)
    assert x.is_deleted()
    assert not y.is_deleted()


def test_a_call_that_fails_before_it_runs_leaves_its_arrays_alive(client: Client) -> None:
    """A wrong shape, an array that is gone, a call that is too large to be sent."""
    step = donor(client)
    gone = handle(client)
    gone.delete()
    step(handle(client), np.ones(LARGE, np.float32))
    x = handle(client)
    with pytest.raises(TypeError, match="shapes"):
        step(x, np.ones(3, np.float32))
    with pytest.raises(ValueDeleted):
        step(x, gone)
    client.caller.session.connection().passes_descriptors = False
    client.caller.session.connection()._channel.writer.max_frame_bytes = 1 << 16
    with pytest.raises(LimitExceeded):
        step(x, np.ones(LARGE, np.float32))
    assert not x.is_deleted()
    np.testing.assert_array_equal(np.asarray(x), np.ones(LARGE))


def test_a_result_without_room_takes_nothing() -> None:
    """The argument is still there."""
    in_process_server = InProcessServer(value_bytes=3 * LARGE * 4)
    client = in_process_server.client()
    grow = client.persistent_call(lambda x: (x + 1, x + 2, x + 3, x + 4), donate_argnums=0)
    x = handle(client)
    with pytest.raises(ValuesFull):
        grow(x)
    assert not x.is_deleted()
    np.testing.assert_array_equal(np.asarray(x), np.ones(LARGE))
    in_process_server.close()


def test_a_call_that_fails_while_it_runs_has_lost_what_it_took(client: Client) -> None:
    """And says so, instead of giving back what is not there."""
    step = client.persistent_call(failing_on(5.0), donate_argnums=0)
    step(handle(client))
    x = handle(client, 5.0)
    result = step(x)
    with pytest.raises(Exception, match="that number again"):
        np.asarray(result)
    assert x.is_deleted()
    with pytest.raises(ValueDeleted, match=r"donated to .*step,"):
        np.asarray(x)


def test_who_takes_an_array_keeps_it_when_another_call_fails(client: Client) -> None:
    """A call before that only looked at it gives nothing back."""
    look = client.persistent_call(failing_on(5.0))
    take = donor(client)
    look(handle(client)), take(handle(client), np.float32(1))
    x = handle(client, 5.0)
    failed, taken = look(x), take(x, np.float32(1))
    with pytest.raises(Exception, match="that number again"):
        np.asarray(failed)
    np.testing.assert_array_equal(np.asarray(taken), np.full(LARGE, 6))
    with pytest.raises(ValueDeleted, match=r"donated to .*step,"):
        np.asarray(x)


# letting go ---------------------------------------------------------------------------------------


def test_what_nobody_holds_is_freed_without_a_further_call(
    client: Client, in_process_server: InProcessServer
) -> None:
    """In batches: many arrays, few messages."""
    arrays = [client.put(np.full(64, i)) for i in range(200)]
    assert held(in_process_server) == 200
    told = count()
    tell = client.caller.session.notify
    client.caller.session.notify = (  # type: ignore[method-assign]
        lambda *args, **more: next(told) < 0 or tell(*args, **more)
    )
    arrays.clear()
    until(lambda: held(in_process_server) == 0)
    assert next(told) <= 20


def test_a_call_takes_the_news_along(client: Client, in_process_server: InProcessServer) -> None:
    """When the next call has run, what was dropped before it is gone."""
    step = client.persistent_call(lambda x: x + 1)
    state: Any = handle(client)
    for _ in range(30):
        state = step(state)
    jaxd.wait(state)
    assert held(in_process_server) <= MAX_IN_FLIGHT + 3
    until(lambda: held(in_process_server) == 1)


def test_results_that_are_never_looked_at_go_too(
    client: Client, in_process_server: InProcessServer
) -> None:
    """Of calls that had not run when their results were dropped."""
    step = client.persistent_call(lambda x: (x + 1, x - 1))
    x = handle(client)
    for _ in range(20):
        step(x)
    until(lambda: held(in_process_server) == 1)


def test_delete_frees_at_once_and_for_good(
    client: Client, in_process_server: InProcessServer
) -> None:
    """Whoever touches it later is told."""
    x = handle(client)
    x.delete()
    until(lambda: held(in_process_server) == 0)
    with pytest.raises(ValueDeleted, match="delete"):
        np.asarray(x)


# put, get, names ----------------------------------------------------------------------------------


def test_put_and_get_are_each_others_inverse(client: Client) -> None:
    """Of trees with numbers, keys, None, and arrays that are there already."""
    there = handle(client)
    tree = {
        "a": [np.arange(5, dtype=np.int8), None, 1.5, True, 2 + 1j],
        "pair": Pair(there, jax.random.key(7)),
        "bf16": jnp.ones(LARGE, jnp.bfloat16),
        "empty": np.zeros((0, 3), np.float32),
    }
    placed = client.put(tree)
    assert placed["pair"].left is there
    leaves = jax.tree.leaves(placed)
    assert all(isinstance(leaf, RemoteArray) for leaf in leaves)
    home = client.get(placed)
    assert structure(home) == structure(tree)
    expected = jax.tree.map(jnp.asarray, jaxd.get(tree))
    for one, other in zip(jax.tree.leaves(home), jax.tree.leaves(expected), strict=True):
        assert look(one) == look(other)
        np.testing.assert_array_equal(numbers(one), numbers(other))


def test_put_makes_of_numbers_what_jax_makes_of_them(client: Client) -> None:
    """With and without 64 bits."""
    assert client.put(np.arange(3.0)).dtype == np.float32
    with x64():
        placed = client.put(np.arange(3.0))
        assert placed.dtype == np.float64


def test_what_is_put_is_a_copy(client: Client) -> None:
    """Of small arrays, of large ones, and of those that the server can map."""
    for array in (np.zeros(8), np.zeros(LARGE), np.zeros(1 << 18), jaxd.empty(1 << 18)):
        array[:] = 1
        placed = client.put(array)
        array[:] = 2
        np.testing.assert_array_equal(np.asarray(placed), np.ones(len(array)))


@pytest.mark.parametrize("odd", ["text", object(), np.array(["a"]), np.array([None])])
def test_what_is_no_array_cannot_be_put(client: Client, odd: Any) -> None:
    """The message names it, and nothing is left behind."""
    with pytest.raises(ArgumentError):
        client.put({"x": np.ones(3), "odd": odd})


def test_a_name_outlives_its_client(in_process_server: InProcessServer) -> None:
    """Another one finds the tree; what is forgotten is gone when nobody holds it."""
    first, second = in_process_server.client(), in_process_server.client()
    tree = {"w": np.arange(4.0, dtype=np.float32), "pair": Pair(np.int32(1), [])}
    placed = first.put(tree, name="weights")
    del placed
    found = second.named("weights")
    assert found["pair"]._fields == ("left", "right")
    np.testing.assert_array_equal(np.asarray(found["w"]), tree["w"])
    assert first.forget("weights")
    assert not first.forget("weights")
    with pytest.raises(ValueDeleted, match="weights"):
        second.named("weights")
    assert float(second.persistent_call(lambda w: w.sum())(found["w"])) == 6.0
    del found
    until(lambda: held(in_process_server) == 0)


def test_a_fetched_array_is_the_callers_own(client: Client) -> None:
    """Unless it is asked for as it is; parts move alone."""
    numpy_client = client
    x = numpy_client.put(np.arange(1 << 18, dtype=np.float32))
    part = x[10:20]
    np.testing.assert_array_equal(np.asarray(part), np.arange(10, 20))
    assert not x.is_here
    assert float(x[5]) == 5.0
    assert x[1:].shape == ((1 << 18) - 1,)
    assert isinstance(x[1:], RemoteArray)
    assert not x.is_here
    np.testing.assert_array_equal(np.asarray(x.fetch()), np.arange(1 << 18))
    np.testing.assert_array_equal(np.asarray(x.fetch(copy=False)), np.arange(1 << 18))


# many in flight -----------------------------------------------------------------------------------


def test_submitted_calls_on_values(client: Client) -> None:
    """Their futures have handles, in order, and the errors of those that failed."""
    step = client.persistent_call(failing_on(5.0))
    x = handle(client)
    futures = [step.submit(x) for _ in range(30)]
    bad = step.submit(handle(client, 5.0))
    results = [future.result(30) for future in futures]
    assert all(isinstance(result, RemoteArray) for result in results)
    np.testing.assert_array_equal(np.asarray(results[-1]), np.full(LARGE, 2))
    with pytest.raises(Exception, match="that number again"):
        bad.result(30)


def test_a_future_of_a_value_is_done_when_its_call_is(client: Client, gate: Gate) -> None:
    """And not before; somebody reads although nobody waits."""
    step = client.persistent_call(waiting_at(gate))
    step(handle(client))
    future = step.submit(handle(client, -1.0))
    with gate.reached():
        assert not future.done()
    until(future.done)
    np.testing.assert_array_equal(np.asarray(future.result()), np.zeros(LARGE))


def test_values_in_an_event_loop(client: Client) -> None:
    """A state goes from call to call."""
    import asyncio

    step = client.persistent_call(lambda x: x + 1, donate_argnums=0)

    async def train() -> Any:
        state: Any = handle(client, 0.0)
        for _ in range(10):
            state = await step.call_async(state)
        return state

    np.testing.assert_array_equal(np.asarray(asyncio.run(train())), np.full(LARGE, 10))


@pytest.mark.slow
def test_an_endless_map_holds_little(client: Client, in_process_server: InProcessServer) -> None:
    """Values come and go as results are taken."""
    double = client.persistent_call(lambda x: x * 2)
    total, most = 0.0, 0
    handles = (handle(client, float(i)) for i in count())
    for i, result in enumerate(islice(double.map(handles), 300)):
        total += float(result[0])
        if not i % 20:
            most = max(most, held(in_process_server))
    assert total == sum(2.0 * i for i in range(300))
    del result
    assert most < 150
    gc.collect()
    until(lambda: held(in_process_server) == 0)


@pytest.mark.soak
def test_ten_thousand_small_batches(client: Client, in_process_server: InProcessServer) -> None:
    """Nothing is left of them."""
    total = client.persistent_call(lambda x: x.sum())
    batches = (np.full(64, i, np.float32) for i in count())
    found = sum(float(result) for result in islice(total.map(batches), 10_000))
    assert found == sum(64.0 * i for i in range(10_000))
    assert held(in_process_server) == 0
