"""Clients of a pool and its director as it is: TLS and tokens, and members that only it reaches."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from jaxd import connect
from jaxd.cli.doctor.connection import steps
from jaxd.cli.doctor.context import DoctorContext
from jaxd.connection.settings import Settings
from jaxd.errors import AuthenticationFailed, ConfigurationError, NoServer
from jaxd_protocol.messages.pool_view import PoolMember
from jaxd_protocol.network.addresses import Address
from tests.live_pool import LiveDirector
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until


@pytest.fixture
def director(live: LiveServer, runtime: Path) -> Iterator[LiveDirector]:
    """One whose only member listens on TLS."""
    found = LiveDirector(runtime, PoolMember("m0", (live.tls,), epoch=1, state="ready"))
    yield found
    found.close()


def is_open(director: LiveDirector) -> bool:
    """Whether anything listens at its address."""
    with suppress(ConnectionRefusedError):
        socket.create_connection(director.tls.place).close()
        return True
    return False


@pytest.mark.own_server
def test_a_pool_is_used_over_tls_with_one_token(director: LiveDirector) -> None:
    """The pin of the member comes from the director."""
    with connect(director.pool, token=TOKEN) as client:
        assert client.persistent_call(lambda x: x + 1.5)(1.0) == 2.5
        assert str(client.caller.session.address) == director.pool


@pytest.mark.own_server
def test_a_wrong_token_is_refused_by_director_and_member(
    director: LiveDirector, live: LiveServer
) -> None:
    """A director that knows it as well does not make a member take it."""
    with pytest.raises(AuthenticationFailed, match="wrong token"):
        connect(director.pool, token="another-token-for-tests")
    other_pin = live.tls.partition("#")[0] + "#sha256=" + "ab" * 32
    director.table.show(PoolMember("m0", (other_pin,), epoch=2, state="ready"))
    with pytest.raises(AuthenticationFailed, match="another certificate"):
        connect(director.pool, token=TOKEN)


@pytest.mark.own_server
def test_the_address_of_a_director_is_not_that_of_a_server(director: LiveDirector) -> None:
    """The error names the address to use."""
    with (
        connect(str(director.tls), token=TOKEN) as client,
        pytest.raises(ConfigurationError, match="pool://"),
    ):
        client.info()


@pytest.mark.slow
@pytest.mark.own_server
def test_a_member_that_only_the_director_reaches_is_reached_through_it(
    director: LiveDirector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own certificate; `jaxd doctor` says that it is the longer way."""
    monkeypatch.setattr("jaxd.pool.members.usable_addresses", lambda member: [])
    with connect(director.pool, token=TOKEN) as client:
        assert client.persistent_call(lambda x: x + 2.5)(1.0) == 3.5
    checks = steps(DoctorContext(Settings.resolve(director.pool, token=TOKEN)))
    (member,) = (each for each in checks if each.name == "member m0")
    assert (member.state, "relay" in member.found) == ("note", True)


@pytest.mark.slow
@pytest.mark.own_server
def test_arrays_behind_a_relay_outlive_the_director(
    director: LiveDirector, live: LiveServer, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its relay ends with it, and at the member's own address nobody listens for this client."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        pin = live.tls.partition("#")[2]
        nobody = Address.parse(f"tls://127.0.0.1:{taken.getsockname()[1]}#{pin}")
        monkeypatch.setattr("jaxd.pool.members.usable_addresses", lambda member: [nobody])
        monkeypatch.setattr("jaxd.pool.routes.usable_addresses", lambda member: [nobody])
        with connect(director.pool, token=TOKEN) as client:
            x = client.put(np.arange(1000.0, dtype="f4"))
            keeper = client.caller.session.pool.keeper  # type: ignore[attr-defined]
            port = director.tls.port
            director.close()
            until(lambda: keeper.failure is not None and not is_open(director))
            member = PoolMember("m0", (live.tls,), epoch=1, state="ready")
            again = LiveDirector(runtime, member, port=port, epoch=2)
            try:
                assert float(client.persistent_call(lambda x: x.sum())(x)) == 499500.0
            finally:
                again.close()


@pytest.mark.own_server
def test_a_call_waits_for_a_member_that_starts(director: LiveDirector, live: LiveServer) -> None:
    """It goes there as soon as the director says that it is ready."""
    director.table.show(PoolMember("m0", (live.tls,), epoch=2, state="starting"))
    ready = PoolMember("m0", (live.tls,), epoch=2, state="ready")
    threading.Timer(0.3, director.table.show, [ready]).start()
    with connect(director.pool, token=TOKEN) as client:
        assert client.persistent_call(lambda x: x + 3.5)(1.0) == 4.5


@pytest.mark.own_server
def test_another_director_at_the_same_address_goes_on(
    director: LiveDirector, live: LiveServer, runtime: Path
) -> None:
    """Clients ask it for its view; sessions with members stay as they are."""
    with connect(director.pool, token=TOKEN) as client:
        double = client.persistent_call(lambda x: 2 * x)
        assert double(1.0) == 2.0
        session = client.caller.route(double._binding.inspected_spec()).session
        before = session.id
        keeper = client.caller.session.pool.keeper  # type: ignore[attr-defined]
        director.close()
        until(lambda: keeper.failure is not None and not is_open(director))
        assert double(2.0) == 4.0
        members = PoolMember("m0", (live.tls,), epoch=1, state="ready"), PoolMember("m1", epoch=1)
        again = LiveDirector(runtime, *members, port=director.tls.port, epoch=2)
        try:
            until(lambda: "m1" in keeper.view.members)
            assert (double(3.0), session.id) == (6.0, before)
        finally:
            again.close()


@pytest.mark.own_server
def test_a_director_that_does_not_answer_is_named(director: LiveDirector) -> None:
    """And how a pool is started."""
    director.close()
    until(lambda: not is_open(director))
    with pytest.raises(NoServer, match=r"no server answers at pool://.*jaxd pool up"):
        connect(director.pool, token=TOKEN)
