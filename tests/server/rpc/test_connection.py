from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import Client
from jaxd.connection.shared_reader import PendingReply
from jaxd_protocol.errors import DeadlineExceeded, LimitExceeded, ServerDraining
from jaxd_protocol.wire.connection import encode_request
from jaxd_protocol.wire.frames import FrameWriter
from jaxd_server.compilation.compiling import executable
from jaxd_server.rpc import connection, send_queue
from jaxd_server.rpc.connection import ReaderHandoff
from jaxd_server.rpc.flow_control import ConnectionShare
from tests.server.in_process import InProcessServer, Peer, Source, read_reply
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting
from tests.shared.wire.by_hand import frame_bytes

OpenInProcessServer = Callable[..., InProcessServer]

FLOAT: Any = np.zeros((), np.float32)
"""The shape and dtype of what a callback returns."""


class _Gate(logging.Handler):
    """Where called functions wait. They travel by value and find it by the name of its logger."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.opened = threading.Event(), threading.Event()

    def handle(self, record: logging.LogRecord) -> bool:
        """Takes no lock, so that several may wait here."""
        self.entered.set()
        return self.opened.wait(PATIENCE_S)


def _pass(gate: str, value: Any) -> Any:
    if float(value) < 0:
        logging.getLogger(gate).error("somebody is at the gate")
    return value


def make_gate(name: str) -> tuple[threading.Event, threading.Event]:
    """The event that a function sets when it has come so far, and the one that lets it go on."""
    gate, logger = _Gate(), logging.getLogger(name)
    logger.handlers, logger.propagate = [gate], False
    return gate.entered, gate.opened


def gated(client: Client, gate: str) -> Any:
    """A persistent function that waits at the gate when it is given a negative number."""

    def wait(x: Any) -> Any:
        def step(value: Any) -> Any:
            return _pass(gate, value)

        return jax.pure_callback(step, FLOAT, x)

    return client.persistent_call(wait, extra_key=gate)


def test_questions_about_the_server_are_answered_at_once(
    in_process_server: InProcessServer,
) -> None:
    """Also while all of its threads are busy."""
    client = in_process_server.client()
    entered, release = make_gate("questions")
    wait = gated(client, "questions")
    futures = [wait.submit(np.float32(-1)) for _ in range(6)]
    assert entered.wait(PATIENCE_S)
    assert client.statistics().connections == 1
    assert in_process_server.parts.status.now()["running_calls"] >= 1
    assert client.info()["devices"]
    release.set()
    assert [float(future.result(PATIENCE_S)) for future in futures] == [-1.0] * 6


def test_a_call_that_has_become_slow_does_not_hold_up_the_next(
    in_process_server: InProcessServer,
) -> None:
    """The thread that reads runs short calls itself; when one overstays, another reads on."""
    client = in_process_server.client()
    entered, release = make_gate("slow")
    wait, double = gated(client, "slow"), client.persistent_call(lambda x: x * 2)
    for _ in range(20):
        wait(np.float32(1))
        double(np.float32(1))
    slow = wait.submit(np.float32(-1))
    assert entered.wait(PATIENCE_S)
    assert [float(double(np.float32(x))) for x in range(20)] == [2.0 * x for x in range(20)]
    assert not slow.done()
    release.set()
    assert float(slow.result(PATIENCE_S)) == -1.0
    assert float(double(np.float32(4))) == 8.0


def test_calls_on_values_stay_in_order_when_who_read_one_is_held_up(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is read by another thread, and takes what the first has yet to make."""
    monkeypatch.setattr(executable, "QUICK_S", PATIENCE_S)  # who reads a warm call begins it
    client = in_process_server.client()
    step = client.persistent_call(lambda x: x + 1)
    x = client.put(np.zeros(1 << 15, np.float32))
    for _ in range(20):
        jax.block_until_ready(step(x))
    held, goes_on, begin = threading.Event(), threading.Event(), ReaderHandoff.begin_inline

    def hold_up_the_first(reader: ReaderHandoff) -> int:
        turn = begin(reader)
        if not held.is_set():
            held.set()
            goes_on.wait(PATIENCE_S)
        return turn

    monkeypatch.setattr(ReaderHandoff, "begin_inline", hold_up_the_first)
    first = step(x)
    second = step(first)
    assert held.wait(PATIENCE_S)
    client.info()  # is read behind both
    goes_on.set()
    np.testing.assert_array_equal(np.asarray(second), np.full(1 << 15, 2))


def test_a_function_that_is_being_built_does_not_hold_up_warm_calls(
    in_process_server: InProcessServer,
) -> None:
    """Neither those of the same connection nor others'."""
    client, other = in_process_server.client(), in_process_server.client()
    entered, release = make_gate("build")
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)

    @client.persistent_call
    def slow_to_trace(x: Any) -> Any:
        _pass("build", -1.0)
        return x

    future = slow_to_trace.submit(1.0)
    assert entered.wait(PATIENCE_S)
    assert float(double(2.0)) == 4.0
    assert float(other.persistent_call(lambda x: x * 3)(2.0)) == 6.0
    assert not future.done()
    release.set()
    assert float(future.result(PATIENCE_S)) == 1.0


def test_large_calls_in_flight_make_progress_within_a_small_budget(
    open_in_process_server: OpenInProcessServer,
) -> None:
    """Eight of 4 MB each way on one connection, where two do not fit; the function is new."""
    in_process_server = open_in_process_server(budget_bytes=6 << 20)
    client = in_process_server.client()
    echo = client.persistent_call(lambda x: x + 1)
    x = np.zeros(1 << 20, np.float32)
    futures = [echo.submit(x) for _ in range(8)]
    assert [float(np.asarray(future.result(PATIENCE_S))[-1]) for future in futures] == [1.0] * 8
    until(lambda: in_process_server.parts._worker_context.budget.used == 0)


@pytest.mark.slow
def test_code_arrives_although_the_budget_is_used_up(
    open_in_process_server: OpenInProcessServer,
) -> None:
    """A call that waits for its function must not keep its function out."""
    in_process_server = open_in_process_server(budget_bytes=1 << 16)
    client = in_process_server.client()
    table = np.ones(1 << 17, np.float32)
    lookups = [client.persistent_call(lambda x, n=n: x + table.sum() * n) for n in range(3)]
    x = np.zeros(1 << 16, np.float32)
    futures = [lookup.submit(x) for lookup in lookups]
    assert [float(np.asarray(future.result(PATIENCE_S))[0]) for future in futures] == [
        float(n * (1 << 17)) for n in range(3)
    ]


def test_more_calls_than_slots_are_answered(open_in_process_server: OpenInProcessServer) -> None:
    """The client waits for a slot, and so does the server."""
    client = open_in_process_server(slots=2).client()
    double = client.persistent_call(lambda x: x * 2)
    double(0.0)
    assert [float(x) for x in at_once(8, lambda index: double(float(index)))] == [
        2.0 * index for index in range(8)
    ]


def test_replies_to_calls_that_came_together_go_together(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a few system calls, however long the calls take."""
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    for _ in range(20):  # then the reading thread runs it
        double(0.0)
    own, write = client.caller.session.connection()._channel.writer, FrameWriter._write
    written: list[list[memoryview]] = []

    def noting(writer: FrameWriter, views: list[memoryview], files: Sequence[int] = ()) -> None:
        if writer is not own:
            written.append(views)
        write(writer, views, files)

    monkeypatch.setattr(send_queue, "_MAX_HELD_S", 1e9)
    monkeypatch.setattr(FrameWriter, "_write", noting)
    assert [float(x) for x in double.map([float(i) for i in range(16)])] == [
        2.0 * i for i in range(16)
    ]
    assert len(written) < 6


def test_a_reply_does_not_wait_for_the_rest_of_the_next_message(
    in_process_server: InProcessServer,
) -> None:
    """A client may send half of one, and wait for the reply."""
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    for _ in range(20):  # then the reading thread runs it
        double(0.0)
    line = client.caller.session.connection()
    frame = frame_bytes(encode_request(line.number(), "cancel", (0,)))
    arrived = threading.Event()
    call = double._binding.encode(client.caller, (), (3.0,), {})
    pending = PendingReply(lambda _: arrived.set(), is_ahead=True)
    line.launch("call", call.message(), (), pending, line.number(), more=True)
    line._channel.writer.held.append(memoryview(frame[:9]))
    line.push()
    assert arrived.wait(PATIENCE_S)
    line._channel.writer.held.append(memoryview(frame[9:]))
    assert float(double(4.0)) == 8.0


def test_a_result_over_the_limit_is_refused(open_in_process_server: OpenInProcessServer) -> None:
    """The message says how to get it, and the connection goes on."""
    client = open_in_process_server(max_result_bytes=10_000).client()
    ones = client.persistent_call(lambda n: jax.numpy.ones(n) + 0, static_argnums=0)
    with pytest.raises(LimitExceeded, match=r"40,000 bytes.*10,000.*--max-result-bytes"):
        ones(10_000)
    assert ones(100).shape == (100,)


@pytest.mark.slow
def test_an_argument_over_the_limit_is_not_sent(
    open_in_process_server: OpenInProcessServer,
) -> None:
    """The client knows the limit, and the connection goes on."""
    client = open_in_process_server(max_frame_bytes=100_000).client()
    total = client.persistent_call(lambda x: x.sum())
    with pytest.raises(LimitExceeded, match="--max-frame-bytes"):
        total(np.ones(30_000, np.float32))
    assert float(total(np.ones(100, np.float32))) == 100.0


def test_a_client_that_dies_costs_only_its_own_calls(in_process_server: InProcessServer) -> None:
    """What it held is given back, and others do not notice."""
    other = in_process_server.client()
    double = other.persistent_call(lambda x: x * 2)
    double(1.0)
    entered, release = make_gate("dying")

    def wait(x: Any) -> Any:
        _pass("dying", -1.0)
        return x

    dying = in_process_server.peer(Source(wait))
    thread = start(_lose, dying, np.ones(10_000, np.float32))
    assert entered.wait(PATIENCE_S)
    assert in_process_server.parts._worker_context.budget.used > 40_000
    dying._channel.stream.sock.shutdown(socket.SHUT_RDWR)
    join([thread])
    assert float(double(3.0)) == 6.0
    release.set()
    until(lambda: in_process_server.parts._worker_context.budget.used == 0)
    until(lambda: in_process_server.parts.status.now()["connections"] == 1)


class _Dying(Source):
    """A client that dies when it is asked for one thing."""

    def __init__(self, verb: str) -> None:
        super().__init__(_triple)
        self.asked_now, self.gone = threading.Event(), threading.Event()
        setattr(self, verb, self._leave)

    def _leave(self, *_: Any) -> Any:
        self.asked_now.set()
        assert self.gone.wait(PATIENCE_S)
        raise EOFError


def test_a_client_that_dies_while_it_is_asked_for_code_does_not_fail_others(
    in_process_server: InProcessServer,
) -> None:
    """Who waits for the same code is asked instead."""
    dying, staying = _Dying("code"), Source(_triple)
    peer = in_process_server.peer(dying)
    threads = [start(_lose, peer, 1.0)]
    assert dying.asked_now.wait(PATIENCE_S)
    replies: list[Any] = []
    threads.append(start(lambda: replies.append(in_process_server.peer(staying).call(2.0))))
    flights = in_process_server.parts.pipeline.functions._receiving._flights
    until(lambda: waiting(flights[staying.fingerprint]._condition))
    dying.gone.set()
    join(threads[:1])
    peer.shut()
    join(threads)
    assert float(read_reply(replies[0], staying)) == 6.0


def test_nobody_waits_until_another_client_has_described_the_function(
    in_process_server: InProcessServer,
) -> None:
    """Each is asked what it means by a key: their fingerprints may be in doubt."""
    dying, staying = _Dying("describe"), Source(_triple)
    peer = in_process_server.peer(dying)
    thread = start(_lose, peer, 1.0)
    assert dying.asked_now.wait(PATIENCE_S)
    assert float(read_reply(in_process_server.peer(staying).call(2.0), staying)) == 6.0
    dying.gone.set()
    join([thread])


def _lose(peer: Peer, *args: Any) -> None:
    """Makes a call that the connection does not outlive."""
    with pytest.raises(EOFError):
        peer.call(*args)


def _triple(x: Any) -> Any:
    return x * 3


def test_stages_of_a_build_are_reported_and_warm_calls_report_nothing(
    in_process_server: InProcessServer,
) -> None:
    """Each event carries the number of its call, which is that of the request."""
    peer = in_process_server.peer(Source(_triple))
    for _ in range(3):
        peer.call(1.0)
    assert {(number, kind) for number, kind, _ in peer.events} == {(1, "stage")}
    assert [json.loads(event)["stage"] for *_, event in peer.events] == [
        *("queued", "trace", "lower"),
        *("compile", "run"),
    ]


@pytest.mark.slow
def test_a_call_that_is_given_up_leaves_the_connection_in_order(
    in_process_server: InProcessServer,
) -> None:
    """Its late reply is taken out of the socket."""
    client = in_process_server.client()
    entered, release = make_gate("late")
    wait = gated(client, "late")
    hurried = client.persistent_call(wait.__wrapped__, extra_key="late", timeout_s=1.0)
    wait(np.float32(1))
    with pytest.raises(DeadlineExceeded):
        hurried(np.float32(-1))
    release.set()
    assert entered.is_set()
    assert float(wait(np.float32(5))) == 5.0


@pytest.mark.slow
@pytest.mark.parametrize("quick_s", [executable.QUICK_S, -1.0], ids=["short calls", "long calls"])
def test_clients_that_do_not_read_hold_up_nobody_else(
    open_in_process_server: OpenInProcessServer, monkeypatch: pytest.MonkeyPatch, quick_s: float
) -> None:
    """More large replies wait for them than there are threads."""
    monkeypatch.setattr(executable, "QUICK_S", quick_s)
    in_process_server = open_in_process_server(threads=2)
    stopped = [in_process_server.peer(Source(_fill)) for _ in range(2)]
    for peer in stopped:
        peer.call(np.float32(0))
    replies = [_ask(peer, np.float32(number)) for peer in stopped for number in range(8)]
    worker_context = in_process_server.parts._worker_context
    until(lambda: in_process_server.counters.snapshot()["calls"] == len(replies) + len(stopped))
    client = in_process_server.client()
    double = client.persistent_call(lambda x: x * 2)
    assert [float(double(float(x))) for x in range(5)] == [0.0, 2.0, 4.0, 6.0, 8.0]
    slow = client.persistent_call(_fill)
    assert slow(np.float32(3)).shape == (1 << 20,)
    until(lambda: worker_context.budget.calls == len(replies))
    for peer in stopped:
        peer.shut()
    until(lambda: worker_context.budget.calls == 0)


def test_a_client_that_does_not_read_does_not_fill_the_memory(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls wait when so much waits for it."""
    monkeypatch.setattr(executable, "QUICK_S", -1.0)
    shares: list[ConnectionShare] = []

    def share_of(*args: Any) -> ConnectionShare:
        shares.append(ConnectionShare(*args))
        return shares[-1]

    monkeypatch.setattr(connection, "ConnectionShare", share_of)
    budget = in_process_server.parts._worker_context.budget
    budget.max_unsent = 10 << 20
    peer = in_process_server.peer(Source(_fill))
    peer.call(np.float32(0))

    def is_over(calls: int) -> bool:
        ended = in_process_server.counters.snapshot()["calls"] == calls
        return ended or shares[-1].unsent > budget.max_unsent

    for number in range(16):  # of 4 MB each
        _ask(peer, np.float32(number))
        until(partial(is_over, number + 2))
    assert in_process_server.counters.snapshot()["calls"] < 8
    peer.shut()
    until(lambda: budget.calls == 0)


def _fill(x: Any) -> Any:
    return jax.numpy.zeros(1 << 20) + x


def _ask(peer: Peer, *args: Any) -> int:
    """Makes a call and reads no reply."""
    assert peer._source is not None
    call = peer._source.call(args)
    seq = next(peer.numbers)
    message = (call.key, call.skeleton, call.blob, None, 1, b"", b"", b"")
    peer.send_request(seq, "call", message, call.buffers)
    return seq


def test_arrays_are_put_on_the_worker_that_stays(
    open_in_process_server: OpenInProcessServer,
) -> None:
    """One that gives way by force answers a long call, and is asked for what lies on it."""
    going, next_one = open_in_process_server(), open_in_process_server()
    client = going.client()
    old = client.put(np.arange(3.0))
    going.parts.pipeline.admission.replace(is_followed=True)
    np.testing.assert_array_equal(np.asarray(old), np.arange(3.0))
    os.rename(next_one.unix.removeprefix("unix://"), going.unix.removeprefix("unix://"))
    new = client.put({"x": np.ones(2)}, name="new")
    assert len(going.parts.values) == 1
    assert len(next_one.parts.values) == 2  # and what was fetched, which is sent again
    np.testing.assert_array_equal(np.asarray(new["x"]), np.ones(2))
    assert client.forget("new")


def test_nothing_is_put_on_a_server_that_stops(in_process_server: InProcessServer) -> None:
    """It is refused as a call is, with an error that says what to do."""
    client = in_process_server.client()
    client.put(1.0)
    in_process_server.parts.pipeline.admission.drain()
    with pytest.raises(ServerDraining, match="Repeat the call"):
        client.put(2.0)
