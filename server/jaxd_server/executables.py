"""The table of executables: found by the bytes of a call, made once, dropped when too many.

(key, skeleton)  → plan         the bytes on the wire are the first name of a signature
(key, signature) → executable   several skeletons may mean one signature (order of a dict)
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from jaxd_protocol.trees import Layout
from jaxd_server.donation import donated_leaves
from jaxd_server.eviction import Entry, Limits, victims
from jaxd_server.executable import Executable
from jaxd_server.functions import Function
from jaxd_server.marshal import Arguments, call_order, parse_arguments
from jaxd_server.memory import resident_bytes
from jaxd_server.programs import Program
from jaxd_server.reclaimer import Reclaimer
from jaxd_server.signature import signature_of
from jaxd_server.single_flight import SingleFlight

__all__ = ["Executables", "Plan"]

_PLANS_PER_EXECUTABLE = 8

_LEAST_BYTES = 256 << 10
"""What a program takes at least: less than this is not to be seen in the size of a process."""

_LOADING = 0.3
"""Seconds that loading takes for each second of tracing and compiling, for a large program."""

_NO_LIMIT = Limits(sys.maxsize)

Make = Callable[[], Executable]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known about calls with one skeleton.

    Attributes:
        layout: how to read their arguments.
        executable: what answers them; None when pickled arguments have to be looked at each time.
        order: for each array that the executable takes, its number among the leaves of the call.
        donated: numbers of the leaves that such a call gives up.
    """

    layout: Layout
    executable: Executable | None
    order: tuple[int, ...] = ()
    donated: frozenset[int] = frozenset()

    def arrange(self, leaves: list[Any]) -> list[Any]:
        """The leaves of a call as its executable takes them."""
        return [leaves[index] for index in self.order]


class Executables:
    """Plans and executables; safe from any thread.

    Args:
        reclaimer: told after each build; it asks back with `shrink` and `reclaim`.
        limit: number of executables to hold.
        limits: how much else of what; its `count` does not matter.
        is_kept: whether an executable is on disk as well, and so is cheap to have again.
        resident: bytes of memory that the process has.
    """

    def __init__(
        self,
        reclaimer: Reclaimer,
        limit: int,
        limits: Limits = _NO_LIMIT,
        is_kept: Callable[[Executable], bool] = lambda _: False,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        self._limits = replace(limits, count=limit)
        self._is_kept = is_kept
        self._resident = resident
        self._resident_before = resident()
        self._plans: dict[tuple[bytes, bytes], Plan] = {}
        self._executables: dict[tuple[bytes, Hashable], Executable] = {}
        # What a call has made is in use until that call ends, and it holds its `make` until then.
        self._makers: weakref.WeakValueDictionary[int, Make] = weakref.WeakValueDictionary()
        self._flights: SingleFlight[tuple[bytes, Hashable], Executable] = SingleFlight()
        self._lock = threading.Lock()  # guards these dicts, except for looking up one entry
        self._reclaimer = reclaimer
        reclaimer.register(self)

    def __len__(self) -> int:
        return len(self._executables)

    def all(self) -> list[Executable]:
        """Those that there are."""
        with self._lock:
            return list(self._executables.values())

    def plan(self, key: bytes, skeleton: bytes) -> Plan | None:
        """The plan for calls with these bytes, if one was made before."""
        return self._plans.get((key, skeleton))

    def layout(self, key: bytes, skeleton: bytes) -> Layout:
        """How to read the arguments of a call."""
        plan = self._plans.get((key, skeleton))
        return plan.layout if plan else parse_arguments(skeleton)

    def obtain(
        self,
        function: Function,
        skeleton: bytes,
        layout: Layout,
        arguments: Arguments,
        make: Make,
        waiting: Callable[[], None] = lambda: None,
    ) -> Executable:
        """The executable for these arguments; `make` makes it when there is none.

        Args:
            function: what is called.
            skeleton: the bytes of the call.
            layout: what they say.
            arguments: positional and keyword arguments.
            make: makes the executable, in one of the callers that ask for it together. As long as
                that one keeps hold of it, the executable is not dropped.
            waiting: called in each of them, before it makes it or waits.

        Raises:
            ArgumentError: when an argument can be neither traced nor static.
            Exception: what `make` raises, in every caller that waited for it.
        """
        name = (function.key, signature_of(*arguments, function.statics))
        found = self._executables.get(name)
        if found is None:
            waiting()
            found = self._flights.run(
                name, lambda: self._executables.get(name), lambda: self._make(name, make)
            )
        order = call_order(layout, function.statics)
        donated = donated_leaves(layout, function.options, function.parameters)
        plan = Plan(layout, None) if order is None else Plan(layout, found, order, donated)
        with self._lock:
            if self._executables.get(name) is found:  # a plan must not outlive its executable
                if len(self._plans) >= _PLANS_PER_EXECUTABLE * self._limits.count:
                    self._plans.clear()  # they are made again in no time
                self._plans[function.key, skeleton] = plan
        return found

    def _make(self, name: tuple[bytes, Hashable], make: Make) -> Executable:
        executable = make()
        with self._lock:
            self._makers[executable.serial] = make
            self._executables[name] = executable
        self._reclaimer.relieve()
        return executable

    def forget(self, key: bytes) -> int:
        """Drops the executables of one key; returns how many there were."""
        with self._lock:
            gone = self._drop([name for name in self._executables if name[0] == key])
        return len(gone)

    def discard(self, executable: Executable) -> None:
        """Drops this one, and all others with its program."""
        with self._lock:
            program = executable.program
            self._drop([n for n, one in self._executables.items() if one.program is program])

    def shrink(self) -> int:
        """Drops what is above the limits; returns how many executables that were."""
        return self._drop_victims(self._limits)

    def reclaim(self, count: int) -> int:
        """Drops the `count` executables that are missed least; returns how many there were."""
        if count <= 0:
            return 0
        return self._drop_victims(
            Limits(max(0, len(self._executables) - count), share=self._limits.share)
        )

    def _drop_victims(self, limits: Limits) -> int:
        with self._lock:
            items = list(self._executables.items())
        if _are_within(limits, [one for _, one in items]):
            return 0
        chosen = victims(self._entries(items), limits, time.monotonic())
        names = {one.name for one in chosen}
        with self._lock:
            gone = self._drop(
                name
                for name, one in items
                if name in names and self._executables.get(name) is one and not self._is_in_use(one)
            )
        return len(gone)

    def _entries(self, items: list[tuple[tuple[bytes, Hashable], Executable]]) -> list[Entry]:
        """What the choice of victims depends on."""
        sizes = {one.program: _host_bytes(one.program) for _, one in items}
        # What a program takes is seen in the growth of the process while it was compiled, of which
        # others, at work meanwhile, have a part. Together they cannot have taken more than it grew.
        grown = max(0, self._resident() - self._resident_before)
        scale = min(1.0, grown / max(1, sum(sizes.values()))) if self._resident_before else 1.0
        return [
            Entry(
                name,
                one.principal,
                one.program,
                int(sizes[one.program] * scale),
                one.program.device_bytes,
                one.last_use,
                self._rebuild_s(one),
                not self._is_in_use(one),
            )
            for name, one in items
        ]

    def _rebuild_s(self, executable: Executable) -> float:
        """What it would take to have it again."""
        costs = executable.costs
        if executable.structure is None:  # it came from disk
            return costs.paid_s
        if costs.build_s > 1 and self._is_kept(executable):
            return executable.program.load_s or costs.build_s * _LOADING
        return costs.build_s

    def _is_in_use(self, executable: Executable) -> bool:
        return executable.in_use or executable.serial in self._makers

    def _drop(self, names: Iterable[tuple[bytes, Hashable]]) -> list[Executable]:
        """Those that are now out of the table; freed where the caller lets go of them."""
        gone = [self._executables.pop(name) for name in names]
        serials = {executable.serial for executable in gone}
        for bytes_, plan in list(self._plans.items()):
            if plan.executable is not None and plan.executable.serial in serials:
                del self._plans[bytes_]
        return gone


def _host_bytes(program: Program) -> int:
    return max(_LEAST_BYTES, program.host_bytes)


def _are_within(limits: Limits, executables: list[Executable]) -> bool:
    """Whether nothing has to go, as nearly always; a quick look after each build."""
    programs = {one.program for one in executables}
    return (
        len(executables) <= limits.count
        and sum(map(_host_bytes, programs)) <= limits.host_bytes
        and sum(one.device_bytes for one in programs) <= limits.device_bytes
    )
