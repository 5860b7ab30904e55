"""The rows for an accelerator, beside plain jax on it: `python -m benchmarks --accelerator`.

A GPU may be there for minutes only, so each row has a time limit, and those come first that
have not been measured yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.processes import Driver
from benchmarks.rows import transfer
from benchmarks.rows.executables import BESIDE_BUILDS, RESTART
from benchmarks.rows.fresh import CACHE_EVERYTHING, FRESH_PROCESS, time_program

_GPT: Final = str(Path(__file__).resolve().parent.parent / "programs" / "gpt.py")
_FLAX: Final = ("jax", "flax")
_JAXD: Final = ("jaxd", "jax")
_MB: Final = 2**20
_CACHE: Final = "jax-cache-of-gpt"


def _with_disk_cache(run: BenchmarkRun) -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(run.directory / _CACHE), **CACHE_EVERYTHING}


# a training loop ----------------------------------------------------------------------------------


def _loop(run: BenchmarkRun, where: str) -> Driver:
    """One that all lengths of a step share: it compiles half a minute, and holds the model."""

    def start() -> Driver:
        address = "jit" if where == "jit" else run.own_server().unix
        cache = _with_disk_cache(run) if where == "jit" else {}
        return run.driver("benchmarks.drivers.gpt_loop", address, run.sizes.gpt, **cache)

    return run.shared(f"loop, {where}", start)


def _steps_of(where: str, milliseconds: int) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        aim = milliseconds if run.sizes.gpt == "124M" else milliseconds // 5
        passes = run.shared(f"passes, {aim}", lambda: int(_loop(run, "jit").figure("passes", aim)))
        driver = _loop(run, where)
        steps = max(10, run.sizes.steps * 5 // milliseconds)

        def sample() -> float:
            driver.figure("repeats", passes)
            return driver.seconds("step", steps)

        return sample

    return start


_LENGTHS: Final = {5: 0.97, 20: 1.0, 100: 1.0}
"""Milliseconds of a step, and how many of the local steps per second are wanted."""

LOOP: Final = Row(
    name="gpt-loop",
    title="Training loop of a GPT of 124M parameters, state on the device, seconds per step",
    variants=tuple(
        Variant(f"{name}, {ms} ms", _steps_of(where, ms), needs)
        for ms in _LENGTHS
        for name, where, needs in (("jax.jit", "jit", _FLAX), ("jaxd", "jaxd", ("jaxd", *_FLAX)))
    ),
    comparisons=tuple(
        Comparison(
            f"steps per second at {ms} ms: jaxd / jax.jit",
            (f"jax.jit, {ms} ms",),
            (f"jaxd, {ms} ms",),
            Target("at least", share),
        )
        for ms, share in _LENGTHS.items()
    ),
)

# large arguments and results ----------------------------------------------------------------------


def _moves(what: str, nbytes: int) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        size = min(nbytes, run.sizes.most_bytes)
        driver = run.driver("benchmarks.drivers.device_put", str(size))
        return lambda: driver.seconds(what, run.sizes.large_calls(size))

    return start


def _argument(name: str, nbytes: int) -> Row:
    return Row(
        name=f"device-{name.replace(' ', '')}",
        title=f"{name} argument that is another one each time, small result",
        variants=(
            Variant("jax.device_put", _moves("put", nbytes), ("jax",)),
            Variant("jaxd", transfer.with_jaxd("unix", "any", "argument", nbytes), _JAXD),
            Variant("memory copy", transfer.memory_copy(nbytes)),
        ),
        comparisons=(
            Comparison(
                "bytes per second: jaxd / jax.device_put",
                ("jax.device_put",),
                ("jaxd",),
                Target("at least", 0.8),
            ),
            Comparison("jaxd / one memory copy", ("jaxd",), ("memory copy",), None),
        ),
    )


_FETCHED: Final = 64 * _MB

FETCH: Final = Row(
    name="device-fetch",
    title="64 MB result, fetched",
    variants=(
        Variant("jax, to numpy", _moves("fetch", _FETCHED), ("jax",)),
        Variant("jaxd", transfer.with_jaxd("unix", "any", "fetch", _FETCHED), _JAXD),
    ),
    comparisons=(
        Comparison(
            "bytes per second: jaxd / np.array of the device's array",
            ("jax, to numpy",),
            ("jaxd",),
            None,
        ),
    ),
)

# small calls --------------------------------------------------------------------------------------


def _calls(what: str, most: int, **extra: str) -> Callable[[BenchmarkRun], Sampler]:
    """Of a client of the common server; with `extra`, of one that has these variables."""

    def start(run: BenchmarkRun) -> Sampler:
        server = run.another_server(**extra) if extra else run.own_server()
        driver = run.driver("benchmarks.drivers.jaxd_calls", server.unix)
        return lambda: driver.seconds(what, min(most, run.sizes.calls * 2))

    return start


def _jit(run: BenchmarkRun) -> Sampler:
    driver = run.driver("benchmarks.drivers.local_jit")
    return lambda: driver.seconds("small", run.sizes.calls)


SMALL: Final = Row(
    name="device-small",
    title="Small call, warm, Unix socket, p50",
    variants=(
        Variant("jaxd", _calls("small", 500), _JAXD),
        Variant("jaxd, CPU server", _calls("small", 500, JAX_PLATFORMS="cpu"), _JAXD),
        Variant("jax.jit", _jit, ("jax",)),
    ),
    comparisons=(
        Comparison(
            "jaxd / the same on a CPU server",
            ("jaxd",),
            ("jaxd, CPU server",),
            Target("at most", 1.3),
        ),
        Comparison("jaxd / jax.jit in the process", ("jaxd",), ("jax.jit",), None),
    ),
)

MAP: Final = Row(
    name="device-map",
    title="`map` of 1,000 small calls, seconds per call",
    variants=(
        Variant("jaxd", _calls("map", 1000), _JAXD),
        Variant("jaxd, one at a time", _calls("one at a time", 1000), _JAXD),
        Variant("jax.jit", _jit, ("jax",)),
    ),
    comparisons=(
        Comparison(
            "calls per second: map / one at a time", ("jaxd, one at a time",), ("jaxd",), None
        ),
        Comparison("map / jax.jit in the process", ("jaxd",), ("jax.jit",), None),
    ),
)

# whole processes ----------------------------------------------------------------------------------


def _gpt_with_jaxd(run: BenchmarkRun) -> Sampler:
    server = run.own_server().unix
    return time_program(run, _GPT, "jaxd", run.sizes.gpt, JAXD_SERVER=server)


def _gpt_with_disk_cache(run: BenchmarkRun) -> Sampler:
    return time_program(run, _GPT, "jit", run.sizes.gpt, **_with_disk_cache(run))


FRESH_GPT: Final = Row(
    name="gpt-fresh",
    title="Fresh process to first loss of the GPT, already known",
    variants=(
        Variant("jaxd", _gpt_with_jaxd, ("jaxd", *_FLAX)),
        Variant("jax, disk cache", _gpt_with_disk_cache, _FLAX),
    ),
    comparisons=(
        Comparison(
            "plain jax with its disk cache warm / jaxd",
            ("jax, disk cache",),
            ("jaxd",),
            Target("at least", 10),
        ),
    ),
)


def _part_of(row: Row, name: str, *variants: str) -> Row:
    """Another row with these variants, and the comparisons that need no others."""
    kept = tuple(each for each in row.comparisons if {*each.over, *each.under} <= {*variants})
    chosen = tuple(each for each in row.variants if each.name in variants)
    return replace(row, name=name, variants=chosen, comparisons=kept)


LIMITS: Final[dict[Row, float]] = {
    LOOP: 200.0,
    _argument("1 GB", 1024 * _MB): 60.0,
    _argument("64 MB", 64 * _MB): 40.0,
    FETCH: 40.0,
    replace(RESTART, name="device-restart"): 90.0,
    MAP: 40.0,
    replace(BESIDE_BUILDS, name="device-beside"): 90.0,
    SMALL: 50.0,
    FRESH_GPT: 140.0,
    _part_of(FRESH_PROCESS, "device-fresh", "jaxd", "jax, disk cache"): 120.0,
}
"""The rows in their order, and seconds after which no further round of one begins."""
