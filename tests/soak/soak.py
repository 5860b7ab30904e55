"""One soak: what runs when, and what has to be as before at the end."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Self

import jaxd
from tests.levels import Levels
from tests.live_server import ROOT, LiveServer, source_environment
from tests.server.staging import until
from tests.soak.breaking import FaultInjector
from tests.soak.crew import SoakClient
from tests.soak.judging import Faults
from tests.soak.report import SoakFindings

MEMBERS: Final = (
    *(("light-unix", "unix", False), ("jax-unix", "unix", True), ("light-tcp", "tcp", False)),
    *(("jax-tls", "tls", True), ("light-tls", "tls", False)),
)
"""Names of the clients, how they reach the server, and whether they have jax."""

OPTIONS: Final = ("--standby", "--session-grace-s", "15", "--max-executables", "60")

EVERY_S: Final = 5.0
"""Between two faults, on average."""

CALM_SHARE: Final = 0.3
"""Of the time: nothing happens to the server then, so that one worker's memory can be watched."""

SAMPLE_S: Final = 5.0
FEWEST: Final = 10
"""Samples of which a median says something."""

LEAK: Final = Levels(rss_mib=150, maps=60, files=8, threads=16)
"""By how much a worker may have grown meanwhile: what is freed is not all given back."""

MAPS_OF_A_PROGRAM: Final = 6
"""That it has gained meanwhile, up to `--max-executables`."""

HOST_LEAK: Final = Levels(rss_mib=8, maps=20, files=4, threads=2)


class Settled(NamedTuple):
    """What is taken while nobody is there.

    Attributes:
        pid: the worker's.
        worker, host: what they take.
        programs: that the worker holds.
    """

    pid: int
    worker: Levels
    host: Levels
    programs: int


class Soak:
    """The server, the clients and whoever breaks them; a context manager.

    Args:
        folder: all files of it, the server's as well.
        seed: decides what can be decided.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._faults = Faults()
        self._found = SoakFindings(self._faults)
        self._servers: list[LiveServer] = []
        self._samples: list[tuple[int, Levels]] = []
        self._over = threading.Event()
        self._held = ExitStack()

    def __enter__(self) -> Self:
        oracle = self._oracle()
        self._breaking = FaultInjector(self._start, self._faults, random.Random(self._seed))
        self._held.callback(self._breaking.close)
        self._members = [
            self._member(name, scheme, None if has_jax else oracle)
            for name, scheme, has_jax in MEMBERS
        ]
        self._breaking.members = self._members
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for member in self._members:
            member.process.kill()
        self._held.close()

    def _oracle(self) -> str:
        address = str(self._folder / "oracle")
        process = subprocess.Popen(
            [sys.executable, "-c", "from tests.soak import oracle; oracle.main()", address],
            env=source_environment(self._folder),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._held.callback(process.wait)
        self._held.callback(process.kill)
        assert process.stdout is not None
        process.stdout.readline()
        return address

    def _start(self) -> LiveServer:
        self._servers.append(LiveServer(self._folder, *OPTIONS))
        return self._servers[-1]

    def _member(self, name: str, scheme: str, oracle: str | None) -> SoakClient:
        folder, server = self._folder / name, self._breaking.server
        address = self._breaking.address(scheme)
        take, doing = self._found.take, self._breaking.doing
        return SoakClient(
            name, self._seed, folder, address, oracle, server.environment, take, doing
        )

    def write_logs(self) -> None:
        """Writes what each server has logged into the folder."""
        for number, server in enumerate(self._servers, 1):
            (self._folder / f"server.{number}.log").write_text("".join(server.raw))

    def run(self, seconds: float) -> dict[str, Any]:
        """All that is to say of it, as JSON values; what is not as it has to be stands in `bad`."""
        begun, shared = time.monotonic(), set(os.listdir("/dev/shm"))
        breaking = self._breaking
        threading.Thread(target=self._sample, daemon=True).start()
        breaking.go_on(seconds * (1 - CALM_SHARE), breaking.everything(), EVERY_S)
        levels, complaints = self._calm(seconds * CALM_SHARE)
        self._over.set()
        breaking.close()
        self._found.judge()
        left = set(os.listdir("/dev/shm")) - shared
        bad = [*self._found.bad, *complaints, *breaking.complaints, *self._died_by_themselves()]
        bad += [text for member in self._members for text in member.complaints]
        bad += [f"left in /dev/shm: {left}"] if left else []
        ended: Counter[str] = sum((Counter(one.ended) for one in self._members), Counter())
        return {
            "seed": self._seed,
            "minutes": (time.monotonic() - begun) / 60,
            **self._found.figures(),
            "faults": dict(breaking.count),
            "clients_ended": dict(ended),
            "released": breaking.released,
            "levels": levels,
            "samples": self._samples,
            "bad": bad,
        }

    def _calm(self, seconds: float) -> tuple[dict[str, str], list[str]]:
        """One worker, while clients come, go and are killed: what it takes before and after."""
        breaking, warm_up_s = self._breaking, min(30.0, seconds / 2)
        breaking.go_on(warm_up_s, breaking.of_clients(), EVERY_S)
        before = self._settled()
        for member in self._members:
            member.start()
        first = len(self._samples)
        breaking.go_on(seconds - warm_up_s, breaking.of_clients(), EVERY_S)
        during = [levels.rss_mib for _, levels in self._samples[first:]]
        after = self._settled()
        said = {
            "worker": f"{before.worker}, with {before.programs} programs, before the calm part; "
            f"{after.worker}, with {after.programs}, after it",
            "host": f"{before.host} before the calm part; {after.host} after it",
        }
        return said, [*_grown(before, after), *_growing(during)]

    def _settled(self) -> Settled:
        """What is taken once nobody is there and all is forgotten that clients left."""
        for member in self._members:
            member.end("left")
        server = self._breaking.server
        with jaxd.connect(server.unix) as client:

            def is_alone() -> bool:
                now = client.caller.session.ask("statistics")
                return (now["sessions"], now["connections"], now["values"]) == (1, 1, 0)

            until(is_alone)
            pid, programs = server.worker_pid(), client.statistics().programs
            return Settled(pid, Levels.of(pid), Levels.of(server.process.pid), programs)

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_S):
            with suppress(OSError):  # it has just ended
                pid = self._breaking.server.worker_pid()
                self._samples.append((pid, Levels.of(pid)))

    def _died_by_themselves(self) -> list[str]:
        lines = [line for server in self._servers for line in server.lines]
        at_work = {line["pid"] for line in lines if line["event"] == "worker_started"}
        return [
            f"a worker ended, and nobody told it to: {line}"
            for line in lines
            if line["event"] == "worker_exited"
            and line.get("exit_code") != 0
            and line["pid"] in at_work
            and line["pid"] not in self._breaking.asked_to_end
        ]


def _grown(before: Settled, after: Settled) -> Iterator[str]:
    """What to say of processes that take more than they may."""
    if after.pid != before.pid:
        yield f"the worker was replaced, though nothing happened to it: {before}; {after}"
    new = max(0, after.programs - before.programs)
    leak = LEAK._replace(maps=LEAK.maps + MAPS_OF_A_PROGRAM * new)
    for whose, was, now, most in (
        ("worker", before.worker, after.worker, leak),
        ("host", before.host, after.host, HOST_LEAK),
    ):
        for name, then, today, more in zip(was._fields, was, now, most, strict=True):
            if today > then + more:
                yield f"the {whose} has more {name}: {was}; after the calm part {now}"


def _growing(resident: list[float]) -> Iterator[str]:
    """What to say of memory that goes on growing."""
    third = len(resident) // 3
    if third >= FEWEST and median(resident[-third:]) > median(resident[:third]) + LEAK.rss_mib / 2:
        yield f"the worker's memory grows (MiB): {resident}"
