"""The peers of jaxd, brought to the point where they can be measured."""

from __future__ import annotations

from benchmarks.isolation import loopback_only
from benchmarks.processes import Driver
from benchmarks.stage import Stage

__all__ = ["dask", "naive", "ray"]

FEW = 64
"""Bytes of a large array that nobody sends."""


def naive(stage: Stage, nbytes: int = FEW) -> Driver:
    """A client of the naive server."""
    port = stage.service("benchmarks.naive_server")["port"]
    return stage.driver("benchmarks.drivers.naive_calls", str(port), str(nbytes))


def ray(stage: Stage, nbytes: int = FEW) -> Driver:
    """The driver of a Ray actor."""
    return stage.driver(
        "benchmarks.drivers.ray_actor",
        str(stage.directory / "ray"),
        str(nbytes),
        prefix=stage.enter(loopback_only()),
        RAY_USAGE_STATS_ENABLED="0",
    )


def dask(stage: Stage, nbytes: int = FEW) -> Driver:
    """A client of a Dask worker."""
    prefix = stage.enter(loopback_only())
    return stage.driver("benchmarks.drivers.dask_submit", str(nbytes), prefix=prefix)
