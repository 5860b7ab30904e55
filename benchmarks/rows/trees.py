"""Arguments and results of many small leaves on the host, beside `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.drivers.trees import ARRAYS, NUMBERS
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant

_DRIVER: Final = "benchmarks.drivers.trees"


def _timed(what: str, *, by_jaxd: bool) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = run.driver(_DRIVER, run.own_server().unix if by_jaxd else "jit")
        return lambda: driver.seconds(what, run.sizes.slow_calls)

    return start


def _row(name: str, what: str) -> Row:
    return Row(
        name=name,
        title=f"A dict of {what} on the host, to the device and back",
        variants=(
            Variant("jax.jit", _timed(what, by_jaxd=False), needs=("jax",)),
            Variant("jaxd", _timed(what, by_jaxd=True), needs=("jaxd", "jax")),
        ),
        comparisons=(
            Comparison(
                "jaxd / jax.jit with results on the host",
                over=("jaxd",),
                under=("jax.jit",),
                target=Target("at most", 0.4),
            ),
        ),
    )


TREES: Final = (
    *(_row(f"trees-{count}", f"{count} numbers") for count in NUMBERS),
    _row("trees-arrays", f"{ARRAYS} arrays"),
)
