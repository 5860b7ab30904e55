"""Finding, using and finding again the connection to one server."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from jaxd import Client, connect
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller, OpenCall
from jaxd.dispatch.session import MAX_WORKERS
from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec
from jaxd_protocol.errors import (
    Busy,
    ConnectionLost,
    DeadlineExceeded,
    ProtocolError,
    ServerDraining,
    WorkerReplaced,
)
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import OK
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.network.addresses import Address
from tests.hostile.exchanges import Exchange, Step
from tests.hostile.server import HostileServer
from tests.live_server import LiveServer


@pytest.fixture
def caller(client: Client) -> Caller:
    """What makes a connected client's calls."""
    return client.caller


def test_threads_share_one_connection(live: LiveServer) -> None:
    """However many ask for it first."""
    caller = Caller(Settings(server=Address.parse(live.unix)))
    ready = threading.Barrier(8)

    def ask() -> Any:
        ready.wait()
        return caller.session.connection()

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: ask(), range(8)))
    assert len(set(map(id, found))) == 1
    caller.session.close()


def test_submit_waits_while_too_many_calls_are_in_flight(client: Client, caller: Caller) -> None:
    """As many as the server said when it was connected to."""
    from jaxd.request.call_request import CallRequest

    limit = client.info()["limits"]["slots"]
    double = client.persistent_call(lambda x: x * 2)
    futures: list[Future[Any]] = []
    most = 0
    for i in range(4 * limit):
        futures.append(double.submit(float(i)))
        most = max(most, sum(not future.done() for future in futures))
    assert most <= limit + 1
    assert [float(f.result()) for f in futures] == [2.0 * i for i in range(4 * limit)]
    assert CallRequest._fields[0] == "spec"


def test_it_answers_what_a_function_is(caller: Caller, client: Client) -> None:
    """For as long as somebody holds the function, and only for functions that it has called."""
    spec = FunctionSpec(FunctionSnapshot(lambda x: x + 1, Options()), Options())
    with pytest.raises(KeyError):
        caller.answer_request("describe", (spec.key,))
    caller.encode(spec, (1.0,), {}, None, "auto")
    described, _ = caller.answer_request("describe", (spec.key,))
    assert described == (spec.snapshot.name, spec.options, spec.snapshot.manifest.to_message())
    _, (code,) = caller.answer_request("code", (spec.snapshot.fingerprint,))
    assert bytes(code) == spec.snapshot.code
    for verb, argument in (("code", b"unknown"), ("other", b"")):
        with pytest.raises(KeyError):
            caller.answer_request(verb, (argument,))


def test_a_report_that_is_none_ends_its_call_and_no_other() -> None:
    """Also of a call that nobody waits for, which a thread of the connection's own reads."""
    good = Step("reply", (0, b"N", b"", b"", b""))
    bad = Step("event", (None, "print", '{"text": {}}'))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        server = HostileServer(f"{folder}/s.sock")
        with connect(server.address) as client:
            f = client.persistent_call(lambda x: x)
            server.plan(Exchange("submit", "f", (bad, good)))
            with pytest.raises(ProtocolError, match="cannot be understood"):
                f.submit(1.0).result(20)
            server.plan(Exchange("submit", "f", (good,)))
            assert f.submit(1.0).result(20) is None
        server.close()


LOST = ConnectionLost("lost")


@pytest.fixture
def session() -> Mock:
    """A session whose connections are all to one worker."""
    session = Mock()
    session.progress.made = None
    session.elsewhere.return_value = None
    session.current.return_value.connection.worker = (1, 7)
    return session


@pytest.fixture
def open_call(session: Mock) -> OpenCall:
    """In its first attempt, which is sent."""
    snapshot = SimpleNamespace(name="step")
    call: Any = SimpleNamespace(
        spec=SimpleNamespace(snapshot=snapshot),
        timeout_s=None,
        result_policy=None,
        _replace=Mock(),
    )
    found = OpenCall(session, call)
    found.begin_attempt()
    found.is_sent = True
    return found


def test_a_call_goes_to_so_many_workers_while_they_are_replaced(
    open_call: OpenCall, session: Mock
) -> None:
    """Each connection is drained, and a loss in between starts the count anew."""
    replaced = encode_failure(WorkerReplaced("goes."))
    pauses = [open_call.pause_after(replaced) for _ in range(MAX_WORKERS)]
    assert pauses == [0.0] * (MAX_WORKERS - 1) + [None]
    assert session.drain.call_count == MAX_WORKERS
    open_call.check_repeatable(LOST)
    assert open_call.pause_after(replaced) == 0.0


def test_only_a_busy_server_is_tried_again(open_call: OpenCall) -> None:
    """Around the time that it gives; any other failure is the caller's."""
    pause_s = open_call.pause_after(encode_failure(Busy("full.", retry_after_s=0.2)))
    assert pause_s is not None
    assert 0.1 <= pause_s <= 0.3
    for error in (ServerDraining("stops."), DeadlineExceeded("late.")):
        assert open_call.pause_after(encode_failure(error)) is None


def test_data_is_released_once(open_call: OpenCall, session: Mock) -> None:
    """A reply that comes after it was abandoned gives back what the server keeps for it."""
    transfer = session.transfer_router.return_value.prepare.return_value
    open_call.load()
    reply = (OK, b"N", b"")
    assert open_call.end_attempt(reply)
    open_call.end_attempt(reply)
    transfer.release.assert_called_once_with(reply)
    open_call.load()
    open_call.abandon()
    open_call.end_attempt(reply)
    assert transfer.release.call_count == 2
    open_call.release_abandoned()
    open_call.release_abandoned()
    transfer.dedup_plan.abandon.assert_called_once_with()
