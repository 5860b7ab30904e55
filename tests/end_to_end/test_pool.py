"""Calls on a pool: which member makes them, where values are, and what follows when one is gone."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxd
from jaxd import Client, connect
from jaxd.cli.doctor.connection import steps
from jaxd.cli.doctor.context import DoctorContext
from jaxd.connection.settings import Settings
from jaxd.errors import (
    ConfigurationError,
    LimitExceeded,
    NoServer,
    ValueDeleted,
    ValuesDied,
)
from jaxd.pool.caller import PoolCaller
from jaxd.pool.members import MemberSession
from jaxd.pool.routes import Pool
from jaxd.pool.view import ViewKeeper
from jaxd.request.call_request import CallRequest
from jaxd_protocol.messages.calls import FROM_CALLBACK
from jaxd_protocol.network.pool_routing import ranked
from jaxd_server.config.options import parse_arguments
from jaxd_server.pool.settings import read_settings
from tests.end_to_end.gates import Gate, advice, stop_when_run
from tests.end_to_end.pools import PoolHere
from tests.server.in_process import InProcessServer
from tests.server.staging import until

LARGE = 1 << 15
"""Numbers of four bytes that are too many to come home by themselves."""


@pytest.fixture
def pool(runtime: Path) -> Iterator[PoolHere]:
    """Three members."""
    found = PoolHere(runtime)
    yield found
    found.close()


def double(x: Any) -> Any:
    """What members compute."""
    return 2 * x


def routing(client: Client) -> Pool:
    """How a client chooses members."""
    caller = client.caller
    assert isinstance(caller, PoolCaller)
    return caller.session.pool


def key_of(function: Any) -> bytes:
    """The key of a persistent function."""
    return bytes(function._binding.inspected_spec().key)


def member_of(array: Any, pool: PoolHere) -> str:
    """On which member an array is."""
    return next(name for name, each in pool.members.items() if each.unix == array.fetcher.address)


def on(pool: PoolHere, name: str, value: float = 1.0, size: int = LARGE) -> Any:
    """An array on one member."""
    made = pool.client.persistent_call(lambda: jnp.full(size, value)).on(member=name).remote()
    assert member_of(made, pool) == name
    return made


# which member -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calls_of_a_function_go_to_the_first_member_for_its_key(pool: PoolHere) -> None:
    """Whichever function: it is warm on one member, which every client finds by itself."""
    expected: dict[str, int] = {}
    for number in range(4):
        function = pool.client.persistent_call(lambda x, number=number: x + number)
        first = ranked(key_of(function), sorted(pool.members))[0]
        expected[first] = expected.get(first, 0) + 2
        assert function(1.0) == function(1.0) == 1.0 + number
    assert pool.calls == expected


def test_few_functions_move_when_a_member_comes_or_goes(pool: PoolHere) -> None:
    """One of four members has a quarter of the functions; only these move."""
    found = routing(pool.client)
    keys = [number.to_bytes(16, "big") for number in range(2000)]
    before = [found.of_key(key).member.name for key in keys]
    pool.director.show("m3", pool.members["m0"].unix)
    until(lambda: len(found.routes().names) == 4)
    after = [found.of_key(key).member.name for key in keys]
    moved = [now for then, now in zip(before, after, strict=True) if then != now]
    assert set(moved) == {"m3"}
    assert len(moved) <= (1 / 4 + 0.05) * len(keys)
    pool.director.remove("m3")
    until(lambda: len(found.routes().names) == 3)
    assert [found.of_key(key).member.name for key in keys] == before


def test_a_function_that_is_spread_is_made_on_several_members(pool: PoolHere) -> None:
    """Though this process is told of no load; it says so."""
    found, key = routing(pool.client), b"k" * 16
    order = ranked(key, sorted(pool.members))
    assert {found.of_key(key).member.name for _ in range(60)} == {order[0]}
    pool.director.spread(**{key.hex()[:16]: 2})
    until(lambda: found.routes().spreads)
    assert {found.of_key(key).member.name for _ in range(60)} == set(order[:2])
    assert found.of_key(b"other key").member.name == ranked(b"other key", sorted(pool.members))[0]
    assert "one of the first 2 of 3 for its key" in found.why(key)
    for name in order[:2]:
        pool.director.show(name, devices=4)
    until(lambda: found.routes().total_devices == 9)
    first = ranked(key, found.routes().names, found.routes().devices)[0]
    assert found.routes().devices[first] == 4
    assert {found.of_key(key).member.name for _ in range(60)} == {first}


def test_a_hot_function_is_made_on_further_members(pool: PoolHere) -> None:
    """Those after the first for its key, as its own order has them, when that has too much."""
    found, key = routing(pool.client), b"k" * 16
    first, second, third = ranked(key, sorted(pool.members))
    pool.director.show(first, load=4)
    until(lambda: found.routes().loads[first] == 4)
    assert found.of_key(key).member.name == second
    pool.director.show(second, load=4)
    until(lambda: found.routes().loads[second] == 4)
    assert found.of_key(key).member.name == third
    pool.director.show(third, load=4)
    until(lambda: found.routes().loads[third] == 4)
    assert found.of_key(key).member.name == first


def test_what_this_process_has_open_counts_at_once(pool: PoolHere, tmp_path: Path) -> None:
    """The director has not said anything of the calls that make its first member busy."""
    gate = Gate(tmp_path / "gate")

    function = pool.client.persistent_call(stop_when_run(gate.path))
    first = ranked(key_of(function), sorted(pool.members))[0]
    future = function.submit(np.float32(-1.0))
    with gate.reached():
        assert routing(pool.client).of_key(key_of(function)).member.name != first
    assert future.result(20) == 0.0


def test_the_order_of_a_key_is_computed_once(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the load changes with each view."""
    found = routing(pool.client)
    asked: list[bytes] = []

    def counting(key: bytes, *rest: Any) -> list[str]:
        asked.append(key)
        return ranked(key, *rest)

    monkeypatch.setattr("jaxd.pool.routes.ranked", counting)
    found.of_key(b"k" * 16)
    pool.director.show("m0", load=1)
    until(lambda: found.routes().loads["m0"] == 1)
    for _ in range(100):
        found.of_key(b"k" * 16)
    assert asked == [b"k" * 16]


def test_the_choice_among_many_members_looks_at_few(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though this process uses all of them: what it has open is counted now and then."""
    found, monotonic = routing(pool.client), time.monotonic()
    for number in range(3, 300):
        pool.director.show(f"m{number}", f"unix:///nowhere/{number}", load=1)
    until(lambda: len(found.routes().names) == 300)
    for name in found.routes().names:
        found.named(name)
    looks: list[str] = []

    def counting(session: MemberSession) -> int:
        looks.append(session.at.name)
        return 9 if session.at.name == order[0] else 0

    order = ranked(b"k" * 16, sorted(found.routes().names))
    monkeypatch.setattr(MemberSession, "open_calls", property(counting))
    monkeypatch.setattr("jaxd.pool.routes.time", SimpleNamespace(monotonic=lambda: monotonic))
    chosen = {found.of_key(b"k" * 16).member.name for _ in range(100)}
    assert order[0] not in chosen
    assert len(looks) < 300 + 100 * 5


@pytest.mark.slow
def test_a_call_goes_where_its_values_are(pool: PoolHere) -> None:
    """Whichever member is the first for its function; its result stays there."""
    double_ = pool.client.persistent_call(double)
    for name in pool.members:
        result = double_(on(pool, name))
        assert member_of(result, pool) == name
        assert float(result[0]) == 2.0


def test_what_has_neither_values_nor_a_key_has_a_member_of_its_own(pool: PoolHere) -> None:
    """That with the fewest open calls for its devices at first; later one that has values."""
    found = routing(pool.client)
    for name, load, devices in (("m0", 3, 1), ("m1", 5, 4), ("m2", 2, 1)):
        pool.director.show(name, load=load, devices=devices)
    until(lambda: found.routes().loads == {"m0": 3, "m1": 5, "m2": 2})
    found._home = None
    routes = found.routes()
    assert routes.least_loaded(found.loads(routes)[0]) == "m1"
    assert found.home().member.name == "m1"
    pool.director.show("m1", load=0, state="draining")
    until(lambda: "m1" not in found.routes().loads)
    assert found.home().member.name == "m2"
    x = on(pool, "m0")
    assert found.home().member.name == "m2"  # it stays, as long as it takes calls
    pool.director.show("m2", state="draining")
    until(lambda: "m2" not in found.routes().loads)
    assert found.home().member.name == "m0"
    assert member_of(pool.client.put(np.ones(3)), pool) == member_of(x, pool) == "m0"


@pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")
def test_a_principal_has_its_part_of_a_limit_on_each_member(runtime: Path) -> None:
    """All of them together are the limit; on few members there is less than that."""
    path = runtime / "pool.toml"
    path.write_text("[quotas]\nbuild_s = 1\ndisk_bytes = 7\n[members]\nmax = 2\n")
    given = parse_arguments(list(read_settings(str(path)).members.arguments))
    assert given.principal_build_s == 0.5
    assert given.principal_disk_bytes == 3
    pool = PoolHere(runtime, 2, principal_build_s=given.principal_build_s)
    try:

        def build_until_refused(name: str, first: int) -> None:
            for number in itertools.count(first):
                function = pool.client.persistent_call(lambda x, number=number: jnp.sin(x * number))
                function.on(member=name)(1.0)

        for number, name in enumerate(pool.members):
            with pytest.raises(LimitExceeded, match="principal-build-s"):
                build_until_refused(name, 1000 * number)
            assert pool.calls[name] > 0
        with pytest.raises(LimitExceeded):
            pool.client.persistent_call(lambda x: x - 1.0)(1.0)
    finally:
        pool.close()


@pytest.mark.slow
def test_what_is_kept_is_that_of_all_members(pool: PoolHere) -> None:
    """Each of those that have arrays has its own room for that."""
    first = on(pool, "m0")
    one = pool.client.kept()
    second = on(pool, "m2")
    both = pool.client.kept()
    assert one.is_on
    assert both.limit_bytes == 2 * one.limit_bytes
    assert both.lost_with_worker == {}
    assert float(first[0]) == float(second[0]) == 1.0


@pytest.mark.slow
def test_the_smaller_of_values_on_two_members_moves(pool: PoolHere) -> None:
    """To where the larger one is."""
    add = pool.client.persistent_call(lambda a, b: a[: b.size] + b)
    for large, small in (("m0", "m1"), ("m2", "m0")):
        a, b = on(pool, large, 1.0, 2 * LARGE), on(pool, small, 2.0)
        for result in (add(a, b), add.submit(a, b).result()):
            assert member_of(result, pool) == large
            assert float(result[0]) == 3.0


@pytest.mark.slow
def test_64_bits_stay_64_bits_where_an_array_moves_by_the_client(pool: PoolHere) -> None:
    """Also outside of `enable_x64`, and once it is here: as jax has it for an array of its own."""
    wide = np.arange(5, dtype=np.int64) + (1 << 40)
    with jax.enable_x64(True):
        make: Any = pool.client.persistent_call(lambda: jnp.arange(5, dtype="int64") + (1 << 40))
        b, c = (make.on(member="m1").remote() for _ in range(2))
        assert c.fetch().tolist() == wide.tolist()
    a = on(pool, "m0")
    last = pool.client.persistent_call(lambda a, b: (a[0], b))
    named = pool.client.persistent_call(lambda b: b).on(member="m2")
    assert named(b).tolist() == wide.tolist()
    for array in (b, c):
        found = last(a, array)[1]
        assert (found.dtype, found.tolist()) == (np.int64, wide.tolist())
        assert array.tolist() == wide.tolist()


@pytest.mark.slow
def test_a_call_on_an_array_with_copies_goes_where_one_is(pool: PoolHere) -> None:
    """It does not move to a member that has come since."""
    x = pool.client.put(np.ones(LARGE, np.float32), replicate=True)
    pool.members["m3"] = added = InProcessServer()
    pool.director.show("m3", added.unix)
    found = routing(pool.client)
    until(lambda: "m3" in found.routes().loads)
    reductions = (jnp.max, jnp.min, jnp.mean, jnp.median, jnp.prod, jnp.std, jnp.sum, jnp.var)
    for reduce in reductions:
        assert float(pool.client.persistent_call(reduce)(x)) == float(reduce(np.ones(LARGE, "f4")))
    assert "m3" not in pool.calls
    assert not x.is_here


@pytest.mark.slow
def test_a_function_runs_on_the_member_that_is_named(pool: PoolHere) -> None:
    """Also what is derived of it; its values go there."""
    square = pool.client.persistent_call(lambda x: jnp.sum(x * x))
    x = on(pool, "m1", 3.0)
    before = pool.calls
    assert float(square.on(member="m2")(x)) == 9.0 * LARGE
    assert float(square.on(member="m2").grad()(x)[0]) == 6.0
    after = pool.calls
    assert after.get("m2", 0) - before.get("m2", 0) == 2
    assert {**after, "m2": 0} == {**before, "m2": 0}


def test_a_member_that_is_not_there_is_an_error_that_names_those_that_are(pool: PoolHere) -> None:
    """And on a server that is no pool, none can be named."""
    double_ = pool.client.persistent_call(double)
    with pytest.raises(NoServer, match="no m9; its members are m0, m1, m2") as caught:
        double_.on(member="m9")(1.0)
    assert "jaxd pool status" in advice(caught.value)
    with (
        connect(pool.members["m0"].unix) as single,
        pytest.raises(ConfigurationError, match="is for a pool"),
    ):
        single.persistent_call(double).on(member="m0")(1.0)


@pytest.mark.slow
def test_map_fills_all_members_and_keeps_the_order(pool: PoolHere) -> None:
    """A thousand items of any function; no member has more than a third of them by much."""
    double_ = pool.client.persistent_call(double)
    assert [float(y) for y in double_.map(range(1000))] == [2.0 * x for x in range(1000)]
    calls = pool.calls
    assert set(calls) == set(pool.members)
    assert max(calls.values()) < 500


def test_what_is_told_late_of_own_calls_does_not_make_a_map_uneven(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members have answered many since; the calls of others count."""
    found = routing(pool.client)
    own = dict.fromkeys(pool.members, 9)
    monkeypatch.setattr(MemberSession, "open_calls", property(lambda each: own[each.at.name]))

    def told(**loads: int) -> None:
        for name, load in loads.items():
            pool.director.show(name, load=load)
        until(lambda: all(found.routes().loads[name] == load for name, load in loads.items()))

    def shared_out(calls: int) -> dict[str, int]:
        before = own.copy()
        for _ in range(calls):
            own[found.of_key(b"k" * 16, evenly=True).member.name] += 1
        return {name: own[name] - before[name] for name in own}

    for name in pool.members:
        found.named(name)
    told(m0=9, m1=3, m2=5)
    own.update(dict.fromkeys(own, 3))
    assert shared_out(6) == {"m0": 2, "m1": 2, "m2": 2}
    told(m0=19)
    assert shared_out(10)["m0"] == 0


@pytest.mark.slow
def test_map_on_an_array_that_is_on_all_members_fills_all(pool: PoolHere) -> None:
    """It moves to none of them."""
    weights = pool.client.put(np.ones(LARGE, np.float32), replicate=True)
    score = pool.client.persistent_call(lambda weights, x: (weights * x).sum())
    found = [float(y) for y in score.map([weights] * 90, range(90))]
    assert found == [float(LARGE * x) for x in range(90)]
    assert min(pool.calls.values()) > 5  # which is faster is not the same each time
    assert len(pool.calls) == 3


def test_why_says_which_member_and_by_which_rule(pool: PoolHere) -> None:
    """For a key, for values, and where a member is named."""
    double_ = pool.client.persistent_call(double)
    first, second, _ = ranked(key_of(double_), sorted(pool.members))
    assert double_.why(1.0).place == f"server: on member {first}, the first of 3 for its key"
    x = on(pool, second)
    assert double_.why(x).place == f"server: on member {second}, which has its values"
    named = double_.on(member=second).why(1.0)
    assert named.place == f"server: on member {second}, which on(member=…) names"
    pool.director.show(first, load=9)
    found = routing(pool.client)
    until(lambda: found.routes().loads[first] == 9)
    assert f"as {first} has 9 of the 9 calls" in str(double_.why(1.0))


def test_a_process_without_a_pool_imports_nothing_of_it(in_process_server: InProcessServer) -> None:
    """Neither at import nor in a call."""
    from tests.live_server import run_client, source_environment

    program = (
        "import jaxd, sys\n"
        "print(jaxd.persistent_call(lambda x: x + 1)(1.0))\n"
        "print([name for name in sys.modules if 'pool' in name and 'jaxd' in name])\n"
    )
    folder = Path(in_process_server.unix.removeprefix("unix://")).parent
    environment = source_environment(folder, JAXD_SERVER=in_process_server.unix)
    done = run_client(program, environment=environment)
    assert done.stdout.split() == ["2.0", "[]"], done.stderr


# values -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_array_on_all_members_moves_to_none_and_outlives_one(pool: PoolHere) -> None:
    """The copy of a member is used by the calls on it; what is left is used when one dies."""
    x = pool.client.put(np.ones(LARGE, np.float32), replicate=True)
    total = pool.client.persistent_call(lambda x, bias: x.sum() + bias)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxd.interop.remote_array.RemoteArray.fetch", lambda *_, **__: 1 / 0)
        for name in pool.members:
            assert float(total.on(member=name)(x, 1.0)) == LARGE + 1
    first = member_of(x, pool)
    pool.kill(first)
    assert float(total(x, 1.0)) == LARGE + 1
    pool.kill(next(name for name in pool.members if name != first))
    np.testing.assert_array_equal(jaxd.get(x), np.ones(LARGE, np.float32))
    assert float(total(x, 2.0)) == LARGE + 2


def test_a_name_is_that_of_what_was_put_last(pool: PoolHere) -> None:
    """On whichever member an older one is, also when that is draining."""
    pool.client.put(np.zeros(3), name="weights", replicate=True)
    new = pool.client.put(np.ones(3), name="weights")
    pool.director.show(
        next(name for name in pool.members if name != member_of(new, pool)), state="draining"
    )
    with connect(pool.director.pool) as other:
        np.testing.assert_array_equal(np.asarray(other.named("weights")), np.ones(3))
        assert other.forget("weights")
        assert not other.forget("weights")


def test_a_name_is_found_on_whichever_member_it_is(pool: PoolHere) -> None:
    """And forgotten there."""
    pool.client.put(np.arange(3.0), name="numbers")
    with connect(pool.director.pool) as other:
        found = other.named("numbers")
        np.testing.assert_array_equal(np.asarray(found), np.arange(3.0))
        assert other.forget("numbers")
        assert not other.forget("numbers")
        with pytest.raises(ValueDeleted):
            other.named("numbers")


@pytest.mark.slow
def test_statistics_are_those_of_all_members(pool: PoolHere) -> None:
    """Their numbers are added up."""
    double_ = pool.client.persistent_call(double)
    for name in pool.members:
        double_.on(member=name)(1.0)
    assert pool.client.statistics().calls == 3


@pytest.mark.slow
def test_clear_has_all_members_forget(pool: PoolHere) -> None:
    """The programs are counted."""
    double_ = pool.client.persistent_call(double)
    for name in pool.members:
        double_.on(member=name)(1.0)
    assert double_.clear() == 3


# members that go ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_values_of_a_dead_member_are_lost_and_calls_go_on(pool: PoolHere) -> None:
    """What needs them says so, with the name of the member; everything else is made elsewhere."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    x, y = on(pool, first), double_(1.0)
    pool.kill(first)
    with pytest.raises(ValuesDied, match=f"arrays on {first}, a member of the pool, died with it"):
        double_(x)
    with pytest.raises(ValuesDied, match=f"arrays on {first}"):
        jaxd.get(x)
    assert y == double_(1.0) == 2.0
    assert [float(each) for each in double_.map(range(50))] == [2.0 * each for each in range(50)]


@pytest.mark.usefixtures("arrays_die_with_workers")
def test_lost_values_are_named_by_the_member_that_had_them(pool: PoolHere) -> None:
    """Though the one that is tried next is gone as well, and the director knows of neither."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    x = on(pool, first)
    next_one = min(pool.members.keys() - {first})
    pool.kill(first)
    pool.kill(next_one)
    with pytest.raises(ValuesDied, match=f"arrays on {first}, a member of the pool, died with it"):
        double_(x)
    assert double_(1.0) == 2.0


@pytest.mark.slow
def test_a_member_that_stops_refuses_a_call_which_another_one_makes(pool: PoolHere) -> None:
    """Before the director knows of it."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    assert double_(1.0) == 2.0
    pool.members[first].parts._worker_context.pipeline.admission.drain()
    assert double_(2.0) == 4.0
    assert double_.submit(3.0).result() == 6.0
    assert len(pool.calls) == 2


def test_a_client_that_says_it_is_inside_of_a_callback_is_not_believed(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its server has called nothing back: a member that stops refuses such a call as well."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    assert double_(1.0) == 2.0
    flags: property = vars(CallRequest)["flags"]
    forged = property(lambda call: flags.__get__(call) | FROM_CALLBACK)
    monkeypatch.setattr(CallRequest, "flags", forged)
    pool.members[first].parts._worker_context.pipeline.admission.drain()
    assert double_(2.0) == 4.0
    assert len(pool.calls) == 2


@pytest.mark.slow
def test_a_member_that_drains_gets_calls_on_its_values_only(pool: PoolHere) -> None:
    """Where no other takes these, as here, where none exchange arrays; until nothing is held there.

    Then it has no connection to this process.
    """
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    x = on(pool, first)
    before = pool.calls[first]
    pool.director.show(first, state="draining")
    until(lambda: first not in routing(pool.client).routes().names)
    assert double_(1.0) == 2.0
    assert list(double_.map(range(40)))[39] == 78
    assert pool.calls[first] == before
    x = double_(x)
    assert pool.calls[first] == before + 1
    status = pool.members[first].parts.status
    assert status.now()["connections"] == 1
    del x
    until(lambda: status.now()["connections"] == 0)


@pytest.mark.slow
def test_calls_go_on_when_the_director_is_gone(pool: PoolHere) -> None:
    """With the members that are known, and without one that dies then."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    assert double_(1.0) == 2.0
    pool.director.close()
    until(lambda: routing(pool.client).keeper.failure is not None)
    assert double_(2.0) == 4.0
    pool.kill(first)
    assert double_(3.0) == 6.0


def test_a_connection_to_the_director_that_comes_too_late_is_closed(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was closed while its thread connected again."""
    keeper, connect_ = routing(pool.client).keeper, ViewKeeper._connect
    made: list[Any] = []

    def late(self: ViewKeeper, deadline: float | None) -> Any:
        connection = connect_(self, deadline)
        self.stop()
        made.append(connection)
        return connection

    keeper.start()
    monkeypatch.setattr(ViewKeeper, "_connect", late)
    assert keeper._connection is not None
    keeper._connection.shut()
    until(lambda: bool(made) and not made[0].alive)


def test_a_pool_without_members_says_what_they_are_doing(
    pool: PoolHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how to look at it."""
    monkeypatch.setattr("jaxd.pool.routes._LOST_S", 0.1)
    double_ = pool.client.persistent_call(double)
    for name, state in zip(pool.members, ("lost", "draining", "lost"), strict=True):
        pool.director.show(name, state=state)
    until(lambda: not routing(pool.client)._routes.names)
    with pytest.raises(NoServer, match="m0 is lost; m1 is draining; m2 is lost") as caught:
        double_(1.0)
    assert "jaxd doctor --server" in str(caught.value)


def test_a_member_out_of_reach_is_named_and_calls_go_elsewhere(
    pool: PoolHere, runtime: Path
) -> None:
    """`jaxd doctor` says which, and what to do."""
    away = f"unix://{runtime}/nobody"
    for name in ("m0", "m1"):
        pool.director.show(name, addresses=(away,), epoch=2)
    found = routing(pool.client)
    until(lambda: found.member("m1").epoch == 2)  # type: ignore[union-attr]
    functions = [pool.client.persistent_call(lambda x, n=n: x + n) for n in range(4)]
    assert [each(1.0) for each in functions] == [1.0, 2.0, 3.0, 4.0]
    assert set(pool.calls) == {"m2"}
    checks = steps(DoctorContext(Settings.resolve(pool.director.pool)))
    about = {each.name: each for each in checks}
    assert about["member m2"].state == "ok"
    assert about["member m1"].state == "bad"
    assert away in about["member m1"].found
    assert "jaxd pool drain m1" in about["member m1"].advice
    assert about["pool"].found == "lab: 3 of 3 members take calls"


@pytest.mark.slow
@pytest.mark.usefixtures("arrays_die_with_workers")
def test_a_member_that_is_started_again_is_used_again(pool: PoolHere) -> None:
    """With another session; values of the one before are lost."""
    double_ = pool.client.persistent_call(double)
    first = ranked(key_of(double_), sorted(pool.members))[0]
    x = on(pool, first)
    pool.kill(first)
    assert double_(1.0) == 2.0
    again = InProcessServer()
    try:
        pool.director.show(first, addresses=(again.unix,), epoch=2)
        until(lambda: first in routing(pool.client).routes().names)
        assert double_(2.0) == 4.0
        assert again.counters.snapshot()["calls"] == 1
        with pytest.raises(ValuesDied):
            double_(x)
        pool.client.close()
    finally:
        again.close()


# who may ------------------------------------------------------------------------------------------


def test_an_address_of_a_server_is_none_of_a_pool_and_the_reverse(
    in_process_server: InProcessServer, pool: PoolHere
) -> None:
    """Each error names the address to use."""
    with pytest.raises(ConfigurationError, match=f"Use {in_process_server.unix} as its address"):
        connect(f"pool+{in_process_server.unix}")
    for options in ({"verify": True}, {"place": "here"}):
        with pytest.raises(ConfigurationError, match="are for one server"):
            connect(pool.director.pool, **options)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning", "ignore:.*fork:DeprecationWarning")
def test_the_child_of_a_fork_uses_the_pool_with_sessions_of_its_own(pool: PoolHere) -> None:
    """And the parent goes on with those that it has."""
    double_ = pool.client.persistent_call(double)
    assert double_(1.0) == 2.0
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            os.write(write, str(float(double_(2.0))).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"4.0"
    os.close(read)
    assert double_(3.0) == 6.0
