"""Executables: after a restart, when they are called, and while others are made beside them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.rows.fresh import CACHE_EVERYTHING

_FIRST_CALL = "benchmarks.drivers.first_call"


def _first_call(*arguments: str, **extra: str) -> Callable[[BenchmarkRun], float]:
    def seconds(run: BenchmarkRun) -> float:
        blocks = str(run.sizes.blocks)
        how, *more = arguments
        return run.driver(_FIRST_CALL, how, blocks, *more, **extra).seconds("first", 1)

    return seconds


def _after_restart(run: BenchmarkRun) -> Sampler:
    """A new server each time, over the folder that the first one has filled."""

    def sample() -> float:
        with run.fresh() as own:
            return _first_call("jaxd", own.own_server().unix)(own)

    return sample


def _with_disk_cache(run: BenchmarkRun) -> Sampler:
    def sample() -> float:
        with run.fresh() as own:
            folder = str(run.directory / "jax-cache")
            call = _first_call("jax", JAX_COMPILATION_CACHE_DIR=folder, **CACHE_EVERYTHING)
            return call(own)

    return sample


RESTART = Row(
    name="restart",
    title="Restarted server to first result of the train step, from worker ready",
    variants=(
        Variant("jaxd", _after_restart, needs=("jaxd", "jax")),
        Variant("jax, disk cache", _with_disk_cache, needs=("jax",)),
    ),
    comparisons=(
        Comparison(
            "jaxd / plain jax with its disk cache warm, from its import on",
            over=("jaxd",),
            under=("jax, disk cache",),
            target=Target("at most", 0.7),
        ),
    ),
)


def _dispatch(what: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.driver("benchmarks.drivers.dispatch")
        return lambda: driver.seconds(what, run.sizes.calls)

    return start


DISPATCH = Row(
    name="dispatch",
    title="A warm executable inside the server, numpy arguments, until the result is there",
    variants=tuple(
        Variant(what, _dispatch(what), needs=("jaxd", "jax"))
        for what in ("one, executable", "one, jit", "fifty, executable", "fifty, jit")
    ),
    comparisons=(
        Comparison(
            "one array: executable / jax.jit",
            ("one, executable",),
            ("one, jit",),
            Target("at most", 1.2),
        ),
        Comparison(
            "a dict of fifty: executable / jax.jit",
            ("fifty, executable",),
            ("fifty, jit",),
            Target("at most", 1.2),
        ),
    ),
)


def _alone(run: BenchmarkRun) -> Sampler:
    driver = run.driver("benchmarks.drivers.jaxd_calls", run.own_server().unix)
    return lambda: driver.seconds("small, p99", run.sizes.many_calls)


def _beside_builds(run: BenchmarkRun) -> Sampler:
    address = run.own_server().unix
    calls = run.driver("benchmarks.drivers.jaxd_calls", address)
    builds = run.driver("benchmarks.drivers.builds", address, str(run.sizes.blocks))

    def sample() -> float:
        with builds.at_work():
            return calls.seconds("small, p99", run.sizes.many_calls)

    return sample


BESIDE_BUILDS = Row(
    name="beside",
    title="Small warm call while another client has new train steps traced and compiled, p99",
    variants=(
        Variant("alone", _alone, needs=("jaxd", "jax")),
        Variant("beside builds", _beside_builds, needs=("jaxd", "jax")),
    ),
    comparisons=(
        Comparison("p99 beside builds / 2 ms", ("beside builds",), (), Target("at most", 1), 2e-3),
        Comparison("p99 beside builds / alone", ("beside builds",), ("alone",), target=None),
    ),
)
