"""The environment of one benchmark run: settings, a private directory, and its processes."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.own_server import OwnServer
from benchmarks.processes import Driver, NotMeasurable, Service, time_process

T = TypeVar("T")

_numbers = itertools.count()

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work one round is.

    Attributes:
        calls: small calls in one round.
        many_calls: the same where one in a hundred is looked for.
        slow_calls: the same for a peer that needs milliseconds for each.
        items: of a `map` in one round.
        round_bytes: bytes of the large arguments of one round, roughly.
        most_bytes: the most that one argument has.
        steps: steps of training in one round.
        blocks: attention blocks in the train step.
        gpt: the size of the GPT that only accelerators train (`benchmarks/programs/gpt.py`).
        tolerance: by which what variants compute may differ, as a share: those that choose their
            kernels by measuring, as XLA does on a GPU, do not all choose the same.
    """

    calls: int = 2000
    many_calls: int = 30_000
    slow_calls: int = 200
    items: int = 1000
    round_bytes: int = 704 * 2**20
    most_bytes: int = 256 * 2**20
    steps: int = 200
    blocks: int = 16
    gpt: str = "124M"
    tolerance: float = 1e-4

    @classmethod
    def quick(cls) -> Sizes:
        """Sizes that only show that everything runs."""
        return cls(
            calls=200,
            many_calls=1000,
            slow_calls=20,
            items=80,
            round_bytes=24 * 2**20,
            most_bytes=8 * 2**20,
            steps=20,
            blocks=2,
            gpt="tiny",
        )

    @classmethod
    def accelerator(cls) -> Sizes:
        """Sizes for an accelerator, which is there for minutes, and takes arguments of 1 GB."""
        return cls(
            calls=500,
            many_calls=5000,
            round_bytes=512 * 2**20,
            most_bytes=2**30,
            steps=40,
            tolerance=2e-2,
        )

    def large_calls(self, nbytes: int) -> int:
        """Calls in one round with an argument of that size."""
        return max(3, min(self.calls, self.round_bytes // nbytes))


@dataclass(slots=True)
class BenchmarkRun:
    """Starts processes and ends them again; use inside `with BenchmarkRun.open() as run`.

    Not thread-safe.

    Attributes:
        directory: private to this run, removed at its end.
        sizes: how much work one round is.
        flags: the optional peers that were asked for.
        without: modules to treat as not installed.
    """

    directory: Path
    sizes: Sizes
    flags: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    _ends: ExitStack = field(default_factory=ExitStack)
    _facts: dict[str, float] = field(default_factory=dict)
    _own_server: OwnServer | None = None
    _shared: dict[str, Any] = field(default_factory=dict)

    @classmethod
    @contextmanager
    def open(
        cls,
        sizes: Sizes,
        flags: frozenset[str] = frozenset(),
        without: frozenset[str] = frozenset(),
    ) -> Iterator[BenchmarkRun]:
        """Opens a run in a fresh private directory; its processes end with the `with` block."""
        with (
            tempfile.TemporaryDirectory(prefix="jaxd-bench-") as name,
            cls(Path(name), sizes, flags, without).fresh() as run,
        ):
            yield run

    @contextmanager
    def fresh(self) -> Iterator[BenchmarkRun]:
        """A part of the run in the same directory whose processes end with this `with` block."""
        with ExitStack() as ends:
            yield replace(self, _ends=ends, _own_server=None, _shared={})

    def environment(self, **extra: str) -> dict[str, str]:
        """The environment of every child.

        Bytecode is kept in the run's directory, so that each variant's modules are compiled
        once, and none of the children leaves files behind.
        """
        paths = [
            os.path.abspath(p) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p
        ]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAXD_", "PYTHON"))}
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join([*paths, str(_ROOT)]),
            "PYTHONPYCACHEPREFIX": str(self.directory / "pycache"),
            "JAXD_AUTOSTART": "0",
            "JAXD_CACHE_DIR": str(self.directory / "cache"),
            **extra,
        }

    def service(self, module: str, *arguments: str) -> dict[str, str | int]:
        """Starts `python -m module` and returns its greeting once it listens."""
        command = [sys.executable, "-m", module, *arguments]
        service = Service.start(command, self.environment(), self.directory)
        self._ends.callback(service.end)
        return service.greeting

    def driver(
        self, module: str, *arguments: str, prefix: Sequence[str] = (), **extra: str
    ) -> Driver:
        """Starts `python -m module`, a process that measures itself when asked.

        Raises:
            NotMeasurable: when it reports that there is nothing to measure.
        """
        command = [*prefix, sys.executable, "-m", module, *arguments]
        driver = Driver(Service.start(command, self.environment(**extra), self.directory))
        self._ends.callback(driver.end)
        if why := driver.service.greeting.get("left_out"):
            raise NotMeasurable(why)
        return driver

    def process_seconds(self, *arguments: str, **extra: str) -> tuple[float, str]:
        """Runs `python *arguments` to its end: seconds from fork to exit, and its output."""
        return time_process([sys.executable, *arguments], self.environment(**extra), self.directory)

    def own_server(self, **extra: str) -> OwnServer:
        """The server of jaxd, started at the first request and shared to the end of this part."""
        if self._own_server is None:
            self._own_server = self.another_server(**extra)
        return self._own_server

    def another_server(self, **extra: str) -> OwnServer:
        """One more server of jaxd, for whoever asks."""
        server = OwnServer.start(self.environment(**extra), self.directory)
        self._ends.callback(server.end)
        return server

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """What the first variant that asks for it makes, for all of this part of the run."""
        if name not in self._shared:
            self._shared[name] = make()
        found: T = self._shared[name]
        return found

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enters a context that is left when this part of the run ends."""
        return self._ends.enter_context(context)

    def socket_path(self, name: str) -> str:
        """A fresh path for a Unix socket in the private directory."""
        return str(self.directory / f"{name}-{next(_numbers)}.sock")

    def agree(self, fact: str, value: float) -> None:
        """Checks that every variant that computes `fact` finds the same value.

        Raises:
            AssertionError: when this one is off by more than `sizes.tolerance` of it.
        """
        first = self._facts.setdefault(fact, value)
        if abs(first - value) > self.sizes.tolerance * abs(first):
            raise AssertionError(f"{fact} is {value} here and was {first} in an earlier variant")
