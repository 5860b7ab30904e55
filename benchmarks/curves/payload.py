"""Curves of what one call moves: more leaves, and more bytes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.curves.curve import Curve, Line, Sample
from benchmarks.processes import Driver, NotMeasurable

_KB: Final = 2**10
_MB: Final = 2**20
_LEAVES_OF_A_ROUND: Final = 20_000
_BYTES_OF_A_ROUND: Final = 256 * _MB
_MOST_CALLS: Final = 100


def _start_leaves(run: BenchmarkRun, _: int) -> Sample:
    address = run.own_server().unix

    def sample(count: int) -> dict[str, float]:
        calls = max(5, min(_MOST_CALLS, _LEAVES_OF_A_ROUND // count))
        figures = {}
        for what, where in (("jaxd", address), ("jax.jit", "jit")):
            start = partial(run.driver, "benchmarks.drivers.leaves", where, str(count))
            driver = run.shared(f"{what} {count}", start)
            figures[f"leaves on the host, there and back, {what}"] = driver.figure("host", calls)
            figures[f"step of a state on the device, {what}"] = driver.figure("state", calls)
        return figures

    return sample


LEAVES: Final = Curve(
    name="leaves",
    title="Leaves",
    each="leaf",
    sizes=(1, 10, 100, 1000, 4000),
    quick_sizes=(1, 20),
    lines=(
        Line("leaves on the host, there and back, jaxd", "s"),
        Line("leaves on the host, there and back, jax.jit", "s"),
        Line("step of a state on the device, jaxd", "s"),
        Line("step of a state on the device, jax.jit", "s"),
    ),
    start=_start_leaves,
    about=(
        "A dict of so many arrays of 64 bytes. On the host: given as numpy arrays, and the "
        "results come back. On the device: the state of a loop that stays on the server, "
        "given up and returned by each step, several steps in flight."
    ),
    bound=(
        "On the host jax and XLA in the worker: each leaf is an argument, a result and a "
        "buffer of its own. In a profile (perf) of 4,000 leaves three quarters of the "
        "processor's time are the worker's, of which four fifths are malloc and XLA; the rest "
        "is the client's interpreter, which packs and reads. For a state on the device the "
        "client's interpreter takes a quarter of it, a third of that collecting garbage, "
        "because each leaf is an object there; the worker has the rest, three quarters of it "
        "again XLA and malloc."
    ),
)


def _start_bytes(run: BenchmarkRun, _: int) -> Sample:
    server = run.own_server()

    def transfer(address: str, route: str) -> Callable[[BenchmarkRun, int], Driver]:
        return lambda own, size: own.driver(
            "benchmarks.drivers.transfer",
            address,
            str(size),
            route,
            JAXD_TOKEN_FILE=server.token_file,
        )

    def raw(kind: Literal["unix", "tcp"]) -> Callable[[BenchmarkRun, int], Driver]:
        def start(own: BenchmarkRun, size: int) -> Driver:
            where = "127.0.0.1" if kind == "tcp" else own.socket_path("raw")
            greeting = own.service("benchmarks.raw_server", kind, where, str(size))
            target = str(greeting["port"]) if kind == "tcp" else where
            return own.driver("benchmarks.drivers.raw_socket", kind, target, str(size))

        return start

    ways: dict[str, tuple[str, Callable[[BenchmarkRun, int], Driver]]] = {
        "Unix socket": ("put", transfer(server.unix, "socket")),
        "raw Unix socket": ("large", raw("unix")),
        "TCP": ("put", transfer(server.tcp, "socket")),
        "raw TCP socket": ("large", raw("tcp")),
        "shared memory": ("put", transfer(server.unix, "shared")),
        "memory copy": (
            "copy",
            lambda own, size: own.driver("benchmarks.drivers.memory_copy", str(size)),
        ),
    }

    def sample(size: int) -> dict[str, float]:
        calls = max(2, min(_MOST_CALLS, _BYTES_OF_A_ROUND // size))
        figures = {}
        for name, (what, start) in ways.items():
            with run.fresh() as own:  # else each would keep its gigabytes
                try:
                    figures[name] = start(own, size).figure(what, calls)
                except NotMeasurable:  # what is small does not go through shared memory
                    continue
        return figures

    return sample


BYTES: Final = Curve(
    name="bytes",
    title="Bytes",
    each="MB",
    each_size=_MB,
    sizes=(64 * _KB, _MB, 16 * _MB, 64 * _MB, 256 * _MB, 1024 * _MB),
    quick_sizes=(64 * _KB, _MB),
    lines=tuple(
        Line(name, "s")
        for name in (
            "Unix socket",
            "raw Unix socket",
            "TCP",
            "raw TCP socket",
            "shared memory",
            "memory copy",
        )
    ),
    start=_start_bytes,
    about=(
        "An array of float32, another one each time, is put on the server, and a function "
        "called with what is there reads eight of its numbers. Below that the same bytes over "
        "a plain socket into a fresh buffer, and by a copy in memory that was in use before."
    ),
    bound=(
        "Memory. In a profile (perf) of 256 MB by socket four fifths of the client's time and "
        "three quarters of the worker's are the kernel: copying into the socket and out of "
        "it, and, as much again in the worker, clearing and mapping pages for a new array "
        "(page faults); the copy into jax's array is another sixth. Through shared memory the "
        "client's time is one copy (memmove), and the worker's is pages and a copy."
    ),
)
