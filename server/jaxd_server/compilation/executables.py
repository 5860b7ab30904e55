"""The table of executables: found by the bytes of a call, made once, dropped when too many.

(key, skeleton)  → plan         the bytes on the wire are the first name of a signature
(key, signature) → executable   several skeletons may mean one signature (order of a dict)
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import jax

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.jit.static_args import dynamic
from jaxd_protocol.pytree import Layout
from jaxd_server.codec.arguments import (
    Arguments,
    call_order,
    donated_leaves,
    leaves_of,
    parse_arguments,
)
from jaxd_server.codec.signature import keeps_64_bits, signature_of
from jaxd_server.compilation.compiling.builds import Builds
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.eviction import EvictionCosts, Limits, are_within, victims
from jaxd_server.compilation.functions.function import Function
from jaxd_server.jax_compat.placement import ArrayPlaces, are_several, places_of
from jaxd_server.runtime.imported_packages import Change, Dependencies
from jaxd_server.runtime.memory_reclaimer import Reclaimer
from jaxd_server.runtime.system_memory import resident_bytes
from jaxd_server.runtime.threads.cancellation import NEVER_CANCELLED, CancelToken


class PlanMismatch(Exception):
    """The arrays of a call lie on other devices than its plan says."""


class DeviceChoice(NamedTuple):
    """On which devices, by their indexes, a call runs, and for whom.

    Attributes:
        device: the one that the call runs on.
        session: the default device of its session.
        cancel_token: the cancel token of the call.
        owner: whose turn a build for it takes, for fairness.
    """

    device: int = 0
    session: int = 0
    cancel_token: CancelToken = NEVER_CANCELLED
    owner: Hashable = None


ANY_DEVICE: Final = DeviceChoice()
"""Of a server with one device."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known about calls with one skeleton.

    Attributes:
        layout: how to read their arguments.
        executable: what answers them; None when pickled arguments have to be looked at each time.
        order: for each array that the executable takes, its number among the leaves of the call.
        donated: numbers of the leaves that such a call gives up.
        places: where its arrays have to lie that were put somewhere; see `places_of`.
    """

    layout: Layout
    executable: Executable | None
    order: tuple[int, ...] = ()
    donated: frozenset[int] = frozenset()
    places: ArrayPlaces = ()
    is_in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        whole = tuple(range(len(self.layout.leaves)))
        object.__setattr__(self, "is_in_order", tuple(self.order) == whole)

    def arrange(self, leaves: list[Any]) -> list[Any]:
        """The leaves of a call as its executable takes them."""
        return leaves if self.is_in_order else list(map(leaves.__getitem__, self.order))


_MAX_VARIANTS: Final = 10_000
_MAX_DROPPED: Final = 20_000
_PLANS_PER_EXECUTABLE: Final = 8

Make = Callable[[], Executable]
_Name = tuple[bytes, Hashable]
_Build = Callable[[_Name, Callable[[], Executable | None], Make], Executable]
"""`Builds.run`, but for whom."""


class Executables:
    """Plans and executables; safe from any thread.

    Args:
        reclaimer: called after each build; it calls `shrink` and `reclaim`.
        limits: how much to hold of what.
        is_kept: whether an executable is on disk as well, and so is cheap to have again.
        resident: bytes of memory that the process has.
        builds: makes each once.

    Attributes:
        version: another number as soon as others are in the table.
        dropped: the ids of those that have gone, for who keeps account of them.
    """

    def __init__(
        self,
        reclaimer: Reclaimer,
        limits: Limits,
        is_kept: Callable[[Executable], bool] = lambda _: False,
        resident: Callable[[], int] = resident_bytes,
        builds: Builds[Any, Executable] | None = None,
    ) -> None:
        self.version = 0
        self.dropped: deque[str] = deque(maxlen=_MAX_DROPPED)
        self._limits = limits
        self._eviction_costs = EvictionCosts(is_kept, resident)
        plans = _PLANS_PER_EXECUTABLE * limits.count  # they are made again in no time
        self._plans = BoundedDict[tuple[bytes, bytes, int], Plan](plans)
        self._executables: dict[_Name, Executable] = {}
        # What a call has made is in use until that call ends, and it holds its `make` until then.
        self._makers: weakref.WeakValueDictionary[int, Make] = weakref.WeakValueDictionary()
        self._builds: Builds[_Name, Executable] = builds or Builds()
        self._variants = BoundedDict[bytes, set[bytes]](_MAX_VARIANTS)  # keys, by the plain key
        self._lock = threading.Lock()  # guards these dicts, except for looking up one entry
        self._reclaimer = reclaimer
        reclaimer.register(self)

    def __len__(self) -> int:
        return len(self._executables)

    def all(self) -> list[Executable]:
        """Those that there are."""
        with self._lock:
            return list(self._executables.values())

    def plan(self, key: bytes, skeleton: bytes, device: int = 0) -> Plan | None:
        """The plan for calls with these bytes, of sessions on that device, if one was made.

        None where packages have changed since: such a call is answered as the first one is.
        """
        found = self._plans.get((key, skeleton, device))
        if found is not None and found.executable is not None and found.executable.outdated:
            return None
        return found

    def layout(self, key: bytes, skeleton: bytes, device: int = 0) -> Layout:
        """How to read the arguments of a call."""
        plan = self.plan(key, skeleton, device)
        return plan.layout if plan else parse_arguments(skeleton)

    def obtain(
        self,
        function: Function,
        skeleton: bytes,
        layout: Layout,
        arguments: Arguments,
        make: Make,
        waiting: Callable[[], None] = lambda: None,
        move: Callable[[Executable], Executable | None] = lambda _: None,
        choice: DeviceChoice = ANY_DEVICE,
    ) -> Executable:
        """The executable for these arguments; `make` makes it when there is none.

        Args:
            function: what is called.
            skeleton: the bytes of the call.
            layout: the same, parsed.
            arguments: positional and keyword arguments.
            make: makes the executable, in one of the callers that ask for it together. As long as
                that one keeps hold of it, the executable is not dropped.
            waiting: called in each of them, before it makes it or waits.
            move: makes it of one for another device; None when it has to be made after all.
            choice: where the call runs, and for whom.

        Raises:
            ArgumentError: when an argument can be neither traced nor static.
            JaxdError: when the call is cancelled; see `Builds.run`.
            Exception: what `make` raises, in every caller that waited for it.
        """
        wide = keeps_64_bits(function.options)
        signature, device = signature_of(*arguments, function.statics, wide=wide), choice.device
        found = self._executables.get(_name(function.key, signature, device))
        if found is None:
            waiting()
            build = partial(self._builds.run, cancel_token=choice.cancel_token, owner=choice.owner)
            found = self._first(function, signature, device, make, build)
            if are_several() and not _fits(found, function, device):
                found = self._moved(found, function.key, signature, device, make, move, build)
        order = call_order(layout, function.statics)
        donated = donated_leaves(layout, function.options, function.parameters)
        leaves = leaves_of(dynamic(arguments, function.statics))
        places = places_of(leaves) if are_several() else ()
        plan = Plan(layout, None)
        if order is not None:
            plan = Plan(layout, found, order, donated, places)
        name = _name(function.key, signature, found.device)
        with self._lock:
            if self._executables.get(name) is found:  # a plan must not outlive its executable
                self._plans[function.key, skeleton, choice.session] = plan
        return found

    def _first(
        self, function: Function, signature: Hashable, device: int, make: Make, build: _Build
    ) -> Executable:
        """The executable for a device; or, where there are several, for any of them."""
        name = _name(function.key, signature, device)
        if not are_several():
            return build(
                name, lambda: self._executables.get(name), lambda: self._make(name, make, make)
            )

        def find() -> Executable | None:
            places = itertools.product(self._variants_of(function), range(len(jax.devices())))
            names = (_name(key, signature, index) for key, index in places)
            return next(filter(None, map(self._executables.get, names)), None)

        return build(
            (function.plain_key, ("first", signature)), find, lambda: self._make(name, make, make)
        )

    def _variants_of(self, function: Function) -> tuple[bytes, ...]:
        """The keys of the same function for all devices, this one among them."""
        with self._lock:
            keys = self._variants.setdefault(function.plain_key, set())
            keys.add(function.key)
            return tuple(keys)

    def _moved(
        self,
        first: Executable,
        key: bytes,
        signature: Hashable,
        device: int,
        make: Make,
        move: Callable[[Executable], Executable | None],
        build: _Build,
    ) -> Executable:
        """The executable for a device, of which there is one for another."""
        name = _name(key, signature, device)
        return build(
            name,
            lambda: self._executables.get(name),
            lambda: self._make(name, lambda: move(first) or make(), make),
        )

    def _make(self, name: _Name, make: Make, maker: Make) -> Executable:
        executable = make()
        with self._lock:
            self._makers[executable.serial] = maker
            self._executables[name] = executable
            self.version += 1
        self._reclaimer.relieve()
        return executable

    def adopt(
        self, function: Function, arguments: Arguments, executable: Executable, maker: Make
    ) -> None:
        """Takes an executable that was made for another key of the same function.

        Args:
            function: whose key it has.
            arguments: those that it was made for.
            executable: the executable.
            maker: as long as it is held, the executable is not dropped.
        """
        wide = keeps_64_bits(function.options)
        signature = signature_of(*arguments, function.statics, wide=wide)
        self._make(_name(function.key, signature, executable.device), lambda: executable, maker)

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

    def drop_outdated(self, changes_of: Callable[[Dependencies], Sequence[Change]]) -> None:
        """Drops those that depend on packages which have changed, and marks them as outdated.

        But not those that were made since, without what is new: there is nothing better.

        Args:
            changes_of: what has become of some packages.
        """
        found = []
        for executable in self.all():
            changes = tuple(changes_of(executable.dependencies))
            if changes and not executable.outdated:
                found.append(executable)
            executable.outdated = changes
        with self._lock:
            self._drop([name for name, one in self._executables.items() if one in found])

    def shrink(self) -> int:
        """Drops what is above the limits; returns how many executables that were."""
        return self._drop_victims(self._limits)

    def reclaim(self, count: int) -> int:
        """Drops the `count` executables of least use; returns how many there were."""
        if count <= 0:
            return 0
        return self._drop_victims(
            Limits(max(0, len(self._executables) - count), share=self._limits.share)
        )

    def _drop_victims(self, limits: Limits) -> int:
        with self._lock:
            items = list(self._executables.items())
        if are_within(limits, [one for _, one in items]):
            return 0
        chosen = victims(
            self._eviction_costs.entries(items, self._is_in_use), limits, time.monotonic()
        )
        names = {one.name for one in chosen}
        with self._lock:
            gone = self._drop(
                name
                for name, one in items
                if name in names and self._executables.get(name) is one and not self._is_in_use(one)
            )
        return len(gone)

    def _is_in_use(self, executable: Executable) -> bool:
        return executable.in_use or executable.serial in self._makers

    def _drop(self, names: Iterable[_Name]) -> list[Executable]:
        """Removes executables from the table; freed when the caller drops the returned ones."""
        gone = [self._executables.pop(name) for name in names]
        self.version += 1
        for executable in gone:
            executable.is_dropped = True
            self.dropped.append(executable.id)
        serials = {executable.serial for executable in gone}
        for bytes_, plan in list(self._plans.items()):
            if plan.executable is not None and plan.executable.serial in serials:
                del self._plans[bytes_]
        return gone


def _fits(found: Executable, function: Function, device: int) -> bool:
    """Whether it answers calls of the function on that device as it is."""
    return found.key == function.key and (found.program.is_bound or found.device == device)


def _name(key: bytes, signature: Hashable, device: int) -> _Name:
    return key, (device, signature) if device else signature
