"""Pools of whole servers: one build for all of them, and members that are killed at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import CalledBack, ValuesDied
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.pool_routing import ranked
from tests.end_to_end.gates import in_thread
from tests.end_to_end.passing_on import Stalling
from tests.end_to_end.pools import PoolOfServers, pool_of_servers, statistics
from tests.live_server import TOKEN
from tests.server.staging import until

pytestmark = [pytest.mark.slow, pytest.mark.own_server]

KEY = "a-key-of-tests-0123456789-abcdefghij"
MOMENTS = range(int(os.environ.get("MEMBER_KILLS", "20")))
ITEMS = 120

PROGRAM = """
import jaxd

@jaxd.persistent_call
def step(x):
    import jax.numpy as jnp
    return jnp.sin(x) * 2.0

print(sum(float(y) for y in step.map([float(n) for n in range(64)])))
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolOfServers]:
    """Three members; each that a test kills is followed by another one."""
    with pool_of_servers(3) as found:
        yield found


@pytest.fixture
def client(pool: PoolOfServers) -> Iterator[Client]:
    """A client of the pool."""
    with pool.client() as found:
        yield found
    while len(pool.members) < 3:
        pool.add()


def holder(array: Any, pool: PoolOfServers) -> str:
    """The member that has an array."""
    return next(name for name, each in pool.members.items() if each.unix == array.fetcher.address)


def test_eight_processes_over_four_members_trace_and_compile_once(tmp_path: Path) -> None:
    """Though all members answer calls: they share a store, and one of them builds."""
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    with pool_of_servers(4, JAXD_STORE=str(store), JAXD_STORE_KEY=KEY) as pool:
        command = [sys.executable, "-c", PROGRAM]
        clients = [
            subprocess.Popen(
                command, env=pool.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(8)
        ]
        outcomes = [each.communicate(timeout=50) for each in clients]
        assert len({out for out, _ in outcomes}) == 1, outcomes
        assert sum(statistics(pool.members, "calls").values()) == 8 * 64
        assert set(statistics(pool.members, "calls")) == set(pool.members)
        assert sum(statistics(pool.members, "traces").values()) == 1
        assert sum(statistics(pool.members, "compiles").values()) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_map_is_right_though_a_member_is_killed(
    pool: PoolOfServers, client: Client, moment: int
) -> None:
    """Whenever that is: before the first result, in the middle, or at the end."""

    def slow(x: Any) -> Any:
        return jax.lax.fori_loop(0, 20_000, lambda _, y: y * 0.5 + x, x)

    function = client.persistent_call(slow)
    expected = [2.0 * x for x in range(ITEMS)]
    names = sorted(pool.members)
    found: list[float] = []
    for result in function.map(map(float, range(ITEMS))):
        if len(found) == moment * ITEMS // len(MOMENTS):
            pool.kill(names[moment % len(names)])
        found.append(float(result))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_effect_happens_twice_though_a_member_is_killed(
    pool: PoolOfServers, client: Client, moment: int
) -> None:
    """A call that has called back is not repeated, and says so; all others are right."""
    seen: Counter[int] = Counter()
    reached = threading.Event()

    def note(x: Any) -> Any:
        seen[int(x)] += 1
        if sum(seen.values()) > moment * 2:
            reached.set()
        return x

    def noting(x: Any) -> Any:
        return jax.experimental.io_callback(note, jax.typeof(x), x, ordered=False) + 1

    function = client.persistent_call(noting)
    futures = [function.submit(np.int32(x)) for x in range(48)]
    assert reached.wait(30)
    pool.kill(sorted(pool.members)[moment % len(pool.members)])
    for number, future in enumerate(futures):
        error = future.exception(40)
        assert error is None or type(error) is CalledBack, error
        assert error is not None or int(future.result()) == number + 1
        assert seen[number] == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_loop_goes_on_with_the_same_numbers_on_another_member(
    pool: PoolOfServers, client: Client, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the client keeps what its arrays are made of: the next member makes them again."""
    monkeypatch.setenv("JAXD_SNAPSHOT_S", "0.2")
    seen: Counter[int] = Counter()

    def note(x: Any) -> None:
        seen[int(x)] += 1

    def step(state: Any, x: Any) -> Any:
        jax.debug.callback(note, x)
        return state * 0.5 + x, state.sum()

    with pool.client() as keeping:
        function = keeping.persistent_call(step, donate_argnums=0)
        expected = state = np.zeros(1 << 15, np.float32)
        for number in range(40):
            expected = expected * np.float32(0.5) + np.float32(number)
            state, _ = function(state, np.float32(number))
            if number == 2 * moment:
                name = holder(state, pool)
                pool.kill(name)
        np.testing.assert_array_equal(np.asarray(state), expected)
        assert holder(state, pool) != name
    assert set(seen.values()) == {1}
    assert len(seen) == 40


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_loop_whose_state_is_not_kept_ends_with_what_is_lost(
    pool: PoolOfServers, client: Client
) -> None:
    """No step is made on anything else than the state; a new state goes on elsewhere."""
    function = client.persistent_call(lambda state, x: state + x, donate_argnums=0)
    state = function(client.put(np.zeros(1 << 15, np.float32)), 1.0)
    name = holder(state, pool)
    pool.kill(name)
    with pytest.raises(ValuesDied, match=f"arrays on {name}, a member of the pool"):
        np.asarray(function(function(state, 1.0), 1.0))
    state = function(client.put(np.zeros(1 << 15, np.float32)), 1.0)
    assert float(state[0]) == 1.0


@pytest.mark.libraries("orbax.checkpoint")
@pytest.mark.filterwarnings("ignore:::orbax")
def test_what_a_member_has_restored_another_one_reads_again(
    pool: PoolOfServers, client: Client, tmp_path: Path
) -> None:
    """From the same checkpoint, where all of them see its folder."""
    pytest.importorskip("orbax.checkpoint")
    tree = {"w": np.arange(1 << 15, dtype="f4")}
    client.save(client.put(tree), tmp_path / "state").wait()
    restored = client.restore(tmp_path / "state")
    name = holder(restored["w"], pool)
    pool.kill(name)
    np.testing.assert_array_equal(np.asarray(restored["w"]), tree["w"])
    assert name not in pool.members
    again = client.restore(tmp_path / "state")
    assert float(client.persistent_call(lambda w: w[7])(again["w"])) == 7.0


def test_a_call_to_a_member_that_goes_silent_is_answered_elsewhere(
    pool: PoolOfServers, client: Client
) -> None:
    """As when its machine loses power: no socket ends, and nobody answers at its address.

    The director says that it is lost; until then the call waits.
    """

    def twice(x: Any) -> Any:
        return x + x

    named: Any = client.persistent_call(twice)
    first, other, _ = ranked(bytes(named._binding.inspected_spec().key), sorted(pool.members))
    real = Address.parse(pool.members[first].tls)
    numbers = np.random.default_rng(1).standard_normal(15_000).astype("f4")  # 60 kB come home
    with Stalling(real.port) as stalled:
        away = str(real._replace(port=stalled.port))
        pool.director.show(first, addresses=(away,))
        try:
            with connect(pool.director.pool, token=TOKEN) as own:
                session: Any = own.caller.session
                function = own.persistent_call(twice)
                np.testing.assert_array_equal(function(numbers), numbers + numbers)
                (used,) = (e for e in session.pool.used if e.session.at.name == first)
                late = in_thread(function, numbers)  # no more than 64 kB pass
                until(lambda: used.session.open_calls == 1)
                pool.director.show(other, load=1)
                until(lambda: session.pool.routes().loads[other] == 1)
                assert not late.done()
                stalled.upstream = 0  # whoever connects from now on is refused
                pool.director.show(first, state="lost")
                np.testing.assert_array_equal(late.result(20), numbers + numbers)
                assert used.session.at.name != first
        finally:
            unix = (pool.members[first].unix,)
            pool.director.show(first, addresses=unix, state="ready")
            pool.director.show(other, load=0)
