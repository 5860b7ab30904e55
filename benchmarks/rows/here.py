"""Programs that come to the caller's process: `place="here"`, beside `jax.jit`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.rows.fresh import CACHE_EVERYTHING, time_program

_TRAIN = str(Path(__file__).resolve().parent.parent / "programs" / "train.py")
_CALLS = "benchmarks.drivers.here_calls"
_LOOP = "benchmarks.drivers.training_loop"
_JAXD: Final = ("jaxd", "jax")
_OF_LOOP: Final = ("jax", "flax", "optax")


def _fresh(mode: str, place: str) -> Variant:
    def start(run: BenchmarkRun) -> Sampler:
        extra = {"JAXD_SERVER": run.own_server().unix, "JAXD_PLACE": place}
        return time_program(run, _TRAIN, mode, str(run.sizes.blocks), **extra)

    return Variant(place, start, _JAXD)


HERE_FRESH: Final = Row(
    name="here-fresh",
    title="Fresh process that imports jax, to first result: the train step, already known",
    variants=(_fresh("jaxd-and-jax", "server"), _fresh("jaxd-and-jax", "here")),
    comparisons=(
        Comparison("place: here / server", ("here",), ("server",), Target("at most", 1.05)),
    ),
)


def _loop_of_jit(run: BenchmarkRun) -> Sampler:
    driver = run.driver(_LOOP, "jit")
    run.agree("loss of the tenth step", driver.figure("loss", 1))
    return lambda: driver.seconds("step", run.sizes.steps)


def _loop_here(run: BenchmarkRun) -> Sampler:
    server = run.own_server()
    extra = {"JAXD_TOKEN_FILE": server.token_file, "JAXD_PLACE": "here"}
    driver = run.driver(_LOOP, server.unix, **extra)
    run.agree("loss of the tenth step", driver.figure("loss", 1))
    return lambda: driver.seconds("step", run.sizes.steps)


HERE_TRAINING: Final = Row(
    name="here-training",
    title="Training loop of flax and optax, 200 arrays of state, in the caller's process",
    variants=(
        Variant("jax.jit", _loop_of_jit, _OF_LOOP),
        Variant("here", _loop_here, ("jaxd", *_OF_LOOP)),
    ),
    comparisons=(
        Comparison(
            "steps per second: here / jax.jit", ("jax.jit",), ("here",), Target("at least", 0.98)
        ),
    ),
)


def _tiny_jit(run: BenchmarkRun) -> Sampler:
    driver = run.driver(_CALLS, "jit")
    return lambda: driver.seconds("tiny", run.sizes.calls)


def _tiny_here(run: BenchmarkRun) -> Sampler:
    driver = run.driver(_CALLS, run.own_server().unix)
    return lambda: driver.seconds("tiny", run.sizes.calls)


HERE_TINY: Final = Row(
    name="here-tiny",
    title="A function of two operations in a loop, in the caller's process",
    variants=(Variant("jax.jit", _tiny_jit, ("jax",)), Variant("here", _tiny_here, _JAXD)),
    comparisons=(Comparison("here / jax.jit", ("here",), ("jax.jit",), Target("at most", 1.1)),),
)


def _first_with_disk_cache(run: BenchmarkRun) -> Sampler:
    extra = {"JAX_COMPILATION_CACHE_DIR": str(run.directory / "jax-cache"), **CACHE_EVERYTHING}

    def sample() -> float:
        with run.fresh() as own:
            return own.driver(_CALLS, "jit", **extra).seconds("first", 1)

    return sample


def _first_here(run: BenchmarkRun) -> Sampler:
    address = run.own_server().unix

    def sample() -> float:
        with run.fresh() as own:
            return own.driver(_CALLS, address).seconds("first", 1)

    return sample


HERE_PROGRAMS: Final = Row(
    name="here-programs",
    title="Sixty small programs in a fresh process, called three times each, already known",
    variants=(
        Variant("jax, disk cache", _first_with_disk_cache, ("jax",)),
        Variant("here", _first_here, _JAXD),
    ),
    comparisons=(
        Comparison(
            "plain jax with its disk cache warm / here",
            ("jax, disk cache",),
            ("here",),
            Target("at least", 2),
        ),
    ),
)
