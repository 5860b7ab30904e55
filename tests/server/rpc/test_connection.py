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
from jaxd_protocol.errors import Busy
from jaxd_protocol.messages.calls import FAILED, MAY_REPEAT, OK, WARM
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.wire.connection import encode_request
from jaxd_protocol.wire.frames import FrameWriter
from jaxd_server.compilation.compiling import executable
from jaxd_server.rpc import connection, send_queue
from jaxd_server.rpc import connection as module
from jaxd_server.rpc.connection import ReaderHandoff
from jaxd_server.rpc.flow_control import ConnectionShare
from tests.server.in_process import InProcessServer, Peer, Source, read_reply
from tests.server.staging import PATIENCE_S, Log, join, logged_by, start, until
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


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """What connections log."""
    return logged_by(module, monkeypatch)


@pytest.mark.parametrize(
    ("verb", "args", "nbytes", "reason"),
    [
        ("call", (), 0, ""),
        ("call", (1, 2), 0, ""),
        ("call", (b"key", b"", b"", "soon", 0), 0, ""),
        ("sing", (), 0, "'sing'"),
        ("call", (), 1 << 20, "over the limit"),  # before memory is taken for it
    ],
)
def test_a_message_that_makes_no_sense_ends_its_connection_only(
    open_in_process_server: OpenInProcessServer,
    log: Log,
    verb: str,
    args: tuple[Any, ...],
    nbytes: int,
    reason: str,
) -> None:
    """With a line in the log that says why."""
    server = open_in_process_server(max_frame_bytes=100_000)
    other = server.client()
    other.statistics()
    with pytest.raises(EOFError):
        server.peer().request(verb, args, [memoryview(bytes(nbytes))] if nbytes else ())
    until(lambda: log)
    assert log[0][0] == "connection_dropped"
    assert reason in log[0][1]["reason"]
    until(lambda: server.parts.status.now()["connections"] == 1)
    assert other.statistics().connections == 1
    assert server.parts._worker_context.budget.calls == 0


def test_what_no_thread_takes_is_refused_and_gives_back_what_it_held(
    in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the server could not drain any more. The connection stays."""
    start = threading.Thread.start
    peer = in_process_server.peer(Source(lambda x: x))

    def fail(thread: threading.Thread) -> None:
        if thread.name == "jaxd-build":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patches:
        patches.setattr(threading.Thread, "start", fail)
        for (outcome, failure), _ in (peer.call(1.0), peer.request("functions", ())):
            assert outcome == FAILED
            error = decode_failure(failure)
            assert isinstance(error, Busy)
            assert "ulimit -u" in str(error)
    budget = in_process_server.parts._worker_context.budget
    until(lambda: budget.calls == 0)
    assert budget.idle.is_set()
    assert peer.call(1.0)[0][0] != FAILED


@pytest.mark.parametrize(
    "content",
    ["\udcff", "a\0b", "x" * (2 << 20), 10**5000],
    ids=["path", "nul", "long", "enormous"],
)
def test_an_error_with_unusual_content_arrives(
    in_process_server: InProcessServer, content: Any
) -> None:
    """Names of files need not be Unicode; Python itself refuses to print so large a number."""

    def fail(x: Any) -> Any:
        raise ValueError(content)

    with pytest.raises((ValueError, RuntimeError)):
        in_process_server.client().persistent_call(fail).submit(1.0).result(PATIENCE_S)


X = np.ones((3, 4), np.float32)


def traced_at_the_gate(x: Any) -> Any:
    """Waits at the gate while it is traced."""
    _pass("abandoned", -1.0)
    return x * 5


def double(x: Any) -> Any:
    """Is called in these tests."""
    return x * 2


def counts(in_process_server: InProcessServer) -> tuple[int, int, int]:
    """Traces, compilations and loads so far."""
    found = in_process_server.counters.snapshot()
    return int(found["traces"]), int(found["compiles"]), int(found["executable_loads"])


def test_a_build_whose_only_client_goes_away_is_there_for_the_next(
    in_process_server: InProcessServer,
) -> None:
    """What was begun is ended, since it was paid for."""
    leaving, later = in_process_server.client(), in_process_server.client()
    entered, release = make_gate("abandoned")
    leaving.persistent_call(traced_at_the_gate).submit(np.float32(2))
    assert entered.wait(PATIENCE_S)
    leaving.close()
    release.set()
    until(lambda: counts(in_process_server)[1] == 1)
    assert float(later.persistent_call(traced_at_the_gate)(np.float32(3))) == 15.0
    assert counts(in_process_server) == (1, 1, 0)


def test_a_call_to_warm_up_travels_without_data(in_process_server: InProcessServer) -> None:
    """Its reply says what was done, and the call itself finds the program."""
    source = Source(double)
    peer = in_process_server.peer(source)
    call = source.call((X,))
    for verdict in ("compile", "hit"):
        message = (call.key, call.skeleton, b"", None, MAY_REPEAT | WARM, b"", b"", b"")
        (kind, told, _), buffers = peer.request("call", message)
        assert (kind, list(buffers)) == (OK, [])
        assert json.loads(told)["verdict"] == verdict
    assert read_reply(peer.call(X), source).tolist() == (2 * X).tolist()
    assert counts(in_process_server) == (1, 1, 0)
    assert in_process_server.counters.snapshot()["calls"] == 1
