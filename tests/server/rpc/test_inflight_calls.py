from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxd.dispatch import retry
from jaxd.errors import Busy, Cancelled, DeadlineExceeded
from jaxd_protocol.messages.calls import FAILED, OK
from jaxd_server.execution.call import Call, Reply
from jaxd_server.rpc.inflight_calls import (
    CallPolicy,
    InflightCall,
    InflightCalls,
)
from tests.server.in_process import InProcessServer
from tests.server.rpc.test_connection import _pass, make_gate
from tests.server.staging import PATIENCE_S, join, start, until

# An interrupt may arrive in one of jax's finalizers, which says so; then it is sent again.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

GIVEN_UP: Reply = ((FAILED, "given up"), ())
DONE: Reply = ((OK, b"", b""), ())


class Rig:
    """Open calls without a connection."""

    def __init__(self, **terms: Any) -> None:
        self.sent: list[tuple[int, Reply, int]] = []
        self.sent_now: list[tuple[int, Reply, int]] = []
        self.freed: list[int] = []
        self.ended: list[Call] = []
        send_queue: Any = SimpleNamespace(
            later=lambda *sent: self.sent.append(sent),
            now=lambda *sent: self.sent_now.append(sent),
        )
        share: Any = SimpleNamespace(free=self.freed.append)
        policy = CallPolicy(lambda call: GIVEN_UP, ended=self.ended.append, **terms)
        self.calls = InflightCalls(policy, send_queue, share)

    def open(self, number: int = 7, **fields: Any) -> InflightCall:
        """A call that holds a hundred bytes."""
        source: Any = None
        data = [memoryview(b"data")]
        call = InflightCall(b"key", b"", b"blob", data, source, number=number, nbytes=100, **fields)
        with self.calls.opened(call):
            return call


def test_a_call_is_answered_by_the_thread_that_works_on_it() -> None:
    """And gives back what it holds with its reply."""
    rig = Rig()
    one = rig.open()
    one.run("running", lambda: DONE)
    assert rig.sent == [(7, DONE, 100)]
    assert (rig.calls._open, rig.freed) == ({}, [])
    assert [call.cancel_token for call in rig.ended] == [one.cancel_token]
    rig.calls.cancel(7)
    assert len(rig.sent) == 1


def test_one_that_is_cancelled_while_it_runs_is_answered_at_once() -> None:
    """Its bytes are given back when its thread lets go of them."""
    rig = Rig()
    one = rig.open()

    def work() -> Reply:
        rig.calls.cancel(7)
        assert rig.sent == [(7, GIVEN_UP, 0)]
        assert rig.freed == []
        return DONE

    one.run("running", work)
    assert (rig.sent, rig.freed) == ([(7, GIVEN_UP, 0)], [100])
    assert isinstance(one.cancel_token.error, Cancelled)
    assert one.cancel_token.is_client_notified


def test_one_that_waits_for_a_thread_is_dropped_at_once() -> None:
    """With all that it holds."""
    rig = Rig()
    one = rig.open()
    one.withdraw = lambda: True
    rig.calls.cancel(7)
    assert rig.sent == [(7, GIVEN_UP, 100)]
    assert one.buffers == ()


def test_a_thread_that_takes_one_which_was_given_up_does_nothing() -> None:
    """It could not be taken out of where it waited."""
    rig = Rig()
    one = rig.open()
    rig.calls.cancel(7)
    one.run("running", lambda: pytest.fail("it runs"))
    assert (rig.sent, rig.freed) == ([(7, GIVEN_UP, 0)], [100])


def test_its_deadline_is_the_servers_too() -> None:
    """So is the server's own limit, from when it has begun; the error says what the time was."""
    rig = Rig()
    one = rig.open(deadline=time.monotonic() + 0.06)
    until(lambda: rig.sent)
    assert isinstance(one.cancel_token.error, DeadlineExceeded)
    assert "0.1 s waiting for its turn" in str(one.cancel_token.error)
    rig = Rig(max_s=0.06)
    one, over = rig.open(), threading.Event()
    one.cancel_token.notify(over.set)
    one.run("running", lambda: DONE if over.wait(PATIENCE_S) else GIVEN_UP)
    assert rig.sent == [(7, GIVEN_UP, 0)]
    assert "--max-call-s" in str(one.cancel_token.error)
    assert "0.1 s running" in str(one.cancel_token.error)


def test_a_call_on_values_says_itself_what_became_of_them() -> None:
    """Once it runs; before that it is answered at once like any other."""
    rig = Rig()
    waiting, running = rig.open(1), rig.open(2)
    for one in (waiting, running):
        one.is_ordered = True
        one.reply_when_cancelled = one.answer_ordered
    rig.calls.cancel(1)
    assert rig.sent == [(1, GIVEN_UP, 100)]

    def start() -> Any:
        rig.calls.cancel(2)
        return lambda: DONE

    running.answer_ordered(running.start_ordered("running", start)())
    assert rig.sent[1:] == []
    assert rig.sent_now == [
        (2, DONE, 100)
    ]  # by the thread that delivers: it may wait for the client
    refused = waiting.start_ordered("running", lambda: pytest.fail("it runs"))
    assert refused() == GIVEN_UP


def test_only_what_has_not_begun_is_dropped_when_the_client_goes() -> None:
    """What has is brought to its end: somebody may want it."""
    rig = Rig()
    begun, waiting = rig.open(1), rig.open(2)
    begun.begin("running")
    waiting.withdraw = lambda: True
    rig.calls.close()
    assert [number for number, *_ in rig.sent] == [2]
    assert begun.cancel_token.error is None


def test_what_a_call_holds_is_freed_with_it() -> None:
    """Not when Python next looks for cycles: it may be arrays."""
    gc.disable()
    try:
        finishes: list[Callable[[InflightCall], None]] = [
            lambda one: one.run("running", lambda: DONE),
            InflightCall.drop,
        ]
        for finish in finishes:
            rig = Rig()
            one = rig.open()
            held = weakref.ref(one.cancel_token)  # as long as the call
            one.withdraw = partial(lambda one: True, one)
            finish(one)
            del one
            rig.ended.clear()
            assert held() is None
    finally:
        gc.enable()


def test_a_call_that_nobody_takes_is_forgotten() -> None:
    """Who could not find anybody gives back what it held."""
    rig = Rig()
    source: Any = None
    soon = time.monotonic() + 0.01
    call = InflightCall(b"key", b"", b"", [], source, number=7, nbytes=100, deadline=soon)
    with pytest.raises(RuntimeError), rig.calls.opened(call):
        raise RuntimeError("no threads")
    assert rig.calls._open == {}
    assert not call.cancel_token.cancel(Cancelled("not wanted."))
    assert (rig.sent, rig.freed) == ([], [])


# over real connections ------------------------------------------------------------------------


def endless(x: Any) -> Any:
    """Is traced for ever."""
    _pass("endless", -1.0)
    while True:
        x = x + 1


def settled(in_process_server: InProcessServer) -> bool:
    """Whether nothing is held for any call."""
    budget = in_process_server.parts._worker_context.budget
    status = in_process_server.parts.status.now()
    return not (budget.calls or budget.used or status["running"] or status["left_behind"])


@pytest.mark.parametrize("awaited", [False, True], ids=["future", "task"])
def test_a_call_that_is_cancelled_interrupts_the_trace(
    in_process_server: InProcessServer, awaited: bool
) -> None:
    """And the server has nothing left of it."""
    entered, release = make_gate("endless")
    function = in_process_server.client().persistent_call(endless)

    async def give_up() -> None:
        task = asyncio.create_task(function.call_async(np.float32(2)))
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        release.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    if awaited:
        asyncio.run(give_up())
    else:
        future = function.submit(np.float32(2))
        assert entered.wait(PATIENCE_S)
        release.set()
        assert future.cancel()
    until(lambda: settled(in_process_server))
    found = in_process_server.counters.snapshot()
    assert (found["cancelled_calls"], found["compiles"]) == (1, 0)


@pytest.mark.parametrize(
    ("options", "timeout_s", "said"),
    [({}, 0.3, r"0\.\d s being built"), ({"max_build_s": 0.2}, None, "--max-build-s")],
    ids=["client", "server"],
)
def test_a_deadline_interrupts_the_trace_and_says_where_the_time_went(
    open_in_process_server: Any, options: Any, timeout_s: float | None, said: str
) -> None:
    """Seen by the client as the server's word, also where the limit is the server's."""
    server = open_in_process_server(**options)
    _, release = make_gate("endless")
    release.set()
    slow = server.client().persistent_call(endless, timeout_s=timeout_s)
    with pytest.raises(DeadlineExceeded, match=said):
        slow(np.float32(2))
    until(lambda: settled(server))
    assert server.counters.snapshot()["late_calls"] == (timeout_s is not None)


def stops(x: Any) -> Any:
    """Stops at the gate when it runs with a negative number."""
    import jax

    def look(value: Any) -> Any:
        return _pass("stops", value) if value < 0 else value

    return jax.pure_callback(look, jax.typeof(x), x) + 1


@pytest.mark.slow
def test_a_call_that_runs_too_long_releases_its_caller(open_in_process_server: Any) -> None:
    """It is listed as long as it goes on, and what it leaves on the server goes."""
    in_process_server = open_in_process_server(max_call_s=0.3)
    client = in_process_server.client()
    stopping = client.persistent_call(stops)
    assert float(stopping(np.float32(1))) == 2.0
    entered, release = make_gate("stops")
    with pytest.raises(DeadlineExceeded, match="--max-call-s"):
        stopping(np.float32(-1))
    assert entered.is_set()
    (left,) = in_process_server.parts.status.now()["left_behind"]
    assert (left["function"], left["phase"]) == ("stops", "running")
    assert in_process_server.parts.status.now()["running"] == []
    assert float(client.persistent_call(lambda x: x * 2)(np.float32(3))) == 6.0
    release.set()
    until(lambda: settled(in_process_server))


def test_a_call_on_values_that_is_cancelled_before_it_runs_takes_nothing(
    in_process_server: InProcessServer,
) -> None:
    """What it would have been given is still there, and those after it run."""
    client = in_process_server.client()
    state = client.persistent_call(lambda: np.ones(3, np.float32)).remote()
    entered, release = make_gate("stops")
    first = client.persistent_call(stops).submit(
        client.persistent_call(lambda x: -x[0]).remote(state)
    )
    assert entered.wait(PATIENCE_S)
    update = client.persistent_call(lambda x: x + 1, donate_argnums=0)
    second = update.submit(state)
    until(lambda: len(in_process_server.parts._sessions) == 1)
    assert second.cancel()
    release.set()
    assert float(first.result(PATIENCE_S)) == 0.0
    assert np.asarray(update(state)).tolist() == [2.0] * 3


@pytest.mark.slow
def test_clients_come_again_to_a_server_that_is_busy(open_in_process_server: Any) -> None:
    """By themselves, whichever way they call; and all are answered in the end."""
    in_process_server = open_in_process_server(max_calls=2, call_share=1.0)
    client = in_process_server.client()
    stopping = client.persistent_call(stops)
    assert float(stopping(np.float32(1))) == 2.0
    entered, release = make_gate("stops")
    held = [stopping.submit(np.float32(-1)) for _ in range(2)]
    assert entered.wait(PATIENCE_S)
    until(lambda: in_process_server.parts.status.now()["held_calls"] == 2)
    waiting = stopping.submit(np.float32(4))
    with pytest.raises(Busy, match="--max-calls"):
        in_process_server.client().persistent_call(stops, timeout_s=0.3)(np.float32(5))
    release.set()
    assert [float(future.result(PATIENCE_S)) for future in (*held, waiting)] == [0.0, 0.0, 5.0]
    until(
        lambda: (
            settled(in_process_server) and in_process_server.parts.status.now()["held_calls"] == 0
        )
    )


def test_a_client_too_many_is_told_so(
    open_in_process_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When one has gone, it comes in: it asks again by itself, but not for ever."""
    in_process_server = open_in_process_server(max_connections=1)
    first = in_process_server.client()
    first.statistics()
    with monkeypatch.context() as hasty:
        hasty.setattr(retry, "_MAX_BUSY_S", 0.1)
        with pytest.raises(Busy, match="--max-connections"):
            in_process_server.client().statistics()
    waiting = start(lambda: in_process_server.client().statistics())
    first.close()
    join([waiting])
    until(lambda: in_process_server.parts.status.now()["connections"])
