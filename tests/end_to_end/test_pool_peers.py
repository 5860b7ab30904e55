"""What members of a pool take from each other: programs that one has compiled, and arrays."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import DeadlineExceeded
from jaxd.pool.caller import PoolSession
from jaxd_protocol.network.addresses import Address
from tests.end_to_end.passing_on import Stalling
from tests.end_to_end.pools import PoolOfServers, pool_of_servers, statistics

pytestmark = [pytest.mark.slow, pytest.mark.own_server, pytest.mark.timeout(180)]

KEY = "a-key-of-a-pool-for-tests-only"


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolOfServers]:
    """Four members that know each other, each with a cache folder of its own."""
    with pool_of_servers(4, are_peers=True, JAXD_STORE_KEY=KEY) as found:
        yield found


def call(address: str, number: int) -> float:
    """What a new client of one member computes."""

    def wave(x: Any) -> Any:
        import jax.numpy as jnp

        for _ in range(40):
            x = jnp.sin(x) * number
        return x.sum()

    with connect(address) as client:
        return float(client.persistent_call(wave)(np.ones(8, "f4")))


def counted(pool: PoolOfServers) -> dict[str, int]:
    """Traces and compiles of all members."""
    return {name: sum(statistics(pool.members, name).values()) for name in ("traces", "compiles")}


def test_one_trace_and_one_compile_for_eight_clients(pool: PoolOfServers) -> None:
    """Which call four members at the same moment: one has the lease, and the others wait for it."""
    before = counted(pool)
    addresses = [member.unix for member in pool.members.values()] * 2
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda address: call(address, 2), addresses))
    assert len(set(results)) == 1
    after = counted(pool)
    assert {name: after[name] - before[name] for name in after} == {"traces": 1, "compiles": 1}


def test_a_member_takes_what_another_one_has_built_before(pool: PoolOfServers) -> None:
    """Also a member that has come since."""
    name, *_ = pool.members
    call(pool.members[name].unix, 3)
    before = counted(pool)
    added = pool.add()
    others = [member.unix for each, member in pool.members.items() if each != name]
    results = [call(address, 3) for address in others]
    assert len(set(results)) == 1
    assert counted(pool) == before
    pool.members.pop(added).close()
    pool.director.remove(added)


def test_members_that_are_gone_or_slow_cost_a_bound(pool: PoolOfServers) -> None:
    """The build goes on without them: one refuses connections, one accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        pin = "#sha256=" + 64 * "0"
        places = {
            name: f"tls://127.0.0.1:{sock.getsockname()[1]}{pin}"
            for name, sock in (("m1", taken), ("m2", silent), ("m3", silent))
        }
        pool.tell("m0", **places)
        try:
            before = counted(pool)
            call(pool.members["m0"].unix, 5)
            after = counted(pool)
        finally:
            pool.tell("m0")
    assert {name: after[name] - before[name] for name in after} == {"traces": 1, "compiles": 1}
    pool.members["m0"].wait_for("peer_away")


# arrays ------------------------------------------------------------------------------------------

MEGABYTE = 1 << 20


def bytes_of(client: Client) -> int:
    """What a client has sent to members and received from them."""
    session = client.caller.session
    assert isinstance(session, PoolSession)
    channels = [each.session.open_connection._channel for each in session.pool.used]  # type: ignore[union-attr]
    return sum(each.reader.bytes_received + each.writer.bytes_sent for each in channels)


def on(client: Client, name: str, value: float, nbytes: int) -> Any:
    """An array on one member."""
    return client.persistent_call(lambda: jnp.full(nbytes // 4, value)).on(member=name).remote()


@pytest.mark.usefixtures("arrays_die_with_workers")  # each call would say what is kept of it
def test_the_smaller_of_values_on_two_members_goes_from_one_to_the_other(
    pool: PoolOfServers,
) -> None:
    """A megabyte of it costs the client less than a kilobyte, and the next such call nothing."""
    with pool.client() as client:
        dot = client.persistent_call(lambda a, b: (a[: b.size] * b).sum())
        pairs = [
            (on(client, "m0", value, 2 * MEGABYTE), on(client, "m1", 2.0, MEGABYTE))
            for value in (1.0, 3.0)
        ]
        assert float(dot(*pairs[0])) == 2.0 * MEGABYTE / 4
        for _ in range(2):
            before = bytes_of(client)
            assert float(dot(*pairs[1])) == 6.0 * MEGABYTE / 4
            assert bytes_of(client) - before < 1024
        for array in pairs[1]:
            assert not array.is_here


def test_a_member_that_is_named_takes_arrays_of_another_from_there(pool: PoolOfServers) -> None:
    """Also for its first call of this process; once, and within the time of the call."""
    with pool.client() as client:
        b = on(client, "m1", 2.0, MEGABYTE)
        total = client.persistent_call(lambda b: b.sum(), timeout_s=60).on(member="m2")
        for _ in range(2):
            assert float(total(b)) == 2.0 * MEGABYTE / 4
            assert float(total.submit(b).result()) == 2.0 * MEGABYTE / 4
        assert len(b.replicas) == 1
        assert not b.is_here


def test_calls_on_an_array_that_was_taken_stay_where_it_is(pool: PoolOfServers) -> None:
    """Of four members three have it: no function moves it on through the client."""
    with pool.client() as client:
        dot = client.persistent_call(lambda a, b: (a[: b.size] * b).sum())
        a, b = on(client, "m0", 1.0, 2 * MEGABYTE), on(client, "m1", 2.0, MEGABYTE)
        assert float(dot(a, b)) == 2.0 * MEGABYTE / 4
        largest = on(client, "m2", 1.0, 4 * MEGABYTE)
        assert float(dot(largest, b)) == 2.0 * MEGABYTE / 4  # m2 takes it as well
        for reduce in (jnp.max, jnp.min, jnp.mean, jnp.median, jnp.prod, jnp.std):
            client.persistent_call(reduce)(b)
        assert len(b.replicas) == 2
        assert not b.is_here


def test_an_array_that_another_member_has_taken_is_the_same_array(
    pool: PoolOfServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 64 bits outside of `enable_x64`; what has another dtype is no copy of it."""
    wide = list(range(1 << 40, (1 << 40) + 5))
    with pool.client() as client:
        a = on(client, "m0", 1.0, MEGABYTE)
        make: Any = client.persistent_call(lambda: jnp.arange(5, dtype="int64") + (1 << 40))
        with jax.enable_x64(True):
            b, c = (make.on(member="m1").remote() for _ in range(2))
            c.block_until_ready()
        last = client.persistent_call(lambda a, b: (a[0], b))
        assert last(a, b)[1].tolist() == wide
        assert not b.is_here
        narrowed = [c.leaf._replace(dtype="int32")]
        monkeypatch.setattr("jaxd.pool.members.specs_in", lambda _: narrowed)
        assert last(a, c)[1].tolist() == wide  # it has travelled by the client
        assert c.is_here


def test_values_travel_by_the_client_where_members_do_not_reach_each_other(
    pool: PoolOfServers,
) -> None:
    """The call is answered all the same."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        nobody = f"tls://127.0.0.1:{taken.getsockname()[1]}#sha256={64 * '0'}"
        pool.tell("m0", m1=nobody)
        try:
            with pool.client() as client:
                dot = client.persistent_call(lambda a, b: (a[: b.size] * b).sum())
                a, b = on(client, "m0", 1.0, 2 * MEGABYTE), on(client, "m1", 2.0, MEGABYTE)
                assert float(dot(a, b)) == 2.0 * MEGABYTE / 4
                assert b.is_here
        finally:
            pool.tell("m0")


def test_a_member_that_stops_while_it_gives_an_array_holds_no_call_up(
    pool: PoolOfServers,
) -> None:
    """A call ends at its `timeout_s`; one without has the client fetch what does not come."""
    real = Address.parse(pool.members["m1"].tls)
    with Stalling(real.port) as stalled:
        pool.tell("m0", m1=str(real._replace(port=stalled.port)))
        try:
            with pool.client() as client:
                dot = client.persistent_call(lambda a, b: (a[: b.size] * b).sum())
                a, b = on(client, "m0", 1.0, 2 * MEGABYTE), on(client, "m1", 2.0, MEGABYTE)
                with pytest.raises(DeadlineExceeded):
                    client.persistent_call(lambda a, b: a[0] + b[0], timeout_s=0.5)(a, b)
                assert not b.is_here
                assert float(dot(a, b)) == 2.0 * MEGABYTE / 4
                assert b.is_here
        finally:
            pool.tell("m0")


def test_a_moved_array_outlives_its_first_member(pool: PoolOfServers) -> None:
    """Which still has it as well: the call goes on as its copy."""
    name = pool.add()
    with pool.client() as client:
        dot = client.persistent_call(lambda a, b: (a[: b.size] * b).sum())
        a, b = on(client, "m0", 1.0, 2 * MEGABYTE), on(client, name, 2.0, MEGABYTE)
        assert float(dot(a, b)) == 2.0 * MEGABYTE / 4
        pool.kill(name)
        pool.director.remove(name)
        assert float(dot(a, b)) == 2.0 * MEGABYTE / 4
