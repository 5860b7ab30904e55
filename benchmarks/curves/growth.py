"""Curves of what a server has more and more of: clients, functions, values."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Final

from benchmarks.benchmark_run import BenchmarkRun
from benchmarks.curves.curve import Curve, Line, Sample
from benchmarks.curves.process_facts import resident_bytes, thread_count
from benchmarks.own_server import OwnServer
from benchmarks.processes import Driver

_GROWING: Final = "benchmarks.drivers.growing"
_MOST_PROCESSES: Final = 4
"""That clients are shared out among, evenly."""

_IDLE_AFTER_S: Final = 1.5
"""Seconds without a call after which the server has let the threads of its clients go."""

_MOST_EXECUTABLES: Final = 400
_IN_TURN: Final = 100
"""Functions that are called one after another, beginning with the oldest."""


@contextmanager
def _fresh_server(run: BenchmarkRun) -> Iterator[tuple[BenchmarkRun, OwnServer]]:
    """A server with nothing in it, so that its memory says what was added."""
    with run.fresh() as own:
        yield own, own.own_server()


def _start_clients(run: BenchmarkRun, _: int) -> Sample:
    def sample(count: int) -> dict[str, float]:
        processes = min(count, _MOST_PROCESSES)
        with _fresh_server(run) as (own, server):
            alone = resident_bytes(server.worker_pid())
            drivers = [
                own.driver("benchmarks.drivers.many_clients", server.unix, str(count // processes))
                for _ in range(processes)
            ]
            calls = own.sizes.calls
            p50, p99 = (drivers[0].figure(what, calls) for what in ("p50", "p99"))
            time.sleep(_IDLE_AFTER_S)
            threads = thread_count(server.worker_pid())
            rates = _all_at_once(drivers, "rate", calls)
            return {
                "small call of one, the others idle, p50": p50,
                "small call of one, the others idle, p99": p99,
                "calls in a second, all calling": sum(rates),
                "threads of the worker": threads,
                "memory of the worker": resident_bytes(server.worker_pid()) - alone,
                "memory of the clients": sum(d.figure("memory", 1) for d in drivers),
            }

    return sample


def _all_at_once(drivers: Sequence[Driver], what: str, calls: int) -> list[float]:
    with ThreadPoolExecutor(len(drivers)) as pool:
        return list(pool.map(lambda driver: driver.figure(what, calls), drivers))


CLIENTS: Final = Curve(
    name="clients",
    title="Clients",
    each="client",
    sizes=(1, 8, 64, 256),
    quick_sizes=(1, 8),
    lines=(
        Line("small call of one, the others idle, p50", "s"),
        Line("small call of one, the others idle, p99", "s"),
        Line("calls in a second, all calling", "/s"),
        Line("threads of the worker", ""),
        Line("memory of the worker", "B"),
        Line("memory of the clients", "B"),
    ),
    start=_start_clients,
    about=(
        "Each client has a connection and a session of its own, and has called once. They are "
        "shared out among four processes; when all call, each process calls on its own "
        "clients one after another, beside the other processes. Memory of the worker is what "
        "it has more than before the first client came; that of the clients is of their "
        "processes, without what is mapped from files."
    ),
    bound=(
        "An idle client costs neither time nor a thread, only memory: threads are counted when "
        "nobody has called for a second. When all call, the interpreters are busy, that of the "
        "worker first: in a profile (perf) of 64 clients two fifths of the worker's time are "
        "the interpreter and a third is the kernel, mostly changing threads; jax has a tenth."
    ),
)


def _start_functions(run: BenchmarkRun, most: int) -> Sample:
    with _fresh_server(run) as (own, server):  # traces and compiles, once for all rounds
        own.driver(_GROWING, "functions", server.unix, str(most))

    def sample(count: int) -> dict[str, float]:
        with _fresh_server(run) as (own, server):
            alone = resident_bytes(server.worker_pid())
            driver = own.driver(_GROWING, "functions", server.unix, str(count))
            memory = resident_bytes(server.worker_pid()) - alone
            return {
                "small call of the last one": driver.figure("small", own.sizes.calls),
                "each in turn": driver.figure("each", _IN_TURN),
                "programs in memory": driver.figure("executables", 1),
                "memory of the worker": memory,
                "memory of the client": driver.figure("memory", 1),
            }

    return sample


_BOUNDED: Final = ((1, _MOST_EXECUTABLES), (_MOST_EXECUTABLES, 2000))

FUNCTIONS: Final = Curve(
    name="functions",
    title="Functions",
    each="function",
    sizes=(1, 100, _MOST_EXECUTABLES, 2000),
    quick_sizes=(1, 10),
    lines=(
        Line("small call of the last one", "s"),
        Line("each in turn", "s", _BOUNDED[:1]),
        Line("programs in memory", "", _BOUNDED[:1]),
        Line("memory of the worker", "B", _BOUNDED),
        Line("memory of the client", "B", _BOUNDED),
    ),
    start=_start_functions,
    about=(
        "Functions that differ in a number that they capture; all programs are on disk "
        "before. `each in turn` calls a hundred of them one after another, the oldest first. "
        "The server keeps 400 programs (`--max-executables`)."
    ),
    bound=(
        "A call of a warm function looks its key up in a table, so it does not depend on how "
        "many there are. Up to 400, each takes the memory of its compiled program; beyond "
        "that one goes for each that comes, and the memory that is left is that of the "
        "function and its key. A function whose program has gone is loaded from disk at its "
        "next call: counted with 40 functions in a table of 20, each call is one load and no "
        "trace or compile, in a thread of its own, and the worker's own clock (`load_s`) has "
        "7 ms of it."
    ),
)


def _start_values(run: BenchmarkRun, _: int) -> Sample:
    def sample(count: int) -> dict[str, float]:
        with _fresh_server(run) as (own, server):
            driver = own.driver(_GROWING, "values", server.unix, str(count))
            memory = partial(resident_bytes, server.worker_pid())
            worker, client = memory(), driver.figure("memory", 1)
            put = driver.figure("make", 1)
            return {
                "put of one more": put,
                "small call": driver.figure("small", own.sizes.calls),
                "memory of the worker": max(0, memory() - worker),
                "memory of the client": max(0.0, driver.figure("memory", 1) - client),
                "time to drop them all": driver.figure("drop", 1),
            }

    return sample


VALUES: Final = Curve(
    name="values",
    title="Values that live on the server",
    each="value",
    sizes=(1, 10, 100, 1000, 10_000),
    quick_sizes=(1, 100),
    lines=(
        Line("put of one more", "s"),
        Line("small call", "s"),
        Line("time to drop them all", "s"),
        Line("memory of the worker", "B"),
        Line("memory of the client", "B"),
    ),
    start=_start_values,
    about=(
        "Arrays of 64 bytes, each put by a call of `put` of its own, and all dropped at once, "
        "until the server has none."
    ),
    bound=(
        "A small call looks nothing up among the values. A put is Python at both ends and a "
        "thread of the worker that is started for it: in a profile (perf) three fifths of the "
        "worker's time are the interpreter and a quarter is the kernel, which starts and "
        "changes threads, and three quarters of it are spent in threads that have ended. So "
        "many puts by themselves cost more than one put of a tree. Dropping is one message "
        "for many values, sent after a pause of 20 ms."
    ),
)
