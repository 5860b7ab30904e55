"""Ten thousand calls of all kinds leave nothing behind on the server."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.errors import DeadlineExceeded
from tests.levels import Levels
from tests.live_server import LiveServer
from tests.server.staging import until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),  # it compiles on purpose
]

ROUNDS, CALLS = 100, 100
EXECUTABLES = 40
SAMPLES = 10
X = np.linspace(0, 1, 64, dtype=np.float32)
LARGE = np.ones(1 << 18, np.float32)  # 1 MiB


class Sample(NamedTuple):
    """What the worker takes."""

    rss_mib: float
    maps: int
    files: int
    threads: int
    executables: int
    programs: int
    functions: int
    values: int

    @classmethod
    def of(cls, server: LiveServer, client: Client) -> Sample:
        """Now, once everything is over that was given up."""
        until(lambda: not client.caller.session.ask("statistics")["left_behind"])
        until(lambda: client.caller.session.ask("statistics")["values"] == 0)
        now = client.caller.session.ask("statistics")
        return cls(
            *Levels.of(server.worker_pid()),
            *(now[name] for name in ("executables", "programs", "functions", "values")),
        )


def fresh(number: float) -> Callable[[Any], Any]:
    """A function that no server knows."""

    def scaled(x: Any) -> Any:
        return x * number + 1

    return scaled


def failing(x: Any) -> Any:
    """Fails while it is traced."""
    raise ValueError(f"of shape {x.shape}")


def endless(x: Any) -> Any:
    """Is traced for ever."""
    while True:
        x = x + 1


def calls_of_a_round(
    server: LiveServer, client: Client, number: int
) -> Iterator[Callable[[], Any]]:
    """A hundred calls of all kinds; each right, or with the error that it has to have."""
    double = client.persistent_call(lambda x: x * 2)
    total = client.persistent_call(lambda x: x.sum())
    step = client.persistent_call(lambda x: x + 1, donate_argnums=0)

    def warm() -> None:
        assert double(X)[-1] == 2.0

    def new(index: int) -> None:
        factor = 2.0 + number * 100 + index
        assert client.persistent_call(fresh(factor))(X)[-1] == np.float32(factor + 1)

    def error() -> None:
        with pytest.raises(ValueError, match="of shape"):
            client.persistent_call(failing)(X)

    def cancelled() -> None:
        client.persistent_call(endless).submit(X).cancel()

    def late() -> None:
        with pytest.raises(DeadlineExceeded):
            client.persistent_call(endless, timeout_s=0.05)(X)

    def large() -> None:
        assert float(total(LARGE)) == LARGE.size

    def handle() -> None:
        state = double.remote(X)
        for _ in range(3):
            state = step(state)
        assert np.asarray(state)[-1] == 5.0

    def visitor() -> None:
        with connect(server.unix) as other:
            assert other.persistent_call(lambda x: x * 2)(X)[-1] == 2.0

    yield from [warm] * 51
    yield from [lambda index=index: new(index) for index in range(4)]
    yield from [error] * 8
    yield from [cancelled] * 4
    yield late
    yield from [large] * 6
    yield from [handle] * 6  # of five calls each
    yield from [visitor] * 2


COUNTED = 51 + 4 + 8 + 4 + 1 + 6 + 6 * 4 + 2


def test_ten_thousand_calls_of_all_kinds_leave_nothing_behind(
    start_live: Callable[..., LiveServer], capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory, maps, files, threads and executables are level after the first third."""
    server = start_live("--max-executables", str(EXECUTABLES), "--cache-dir", "none")
    samples: list[Sample] = []
    begun = time.monotonic()
    with connect(server.unix) as client:
        for number in range(ROUNDS):
            for call in calls_of_a_round(server, client, number):
                call()
            if (number + 1) % (ROUNDS // SAMPLES) == 0:
                gc.collect()
                samples.append(Sample.of(server, client))
        now = client.statistics()
    took = time.monotonic() - begun
    with capsys.disabled():
        print(
            f"\n{now.calls:,} calls in {took:.0f} s: {now.failed_calls:,} failed, "
            f"{now.cancelled_calls:,} were cancelled, {now.late_calls:,} late; "
            f"{now.traces:,} traces, {now.compiles:,} compiles"
        )
        print("  calls " + " ".join(f"{name:>11}" for name in Sample._fields))
        for index, sample in enumerate(samples, 1):
            count = index * ROUNDS // SAMPLES * COUNTED
            print(f"  {count:>5,} " + " ".join(f"{value:>11,.0f}" for value in sample))
    assert now.calls >= ROUNDS * CALLS * 0.95
    early, late = samples[3:6], samples[-3:]

    def grown(field: str) -> float:
        """From the second third to the last samples."""
        before, after = ([getattr(one, field) for one in some] for some in (early, late))
        return float(statistics.median(after) - statistics.median(before))

    assert grown("rss_mib") < 0.05 * statistics.median(one.rss_mib for one in early)
    assert abs(grown("maps")) < 60
    assert abs(grown("files")) <= 2
    assert abs(grown("threads")) <= 4
    assert max(one.executables for one in samples) <= EXECUTABLES
    assert late[-1].values == 0
