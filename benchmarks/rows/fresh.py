"""Whole processes, from fork to exit, whose function the server already knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant

_PROGRAMS = Path(__file__).resolve().parent.parent / "programs"

CACHE_EVERYTHING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


def time_program(run: BenchmarkRun, *command: str, **extra: str) -> Sampler:
    """Times one whole process a round; a fact that it prints must agree with the others'."""

    def sample() -> float:
        seconds, output = run.process_seconds(*command, **extra)
        if output:
            fact, value = output.split()
            run.agree(fact, float(value))
        return seconds

    return sample


def _train(mode: str, **extra: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        blocks = str(run.sizes.blocks)
        return time_program(run, str(_PROGRAMS / "train.py"), mode, blocks, **extra)

    return start


def _train_with_jaxd(mode: str) -> Callable[[BenchmarkRun], Sampler]:
    return lambda run: _train(mode, JAXD_SERVER=run.own_server().unix)(run)


def _train_with_disk_cache(run: BenchmarkRun) -> Sampler:
    folder = str(run.directory / "jax-cache")
    return _train("jax", JAX_COMPILATION_CACHE_DIR=folder, **CACHE_EVERYTHING)(run)


def _scalar_with_jaxd(run: BenchmarkRun) -> Sampler:
    return time_program(run, str(_PROGRAMS / "scalar.py"), JAXD_SERVER=run.own_server().unix)


FRESH_PROCESS = Row(
    name="fresh",
    title="Fresh process to first result: a train step of 16 attention blocks, already known",
    variants=(
        Variant("imports", _train("imports")),
        Variant("jaxd", _train_with_jaxd("jaxd"), needs=("jaxd", "jax")),
        Variant("jax, disk cache", _train_with_disk_cache, needs=("jax",)),
        Variant("jax, cold", _train("jax", JAX_ENABLE_COMPILATION_CACHE="0"), needs=("jax",)),
        Variant("jax imports", _train("jax-imports"), needs=("jax",)),
        Variant("jaxd and jax", _train_with_jaxd("jaxd-and-jax"), needs=("jaxd", "jax")),
    ),
    comparisons=(
        Comparison(
            "jaxd / a process that only imports numpy, rpyc and cloudpickle",
            over=("jaxd",),
            under=("imports",),
            target=Target("at most", 1.25),
        ),
        Comparison(
            "plain jax with its disk cache warm / jaxd",
            over=("jax, disk cache",),
            under=("jaxd",),
            target=Target("at least", 10),
        ),
        Comparison("plain jax, cold / jaxd", over=("jax, cold",), under=("jaxd",), target=None),
        Comparison(
            "jaxd in a script that imports jax at its top / (those imports + 0.1 s)",
            over=("jaxd and jax",),
            under=("jax imports",),
            target=Target("at most", 1),
            allowance=0.1,
        ),
    ),
)

FRESH_SCALAR = Row(
    name="scalar",
    title="Fresh process without arrays: start, reply, exit",
    variants=(
        Variant("imports", lambda run: time_program(run, "-c", "import rpyc, cloudpickle")),
        Variant("jaxd", _scalar_with_jaxd, needs=("jaxd", "jax")),
        Variant("interpreter", lambda run: time_program(run, "-c", "pass")),
    ),
    comparisons=(
        Comparison(
            "jaxd / python -c 'import rpyc, cloudpickle'",
            over=("jaxd",),
            under=("imports",),
            target=Target("at most", 1.25),
        ),
    ),
)
