"""What answers the calls of one function with one signature."""

from __future__ import annotations

import itertools
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jaxd_protocol.jit.options import Config
from jaxd_protocol.messages.recipes import RecordedCall
from jaxd_server.codec.results import ResultLayout, RetainedLeaves
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.jax_compat.config import configured
from jaxd_server.jax_compat.placement import index_of
from jaxd_server.runtime.counters import FunctionUse
from jaxd_server.runtime.imported_packages import Change, Dependencies

QUICK_S: Final = 0.002
"""A call that takes no longer is run by the thread that read it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What an executable costs, in seconds.

    Attributes:
        trace_s: tracing and lowering, when that was done.
        compile_s: compiling its program, when that was done.
        paid_s: what this process spent on it, loading it from disk or doing both.
    """

    trace_s: float = 0.0
    compile_s: float = 0.0
    paid_s: float = 0.0

    @property
    def build_s(self) -> float:
        """What each process would pay that has to make it by itself."""
        return self.trace_s + self.compile_s


def obstacle_elsewhere(config: Config, devices: Sequence[int], form: ResultLayout) -> str:
    """Why a program runs in no other process than the one that has it; empty when it may.

    Args:
        config: jax's settings while it runs.
        devices: ids of those that it runs on.
        form: how its results travel.
    """
    if len(devices) != 1 or index_of(devices[0]):
        return "its program runs on several devices, or not on the first"
    counting = [name for name, _ in config if name != "jax_enable_x64"]
    if counting:
        return f"settings count while its program runs: {', '.join(counting)}"
    return "" if form.is_lasting else "its result holds objects that only the server has"


_serials: Final = itertools.count()


@dataclass(slots=True, eq=False, weakref_slot=True)
class Executable:
    """A program, and how the results of one function are read from it. Flat: arrays in and out.

    Attributes:
        name: the name of the function.
        key: names function, options and configuration.
        program: what runs.
        form: how results travel.
        config: jax's settings while it runs.
        costs: what it took.
        recorded: the call that it was made for.
        structure: jax's structure of the result; None when it came from disk.
        device: the index of the one that it was made for; a program that is bound has its own.
        principal: for whom it was made.
        kept_as: its name on disk; empty when it is not there.
        dependencies: the installed packages that its function may have run.
        output: what its function has put out while it was traced, see `OutputOnce.output`.
        outdated: what has become of these since; it is made anew before it answers a call where
            that is possible.
        serial: a number of its own.
        calls: how many it has answered.
        saved_s: seconds that client processes did not spend on tracing and compiling.
        run_s: seconds that a call takes, smoothed over the last ones; None before the second.
        start_s: seconds until a warm call is dispatched, smoothed likewise.
        last_use: `time.monotonic()` of the last call.
        retained: which leaves of its result stay on the server, by what its calls want and take.
        calls_python: whether it calls Python while it runs, which is rare.
        use: what is counted of its function; None before the first call.
        is_touched: whether something was counted of it, see `Pipeline.touched`.
        is_dropped: whether it is not in the table any more.
    """

    name: str
    key: bytes
    program: Program
    form: ResultLayout
    config: Config = ()
    costs: Costs = Costs()
    recorded: RecordedCall = RecordedCall(b"")  # noqa: RUF009  immutable
    structure: Any = None
    device: int = 0
    principal: str = ""
    kept_as: bytes = b""
    dependencies: Dependencies = ()
    output: str = ""
    serial: int = field(init=False, default_factory=_serials.__next__)
    calls: int = field(init=False, default=0)
    saved_s: float = field(init=False, default=0.0)
    run_s: float | None = field(init=False, default=None)
    start_s: float | None = field(init=False, default=None)
    last_use: float = field(init=False, default_factory=time.monotonic)
    retained: dict[Hashable, RetainedLeaves] = field(init=False, default_factory=dict)
    outdated: tuple[Change, ...] = field(init=False, default=())
    calls_python: bool = field(init=False)
    use: FunctionUse | None = field(init=False, default=None)
    is_touched: bool = field(init=False, default=False)
    is_dropped: bool = field(init=False, default=False)
    _holds: list[None] = field(init=False, default_factory=list)
    """One for each call: appending is atomic, adding is not."""

    def __post_init__(self) -> None:
        self.calls_python = self.program.calls_python

    def __call__(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Runs it; jax may return before the device is done.

        Args:
            leaves: the traced arguments, flattened as jax does it.
        """
        if self.config:
            with configured(self.config):
                return self.program.call(*leaves)
        return self.program.call(*leaves)

    def hold(self) -> None:
        """Keeps it in use until `release`."""
        self._holds.append(None)

    def release(self) -> None:
        """Undoes one `hold`."""
        self._holds.pop()

    @property
    def id(self) -> str:
        """Names it among all: by its name on disk, where it has one."""
        name = self.kept_as.hex() or f"m{self.serial}"
        return f"{name}.{self.device}" if self.device else name

    @property
    def in_use(self) -> bool:
        """Whether a call, or anything else, holds it."""
        return bool(self._holds)

    @property
    def runs_quickly(self) -> bool:
        """Whether a call is done before it would pay to hand it to another thread."""
        return self.run_s is not None and self.run_s <= QUICK_S

    @property
    def starts_quickly(self) -> bool:
        """Whether a call is dispatched in such a time, however long the device then takes."""
        return self.start_s is not None and self.start_s <= QUICK_S and not self.calls_python

    def record_start_time(self, seconds: float) -> None:
        """Records how long a warm call took until it was dispatched."""
        self.start_s = seconds if self.start_s is None else 0.75 * self.start_s + 0.25 * seconds

    def record_run_time(self, seconds: float) -> None:
        """Records how long a call took, the delivery of its result included."""
        self.last_use = time.monotonic()
        self.calls += 1
        if self.program.calls_back:
            return  # the time includes what its client does in between
        if self.calls > 1:  # the first one pays for initialisation
            self.run_s = seconds if self.run_s is None else 0.75 * self.run_s + 0.25 * seconds
