"""Members, their programs, and what one tells another: a call's way from its client and back."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.routing import Router, View
from benchmarks.simulation.work import Work

_NONE: Final = 0, 0.0


@dataclass(slots=True, eq=False)
class Call:
    """One call, until it is answered."""

    arrived: float
    client: int
    function: int
    key: bytes


@dataclass(slots=True, eq=False)
class Member:
    """A server with one device, which runs one program at a time, in the order of the calls.

    Attributes:
        epoch: rises when it dies: what was to happen in it does not.
        calls: those that it has open.
        programs: keys whose programs are in memory, those used last at the end.
        disk: keys whose programs it has kept, where nothing is shared.
        wanted: calls that wait for a program, by its key.
        queue: functions that wait to be compiled.
        builders: how many more it may compile now.
        free_at: when its device has run all that it was given.
        busy_s: how long its device has run.
        answered: how many calls of each key it has answered, and how long these were open.
    """

    name: str
    builders: int
    epoch: int = 0
    is_alive: bool = True
    calls: dict[Call, None] = field(default_factory=dict)
    programs: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    disk: set[bytes] = field(default_factory=set)
    wanted: dict[bytes, list[Call]] = field(default_factory=dict)
    queue: deque[tuple[int, bytes]] = field(default_factory=deque)
    free_at: float = 0.0
    busy_s: float = 0.0
    answered: dict[bytes, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lease:
    """A member compiles a program, and others wait for it.

    Attributes:
        holder: the member.
        epoch: of the holder when it began.
        waiting: the others, each with its epoch.
    """

    holder: Member
    epoch: int
    waiting: list[tuple[Member, int]] = field(default_factory=list)

    def is_of(self, member: Member, before: int) -> bool:
        """Whether a member held it before it got this epoch."""
        return self.holder is member and self.epoch < before


@dataclass(slots=True)
class Counts:
    """What has happened.

    Attributes:
        latencies: of each call, from its arrival to its answer.
        warm: calls whose program was in memory.
        loads: programs that were read from the shared store, or from a member's own disk.
        compiles: programs that were traced and compiled.
        repeated: calls that were sent again because their member had died.
        refused: calls that a member passed on.
    """

    latencies: array[float] = field(default_factory=lambda: array("d"))
    warm: int = 0
    loads: int = 0
    compiles: int = 0
    repeated: int = 0
    refused: int = 0


class Pool:
    """All members and the store that they share, or not.

    Args:
        clock: of the simulation.
        work: what is called.
        router: chooses a member for each call.
        view: what clients know of the members.
        parameters: durations and sizes.
        shares: whether a program is compiled once in the pool: by one member, for all.
        refuses: whether a member that has reached its limit passes a call on, as it knows its load
            better than the client does.
    """

    def __init__(
        self,
        clock: Clock,
        work: Work,
        router: Router,
        view: View,
        parameters: Parameters,
        shares: bool = True,
        refuses: bool = False,
    ) -> None:
        self._clock, self._work, self._router, self._view = clock, work, router, view
        self._parameters, self._shares, self._refuses = parameters, shares, refuses
        self.members = {name: Member(name, parameters.builders) for name in view.names}
        self.counts = Counts()
        self._versions: dict[int, int] = {}
        self._stored: set[bytes] = set()
        self._leases: dict[bytes, Lease] = {}

    # what is called ------------------------------------------------------------------------------

    def key(self, function: int) -> bytes:
        """Of the function as it is now."""
        return function.to_bytes(4, "big") + self._versions.get(function, 0).to_bytes(4, "big")

    def edit(self, function: int) -> None:
        """It has another key from now on."""
        self._versions[function] = self._versions.get(function, 0) + 1

    def settle(self, name: str, functions: list[int]) -> None:
        """Gives a member programs as if it had run for long; the last ones were used last."""
        member = self.members[name]
        for function in functions:
            self._keep(member, self.key(function))
        self._stored.update(member.programs)
        member.disk.update(member.programs)

    def know(self, functions: range) -> None:
        """The shared store has programs of these, from long ago."""
        self._stored.update(map(self.key, functions))

    def call(self, client: int, function: int) -> None:
        """A client calls."""
        self._send(Call(self._clock.now, client, function, self.key(function)))

    def _send(self, call: Call) -> None:
        member = self.members[self._router.choose(call.client, call.key)]
        if self._passes_on(member, call):
            self.counts.refused += 1
            self._view.refused(call.client, member.name)
            self._clock.after(self._parameters.call_s, self._send, call)
            return
        self._view.opened(call.client, member.name)
        member.calls[call] = None
        if not member.is_alive:
            return  # sent again as soon as its death is known
        if call.key in member.programs:
            self.counts.warm += 1
            member.programs.move_to_end(call.key)
            self._run(member, call)
        else:
            self._provide(member, call)

    def _passes_on(self, member: Member, call: Call) -> bool:
        """Only once between news for a client: where all are full, the call is taken."""
        if not self._refuses or not member.is_alive:
            return False
        is_full = len(member.calls) >= self._view.limit
        return is_full and not self._view.has_refused(call.client, member.name)

    def _run(self, member: Member, call: Call) -> None:
        now, run_s = self._clock.now, float(self._work.run_s[call.function])
        member.free_at = max(now, member.free_at) + run_s
        member.busy_s += run_s
        delay = member.free_at - now + self._parameters.call_s
        self._clock.after(delay, self._answer, member, member.epoch, call, delay)

    def _answer(self, member: Member, epoch: int, call: Call, open_s: float) -> None:
        if epoch != member.epoch:
            return
        del member.calls[call]
        count, seconds = member.answered.get(call.key, _NONE)
        member.answered[call.key] = count + 1, seconds + open_s
        self._view.closed(call.client, member.name)
        self.counts.latencies.append(self._clock.now - call.arrived)

    # programs ------------------------------------------------------------------------------------

    def _provide(self, member: Member, call: Call) -> None:
        """Has the program of a call loaded or compiled, once for all calls that wait for it."""
        waiting = member.wanted.setdefault(call.key, [])
        waiting.append(call)
        if len(waiting) > 1:
            return
        if call.key in (self._stored if self._shares else member.disk):
            self._load(member, member.epoch, call.function, call.key)
        elif self._shares and call.key in self._leases:
            self._leases[call.key].waiting.append((member, member.epoch))
        else:
            if self._shares:
                self._leases[call.key] = Lease(member, member.epoch)
            self._compile(member, call.function, call.key)

    def _load(self, member: Member, epoch: int, function: int, key: bytes) -> None:
        if epoch == member.epoch:
            self.counts.loads += 1
            delay = float(self._work.load_s[function])
            self._clock.after(delay, self._ready, member, epoch, key)

    def _compile(self, member: Member, function: int, key: bytes) -> None:
        if not member.builders:
            member.queue.append((function, key))
            return
        member.builders -= 1
        delay = float(self._work.compile_s[function])
        self._clock.after(delay, self._compiled, member, member.epoch, function, key)

    def _compiled(self, member: Member, epoch: int, function: int, key: bytes) -> None:
        if epoch != member.epoch:
            return
        self.counts.compiles += 1
        (self._stored if self._shares else member.disk).add(key)
        self._ready(member, epoch, key)
        if self._shares:
            for waiting, its_epoch in self._leases.pop(key).waiting:
                self._load(waiting, its_epoch, function, key)
        member.builders += 1
        if member.queue:
            self._compile(member, *member.queue.popleft())

    def _ready(self, member: Member, epoch: int, key: bytes) -> None:
        if epoch != member.epoch:
            return
        self._keep(member, key)
        for call in member.wanted.pop(key):
            self._run(member, call)

    def _keep(self, member: Member, key: bytes) -> None:
        member.programs[key] = None
        member.programs.move_to_end(key)
        if len(member.programs) > self._parameters.programs:
            member.programs.popitem(last=False)

    # deaths --------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Its node dies: what it had in memory and on its disk is gone, and its calls are open."""
        member = self.members[name]
        if not member.is_alive:
            return
        member.is_alive = False
        member.epoch += 1
        for lost in (member.programs, member.disk, member.wanted, member.queue, member.answered):
            lost.clear()
        member.builders, member.free_at = self._parameters.builders, self._clock.now
        self._clock.after(self._parameters.notice_s, self._notice, member)
        self._clock.after(self._parameters.lease_s, self._pass_leases_on, member, member.epoch)
        self._clock.after(self._parameters.back_s, self._return, member)

    def _notice(self, member: Member) -> None:
        """All know of it: its calls are sent again."""
        self._view.lost(member.name)
        calls = list(member.calls)
        member.calls.clear()
        for call in calls:
            self.counts.repeated += 1
            self._view.closed(call.client, member.name)
            self._send(call)

    def _pass_leases_on(self, member: Member, epoch: int) -> None:
        """What it was compiling when it died is compiled by the first of those that wait for it."""
        held = [key for key, lease in self._leases.items() if lease.is_of(member, epoch)]
        for key in held:
            waiting = [one for one in self._leases.pop(key).waiting if one[0].epoch == one[1]]
            if waiting:
                holder, its_epoch = waiting[0]
                self._leases[key] = Lease(holder, its_epoch, waiting[1:])
                self._compile(holder, int.from_bytes(key[:4], "big"), key)

    def _return(self, member: Member) -> None:
        member.is_alive = True
        self._view.ready(member.name)
