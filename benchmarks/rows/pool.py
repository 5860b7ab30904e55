"""Pools: small calls beside one server, the choice of a member, and what several members add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.own_pool import OwnPool, own_pool
from benchmarks.processes import Driver
from benchmarks.rows import peers

_JAXD: Final = ("jaxd", "jax")
_SMALL_CALLS: Final = "benchmarks.drivers.jaxd_calls"
_POOL_CALLS: Final = "benchmarks.drivers.pool_calls"
_ROUTING: Final = "benchmarks.drivers.pool_routing"
_MEMBERS: Final = 4
_OF_MAP: Final = (1, 2, 4)


def _pool(run: BenchmarkRun, count: int = _MEMBERS) -> OwnPool:
    found: OwnPool = run.shared(f"pool of {count}", lambda: run.enter(own_pool(run, count)))
    return found


def _in_pool(run: BenchmarkRun) -> Sampler:
    pool = _pool(run)
    driver = run.driver(_SMALL_CALLS, pool.address, **pool.environment)
    return lambda: driver.seconds("small", run.sizes.calls)


def _on_one_server(run: BenchmarkRun) -> Sampler:
    """A member of the same pool, called as a server."""
    first = next(iter(_pool(run).members.values()))
    driver = run.driver(_SMALL_CALLS, first.unix)
    return lambda: driver.seconds("small", run.sizes.calls)


def _of_ray(run: BenchmarkRun) -> Sampler:
    driver = peers.ray(run)
    return lambda: driver.seconds("small", run.sizes.calls)


POOL_CALL: Final = Row(
    name="pool-call",
    title="Small call, warm, in a pool of four members on this machine, p50",
    variants=(
        Variant("pool", _in_pool, needs=_JAXD),
        Variant("one server", _on_one_server, needs=_JAXD),
        peers.ray_variant(_of_ray),
    ),
    comparisons=(
        Comparison("pool / one server", ("pool",), ("one server",), Target("at most", 1.1)),
        Comparison("Ray actor / pool", ("Ray actor",), ("pool",), Target("at least", 5)),
    ),
)


def _routing(what: str, members: int, calls: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.driver(_ROUTING, str(members))
        return lambda: driver.seconds(what, getattr(run.sizes, calls))

    return start


POOL_ROUTING: Final = Row(
    name="pool-routing",
    title="Choosing the member for a call, seconds per call",
    variants=(
        Variant("of 4 members", _routing("choose", 4, "calls"), needs=("jaxd",)),
        Variant("of 1,000 members", _routing("choose", 1000, "calls"), needs=("jaxd",)),
        Variant("of 4, as a call does", _routing("route", 4, "calls"), needs=("jaxd",)),
        Variant("of 1,000, as a call does", _routing("route", 1000, "calls"), needs=("jaxd",)),
        Variant("order of 1,000, once for a key", _routing("rank", 1000, "slow_calls"), ("jaxd",)),
    ),
    comparisons=(
        Comparison("of 4 members / 5 µs", ("of 4 members",), (), Target("at most", 1), 5e-6),
        Comparison(
            "of 1,000 members / 5 µs", ("of 1,000 members",), (), Target("at most", 1), 5e-6
        ),
        Comparison(
            "of 1,000, as a call does / 5 µs",
            ("of 1,000, as a call does",),
            (),
            Target("at most", 1),
            5e-6,
        ),
    ),
)


def _pool_calls(run: BenchmarkRun, members: int) -> Driver:
    pool = _pool(run, members)
    return run.driver(_POOL_CALLS, pool.address, str(run.sizes.blocks), **pool.environment)


def _map(members: int) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = _pool_calls(run, members)
        return lambda: driver.seconds("map", run.sizes.items)

    return start


POOL_MAP: Final = Row(
    name="pool-map",
    title="`map` of 1,000 programs that wait for 50 ms and take no processor time, eight at a time "
    "on each member, seconds per item",
    variants=tuple(
        Variant(f"{members} member{'s' * (members > 1)}", _map(members), needs=_JAXD)
        for members in _OF_MAP
    ),
    comparisons=tuple(
        Comparison(
            f"1 member / {members} members",
            ("1 member",),
            (f"{members} members",),
            Target("at least", 0.9 * members),
        )
        for members in _OF_MAP[1:]
    ),
)


def _first(what: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.shared("first calls", lambda: _pool_calls(run, 2))
        return lambda: driver.seconds(what, 1)

    return start


POOL_FIRST: Final = Row(
    name="pool-first",
    title="First result of a train step on one member",
    variants=(
        Variant("built there", _first("built"), needs=_JAXD),
        Variant("built by another member", _first("first"), needs=_JAXD),
    ),
    comparisons=(
        Comparison(
            "built by another member / built there",
            ("built by another member",),
            ("built there",),
            target=None,
        ),
    ),
)

POOL: Final = (POOL_CALL, POOL_ROUTING, POOL_MAP, POOL_FIRST)
