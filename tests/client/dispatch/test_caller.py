"""Finding, using and finding again the connection to one server."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from jaxd import Client, connect
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd.request.function_snapshot import FunctionSnapshot, FunctionSpec
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jit.options import Options
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
