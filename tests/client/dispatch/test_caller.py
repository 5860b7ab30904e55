"""Finding, using and finding again the connection to one server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller, default_caller
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


def test_it_connects_when_it_is_first_used(live: LiveServer) -> None:
    """And not before."""
    caller = Caller(Settings(server=Address.parse(live.unix)))
    assert (caller.session.connected, caller.session.address) == (False, None)
    assert caller.session.ask("statistics")["epoch"] >= 1
    assert caller.session.connected
    assert str(caller.session.address) == live.unix
    caller.session.close()
    assert not caller.session.connected


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


def test_its_session_outlives_its_connections(client: Client) -> None:
    """A lost connection is made again under the same name."""
    session = client.info()["session"]
    client.close()
    assert client.info()["session"] == session


def test_a_connection_that_broke_is_made_again(client: Client, caller: Caller) -> None:
    """Unseen by the caller, for calls and for questions."""
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    uses: list[Callable[[], bool]] = [
        lambda: float(double(2.0)) == 4.0,
        lambda: float(double.submit(2.0).result()) == 4.0,
        lambda: client.statistics().epoch >= 1,
    ]
    for use in uses:
        broken = caller.session.connection()
        broken._channel.stream.sock.shutdown(2)
        assert use()
        assert caller.session.connection() is not broken


def test_a_cancelled_future_is_left_alone(client: Client) -> None:
    """Its result is dropped when it comes."""
    double = client.persistent_call(lambda x: x * 2)
    double(1.0)
    futures = [double.submit(float(i)) for i in range(200)]
    cancelled = [future for future in futures if future.cancel()]
    assert all(future.cancelled() for future in cancelled)
    assert all(float(f.result()) == 2.0 * i for i, f in enumerate(futures) if f not in cancelled)


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


def test_equal_settings_share_a_caller() -> None:
    """All functions that use the same server share one connection."""
    first = Settings(server=Address.unix("/tmp/nowhere-1.sock"))
    assert default_caller(first) is default_caller(
        Settings(server=Address.unix("/tmp/nowhere-1.sock"))
    )
    assert default_caller(first) is not default_caller(
        Settings(server=Address.unix("/tmp/nowhere-2.sock"))
    )


def test_after_a_fork_it_is_as_new(live: LiveServer) -> None:
    """Its connection is left to the parent, and so is its session."""
    caller = Caller(Settings(server=Address.parse(live.unix)))
    connection, session = caller.session.connection(), caller.session.id
    caller.session.after_fork()
    assert not caller.session.connected
    assert caller.session.connection() is not connection
    assert caller.session.id != session
    assert connection.alive
    connection.shut()
    caller.session.close()


def test_a_call_with_a_deadline_that_is_met(client: Client) -> None:
    """Has its result, and leaves nothing behind."""
    double = client.persistent_call(lambda x: x * 2, timeout_s=50)
    assert float(double(2.0)) == 4.0
    assert float(double.submit(3.0).result()) == 6.0


def test_an_unreachable_server(runtime: Any) -> None:
    """Each call says so again; nothing is remembered that would keep it from a later start."""
    with pytest.raises(errors.NoServer):
        connect(f"unix://{runtime}/none.sock")
    caller = Caller(Settings(server=Address.unix(f"{runtime}/none.sock")))
    for _ in range(2):
        with pytest.raises(errors.NoServer):
            caller.session.ask("info")


def test_results_keep_their_classes_after_the_function_is_gone(client: Client) -> None:
    """Classes that were met are remembered by the caller."""
    array = np.ones(2)
    assert float(client.persistent_call(lambda x: x.sum())(array)) == 2.0


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
