"""Small warm calls: one at a time against the peers, and many in flight on one connection."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.processes import Driver
from benchmarks.rows import peers


def _sampler(driver: Driver, what: str, calls: int) -> Sampler:
    return lambda: driver.seconds(what, calls)


def _jaxd(what: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.driver("benchmarks.drivers.jaxd_calls", run.own_server().unix)
        return _sampler(driver, what, run.sizes.calls)

    return start


def _echo(run: BenchmarkRun) -> Sampler:
    path = run.socket_path("echo")
    run.service("benchmarks.echo_server", path)
    driver = run.driver("benchmarks.drivers.rpyc_echo", path)
    return _sampler(driver, "small", run.sizes.calls)


def _local_jit(run: BenchmarkRun) -> Sampler:
    driver = run.driver("benchmarks.drivers.local_jit")
    return _sampler(driver, "small", run.sizes.calls)


def _peer(
    start: Callable[[BenchmarkRun], Driver], calls: str = "calls"
) -> Callable[[BenchmarkRun], Sampler]:
    return lambda run: _sampler(start(run), "small", getattr(run.sizes, calls))


_JAXD = ("jaxd", "jax")


def _recovering(seconds: str) -> Callable[[BenchmarkRun], Sampler]:
    """As `_jaxd("small")`, by a client with that `JAXD_SNAPSHOT_S`."""

    def start(run: BenchmarkRun) -> Sampler:
        address = run.own_server().unix
        driver = run.driver("benchmarks.drivers.jaxd_calls", address, JAXD_SNAPSHOT_S=seconds)
        return _sampler(driver, "small", run.sizes.calls)

    return start


SMALL_CALL = Row(
    name="small",
    title="Small call, warm, Unix socket, p50",
    variants=(
        Variant("jaxd", _jaxd("small"), needs=_JAXD),
        Variant("rpyc echo", _echo),
        Variant("local jit", _local_jit, needs=("jax",)),
        Variant("naive server", _peer(peers.naive), needs=("jax",)),
        peers.ray_variant(_peer(peers.ray)),
        peers.dask_variant(_peer(peers.dask, "slow_calls")),
    ),
    comparisons=(
        Comparison(
            "jaxd / (stock rpyc echo with a cached method + local jit dispatch)",
            over=("jaxd",),
            under=("rpyc echo", "local jit"),
            target=Target("at most", 0.9),
        ),
        Comparison(
            "naive server (rpyc ThreadedServer, cloudpickle, cached jit; TCP) / jaxd",
            over=("naive server",),
            under=("jaxd",),
            target=Target("at least", 3),
        ),
        Comparison(
            "Ray actor / jaxd",
            over=("Ray actor",),
            under=("jaxd",),
            target=Target("at least", 5),
        ),
        Comparison("Dask submit / jaxd", over=("Dask submit",), under=("jaxd",), target=None),
    ),
)

IN_FLIGHT = Row(
    name="in-flight",
    title="Small calls on one connection, seconds per call",
    variants=(
        Variant("one at a time", _jaxd("one at a time"), needs=_JAXD),
        Variant("submit, 64 in flight", _jaxd("submit"), needs=_JAXD),
        Variant("map", _jaxd("map"), needs=_JAXD),
        Variant("rpyc echo", _echo),
        Variant("local jit", _local_jit, needs=("jax",)),
    ),
    comparisons=(
        Comparison(
            "submit with 64 in flight / (stock rpyc echo + local jit dispatch)",
            over=("submit, 64 in flight",),
            under=("rpyc echo", "local jit"),
            target=Target("at most", 0.69),
        ),
        Comparison(
            "map / (stock rpyc echo + local jit dispatch)",
            over=("map",),
            under=("rpyc echo", "local jit"),
            target=Target("at most", 0.56),
        ),
        Comparison(
            "calls per second: map / one at a time",
            over=("one at a time",),
            under=("map",),
            target=None,
        ),
    ),
)


def _watched(run: BenchmarkRun) -> Sampler:
    address = run.own_server().unix
    calls = run.driver("benchmarks.drivers.jaxd_calls", address)
    watcher = run.driver("benchmarks.drivers.watching", address)

    def sample() -> float:
        with watcher.at_work():
            return calls.seconds("one at a time", run.sizes.calls)

    return sample


WATCHED = Row(
    name="watched",
    title="Small calls one at a time while somebody watches the server, seconds per call",
    variants=(
        Variant("unwatched", _jaxd("one at a time"), needs=_JAXD),
        Variant("watched", _watched, needs=_JAXD),
    ),
    comparisons=(
        Comparison(
            "watched twice a second / unwatched",
            over=("watched",),
            under=("unwatched",),
            target=Target("at most", 1.01),
        ),
    ),
)

SMALL_RECOVERY = Row(
    name="small-recovery",
    title="Small call, warm, where arrays die with their worker and where they are made again",
    variants=(
        Variant("off", _recovering("0"), needs=_JAXD),
        Variant("by default", _recovering(""), needs=_JAXD),
    ),
    comparisons=(
        Comparison("by default / off", ("by default",), ("off",), Target("at most", 1.01)),
    ),
)
