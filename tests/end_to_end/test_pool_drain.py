"""Members of a pool that drain: what clients have there goes on elsewhere, and they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client
from jaxd.errors import NoServer, ValueDeleted
from jaxd.interop.remote_array import RemoteArray
from jaxd.pool import members
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from jaxd_server.pool.member_server import ServerWatch, report_of
from tests.end_to_end.gates import Gate, in_thread, stop_when_run
from tests.end_to_end.pools import PoolOfServers, pool_of_servers
from tests.end_to_end.test_pool_peers import KEY, MEGABYTE, bytes_of, on
from tests.server.staging import until

pytestmark = [pytest.mark.slow, pytest.mark.own_server, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolOfServers]:
    """Three members that know each other."""
    with pool_of_servers(3, are_peers=True, JAXD_STORE_KEY=KEY) as found:
        yield found


@pytest.fixture
def client(pool: PoolOfServers) -> Iterator[Client]:
    """A client of the pool, all of whose members are ready."""
    for name in pool.members:
        pool.director.show(name, state="ready")
    with pool.client() as found:
        yield found
        session: Any = found.caller.session
        for each in session.pool.used:  # arrays of a test that failed
            each.session.end()


def member_of(array: Any, pool: PoolOfServers) -> str:
    """On which member an array is."""
    return next(name for name, each in pool.members.items() if each.unix == array.fetcher.address)


def drain(client: Client, pool: PoolOfServers, name: str) -> None:
    """Has a member drain, and the client know it."""
    session: Any = client.caller.session
    pool.director.show(name, state="draining")
    until(lambda: name not in session.pool.routes().names)


def values_of(pool: PoolOfServers, name: str) -> int:
    """How many arrays clients have on a member, as its director is told."""
    control = control_path(Address.parse(pool.members[name].unix))
    watch = ServerWatch(control)
    try:
        until(lambda: watch.view is not None)
        return report_of(watch.view, watch.last_view).values
    finally:
        watch.close()


def wait_until_left(client: Client, pool: PoolOfServers, name: str) -> None:
    """Returns once a member has no arrays, which its director waits for, and no client."""
    session: Any = client.caller.session
    until(lambda: name not in [each.session.at.name for each in session.pool.used])
    until(lambda: values_of(pool, name) == 0)


def test_a_loop_leaves_a_member_that_drains(pool: PoolOfServers, client: Client) -> None:
    """In the middle of donated steps: the same bits as of jax.jit, and no effect twice."""
    seen: Counter[int] = Counter()

    def step(state: Any, x: Any) -> Any:
        jax.debug.callback(lambda n: seen.update([int(n)]), x)
        return {"w": state["w"] * 0.5 + x, "b": jnp.sin(state["b"]) + x}, state["w"].sum()

    start = {"w": np.ones(1 << 16, "f4"), "b": np.arange(1 << 15, dtype="f4")}
    function = client.persistent_call(step, donate_argnums=0)
    state, first = client.put(start), ""
    for number in range(20):
        state, _ = function(state, np.float32(number))
        if number == 9:
            first = member_of(state["w"], pool)
            drain(client, pool, first)
    assert member_of(state["w"], pool) == member_of(state["b"], pool) != first
    wait_until_left(client, pool, first)
    expected: Any = start
    plain = jax.jit(lambda s, x: {"w": s["w"] * 0.5 + x, "b": jnp.sin(s["b"]) + x})
    for number in range(20):
        expected = plain(expected, np.float32(number))
    for name in start:
        np.testing.assert_array_equal(np.asarray(state[name]), np.asarray(expected[name]))
    assert dict(seen) == dict.fromkeys(range(20), 1)


def test_arrays_that_no_call_uses_leave_a_member_that_drains(
    pool: PoolOfServers, client: Client
) -> None:
    """Of a process that does nothing meanwhile."""
    arrays = [on(client, "m1", value, MEGABYTE) for value in (1.0, 2.0)]
    plus = client.persistent_call(lambda x: x + 1.0)
    for _ in range(2):  # the second one returns before its reply, which nobody reads
        last = plus(arrays[1])
    arrays.append(last)
    drain(client, pool, "m1")
    wait_until_left(client, pool, "m1")
    for value, array in zip((1.0, 2.0, 3.0), arrays, strict=True):
        assert member_of(array, pool) != "m1"
        assert not array.is_here
        assert float(array[5]) == value
        np.testing.assert_array_equal(jaxd.get(array), np.full(MEGABYTE // 4, value, "f4"))


@pytest.mark.usefixtures("arrays_die_with_workers")  # a snapshot would take them along
def test_arrays_do_not_pass_the_client_when_they_leave(pool: PoolOfServers, client: Client) -> None:
    """Neither with a call nor without."""
    total = client.persistent_call(lambda x: x.sum())
    used, unused = (on(client, "m1", value, MEGABYTE) for value in (1.0, 2.0))
    assert float(total(used)) == MEGABYTE / 4
    total.on(member="m0")(1.0)  # both know the function, and are connected to
    total.on(member="m2")(1.0)
    before = bytes_of(client)
    pool.director.show("m1", state="draining")
    until(lambda: member_of(unused, pool) != "m1")
    assert float(total(used)) == MEGABYTE / 4
    assert bytes_of(client) - before < 16 * 1024
    wait_until_left(client, pool, "m1")
    assert not used.is_here
    assert not unused.is_here


def test_an_array_that_is_passed_twice_leaves_once(pool: PoolOfServers, client: Client) -> None:
    """Two copies of it there would end together with the first of them."""
    add = client.persistent_call(lambda a, b, c: a + b * c[0])
    x, y = on(client, "m1", 1.0, MEGABYTE), on(client, "m1", 2.0, MEGABYTE)
    drain(client, pool, "m1")
    for _ in range(2):
        assert float(add(x, x, y)[0]) == 3.0
        wait_until_left(client, pool, "m1")
    assert float(x[0]) == 1.0


def test_a_small_array_that_came_with_its_call_stays_here_when_it_leaves(
    pool: PoolOfServers, client: Client
) -> None:
    """It is not fetched again."""
    function = client.persistent_call(lambda x: (x * 2, x[:4] + 1))
    _, few = function(on(client, "m1", 1.0, MEGABYTE))
    assert isinstance(few, RemoteArray)
    drain(client, pool, "m1")
    wait_until_left(client, pool, "m1")
    assert np.asarray(few).tolist() == [2.0] * 4


def test_what_is_put_on_all_members_is_given_up_where_one_drains(
    pool: PoolOfServers, client: Client
) -> None:
    """What uses it goes on as a copy that there is; none is made."""
    x = client.put(np.ones(MEGABYTE // 4, "f4"), replicate=True)
    first = member_of(x, pool)
    drain(client, pool, first)
    wait_until_left(client, pool, first)
    rest = [name for name in pool.members if name != first]
    assert [values_of(pool, name) for name in rest] == [1, 1]
    drain(client, pool, rest[0])
    wait_until_left(client, pool, rest[0])
    assert values_of(pool, rest[1]) == 1
    assert not x.replicas
    assert float(client.persistent_call(jnp.sum)(x)) == MEGABYTE / 4


def test_an_array_that_a_call_under_way_takes_for_good_does_not_leave(
    pool: PoolOfServers, client: Client, tmp_path: Path
) -> None:
    """Not known to donate it, as it is the first of its kind; what follows says that it is gone."""
    gate = Gate(tmp_path / "gate")
    stop: Any = stop_when_run(gate.path)
    function = client.persistent_call(
        lambda x, y: (x + 1.0, stop(y)), donate_argnums=0, timeout_s=60
    )
    x, other = on(client, "m1", 1.0, MEGABYTE), on(client, "m1", 2.0, MEGABYTE)
    future = function.submit(x, np.float32(-1.0))
    with gate.reached():
        drain(client, pool, "m1")
        total = client.persistent_call(lambda x: x.sum())
        assert float(total(other)) == 2.0 * MEGABYTE / 4
        assert member_of(other, pool) != "m1"
        late = in_thread(total, x)
        assert member_of(x, pool) == "m1"
    result, _ = future.result(20)
    with pytest.raises(ValueDeleted, match="was donated"):
        late.result(20)
    wait_until_left(client, pool, "m1")
    np.testing.assert_array_equal(jaxd.get(result), np.full(MEGABYTE // 4, 2.0, "f4"))


def test_an_array_that_is_given_away_while_it_is_copied_does_not_come_back(
    pool: PoolOfServers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread: its copy on the other member is dropped."""
    plus = client.persistent_call(lambda x: x + 1.0, donate_argnums=0)
    plus(plus(on(client, "m1", 1.0, MEGABYTE)))  # what it donates is known from then on
    x, kept = on(client, "m1", 1.0, MEGABYTE), on(client, "m1", 5.0, MEGABYTE)
    taken, results = members._taken, []

    def take(*arguments: Any) -> Any:
        found = taken(*arguments)
        with monkeypatch.context() as patch:
            patch.setattr(session.pool, "draining", frozenset())
            results.append(plus(x))
        return found

    session: Any = client.caller.session
    monkeypatch.setattr(members, "_taken", take)
    pool.director.show("m1", state="draining")
    until(lambda: bool(results))
    monkeypatch.undo()
    with pytest.raises(ValueDeleted, match="was donated"):
        x.block_until_ready()
    wait_until_left(client, pool, "m1")
    assert [float(each[0]) for each in (results[0], kept)] == [2.0, 5.0]


def test_a_call_that_names_a_member_that_drains_says_so(
    pool: PoolOfServers, client: Client
) -> None:
    """Its arrays are not lost: any other call has them go elsewhere."""
    double = client.persistent_call(lambda x: 2 * x)
    x = double.on(member="m1")(on(client, "m1", 1.0, MEGABYTE))
    drain(client, pool, "m1")
    with pytest.raises(NoServer, match=r"m1 is draining.*Leave on\(member=…\) out"):
        double.on(member="m1")(x)
    y = double(x)
    assert member_of(y, pool) == member_of(x, pool) != "m1"
    assert float(y[0]) == 4.0


def test_arrays_that_no_member_has_room_for_stay(
    pool: PoolOfServers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls on them as well; they go once there is room."""
    small = pool.add("--value-bytes", "2M")
    try:
        double = client.persistent_call(lambda x: 2 * x)
        x = on(client, "m1", 1.0, 4 * MEGABYTE)
        for name in ("m0", "m2"):
            pool.director.show(name, state="starting")
        drain(client, pool, "m1")
        for _ in range(2):
            y = double(x)
            assert member_of(y, pool) == member_of(x, pool) == "m1"
            assert not x.is_here
        monkeypatch.setattr("jaxd.pool.members._STAY_S", 0.01)
        session: Any = client.caller.session
        (caller,) = (each for each in session.pool.used if each.member.name == "m1")
        caller._stay_until = 0.0
        until(lambda: caller._refused_by == {small})
        until(lambda: values_of(pool, "m1") == 2)
        pool.director.show("m0", state="ready")
        wait_until_left(client, pool, "m1")
        assert member_of(x, pool) == member_of(y, pool) == "m0"
        assert float(x[0]) + float(y[0]) == 3.0
    finally:
        pool.members.pop(small).close()
        pool.director.remove(small)


def test_what_has_left_a_member_outlives_the_next_one_as_well(
    pool: PoolOfServers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How it was made is not known there: a snapshot is taken at once."""
    x = on(client, "m1", 3.0, MEGABYTE)
    for name in ("m0", "m2"):
        pool.director.show(name, state="starting")
    last = pool.add()
    drain(client, pool, "m1")
    wait_until_left(client, pool, "m1")
    assert member_of(x, pool) == last
    pool.director.show("m0", state="ready")
    pool.kill(last)
    pool.director.remove(last)
    np.testing.assert_array_equal(jaxd.get(x), np.full(MEGABYTE // 4, 3.0, "f4"))
