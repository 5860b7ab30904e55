"""The table of executables: found by the bytes of a call, built once, dropped when too many.

(key, skeleton)  → plan         the bytes on the wire are the first name of a signature
(key, signature) → executable   several skeletons may mean one signature (order of a dict)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from jaxd_protocol.statics import Statics, statics_of
from jaxd_protocol.trees import Layout
from jaxd_server.compiler import Executable
from jaxd_server.functions import Function
from jaxd_server.marshal import parse_arguments
from jaxd_server.reclaimer import Reclaimer
from jaxd_server.signature import signature_of
from jaxd_server.single_flight import SingleFlight

__all__ = ["Executables", "Plan"]

_PLANS_PER_EXECUTABLE = 8

Build = Callable[[], Executable]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known about calls with one skeleton.

    Attributes:
        layout: how to read their arguments.
        executable: what answers them; None when pickled arguments have to be looked at each time.
    """

    layout: Layout
    executable: Executable | None


class Executables:
    """Plans and executables; safe from any thread.

    Args:
        reclaimer: told after each build; it asks back with `surplus` and `reclaim`.
        limit: number of executables to hold.
    """

    def __init__(self, reclaimer: Reclaimer, limit: int) -> None:
        self._limit = limit
        self._plans: dict[tuple[bytes, bytes], Plan] = {}
        self._executables: dict[tuple[bytes, Hashable], Executable] = {}
        self._statics: dict[bytes, Statics] = {}
        self._flights: SingleFlight[tuple[bytes, Hashable], Executable] = SingleFlight()
        self._lock = threading.Lock()  # guards _plans and _executables, except for looking one up
        self._reclaimer = reclaimer
        reclaimer.register(self)

    def __len__(self) -> int:
        return len(self._executables)

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
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        build: Build,
        waiting: Callable[[], None] = lambda: None,
    ) -> Executable:
        """The executable for these arguments; `build` makes it when there is none.

        Args:
            function: what is called.
            skeleton: the bytes of the call.
            layout: what they say.
            arguments: positional and keyword arguments.
            build: makes the executable, in one of the callers that ask for it together.
            waiting: called in each of them, before it builds or waits.

        Raises:
            ArgumentError: when an argument can be neither traced nor static.
            Exception: what `build` raises, in every caller that waited for it.
        """
        signature = signature_of(*arguments, self._statics_of(function))
        name = (function.key, signature)
        found = self._executables.get(name)
        if found is None:
            waiting()
            found = self._flights.run(
                name, lambda: self._executables.get(name), lambda: self._build(name, build)
            )
        looked_at = any(leaf.tag == "P" for leaf in layout.leaves)
        with self._lock:
            if self._executables.get(name) is found:  # a plan must not outlive its executable
                if len(self._plans) >= _PLANS_PER_EXECUTABLE * self._limit:
                    self._plans.clear()  # they are made again in no time
                    self._statics.clear()
                self._plans[function.key, skeleton] = Plan(layout, None if looked_at else found)
        return found

    def _build(self, name: tuple[bytes, Hashable], build: Build) -> Executable:
        executable = build()
        with self._lock:
            self._executables[name] = executable
        self._reclaimer.relieve()
        return executable

    def _statics_of(self, function: Function) -> Statics:
        statics = self._statics.get(function.key)
        if statics is None:
            statics = statics_of(function.function, function.options)
            if len(self._statics) >= _PLANS_PER_EXECUTABLE * self._limit:
                self._statics.clear()  # of functions that fail each time; made again in no time
            self._statics[function.key] = statics
        return statics

    def surplus(self) -> int:
        """How many executables there are above the limit."""
        return max(0, len(self._executables) - self._limit)

    def reclaim(self, count: int) -> int:
        """Drops the `count` executables that were not used for longest."""
        if count <= 0:
            return 0
        with self._lock:
            oldest = sorted(self._executables.items(), key=lambda item: item[1].last_use)[:count]
            gone = {id(executable) for _, executable in oldest}
            for name, _ in oldest:
                del self._executables[name]
            for bytes_, plan in list(self._plans.items()):
                if id(plan.executable) in gone:
                    del self._plans[bytes_]
            alive = {key for key, _ in self._executables}
            for key in [key for key in list(self._statics) if key not in alive]:
                self._statics.pop(key, None)
        return len(oldest)
