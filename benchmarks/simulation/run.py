"""One simulation: a pool of a size, one way to route, one seed; and what came out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.director import Director
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.pool import Pool
from benchmarks.simulation.routing import ROUTERS, Router, View
from benchmarks.simulation.work import Work
from jaxd_protocol.network.pool_routing import Busy


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run a pool.

    Attributes:
        name: as in tables.
        router: one of `ROUTERS`.
        shares: whether a program is compiled once in the pool.
        refuses: whether members that have reached their limit pass calls on.
        spreads: whether functions with several open calls are spread.
    """

    name: str
    router: str
    shares: bool = True
    refuses: bool = False
    spreads: bool = True


JAXD: Final = Variant("jaxd", "rendezvous, bounded")
UNSPREAD: Final = replace(JAXD, name="jaxd, nothing spread", spreads=False)
VARIANTS: Final = (
    JAXD,
    UNSPREAD,
    Variant("consistent hashing", "consistent hashing"),
    Variant("least loaded", "least loaded"),
    Variant("round robin", "round robin"),
    Variant("round robin, nothing shared", "round robin", shares=False),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulation has counted; times in seconds, sizes in bytes.

    Attributes:
        variant: its name.
        members: of the pool.
        functions: that its clients call.
        seed: of all that is drawn.
        calls: that were answered.
        seconds: in which they arrived.
        warm: share of the calls whose program was in memory.
        loads: programs read from the shared store or a disk, for each thousand calls.
        compiles: programs traced and compiled, for each thousand calls.
        edits: functions edited, for each thousand calls.
        repeated: calls sent again after a death.
        refused: calls passed on, for each thousand calls.
        p50: of the time from a call to its answer.
        p99: the time that one call in a hundred exceeds.
        p999: the time that one in a thousand exceeds.
        busiest: the work of the busiest member by that of the mean one.
        deepest: the most calls that one member had open.
        reports: of members that the director hears in a second.
        messages: that the director sends in a second, to all clients.
        view: bytes of the director's whole view.
        news: bytes that it sends in a second, to all clients.
    """

    variant: str
    members: int
    functions: int
    seed: int
    calls: int
    seconds: float
    warm: float
    loads: float
    compiles: float
    edits: float
    repeated: int
    refused: float
    p50: float
    p99: float
    p999: float
    busiest: float
    deepest: int
    reports: float
    messages: float
    view: int
    news: float


class Simulation:
    """A pool, its clients and its director, from a state as after long work.

    Args:
        members: how many there are.
        variant: how calls are routed, and what members share.
        parameters: all that is assumed.
        seed: of arrivals, edits, deaths, and of what a router draws.
    """

    def __init__(self, members: int, variant: Variant, parameters: Parameters, seed: int) -> None:
        self._variant, self._parameters, self._seed = variant, parameters, seed
        self._clock, self._chance = Clock(), random.Random(seed)
        self._work = Work(members, parameters, seed)
        names = [f"member-{number:04}" for number in range(members)]
        self._view = View(names, self._work.clients, parameters)
        self._router: Router = ROUTERS[variant.router](self._view, parameters, self._chance)
        self._pool = Pool(
            self._clock,
            self._work,
            self._router,
            self._view,
            parameters,
            shares=variant.shares,
            refuses=variant.refuses,
        )
        spread = parameters.spread if variant.spreads else 0.0
        self._director = Director(self._pool.members, spread)
        self._arrived = self._edited = self._deepest = 0

    def run(self) -> Outcome:
        """Lets all calls arrive and be answered."""
        self._settle()
        clock, pool, work = self._clock, self._pool, self._work
        clock.follow(work.arrivals(), self._arrive)
        clock.follow(work.edits(), self._edit)
        clock.follow(self._deaths(), pool.kill)
        clock.after(self._parameters.view_s, self._tell)
        names, parameters = self._view.names, self._parameters
        every_s = max(parameters.heartbeat_s, len(names) / parameters.reports_a_second)
        for name in names:
            first = self._chance.uniform(0, every_s)
            clock.every(every_s, partial(self._hear, name), first)
        clock.run(lambda: len(pool.counts.latencies) >= work.calls)
        return self._outcome()

    def _settle(self) -> None:
        """Programs are where they would be after long work, and the shared store has all.

        Where a program is a matter of its key, those that nobody will call are left out.
        """
        work, key = self._work, self._pool.key
        self._pool.know(range(work.functions))
        open_calls = (work.rate * work.shares * work.run_s).tolist()
        rows = enumerate(zip(open_calls, work.run_s.tolist(), strict=True))
        self._director.settle({key(function).hex(): Busy(*each) for function, each in rows})
        self._view.tell({}, self._director.spreads)
        hashed: dict[str, list[int]] = {}
        members = len(self._view.names)
        calls = Work(members, self._parameters, self._seed).arrivals()
        for function in sorted({function for _, _, function in calls}, reverse=True):
            for home in self._router.homes(key(function)):
                hashed.setdefault(home, []).append(function)
        for name in self._view.names:
            drawn = hashed.get(name, []) if hashed else self._work.drawn(_DRAWN)
            self._pool.settle(name, drawn)

    def _deaths(self) -> Iterator[tuple[float, str]]:
        """Evenly over the time in which calls arrive."""
        names = self._view.names
        share = self._parameters.deaths if len(names) > 1 else 0.0
        count = max(1, round(len(names) * share)) if share else 0
        for number in range(count):
            yield (number + 1) * self._work.seconds / (count + 1), self._chance.choice(names)

    def _arrive(self, client: int, function: int) -> None:
        self._arrived += 1
        self._pool.call(client, function)

    @property
    def _calls_still_arrive(self) -> bool:
        return self._arrived < self._work.calls

    def _edit(self, function: int) -> None:
        if self._calls_still_arrive:
            self._edited += 1
            self._pool.edit(function)

    def _hear(self, name: str) -> None:
        if self._calls_still_arrive and self._pool.members[name].is_alive:
            self._director.hear(name, self._clock.now)

    def _tell(self) -> None:
        """Tells all clients; the next time when all of it is sent."""
        parameters, sent = self._parameters, 0
        loads = self._director.news(self._clock.now)
        self._view.tell(loads, self._director.spreads)
        if self._calls_still_arrive:
            sent = self._director.count() * self._work.clients
            most = max(len(member.calls) for member in self._pool.members.values())
            self._deepest = max(self._deepest, most)
        self._clock.after(parameters.view_s + sent / parameters.news_a_second, self._tell)

    def _outcome(self) -> Outcome:
        counts, work, director = self._pool.counts, self._work, self._director
        p50, p99, p999 = np.quantile(np.asarray(counts.latencies), [0.5, 0.99, 0.999]).tolist()
        busy = [member.busy_s for member in self._pool.members.values()]
        seconds, thousands = work.seconds, work.calls / 1000
        times = work.clients / seconds
        return Outcome(
            variant=self._variant.name,
            members=len(busy),
            functions=work.functions,
            seed=self._seed,
            calls=work.calls,
            seconds=seconds,
            warm=counts.warm / (work.calls + counts.repeated),
            loads=counts.loads / thousands,
            compiles=counts.compiles / thousands,
            edits=self._edited / thousands,
            repeated=counts.repeated,
            refused=counts.refused / thousands,
            p50=p50,
            p99=p99,
            p999=p999,
            busiest=max(busy) / (sum(busy) / len(busy)),
            deepest=self._deepest,
            reports=director.reports / seconds,
            messages=len(director.told) * times,
            view=director.whole,
            news=sum(director.told) * times,
        )


_DRAWN: Final = 2000
"""Calls of the past that are enough to fill the memory of a member with what it has lately used."""
