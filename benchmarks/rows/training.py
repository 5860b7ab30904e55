"""A plain training loop, against the same with `jax.jit`: steps, and bytes moved for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.harness import Comparison, Row, Sampler, Target, Variant
from benchmarks.processes import Driver

_NEEDS: Final = ("jax", "flax", "optax")
_JAXD: Final = ("jaxd", *_NEEDS)
_MESSAGES: Final = 1 << 14
"""Bytes of a step that are neither batch nor loss: where the state lies, and what it is."""

Link = Literal["unix", "tcp", "slow"]


_ONE_THREAD: Final = {"NPROC": "1"}
"""Has XLA compute in one thread, so that a core is left for Python, as beside an accelerator."""


def _driver(run: BenchmarkRun, where: str, kind: str = "plain", **extra: str) -> Driver:
    """One that has trained for a while, and computes what the others do."""
    token = run.own_server(**extra).token_file if "://" in where else ""
    module = "benchmarks.drivers.training_loop"
    driver = run.driver(module, where, kind, JAXD_TOKEN_FILE=token, **extra)
    run.agree(f"loss of the tenth step, {kind}", driver.figure("loss", 1))
    return driver


def _jit(run: BenchmarkRun) -> Sampler:
    driver = _driver(run, "jit")
    return lambda: driver.seconds("step", run.sizes.steps)


def _jaxd(link: Link, what: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = _driver(run, _address(run, link))
        steps = run.sizes.steps // 4 if link == "slow" else run.sizes.steps
        return lambda: driver.figure(what, max(1, steps))

    return start


def _address(run: BenchmarkRun, link: Link) -> str:
    server = run.own_server()
    if link == "slow":
        port = server.tcp.rpartition(":")[2]
        return f"tcp://127.0.0.1:{run.service('benchmarks.slow_link', port)['port']}"
    return server.unix if link == "unix" else server.tcp


TRAINING: Final = Row(
    name="training",
    title="Training loop of flax and optax, 200 arrays of state, seconds per step",
    variants=(
        Variant("jax.jit", _jit, _NEEDS),
        Variant("jaxd", _jaxd("unix", "step"), _JAXD),
        Variant("jaxd, TCP", _jaxd("tcp", "step"), _JAXD),
        Variant("jaxd, 100 Mbit/s", _jaxd("slow", "step"), _JAXD),
    ),
    comparisons=(
        Comparison(
            "steps per second: jaxd / jax.jit", ("jax.jit",), ("jaxd",), Target("at least", 0.95)
        ),
        Comparison("steps per second: jaxd, TCP / jax.jit", ("jax.jit",), ("jaxd, TCP",), None),
        Comparison(
            "steps per second: jaxd, 100 Mbit/s / jax.jit",
            ("jax.jit",),
            ("jaxd, 100 Mbit/s",),
            None,
        ),
    ),
)


def _one_thread(where: Literal["jit", "unix"]) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        address = where if where == "jit" else run.own_server(**_ONE_THREAD).unix
        driver = _driver(run, address, **_ONE_THREAD)
        return lambda: driver.figure("step", run.sizes.steps)

    return start


TRAINING_ONE_THREAD: Final = Row(
    name="training-one-thread",
    title="The same loop where XLA computes in one thread, and leaves a core to Python",
    variants=(
        Variant("jax.jit", _one_thread("jit"), _NEEDS),
        Variant("jaxd", _one_thread("unix"), _JAXD),
    ),
    comparisons=(
        Comparison(
            "steps per second: jaxd / jax.jit", ("jax.jit",), ("jaxd",), Target("at least", 0.95)
        ),
    ),
)


def _recovering(seconds: str) -> Callable[[BenchmarkRun], Sampler]:
    """By a client with that `JAXD_SNAPSHOT_S`."""

    def start(run: BenchmarkRun) -> Sampler:
        address = run.own_server().unix
        module = "benchmarks.drivers.training_loop"
        driver = run.driver(module, address, JAXD_SNAPSHOT_S=seconds)
        run.agree("loss of the tenth step, plain", driver.figure("loss", 1))
        return lambda: driver.figure("step", run.sizes.steps)

    return start


TRAINING_RECOVERY: Final = Row(
    name="training-recovery",
    title="The same loop where its arrays die with their worker and where they are made again",
    variants=(
        Variant("off", _recovering("0"), _JAXD),
        Variant("by default", _recovering(""), _JAXD),
    ),
    comparisons=(
        Comparison("by default / off", ("by default",), ("off",), Target("at most", 1.03)),
    ),
)

_KINDS: Final = {
    "leaf-read": "one array of the state is read after each step",
    "step-replaced": "`state.replace(step=…)` before each step",
    "averaged": "an average of the parameters is kept by the caller",
    "accumulated": "gradients of four batches are added up",
    "two-models": "two models take turns",
}


def _of_kind(where: Literal["jit", "unix"], kind: str) -> Callable[[BenchmarkRun], Sampler]:
    def start(run: BenchmarkRun) -> Sampler:
        driver = _driver(run, where if where == "jit" else run.own_server().unix, kind)
        return lambda: driver.figure("step", run.sizes.steps)

    return start


def _kind_row(kind: str, what: str) -> Row:
    return Row(
        name=f"training-{kind}",
        title=f"The same loop, where {what}; seconds per step",
        variants=(
            Variant("jax.jit", _of_kind("jit", kind), _NEEDS),
            Variant("jaxd", _of_kind("unix", kind), _JAXD),
        ),
        comparisons=(
            Comparison(
                "steps per second: jaxd / jax.jit", ("jax.jit",), ("jaxd",), Target("at least", 0.9)
            ),
        ),
    )


TRAINING_KINDS: Final = tuple(_kind_row(kind, what) for kind, what in _KINDS.items())

# Written here as well, because who has no flax cannot import the program; a test compares them.
BATCH_BYTES: Final = 64 * (128 + 1) * 4
_LOSS_BYTES: Final = 4


def _budget(name: str, content: str, nbytes: int) -> Comparison:
    text = f"{name} / ({content} + 16 kB)"
    return Comparison(text, (name,), (), Target("at most", 1), nbytes + _MESSAGES)


TRAINING_BYTES: Final = Row(
    name="training-bytes",
    title="Bytes moved for each of its steps",
    variants=(
        Variant("to the server", _jaxd("unix", "sent"), _JAXD),
        Variant("from the server", _jaxd("unix", "received"), _JAXD),
        Variant("to the server, 100 Mbit/s", _jaxd("slow", "sent"), _JAXD),
        Variant("from the server, 100 Mbit/s", _jaxd("slow", "received"), _JAXD),
    ),
    comparisons=(
        _budget("to the server", "batch", BATCH_BYTES),
        _budget("from the server", "loss", _LOSS_BYTES),
        _budget("to the server, 100 Mbit/s", "batch", BATCH_BYTES),
        _budget("from the server, 100 Mbit/s", "loss", _LOSS_BYTES),
    ),
    unit="B",
)
