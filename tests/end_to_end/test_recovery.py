"""Arrays on the server outlive its worker: they are made again, and the program does not notice."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import jaxd
from jaxd import Client, connect
from jaxd import wait as jaxd_wait
from jaxd.errors import (
    Busy,
    ConfigurationError,
    ConnectionLost,
    DeadlineExceeded,
    ValuesDied,
    ValuesFull,
    ValuesLost,
)
from jaxd.interop.remote_array import RemoteArray
from jaxd.remote_values import lineage, recovery, snapshots
from jaxd.remote_values.call_pipeline import CallPipeline
from jaxd.remote_values.lineage import CallLineage, KeptData
from jaxd.remote_values.pipelined_calls import PipelinedCalls
from jaxd.remote_values.store import RemoteStore
from jaxd.transfer import shared_memory
from jaxd.transfer.routing import TransferRouter
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.pytree import Leaf, TreeEncoder
from tests.end_to_end.gates import Gate, advice, in_thread
from tests.end_to_end.several_devices import EIGHT, X, spread_out
from tests.end_to_end.steps import kill
from tests.live_server import TOKEN, LiveServer
from tests.server.in_process import InProcessServer
from tests.server.staging import until

LARGE: Final = 1 << 15
"""Numbers of four bytes that are too many to come home by themselves."""

STEPS: Final = 12


@pytest.fixture(autouse=True)
def no_snapshots(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a test asks for them, arrays are made again by their calls."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "3600")


@pytest.fixture
def many_snapshots(no_snapshots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One before each call, whatever it costs."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0.000001")
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)


def step(state: Any, x: Any) -> Any:
    """A state of three arrays, one of them small; and a loss."""
    w = state["w"] * 0.99 + x.sum()
    return {"w": w, "b": state["b"] + 1, "n": state["n"] + 1}, w.mean() + state["n"]


def start() -> Any:
    """The first state, in this process."""
    ones = np.ones(LARGE, np.float32)
    return {"w": ones, "b": ones * 3, "n": np.float32(0)}


def adding_at(gate: Gate) -> Callable[[Any, Any], Any]:
    """Adds numbers to a state; waits at the gate while it runs."""

    def pass_gate(x: Any) -> Any:
        Path(gate.path).read_bytes()
        return np.asarray(x)

    def adding(state: Any, x: Any) -> Any:
        return state + jax.pure_callback(pass_gate, jax.typeof(x), x).sum()

    return adding


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_a_snapshot_spares_the_calls_before_it(start_live: Callable[..., LiveServer]) -> None:
    """The next worker runs only what came after it."""
    server = start_live()
    with connect(server.unix) as client:
        train = client.persistent_call(step, donate_argnums=0)
        state = start()
        for _ in range(STEPS):
            state, _ = train(state, np.ones(4, np.float32))
        batches = client.caller.session.values().live_batches()
        held = [one for one in batches if any(not each.is_deleted() for each in one.arrays)]
        assert [one.lineage.depth for one in held] == [1]
        kill(server)
        assert float(state["w"][0]) != 0.0


@pytest.mark.slow
def test_arrays_of_each_origin(start_live: Callable[..., LiveServer]) -> None:
    """Put, fetched, parts, results; of numpy and of jax, keys and weak types; as what they were."""
    server, x = start_live(), np.arange(LARGE, dtype=np.float64)
    with connect(server.unix) as client:
        put = client.put({"x": x, "k": jax.random.key(3), "j": jnp.arange(LARGE), "n": 2.0})
        fetched = client.persistent_call(lambda x: x + 1, results="remote")(np.ones(3, np.float32))
        np.asarray(fetched)
        part = put["x"][10:20_010]
        made = client.persistent_call(lambda x: {"a": x * 2, "b": x * 3}, results="remote")(x)
        del made["a"]
        x[:] = 0.0
        kill(server)
        total = client.persistent_call(lambda *each: sum(one.sum() for one in each))
        assert float(total(fetched)) == 6.0
        np.testing.assert_array_equal(part, np.arange(10, 20_010))
        np.testing.assert_array_equal(made["b"], np.arange(LARGE, dtype=np.float32) * 3)
        np.testing.assert_array_equal(put["j"], np.arange(LARGE))
        assert put["n"].weak_type
        assert put["k"].dtype == jax.random.key(3).dtype
        until(lambda: client.statistics().values == 7)


@pytest.mark.slow
def test_effects_do_not_happen_twice(
    start_live: Callable[..., LiveServer], capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither what is printed nor what is called back; and what that answered is what it was."""
    server, seen, items = start_live(), [], iter(range(100))

    def draw(n: Any) -> Any:
        return np.float32(next(items))

    def take(n: Any) -> None:
        seen.append(int(n))

    def drawing(state: Any, n: Any) -> Any:
        item = io_callback(draw, jax.ShapeDtypeStruct((), np.float32), n, ordered=True)
        jax.debug.callback(take, n)
        jax.debug.print("step {}", n)
        return state + item

    with connect(server.unix) as client:
        train = client.persistent_call(drawing, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        for number in range(5):
            state = train(state, np.int32(number))
        state.block_until_ready()
        kill(server)
        state = train(state, np.int32(5))
        assert float(state[0]) == sum(range(6))
    assert sorted(seen) == list(range(6))
    assert next(items) == 6
    assert sorted(capfd.readouterr().out.split("\n")[:-1]) == [f"step {n}" for n in range(6)]


@pytest.mark.slow
def test_a_call_that_was_under_way_is_made_again(
    start_live: Callable[..., LiveServer], gate: Gate
) -> None:
    """Also where its arguments were given to it for good, and have changed since."""
    server = start_live()

    with connect(server.unix) as client:
        train = client.persistent_call(adding_at(gate), donate_argnums=0)
        quick = client.persistent_call(lambda state, x: state + x.sum(), donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        state = quick(quick(state, np.ones(2, np.float32)), np.ones(2, np.float32))
        x = np.ones(4, np.float32)
        future = train.submit(state, x)
        with gate.reached():
            x[:] = 100.0
            kill(server)
        with gate.reached():
            pass
        assert float(future.result(60)[0]) == 8.0


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Where a function stops while it runs."""
    return Gate(tmp_path / "gate")


def given_up_session() -> tuple[InProcessServer, Client, Any]:
    """A server that keeps none without a connection, its client, and an array that it had."""
    server = InProcessServer(session_grace_s=0.0)
    client = server.client()
    state = client.persistent_call(lambda x: x * 2, results="remote")(np.ones(LARGE, np.float32))
    client.caller.session.connection().shut()
    until(lambda: not server.parts.status.now()["connections"])
    until(lambda: not len(server.parts._worker_context.values))
    return server, client, state


@pytest.mark.slow
def test_a_session_that_was_given_up_is_made_again() -> None:
    """By a server that keeps none without a connection."""
    server, client, state = given_up_session()
    assert float(client.persistent_call(lambda x: x + 1)(state)[0]) == 3.0
    server.close()


@pytest.mark.slow
def test_what_cannot_be_made_again_says_why(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays that were found by a name, and those of which too much would have to be kept."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "1000")
    server = start_live()
    with connect(server.unix) as client:
        client.put(np.ones(LARGE, np.float32), name="shared")
        named = client.named("shared")
        large = client.put(np.ones(LARGE, np.float32))
        small = client.put(np.ones(3, np.float32))
        kill(server)
        double = client.persistent_call(lambda x: x * 2)
        for array, why in ((named, "found by a name"), (large, "JAXD_SNAPSHOT_BYTES")):
            with pytest.raises(ValuesDied, match=why) as caught:
                double(array)
            assert "checkpoint" in advice(caught.value)
            with pytest.raises(ValuesDied, match=why):
                np.asarray(array)
        assert np.asarray(double(small)).tolist() == [2.0] * 3


@pytest.mark.slow
def test_with_all_off_arrays_die_with_their_worker(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nothing was kept of them."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0")
    server = start_live()
    with connect(server.unix) as client:
        state = client.put(np.ones(LARGE, np.float32))
        kill(server)
        with pytest.raises(ValuesDied, match=r"JAXD_SNAPSHOT_S=0\); this process needs 1"):
            np.asarray(state)


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_a_state_that_is_too_large_for_a_snapshot_is_named_once(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "1000")
    with connect(start_live().unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        state, _ = train(state, np.ones(4, np.float32))
        with pytest.warns(RuntimeWarning, match="JAXD_SNAPSHOT_BYTES"):
            state, _ = train(state, np.ones(4, np.float32))
        train(state, np.ones(4, np.float32))
        assert "JAXD_SNAPSHOT_BYTES" in client.kept().stopped


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_what_is_kept_does_not_grow(start_live: Callable[..., LiveServer]) -> None:
    """A snapshot takes the place of the calls before it."""
    with connect(start_live().unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(30):
            state, _ = train(state, np.ones(1000, np.float32))
        assert _kept_bytes(client) < 4 * 2 * LARGE * 4
        del state, _
        client.caller.session.values().settle(time.monotonic() + 60.0)
        client.caller.session.values().release_queue.take_all()
        assert _kept_bytes(client) == 0


def _kept_bytes(client: Client) -> int:
    kept = client.kept()
    return kept.call_bytes + kept.snapshot_bytes


@pytest.mark.slow
def test_a_restore_that_was_interrupted_is_begun_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another session: what has run in the first one is not run again there."""
    server, made = start_live(), CallLineage.make

    def interrupted(lineage: CallLineage, link: Any) -> Any:
        found = made(lineage, link)
        if lineage.depth == 3:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return found

    with connect(server.unix) as client:
        train = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        for _ in range(6):
            state = train(state)
        state.block_until_ready()
        kill(server)
        monkeypatch.setattr(CallLineage, "make", interrupted)
        with pytest.raises(KeyboardInterrupt):
            np.asarray(state)
        assert float(state[0]) == 6.0


@pytest.mark.slow
def test_a_call_without_values_that_came_later_is_made_again_first(
    start_live: Callable[..., LiveServer], gate: Gate
) -> None:
    """A call that is under way is sent again all the same."""
    server = start_live("--builds", "2")

    with connect(server.unix) as client:
        ones = client.persistent_call(lambda n: jnp.ones(LARGE) * n, results="remote")
        ones(np.float32(1.0)).block_until_ready()
        state = client.put(np.zeros(LARGE, np.float32))
        future = client.persistent_call(adding_at(gate)).submit(state, np.ones(4, np.float32))
        with gate.reached():
            later = ones(np.float32(2.0))
            later.block_until_ready()
            kill(server)
        with gate.reached():
            pass
        assert float(future.result(60)[0]) == 4.0
        assert float(later[0]) == 2.0


@pytest.mark.slow
def test_a_worker_that_ends_between_two_donating_calls(
    start_live: Callable[..., LiveServer],
) -> None:
    """The next call has marked its arrays as given away before it finds out."""
    server = start_live()
    with connect(server.unix) as client:
        train = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        for _ in range(4):
            state = train(state)
        state.block_until_ready()
        kill(server)
        until(lambda: _is_noticed(client))
        for _ in range(4):
            state = train(state)
        assert float(state[0]) == 8.0


def _is_noticed(client: Client) -> bool:
    connection = client.caller.session.open_connection
    if connection is not None:
        connection.check()
    return client.caller.session.open_connection is None


@pytest.mark.slow
def test_what_a_call_back_refills_is_not_taken_for_the_argument(
    start_live: Callable[..., LiveServer],
) -> None:
    """The arrays of its caller are not what they were when the call was made."""
    server, x = start_live(), np.ones(LARGE, np.float32)

    def refill(n: Any) -> None:
        x[:] = 100.0

    def double(x: Any) -> Any:
        jax.debug.callback(refill, x[0])
        return x * 2

    with connect(server.unix) as client:
        made = client.persistent_call(double, results="remote")(x)
        made.block_until_ready()
        kill(server)
        np.testing.assert_array_equal(made, np.full(LARGE, 2.0))


@pytest.mark.slow
def test_states_in_between_are_freed(start_live: Callable[..., LiveServer]) -> None:
    """Those that a loop had dropped do not stay because one result of their call is held."""
    server = start_live()
    with connect(server.unix) as client:
        train = client.persistent_call(lambda x: (x + 1, x * 2), results="remote")
        state, kept = client.put(np.zeros(LARGE, np.float32)), []
        for _ in range(5):
            state, other = train(state)
            kept.append(other)
        state.block_until_ready()
        kill(server)
        assert float(np.asarray(state)[0]) == 5.0
        until(lambda: client.statistics().values == 6)


@pytest.mark.slow
def test_answers_of_callbacks_are_part_of_what_is_kept(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what has no room is said."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "300000")
    monkeypatch.setattr(snapshots.Snapshots, "take_if_due", lambda _: None)

    def answer(n: Any) -> Any:
        return np.full(25_000, n, np.float32)

    def asking(n: Any) -> Any:
        made = io_callback(answer, jax.ShapeDtypeStruct((25_000,), np.float32), n)
        return made, jnp.ones(LARGE) * n

    server = start_live()
    with connect(server.unix) as client:
        ask = client.persistent_call(asking, results="remote")
        held = [ask(np.float32(n)) for n in range(4)]
        for pair in held:
            pair[1].block_until_ready()
        kept = client.kept()
        assert 200_000 < kept.call_bytes <= 300_000 == kept.limit_bytes
        assert kept.lost_with_worker == {
            "their call has called back functions that returned more than is kept": 2
            * (100_000 + 4 * LARGE)
        }
        kill(server)
        assert float(held[1][1][0]) == 1.0
        with pytest.raises(ValuesDied, match="returned more than is kept"):
            np.asarray(held[3][1])
        del held, pair
        gc.collect()  # the error is in a cycle with its traceback
        until(lambda: client.kept().call_bytes == 0)


def test_what_is_kept_is_counted_by_all_threads_together() -> None:
    """None of what they take and give back is missed, and the limit holds."""
    kept = snapshots.KeptBytes(50)

    def work() -> None:
        for _ in range(2000):
            if kept.take(10):
                assert 0 < sum(kept.used()) <= 50
                kept.free(10)

    with ThreadPoolExecutor(8) as pool:
        for one in [pool.submit(work) for _ in range(8)]:
            one.result()
    assert kept.used() == (0, 0)


@pytest.fixture
def full_server(start_live: Callable[..., LiveServer]) -> Iterator[tuple[Any, Any]]:
    """Arrays that were on a worker that has ended, and those that take their room on the next."""
    server = start_live("--value-bytes", "1M", "--value-share", "1")
    with connect(server.unix) as client, connect(server.unix) as other:
        mine = client.persistent_call(lambda n: jnp.ones(180_000) * n)(np.float32(2.0))
        mine.block_until_ready()
        kill(server)
        yield mine, other.put(np.zeros(180_000, np.float32))


@pytest.mark.slow
def test_a_restore_waits_until_there_is_room(
    full_server: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have been faster on the next worker."""
    mine, others = full_server
    waited, wait = [], RemoteStore._wait_for_room

    def make_room(*args: Any) -> float:
        waited.append(args)
        others.delete()
        return wait(*args)

    monkeypatch.setattr(RemoteStore, "_wait_for_room", make_room)
    assert float(mine[0]) == 2.0
    assert waited


@pytest.mark.slow
def test_a_restore_without_room_loses_nothing(
    full_server: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so after a while, and is made when there is room."""
    mine, others = full_server
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "MAX_BUSY_S", 0.0)
        with pytest.raises(ValuesFull, match=r"has had no room .* Nothing is lost"):
            np.asarray(mine)
    others.delete()
    assert float(mine[0]) == 2.0


@pytest.mark.parametrize("verb", ["put", "part"])
def test_a_busy_server_is_asked_again(verb: str) -> None:
    """Also with what is no call."""
    busy = (FAILED, encode_failure(Busy("it has no threads.", 0.0)))
    encoder = TreeEncoder()
    encoder.specs([Leaf("A", "float32", (3,))])
    replies = [busy, busy, (OK, encoder.skeleton)]
    connection: Any = SimpleNamespace(request=lambda *_: (replies.pop(0), None))
    link = recovery._Link(connection, TransferRouter())
    if verb == "part":
        (leaf,) = link.part(1, 2, (0,))
    else:
        (leaf,) = link.put(1, KeptData(encoder.skeleton, b"", (), ()), ())
    assert leaf.shape == (3,)
    assert not replies


@pytest.mark.slow
def test_what_is_here_of_a_batch_comes_back(start_live: Callable[..., LiveServer]) -> None:
    """Where the rest of it cannot be made again, also when the next worker ends."""
    server = start_live()
    with connect(server.unix) as client:
        ones = np.ones(LARGE, np.float32)
        client.put({"a": ones, "b": ones * 2}, name="pair")
        pair = client.named("pair")
        np.asarray(pair["a"])
        add = client.persistent_call(lambda x: x + 1)
        for _ in range(2):
            kill(server)
            assert float(add(pair["a"])[0]) == 2.0
            with pytest.raises(ValuesDied, match="found by a name"):
                add(pair["b"])
            with pytest.raises(ValuesDied, match="found by a name"):
                np.asarray(pair["b"])


@pytest.mark.slow
def test_a_restore_keeps_to_the_timeout_of_a_call(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on meanwhile, and the next call finds what it has made."""
    server, made, may_go_on, count = start_live(), CallLineage.make, threading.Event(), []

    def slow(lineage: CallLineage, link: Any) -> Any:
        count.append(lineage)
        may_go_on.wait()
        return made(lineage, link)

    with connect(server.unix) as client:
        state = client.persistent_call(lambda n: jnp.ones(LARGE) * n)(np.float32(2.0))
        quick = client.persistent_call(lambda x: x[0] + 1, timeout_s=2.0)
        client.persistent_call(lambda x: x[0] + 1)(state)
        kill(server)
        monkeypatch.setattr(CallLineage, "make", slow)
        with pytest.raises(DeadlineExceeded, match="still being made again"):
            quick(state)
        may_go_on.set()
        assert float(client.persistent_call(lambda x: x[0] + 1)(state)) == 3.0
        assert len(count) == 1


def test_a_call_that_was_prepared_for_another_session_is_prepared_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the worker be the same: it knows nothing of what the session before had sent."""
    server = InProcessServer(session_grace_s=0.0)
    client = server.client()
    x, send = jnp.arange(LARGE, dtype=jnp.float32), CallPipeline._is_sent_behind_all
    add = client.persistent_call(lambda state, x: state + x, results="remote")
    state = client.put(np.zeros(LARGE, np.float32))
    for _ in range(3):
        state = add(state, x)
    state.block_until_ready()

    def lose_session(*args: Any) -> bool:
        monkeypatch.undo()
        client.caller.session.connection().shut()
        until(lambda: not server.parts.status.now()["connections"])
        until(lambda: not len(server.parts._worker_context.values))
        return send(*args)

    monkeypatch.setattr(CallPipeline, "_is_sent_behind_all", lose_session)
    state = add(state, x)
    assert float(state[3]) == 12.0
    server.close()


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_a_state_of_more_than_half_of_the_limit_has_further_snapshots(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the place of the one before."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", str(3 * 4 * LARGE))  # the state has two such arrays
    with connect(start_live().unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(STEPS):
            state, _ = train(state, np.ones(4, np.float32))
        jaxd_wait(state)
        kept = client.kept()
        assert kept.calls == 1
        assert 2 * 4 * LARGE <= kept.snapshot_bytes <= kept.limit_bytes
        assert kept.snapshot_age_s is not None
        assert not kept.lost_with_worker


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_snapshots_that_cost_too_much_are_taken_no_more(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is said once, with what to write instead."""
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e-9)
    with connect(start_live().unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        state, _ = train(state, np.ones(4, np.float32))
        with pytest.warns(RuntimeWarning, match=r"none any more.*jaxd\.save\(state, path\)"):
            state, _ = train(state, np.ones(4, np.float32))
        for _ in range(4):
            state, _ = train(state, np.ones(4, np.float32))
        kept = client.kept()
        assert "apart" in kept.stopped
        assert kept.calls >= 4


@pytest.mark.slow
def test_what_is_kept_is_told(start_live: Callable[..., LiveServer]) -> None:
    """With what cannot be made again, and why."""
    with connect(start_live().unix) as client:
        client.put(np.ones(LARGE, np.float32), name="shared")
        state = client.put(np.ones(LARGE, np.float32)), client.named("shared")
        gc.collect()  # what was put under the name, which is held for a moment more
        until(lambda: client.kept().call_bytes == 4 * LARGE)
        kept = client.kept()
        assert kept.is_on
        assert kept.lost_with_worker == {"they were found by a name": 4 * LARGE}
        assert (kept.snapshot_bytes, kept.snapshot_age_s, kept.stopped) == (0, None, "")
        ask = client.caller.session.ask
        assert ask("values")["kept"] == []
        recovery = client.caller.session.values().recovery
        assert recovery is not None
        recovery().snapshots.make_due()
        client.persistent_call(lambda x: x + 1)(state[0]).block_until_ready()
        (told,) = ask("values")["kept"]
        assert (told["process"], told["snapshot_bytes"]) == (str(os.getpid()), 4 * LARGE)
        assert told["snapshot_age_s"] >= 0.0
        assert told["lost_with_worker"] == {}
        del state


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["after its first call", "during its first call"])
def test_a_loop_whose_steps_call_back_goes_on(
    start_live: Callable[..., LiveServer], moment: str, gate: Gate
) -> None:
    """From the first one on, whose arguments the functions that it calls may change."""
    server, seen, ones = start_live(), [], np.ones(LARGE, np.float32)

    def take(n: Any) -> Any:
        seen.append(int(n))
        ones[:] = 100.0
        return n

    def stepping(state: Any, n: Any) -> Any:
        n = io_callback(take, jax.ShapeDtypeStruct((), np.float32), n)
        return state + jax.pure_callback(pass_gate, jax.typeof(n), n)

    def pass_gate(x: Any) -> Any:
        if Path(gate.path).exists():
            Path(gate.path).read_bytes()
        return np.asarray(x)

    if moment.startswith("after"):
        Path(gate.path).unlink()
    with connect(server.unix) as client, ThreadPoolExecutor(1) as pool:
        train = client.persistent_call(stepping, donate_argnums=0)
        begun = pool.submit(train, ones, np.float32(1.0))
        if moment.startswith("during"):
            with gate.reached():
                Path(gate.path).unlink()
                kill(server)
        state = begun.result(60)
        if moment.startswith("after"):
            kill(server)
        np.testing.assert_array_equal(state, np.full(LARGE, 2.0))
    assert seen == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("no_snapshots")
@pytest.mark.parametrize("way", ["empty", "shared_copy"])
def test_memory_of_the_callers_own_may_be_filled_anew(
    start_live: Callable[..., LiveServer], way: str
) -> None:
    """What was put from it, and called with it, is made again from what was in it then."""
    server = start_live()
    with connect(server.unix) as client:
        add = client.persistent_call(lambda state, batch: state + batch, donate_argnums=0)
        ones = np.ones(4 * LARGE, np.float32)
        batch = jaxd.empty(4 * LARGE, np.float32) if way == "empty" else jaxd.shared_copy(ones)
        batch[:] = 7
        put = client.put(batch)
        state = client.put(np.zeros(4 * LARGE, np.float32))
        for number in range(1, 6):
            batch[:] = number
            state = add(state, batch)
        float(state[0])
        kill(server)
        assert (float(state[0]), float(put[0])) == (15.0, 7.0)


FACTOR = 2.0


@pytest.mark.slow
@pytest.mark.usefixtures("no_snapshots")
def test_calls_are_made_again_with_the_function_that_they_had(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server had its code from another process, and nothing is on disk."""
    server = start_live("--cache-dir", "none")

    def scaled(x: Any) -> Any:
        return x * FACTOR

    x = np.ones(LARGE, np.float32)
    with connect(server.unix) as other:
        other.persistent_call(scaled)(x)
    with connect(server.unix) as client:
        result = client.persistent_call(scaled).remote(x)
        monkeypatch.setitem(globals(), "FACTOR", 1000.0)
        kill(server)
        assert float(result[0]) == 2.0


@pytest.mark.slow
@pytest.mark.usefixtures("no_snapshots")
def test_a_call_that_found_its_worker_dead_can_be_made_again(
    start_live: Callable[..., LiveServer],
) -> None:
    """And so can what was made from its result."""
    server = start_live()
    with connect(server.unix) as client:
        scale = client.persistent_call(lambda x, y: x * y)
        twos = np.full(4 * LARGE, 2, np.float32)  # so large that it is put into shared memory first
        state = scale.remote(twos, twos)
        for _ in range(2):
            pid = server.worker_pid()
            os.kill(pid, signal.SIGKILL)
            server.wait_for("worker_exited", pid=pid)
            state = scale.remote(state, twos)
            jaxd_wait(state)
        assert float(state[0]) == 16.0


@pytest.mark.slow
def test_the_first_call_after_a_death_is_made_once(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of arrays of this process, before those on the server are made again."""
    server, made, make = start_live(), list[str](), CallLineage.make

    def counted(lineage: CallLineage, link: Any) -> Any:
        made.append(lineage.call.spec.snapshot.name.rpartition(".")[2])
        return make(lineage, link)

    def before(n: Any) -> Any:
        return jnp.ones(LARGE) * n

    def first(n: Any) -> Any:
        return jnp.ones(LARGE) + n

    with connect(server.unix) as client:
        old = client.persistent_call(before).remote(np.float32(2.0))
        old.block_until_ready()
        kill(server)
        monkeypatch.setattr(CallLineage, "make", counted)
        function = client.persistent_call(first)
        new, gone = function.remote(np.float32(3.0)), function.remote(np.float32(4.0))
        del gone
        assert float(old[0] + new[0]) == 6.0
        assert made == ["before"]
        assert client.statistics().calls == 3  # these two, and the one that was made again
        until(lambda: client.statistics().values == 2)
        kill(server)
        assert float(old[0] + new[0]) == 6.0
        assert made == ["before", "before", "first"]


@pytest.mark.slow
def test_nothing_is_kept_for_what_cannot_be_made_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a state that descends from such an array, nor for its arguments."""
    monkeypatch.setattr(snapshots.Snapshots, "take_if_due", lambda _: None)
    with connect(start_live().unix) as client:
        client.put(np.ones(LARGE, np.float32), name="shared")
        state = client.named("shared")
        train = client.persistent_call(lambda state, x: state + x.sum())
        gc.collect()  # what was put under the name
        before = _call_lineages()
        for _ in range(STEPS):
            state = train(state, np.ones(1000, np.float32))
        state.block_until_ready()
        assert _call_lineages() == before
        assert _kept_bytes(client) == 0
        assert client.kept().lost_with_worker == {"they were found by a name": 4 * LARGE}
        np.asarray(state)  # its data is here from now on
        state = train(state, np.ones(1000, np.float32))
        state.block_until_ready()
        assert _call_lineages() == before + 1
        assert _kept_bytes(client) >= 4000


@pytest.mark.slow
def test_nothing_is_kept_behind_answers_that_were_too_large(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of the call that had them, nor of those that were on their way behind it."""
    monkeypatch.setattr(snapshots.Snapshots, "take_if_due", lambda _: None)

    def answer(n: Any) -> Any:
        return np.full(300_000, n, np.float32)  # more than a megabyte

    def asking(state: Any, n: Any) -> Any:
        made = io_callback(answer, jax.ShapeDtypeStruct((300_000,), np.float32), n[0])
        return state + made[0] + n.sum()

    with connect(start_live().unix) as client:
        ask = client.persistent_call(asking, donate_argnums=0)
        add = client.persistent_call(lambda state, x: state + x.sum(), donate_argnums=0)
        state = client.put(np.zeros(3, np.float32))
        state = add(add(state, np.zeros(1000, np.float32)), np.zeros(1000, np.float32))
        for _ in range(2):
            state = ask(state, np.zeros(1000, np.float32))
            state.block_until_ready()
            gc.collect()
            assert _kept_bytes(client) == 0
            for _ in range(4):
                state = add(state, np.zeros(1000, np.float32))
        state.block_until_ready()
        gc.collect()
        assert _kept_bytes(client) == 0
        (why,) = client.kept().lost_with_worker
        assert "returned more than is kept" in why


def _call_lineages() -> int:
    gc.collect()
    return sum(isinstance(each, CallLineage) for each in gc.get_objects())


@pytest.fixture
def by_default(no_snapshots: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is where nobody asks for anything."""
    monkeypatch.delenv("JAXD_SNAPSHOT_S")


@pytest.mark.slow
@pytest.mark.usefixtures("by_default")
def test_by_default_a_loop_does_not_know_that_its_worker_was_killed(
    start_live: Callable[..., LiveServer],
) -> None:
    """Where nobody has asked for anything; nor does a call that had called back."""
    server, seen = start_live(), []

    def note(n: Any) -> None:
        seen.append(int(n))
        if n == 4 and seen.count(4) == 1:
            kill(server)

    def noting(x: Any, n: Any) -> Any:
        io_callback(note, None, n, ordered=True)
        return x + n

    with connect(server.unix) as client:
        assert client.kept().is_on
        train, state = client.persistent_call(step, donate_argnums=0), start()
        plain = client.persistent_call(noting)
        for number in range(STEPS):
            if number == STEPS // 2:
                kill(server)
            state, _ = train(state, np.ones(4, np.float32))
            assert float(plain(1.0, number)) == 1.0 + number
        expected, jitted = start(), jax.jit(step)
        for _ in range(STEPS):
            expected, _ = jitted(expected, np.ones(4, np.float32))
        np.testing.assert_array_equal(np.asarray(state["w"]), np.asarray(expected["w"]))
        assert client.statistics().epoch == 3
    assert seen == list(range(STEPS))


@pytest.mark.slow
def test_jax_arrays_that_still_exist_are_put_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no room for their data; of the others it is said that they are gone."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "1000")
    server = start_live()
    with connect(server.unix) as client:
        source = {"a": jnp.arange(LARGE, dtype=jnp.bfloat16), "b": jnp.ones(3), "n": 2.0}
        put = client.put(source)
        gone = client.put(jnp.ones(LARGE) + 1)  # nobody else holds that
        assert client.kept().call_bytes == 0
        kill(server)
        np.testing.assert_array_equal(np.asarray(put["a"]), np.asarray(source["a"]))
        assert float(put["b"][1]) == 1.0
        assert put["n"].weak_type
        with pytest.raises(ValuesDied, match="put from do not exist any more") as caught:
            np.asarray(gone)
        assert "checkpoint" in advice(caught.value)
        assert client.statistics().epoch == 2


def count_copies(monkeypatch: pytest.MonkeyPatch, copies: list[int]) -> None:
    """Notes the size of each copy that is made to be kept."""

    def copy(data: memoryview) -> bytes:
        copies.append(len(data))
        return bytes(data)

    monkeypatch.setattr(lineage, "bytes", copy, raising=False)


@pytest.mark.slow
def test_large_arguments_are_kept_where_they_travelled(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the block of shared memory: no copy of them is made, and the block is not used again."""
    copies = list[int]()
    monkeypatch.setattr(shared_memory, "MIN_KEPT_BYTES", 1 << 20)
    count_copies(monkeypatch, copies)
    server, x = start_live(), np.arange(1 << 20, dtype=np.float32)
    with connect(server.unix) as client:
        double = client.persistent_call(lambda x: x * 2)
        made, x[:] = double(x), 0.0
        others = [double(x) for _ in range(3)]  # each with a block of its own
        assert not copies
        kill(server)
        np.testing.assert_array_equal(made, np.arange(1 << 20, dtype=np.float32) * 2)
        assert not any(np.asarray(each).any() for each in others)


@pytest.mark.slow
def test_arguments_of_a_megabyte_fill_one_block_after_the_other(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is copied twice, and none has a block, with its open files, of its own."""
    copies = list[int]()
    count_copies(monkeypatch, copies)
    server, x = start_live(), np.zeros(1 << 18, np.float32)
    with connect(server.unix) as client:
        add = client.persistent_call(lambda state, x: state + x.sum(), donate_argnums=0)
        state, files = client.put(np.zeros(4, np.float32)), list[int]()
        for number in range(4 * STEPS):
            x[0] = number
            state = add(state, x)
            files.append(len(os.listdir("/proc/self/fd")))
        assert client.kept().call_bytes > 4 * STEPS * x.nbytes
        assert files[-1] < files[0] + 2 * STEPS  # some are in flight
        assert not [size for size in copies if size == x.nbytes]
        kill(server)
        assert float(state[0]) == sum(range(4 * STEPS))


@pytest.mark.slow
def test_an_argument_that_several_calls_have_counts_as_long_as_one_of_them_is_kept(
    start_live: Callable[..., LiveServer],
) -> None:
    """Whichever of them was the first to take it."""
    x = np.zeros(1 << 18, np.float32)
    with connect(start_live().unix) as client:
        look = client.persistent_call(lambda state, x: state + x[0], results="remote")
        add = client.persistent_call(lambda state, x: state + x.sum(), donate_argnums=0)
        state = client.put(np.zeros(4, np.float32))
        for number in range(STEPS):
            x[0] = number
            look(state, x)  # nobody keeps its result
            state = add(state, x)
        kept = client.kept().call_bytes
        assert STEPS * x.nbytes < kept < (STEPS + 1) * x.nbytes
        assert float(state[0]) == sum(range(STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("length", [1 << 18, 1 << 24])
def test_an_argument_that_does_not_change_is_kept_once(
    start_live: Callable[..., LiveServer], length: int
) -> None:
    """However often it is passed; each change of it counts, also of its last number alone."""
    server, x = start_live(), np.ones(length, np.float32)
    with connect(server.unix) as client:
        add = client.persistent_call(lambda state, x: state + x[-1], donate_argnums=0)
        state, expected = client.put(np.zeros(4, np.float32)), 0
        for change in range(3):
            x[-1] = change
            for _ in range(STEPS):
                state = add(state, x)
                expected += change
        assert client.kept().call_bytes < 5 * x.nbytes
        kill(server)
        assert float(state[0]) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*JAXD_SNAPSHOT_BYTES:RuntimeWarning")
def test_a_state_that_has_no_room_does_not_stop_the_loop_at_each_call(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a snapshot that is none after all; to wait for the calls in flight counts as well."""
    waits = list[float]()

    def settle(store: RemoteStore, deadline: float) -> None:
        waits.append(deadline)
        time.sleep(0.2)

    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", "1000")
    monkeypatch.setattr(RemoteStore, "settle", settle)
    with connect(start_live().unix) as client:
        add = client.persistent_call(lambda state: state + 1, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        for _ in range(STEPS):
            state = add(state)
        assert float(state[0]) == STEPS
    assert len(waits) == 2  # for one snapshot: once more while other threads wait


@pytest.mark.slow
def test_arguments_that_were_copied_to_be_sent_are_not_copied_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that returns before it has run takes a copy of its batch, and that is kept."""
    copies = list[int]()
    with connect(start_live().unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for number in range(STEPS):
            if number == 3:
                count_copies(monkeypatch, copies)
            state, _ = train(state, np.ones(4000, np.float32))
        assert client.kept().call_bytes > STEPS * 16_000
    assert not copies


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_with_all_off_a_session_that_was_given_up_did_not_die() -> None:
    """Its worker lives: the error says what has happened."""
    server, _client, state = given_up_session()
    with pytest.raises(ValuesLost, match="--session-grace-s") as caught:
        np.asarray(state)
    assert not isinstance(caught.value, ValuesDied)
    server.close()


@pytest.mark.slow
@pytest.mark.libraries("orbax.checkpoint")
@pytest.mark.usefixtures("many_snapshots")
def test_a_sharded_state_has_snapshots_shard_by_shard(
    start_live: Callable[..., LiveServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker writes them, each device has its part again, and nothing moves through here."""
    pytest.importorskip("orbax.checkpoint")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server, key = start_live("--build-in", "worker", **EIGHT), jnp.array([0, 7], jnp.uint32)
    size = X.size

    def begin(n: Any) -> Any:
        return {"w": spread_out(jnp.ones(size) * n), "n": n, "k": jax.random.wrap_key_data(key)}

    def advance(state: Any) -> Any:
        return {**state, "w": spread_out(state["w"] / 2 + 1), "n": state["n"] + 1}

    with connect(server.unix) as client:
        state = client.persistent_call(begin)(np.float32(1.0))
        train = client.persistent_call(advance, donate_argnums=0, results="remote")
        for _ in range(STEPS):
            state = train(state)
        state["w"].block_until_ready()
        kept = client.kept()
        assert kept.calls <= 1
        assert X.nbytes <= kept.snapshot_bytes <= 3 * X.nbytes
        assert len([*tmp_path.glob("jaxd-snapshots-*/*")]) <= 3
        kill(server)
        empty = [device.bytes_in_use for device in client.devices()]
        state = train(state)
        state["w"].block_until_ready()
        full = [device.bytes_in_use for device in client.devices()]
        assert all(b - a >= X.nbytes // 8 for a, b in zip(empty, full, strict=True))
        assert client.statistics().bytes_sent < 1 << 16
        assert float(state["n"]) == STEPS + 2.0
        expected = np.float32(2.0)
        for _ in range(STEPS + 1):
            expected = (expected / 2 + 1) * 2
        np.testing.assert_array_equal(state["w"], np.full(X.size, expected))
        assert state["k"].dtype == jax.random.wrap_key_data(key).dtype


def loop(wrap: Callable[..., Any], options: dict[str, Any], at: dict[int, Any]) -> list[Any]:
    """The losses and the last state of a loop; `at` says what happens before some steps."""
    train, state, losses = wrap(step, **options), start(), []
    for number in range(STEPS):
        at.get(number, lambda: None)()
        x = np.full(1000, number, np.float32)
        state, loss = train(state, x)
        if wrap is not jax.jit:  # which may read it later
            x[:] = -1.0  # a call that is made again has what it was given
        losses.append(loss)
    return [*map(np.asarray, losses), *map(np.asarray, jax.tree.leaves(state))]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    """To the last bit."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_snapshots_of_a_client_on_another_machine_stay_with_the_host(
    start_live: Callable[..., LiveServer],
) -> None:
    """The state does not travel, neither for a snapshot nor after the death of a worker."""
    server = start_live()
    moved = list[int]()
    with connect(server.tcp, token=TOKEN) as client:

        def end_worker() -> None:
            moved.append(client.statistics().bytes_sent)
            kill(server)

        deaths = {5: end_worker, 9: end_worker}
        found = loop(client.persistent_call, {"donate_argnums": 0}, deaths)
        moved.append(client.statistics().bytes_received)
    assert_equal(found, loop(jax.jit, {"donate_argnums": 0}, {}))
    assert max(moved) < LARGE * 4


OPEN: Final[dict[str, Any]] = {"allow_unauthenticated_loopback": True, "session_grace_s": 0.0}
"""Over TCP without a token; and no session is kept without a connection."""


@pytest.mark.usefixtures("many_snapshots")
def test_what_the_server_keeps_of_a_client_goes_with_it(tmp_path: Path) -> None:
    """As its arrays go, and what is left when the process exits."""
    server = InProcessServer(snapshot_dir=str(tmp_path), **OPEN)
    with connect(f"{server.tcp}?insecure=1") as client:
        session = client.caller.session
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(STEPS):
            state, _loss = train(state, np.ones(4, np.float32))
        state["w"].block_until_ready()

        def left() -> int:
            gc.collect()  # calls may be in cycles of references, with what they were made of
            return len([*tmp_path.iterdir()])

        until(lambda: 1 <= left() <= 3)
        assert 0 < client.kept().snapshot_bytes < 4 * 2 * 4 * LARGE
        session.connection().shut()  # the session is given up, and made again
        until(lambda: not len(server.parts.values))
        assert float(train(state, np.ones(4, np.float32))[0]["n"]) == STEPS + 1
        session.notify_exit()
        until(lambda: not [*tmp_path.iterdir()])
    server.close()


@pytest.mark.usefixtures("many_snapshots")
def test_what_the_server_keeps_goes_with_the_arrays(tmp_path: Path) -> None:
    """Though there is neither another snapshot nor another call."""
    server = InProcessServer(snapshot_dir=str(tmp_path), **OPEN)
    with connect(f"{server.tcp}?insecure=1") as client:
        train, state = client.persistent_call(step), start()
        for _ in range(3):
            state, _loss = train(state, np.ones(4, np.float32))
        state["w"].block_until_ready()
        assert [*tmp_path.iterdir()]
        del state, _loss
        until(lambda: not [*tmp_path.iterdir()])
    server.close()


@pytest.mark.usefixtures("many_snapshots")
def test_a_snapshot_of_which_the_client_heard_nothing_goes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the room of others for as long as the client lives."""
    hold = RemoteStore.hold

    def held(store: RemoteStore, arrays: Sequence[RemoteArray], number: int) -> str:
        secret = hold(store, arrays, number)
        if not number:
            raise ConnectionLost("the reply was lost.")
        return secret

    monkeypatch.setattr(RemoteStore, "hold", held)
    server = InProcessServer(snapshot_dir=str(tmp_path), **OPEN)
    with connect(f"{server.tcp}?insecure=1") as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(STEPS):
            state, _loss = train(state, np.ones(4, np.float32))
        state["w"].block_until_ready()
        until(lambda: [*tmp_path.iterdir()] and not [*tmp_path.glob("*-0")])
    server.close()


@pytest.mark.usefixtures("many_snapshots")
def test_what_the_server_has_no_room_for_is_kept_by_the_client(tmp_path: Path) -> None:
    """As by a server that keeps no snapshots."""
    server = InProcessServer(snapshot_dir=str(tmp_path), snapshot_bytes=1000, **OPEN)
    with connect(f"{server.tcp}?insecure=1") as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(STEPS):
            state, _loss = train(state, np.ones(4, np.float32))
        state["w"].block_until_ready()
        assert client.kept().calls == 1
        assert not [*tmp_path.iterdir()]
        client.caller.session.connection().shut()
        until(lambda: not len(server.parts.values))
        assert float(state["n"]) == STEPS
    server.close()


@pytest.mark.parametrize("limit", ["600", "0"])
def test_calls_that_ran_for_too_long_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The server says how long they ran; the error names the limit, and nothing is kept."""
    monkeypatch.setenv("JAXD_LINEAGE_S", limit)
    server = InProcessServer(session_grace_s=0.0)
    with server.client() as client:
        double = client.persistent_call(doubled, results="remote")
        held = [double(np.ones(LARGE, np.float32))]
        held.append(double(held[0]))
        held[1].block_until_ready()
        kept = client.kept()
        assert kept.limit_seconds == float(limit)
        assert (kept.call_seconds > 0.0) is (limit == "600")
        assert kept.call_bytes == (4 * LARGE if limit == "600" else 0)
        client.caller.session.connection().shut()
        until(lambda: not len(server.parts.values))
        for number, each in enumerate(held):
            if limit == "600":
                assert float(each[0]) == 2.0 ** (number + 1)
            else:
                with pytest.raises(ValuesLost, match=r"ran for more than 0 s \(JAXD_LINEAGE_S\)"):
                    np.asarray(each)
    server.close()


@pytest.mark.usefixtures("many_snapshots")
def test_a_snapshot_takes_the_place_of_calls_that_ran_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is taken before the next call, whatever the interval."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "3600")
    monkeypatch.setenv("JAXD_LINEAGE_S", "0")
    server = InProcessServer(session_grace_s=0.0)
    with server.client() as client:
        double = client.persistent_call(doubled, donate_argnums=0, results="remote")
        state = np.ones(LARGE, np.float32)
        for _ in range(4):
            state = double(state)
        recovery = client.caller.session.values().recovery
        assert recovery is not None
        assert recovery().snapshots.last is not None
    server.close()


def doubled(x: Any) -> Any:
    return x * 2


@pytest.fixture
def replies_held_back(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Functions, by name, whose replies do not come as long as their connection lives."""
    held, on_reply = list[str](), CallPipeline._on_reply

    def hold_back(pipeline: CallPipeline, flight: Any, connection: Any, pending: Any) -> None:
        if flight.name.rpartition(".")[2] in held and pending.error is None:
            pending.frame, pending.error = None, ConnectionLost("it has not come.")
        else:
            on_reply(pipeline, flight, connection, pending)

    monkeypatch.setattr(CallPipeline, "_on_reply", hold_back)
    return held


@pytest.mark.slow
def test_a_call_that_others_need_is_sent_again_before_them(
    start_live: Callable[..., LiveServer], replies_held_back: list[str]
) -> None:
    """Its reply had not come, and theirs had: it is open, and they are over."""
    server = start_live()

    def adding(x: Any) -> Any:
        return x + 1

    def late(x: Any) -> Any:
        return x + 1

    with connect(server.unix) as client:
        add, slow = (client.persistent_call(each, donate_argnums=0) for each in (adding, late))
        state = client.put(np.zeros(LARGE, np.float32))
        for _ in range(2):
            state = slow(add(state))
        state.block_until_ready()
        replies_held_back.append("late")
        state = add(slow(slow(add(state))))
        state.block_until_ready()
        replies_held_back.clear()
        kill(server)
        assert float(state[0]) == 8.0
        until(lambda: client.statistics().values == 1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["submitted", "called"])
def test_a_call_is_sent_again_before_what_it_takes_is_donated(
    start_live: Callable[..., LiveServer], replies_held_back: list[str], way: str
) -> None:
    """It had read the state when the next step took that; only its reply had not come."""
    server, told = start_live(), list[float]()

    def adding(x: Any) -> Any:
        return x + 1

    def late(x: Any) -> Any:
        return x * 2

    with connect(server.unix) as client:
        add, look = client.persistent_call(adding, donate_argnums=0), client.persistent_call(late)
        state = add(add(client.put(np.zeros(LARGE, np.float32))))
        look(state).block_until_ready()
        replies_held_back.append("late")
        if way == "submitted":
            future = look.submit(state)
            future.add_done_callback(lambda done: told.append(float(done.result()[0])))
        else:
            looked = look(state)
        state = add(state)
        state.block_until_ready()
        replies_held_back.clear()
        kill(server)
        assert float(state[0]) == 3.0
        if way == "submitted":
            looked = future.result(60)
            until(lambda: told == [4.0])
        assert float(looked[0]) == 4.0


@pytest.mark.slow
def test_results_of_map_that_are_read_after_their_worker_has_ended(
    start_live: Callable[..., LiveServer],
) -> None:
    """Their replies had come before, and others were made again meanwhile."""
    server = start_live()
    with connect(server.unix) as client:
        make = client.persistent_call(lambda n: jnp.ones(LARGE) * n, results="remote")
        make(np.float32(0.0)).block_until_ready()
        results = make.map([np.float32(n) for n in range(STEPS)])
        first, reader = next(results), client.caller.session.connection().shared_reader
        until(lambda: not reader.pending)
        kill(server)
        assert float(first[0]) == 0.0
        assert [float(each[0]) for each in results] == [float(n) for n in range(1, STEPS)]
        assert client.statistics().epoch == 2


@pytest.mark.slow
def test_a_result_that_is_read_after_others_were_made_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that has called was too slow: the call was over, and nobody had its arrays."""
    server, result = start_live(), PipelinedCalls._result
    is_over, may_go_on = threading.Event(), threading.Event()

    def wait_first(*args: Any) -> Any:
        is_over.set()
        assert may_go_on.wait(60)
        return result(*args)

    with connect(server.unix) as client, ThreadPoolExecutor(1) as pool:
        add = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        other = client.put(np.ones(LARGE, np.float32))
        monkeypatch.setattr(PipelinedCalls, "_result", wait_first)
        late = pool.submit(add, state)
        assert is_over.wait(60)
        kill(server)
        assert float(other[0]) == 1.0
        monkeypatch.undo()
        may_go_on.set()
        assert float(late.result(60)[0]) == 1.0
        assert float(other[0]) == 1.0


@pytest.mark.slow
def test_a_result_that_nobody_wanted_of_a_call_that_was_under_way_is_freed(
    start_live: Callable[..., LiveServer], replies_held_back: list[str]
) -> None:
    """The call is sent again all the same, and makes it once more."""
    server = start_live()

    def late(x: Any) -> Any:
        return x * 2

    with connect(server.unix) as client:
        state, look = client.put(np.zeros(LARGE, np.float32)), client.persistent_call(late)
        look(state).block_until_ready()
        until(lambda: client.statistics().values == 1)
        replies_held_back.append("late")
        unwanted = look(state)
        until(lambda: client.statistics().values == 2)
        del unwanted
        until(lambda: client.statistics().values == 1)
        replies_held_back.clear()
        kill(server)
        assert float(np.asarray(state)[0]) == 0.0
        client.caller.session.values().settle(time.monotonic() + 60.0)
        until(lambda: client.statistics().values == 1)


@pytest.mark.slow
def test_releases_wait_until_all_is_made_again(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of another thread would carry that of a state in between, which is needed then."""
    server, make = start_live(), CallLineage.make
    with connect(server.unix) as client:
        add = client.persistent_call(lambda x: x + 1)
        plain = client.persistent_call(lambda x: x * 2)
        states, queue = [client.put(np.zeros(LARGE, np.float32))], client.caller.session.values()
        for _ in range(3):
            states.append(add(states[-1]))
        assert float(plain(1.0)) == 2.0
        states[-1].block_until_ready()
        middle = states[2].id
        del states[:3]

        def release_before(lineage: CallLineage, link: Any) -> Any:
            if lineage.depth == 3:
                queue.release_queue.add(range(middle, middle + 1))
                assert in_thread(plain, 2.0).result(60) == 4.0
            return make(lineage, link)

        kill(server)
        monkeypatch.setattr(CallLineage, "make", release_before)
        assert float(states[0][0]) == 3.0
        until(lambda: client.statistics().values == 1)


def test_a_restore_of_a_session_that_has_ended_meanwhile_is_none_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its worker be the same: that has nothing of it."""
    server, client, state = given_up_session()
    mark_lost = recovery._Plan.mark_lost

    def lose_session(*args: Any, **options: Any) -> None:
        monkeypatch.undo()
        mark_lost(*args, **options)
        client.caller.session.connection().shut()
        until(lambda: not server.parts.status.now()["connections"])
        until(lambda: not len(server.parts.values))
        client.caller.session.connection()

    monkeypatch.setattr(recovery._Plan, "mark_lost", lose_session)
    assert float(client.persistent_call(lambda x: x + 1)(state)[0]) == 3.0
    server.close()


@pytest.mark.slow
def test_a_snapshot_takes_the_place_of_arguments_before_there_is_no_room(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no moment would the state be lost with its worker."""
    monkeypatch.setenv("JAXD_SNAPSHOT_BYTES", str(40 * 16_000))
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)
    server = start_live()
    with connect(server.unix) as client:
        train, state = client.persistent_call(step, donate_argnums=0), start()
        for _ in range(6 * STEPS):
            state, _ = train(state, np.ones(4000, np.float32))
            assert client.kept().lost_with_worker == {}
        state["w"].block_until_ready()
        kept = client.kept()
        assert kept.snapshot_bytes >= 2 * 4 * LARGE
        kill(server)
        assert float(state["n"]) == 6 * STEPS


@pytest.mark.slow
def test_a_snapshot_is_taken_before_there_are_too_many_calls(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where there can be none, the error says how many are made again."""
    monkeypatch.setattr(recovery, "MAX_DEPTH", 3)
    monkeypatch.setattr(snapshots, "COST_SHARE", 1e9)
    server = start_live()
    with connect(server.unix) as client:
        add = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        state = client.put(np.zeros(LARGE, np.float32))
        for _ in range(2 * STEPS):
            state = add(state)
            kept = client.kept()
            assert (kept.calls <= 3, kept.lost_with_worker) == (True, {})
        monkeypatch.setattr(snapshots.Snapshots, "take_if_due", lambda _: None)
        for _ in range(4):
            state = add(state)
        kill(server)
        with pytest.raises(ValuesDied, match="more than 3 calls"):
            np.asarray(state)


@pytest.mark.slow
def test_a_snapshot_is_one_point_of_the_order_of_all_threads(
    start_live: Callable[..., LiveServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of another thread that would take what is being fetched waits until it is."""
    server, fetch = start_live(), RemoteStore.fetch_copies
    begun = list[Any]()
    with connect(server.unix) as client, ThreadPoolExecutor(1) as pool:
        add = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        states = [client.put(np.full(LARGE, n, np.float32)) for n in range(2)]
        for _ in range(2):
            states = [add(each) for each in states]
        made = client.caller.session.values().recovery
        assert made is not None
        taken: Any = made().snapshots

        def fetch_meanwhile(*args: Any) -> Any:
            if not begun:
                begun.append(pool.submit(add, states[1]))
                until(lambda: begun[0].done() or taken._pause._waiters)
            return fetch(*args)

        monkeypatch.setattr(RemoteStore, "fetch_copies", fetch_meanwhile)
        taken.make_due()
        states[0] = add(states[0])
        states[1] = begun[0].result(60)
        kept = client.kept()
        assert kept.snapshot_bytes == 2 * 4 * LARGE
        assert (kept.calls, kept.stopped) == (1, "")
        kill(server)
        assert [float(each[0]) for each in states] == [3.0, 4.0]


@pytest.mark.slow
@pytest.mark.usefixtures("many_snapshots")
def test_of_several_devices_on_another_machine_there_are_no_snapshots(
    start_live: Callable[..., LiveServer],
) -> None:
    """That is said once, and what to write instead."""
    server = start_live("--build-in", "worker", **EIGHT)
    with connect(server.tcp, token=TOKEN) as client:
        add = client.persistent_call(lambda x: x + 1, donate_argnums=0)
        state = add(np.zeros(LARGE, np.float32))
        with pytest.warns(RuntimeWarning, match=r"several devices.*jaxd\.save\(state, path\)"):
            state = add(state)
        for _ in range(STEPS):
            state = add(state)
        state.block_until_ready()
        assert "several devices" in client.kept().stopped
        (told,) = client.caller.session.ask("values")["kept"]
        assert "several devices" in told["stopped"]


@pytest.mark.slow
def test_where_the_next_worker_has_no_such_device_the_error_says_so(
    start_live: Callable[..., LiveServer],
) -> None:
    """What needs none of them is made again all the same."""
    server = start_live("--build-in", "worker", **EIGHT)

    def spread(n: Any) -> Any:
        mesh = jax.sharding.Mesh(jax.make_mesh((8,), ("i",)).devices, ("i",))
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
        return jax.lax.with_sharding_constraint(jnp.ones(LARGE) * n, where)

    with connect(server.unix) as client, connect(server.unix, device=7) as other:
        sharded = client.persistent_call(spread, results="remote")(np.float32(2.0))
        on_the_last = other.put(np.ones(LARGE, np.float32))
        plain = client.persistent_call(lambda n: jnp.ones(LARGE) * n, results="remote")
        whole = plain(np.float32(3.0))
        sharded.block_until_ready()
        server.close()
        start_live()
        with pytest.raises(ValuesDied, match=r"could not be made again.*device") as caught:
            np.asarray(sharded)
        assert "checkpoint" in advice(caught.value)
        assert float(whole[0]) == 3.0
        with pytest.raises(ConfigurationError, match="device=7 is not there"):
            np.asarray(on_the_last)
