"""The peers of jaxd, brought to the point where they can be measured."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Sampler, Variant
from benchmarks.isolation import loopback_only
from benchmarks.processes import Driver

SAMPLES_PER_ROUND = 64
"""Bytes of a large array that nobody sends."""


def naive(run: BenchmarkRun, nbytes: int = SAMPLES_PER_ROUND) -> Driver:
    """A client of the naive server."""
    port = run.service("benchmarks.naive_server")["port"]
    return run.driver("benchmarks.drivers.naive_calls", str(port), str(nbytes))


def ray(run: BenchmarkRun, nbytes: int = SAMPLES_PER_ROUND) -> Driver:
    """The driver of a Ray actor."""
    return run.driver(
        "benchmarks.drivers.ray_actor",
        str(run.directory / "ray"),
        str(nbytes),
        prefix=run.enter(loopback_only()),
        RAY_USAGE_STATS_ENABLED="0",
    )


def dask(run: BenchmarkRun, nbytes: int = SAMPLES_PER_ROUND) -> Driver:
    """A client of a Dask worker."""
    prefix = run.enter(loopback_only())
    return run.driver("benchmarks.drivers.dask_submit", str(nbytes), prefix=prefix)


def ray_variant(start: Callable[[BenchmarkRun], Sampler]) -> Variant:
    """One that a cluster of Ray is started for."""
    return Variant("Ray actor", start, ("ray", "jax"), "ray", is_restless=True)


def dask_variant(start: Callable[[BenchmarkRun], Sampler]) -> Variant:
    """One that a scheduler and a worker of Dask are started for."""
    return Variant("Dask submit", start, ("distributed", "jax"), "dask", is_restless=True)
