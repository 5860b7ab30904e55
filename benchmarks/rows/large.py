"""A 64 MB argument and a small result, against a raw socket of the same family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.stage import Stage

__all__ = ["LARGE_TCP", "LARGE_UNIX"]

Kind = Literal["tcp", "unix"]


def _jaxd(kind: Kind) -> Callable[[Stage], Sampler]:
    def start(stage: Stage) -> Sampler:
        server, size = stage.own_server(), str(stage.sizes.large_bytes)
        driver = stage.driver(
            "benchmarks.drivers.jaxd_calls",
            server.tcp if kind == "tcp" else server.unix,
            size,
            JAXD_TOKEN_FILE=server.token_file,
        )
        return lambda: driver.seconds("large", stage.sizes.large_calls)

    return start


def _raw(kind: Kind) -> Callable[[Stage], Sampler]:
    def start(stage: Stage) -> Sampler:
        size = str(stage.sizes.large_bytes)
        where = "127.0.0.1" if kind == "tcp" else stage.socket_path("raw")
        greeting = stage.service("benchmarks.raw_server", kind, where, size)
        target = str(greeting["port"]) if kind == "tcp" else where
        driver = stage.driver("benchmarks.drivers.raw_socket", kind, target, size)
        return lambda: driver.seconds("large", stage.sizes.large_calls)

    return start


def _row(kind: Kind, family: str) -> Row:
    return Row(
        name=f"large-{kind}",
        title=f"64 MB argument, small result, {family}",
        variants=(
            Variant("jaxd", _jaxd(kind), needs=("jaxd", "jax")),
            Variant("raw socket", _raw(kind)),
        ),
        comparisons=(
            Comparison(
                "jaxd / raw socket into a fresh buffer",
                over=("jaxd",),
                under=("raw socket",),
                target=Target("at most", 1.2),
            ),
        ),
    )


LARGE_TCP = _row("tcp", "loopback TCP")
LARGE_UNIX = _row("unix", "Unix socket")
