"""Which member of a pool makes a call: that which has its values, else the first for its key.

The order of the members for a key, and the bound on their load, are `pool_routing`'s. An order is
kept for each key until members come or go. What this process has open itself it knows at once; what
others have open, the view says.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from itertools import accumulate, takewhile
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from jaxd.pool.members import Incarnation, MemberCaller, described, incarnation, usable_addresses
from jaxd.pool.view import Seen, ViewKeeper
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import JaxdError, NoServer
from jaxd_protocol.messages.pool_view import SPREAD_DIGITS
from jaxd_protocol.network.pool_routing import BOUND, choose, draw, ranked

if TYPE_CHECKING:
    from jaxd.connection.settings import Settings
    from jaxd.dispatch.caller import Caller
    from jaxd.dispatch.session import Session
    from jaxd_protocol.messages.pool_view import PoolMember
    from jaxd_protocol.network.addresses import Address

_MAX_ORDERS: Final = 4096
_AVOIDED_S: Final = 10.0
"""For so long a member that could not be reached gets no calls of this process."""

_START_S: Final = 60.0
"""For so long a call waits for members that start."""

_LOST_S: Final = 3.0
"""And for so long when none does: the director needs that to notice what happens to them."""

_PROBE_S: Final = 1.0
_FEW: Final = 16
_COUNTED_S: Final = 0.02
"""With more than so many members in use, what this process has open is counted so often."""

_VIEWS: Final = 4
"""What this process had open at a member is known for so many views."""

_NONE: Final[Mapping[str, int]] = {}
_EVEN: Final = 1.0
_NO_FIRST: Final = None, 0


class Routes(NamedTuple):
    """The members that take new calls, as one view has them.

    Attributes:
        names: of the members.
        loads: calls that each has open.
        devices: how many each has.
        total_load, total_devices: the sums.
        others: of the loads, the calls that are not of this process, as far as it can tell.
        total_others: the sum.
        orders: by key, the names in the order in which its calls go to them.
        spreads: on how many devices functions are to be warm, by the digits of their keys.
    """

    names: tuple[str, ...]
    loads: Mapping[str, int]
    devices: Mapping[str, int]
    total_load: int
    total_devices: int
    others: Mapping[str, int]
    total_others: int
    orders: BoundedDict[bytes, Sequence[str]]
    spreads: Mapping[str, int]

    @classmethod
    def of(
        cls,
        members: Iterable[PoolMember],
        before: Routes | None = None,
        spreads: Mapping[str, int] = _NONE,
        own: Mapping[str, int] = _NONE,
    ) -> Routes:
        """Those to these members; orders are kept while the members are the same.

        Args:
            members: that take calls.
            before: the routes until now.
            spreads: as the view has them.
            own: the calls of this process that may be among the loads, by member.
        """
        found = sorted(members, key=lambda each: each.name)
        devices = {each.name: max(1, each.devices) for each in found}
        loads = {each.name: max(0, each.load) for each in found}
        orders: BoundedDict[bytes, Sequence[str]] = BoundedDict(_MAX_ORDERS)
        if before is not None and before.devices == devices:
            orders = before.orders
        others = {name: max(0, load - own.get(name, 0)) for name, load in loads.items()}
        sums = (sum(each.values()) for each in (loads, devices, others))
        total_load, total_devices, total_others = sums
        return cls(
            tuple(devices),
            loads,
            devices,
            total_load,
            total_devices,
            others,
            total_others,
            orders,
            spreads,
        )

    def spread(self, key: bytes) -> int:
        """Over how many of its first members a function is spread."""
        wanted = self.spreads.get(key.hex()[:SPREAD_DIGITS], 1) if self.spreads else 1
        if wanted <= 1 or self.total_devices == len(self.names):
            return wanted
        devices = accumulate(self.devices[name] for name in self.order(key))
        return 1 + sum(1 for _ in takewhile(wanted.__gt__, devices))

    def order(self, key: bytes) -> Sequence[str]:
        """The members in the order in which calls of a key go to them."""
        found = self.orders.get(key)
        if found is None:
            found = self.orders[key] = ranked(key, self.names, self.devices)
        return found

    def room_at(self, name: str) -> float:
        """How many calls of its own a process may have open at a member that is first for a key.

        With as many, or more, it may be the turn of the next one: `choose` decides. With fewer it
        is not, for all others can only have more to do than is known.
        """
        share = max(1.0, BOUND * (self.total_load + 1) / self.total_devices)
        limit = ceil(share * self.devices[name])
        return limit if self.loads[name] < limit else 0

    def least_loaded(self, loads: OpenCalls) -> str:
        """The member with the fewest open calls for its devices."""
        return min(self.names, key=lambda name: loads[name] / self.devices[name])


class OpenCalls:
    """The calls that each member has open: as told, or what this process has open where it is more.

    Args:
        told: by the director.
        callers: make the calls of this process.
        beside: whether those told are of others alone, so that those of this process are added.
    """

    __slots__ = ("_beside", "_callers", "_told")

    def __init__(
        self,
        told: Mapping[str, int],
        callers: Mapping[str, MemberCaller],
        *,
        beside: bool = False,
    ) -> None:
        self._told = told
        self._callers = callers
        self._beside = beside

    def get(self, name: str, default: int = 0) -> int:
        """Those of one member."""
        told, caller = self._told.get(name, default), self._callers.get(name)
        if caller is None:
            return told
        own = caller.session.open_calls
        return told + own if self._beside else max(told, own)

    def __getitem__(self, name: str) -> int:
        return self.get(name)


class Pool:
    """The members of one pool, as this process uses them. Thread-safe.

    Args:
        settings: address of the director, and credentials.
        caller: makes the calls on the pool.

    Attributes:
        keeper: keeps the view.
        draining: the members that are to be left.
    """

    def __init__(self, settings: Settings, caller: Caller) -> None:
        self._caller = caller
        self.keeper = ViewKeeper(settings, caller, self)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: the sessions are the parent's."""
        self._lock = threading.Lock()  # guards all of these
        self._routes = Routes.of(())
        self._firsts: BoundedDict[bytes, tuple[MemberCaller, float]] = BoundedDict(_MAX_ORDERS)
        self._callers: dict[str, MemberCaller] = {}
        self._used: tuple[MemberCaller, ...] = ()  # those above, and others that hold values
        self._unused: set[MemberCaller] = set()  # as they were looked at last
        self._avoided: dict[str, tuple[int, float, str]] = {}
        self.draining: frozenset[Incarnation] = frozenset()
        self._home: MemberCaller | None = None
        none: tuple[int, float, Routes | None] = (0, 0.0, None)
        self._more = [none, none]  # for `loads`, not evenly and evenly; one step sets each
        self._recent: tuple[Mapping[str, int], ...] = ()

    @property
    def breadth(self) -> int:
        """How many members take calls, as far as that is known; one at least."""
        return len(self._routes.names) or 1

    def holders(self) -> list[MemberCaller]:
        """Those with which this process may hold arrays."""
        found = []
        for each in self._used:  # no comprehension, which older versions of Python call
            store = each.session.store
            if store is not None and store.release_queue.is_holding and store.loss_error is None:
                found.append(each)
        return found

    @property
    def used(self) -> tuple[MemberCaller, ...]:
        """Those with which this process has a session, or had one until just now."""
        return self._used

    # which member --------------------------------------------------------------------------------

    def routes(self, deadline: float | None = None) -> Routes:
        """The members that take calls, one at least.

        Args:
            deadline: `time.monotonic()` after which nobody waits for them; None: there is none.

        Raises:
            NoServer: when there is none.
            JaxdError: when the director was never reached, and cannot be.
        """
        found = self._routes
        if found.names:
            return found
        self.keeper.start(deadline)
        if not self._routes.names:
            self._wait_for_members((), deadline)
        return self._routes

    def loads(self, routes: Routes, *, evenly: bool = False) -> tuple[OpenCalls, int]:
        """The calls that the members have open, and the sum.

        With many members the sum is counted now and then; what was routed since is added.

        Args:
            routes: to the members.
            evenly: whether many calls of this process are to be shared out. What is told of these
                is a tenth of a second old, in which a member may have answered many of them: so
                only what is told of others counts, beside what this process has open now.
        """
        told, total = routes.loads, routes.total_load
        if evenly:
            told, total = routes.others, routes.total_others
        opened, now = OpenCalls(told, self._callers, beside=evenly), time.monotonic()
        more, until, of = self._more[evenly]
        if of is not routes or now >= until:
            known = [name for name in list(self._callers) if name in told]
            more = sum(opened.get(name) - told[name] for name in known)
            until = now + _COUNTED_S if len(known) > _FEW else now
        self._more[evenly] = more + 1, until, routes
        return opened, total + more

    def of_key(self, key: bytes, *, evenly: bool = False) -> MemberCaller:
        """The member that makes the next call of a function.

        Args:
            key: of the function.
            evenly: whether all members are to have as much to do, so that it gets warm on all.

        Raises:
            NoServer: when no member takes calls.
        """
        firsts = self._firsts  # before all else: what follows may be older than another one
        if not evenly:
            first, room = firsts.get(key, _NO_FIRST)
            if first is not None and first.session.open_calls < room:
                return first
        routes = self.routes()
        loads, total = self.loads(routes, evenly=evenly)
        bound, order = _EVEN if evenly else BOUND, routes.order(key)
        spread = 1 if evenly else routes.spread(key)
        name = choose(
            order,
            loads,
            bound,
            drawn=draw(order, spread),
            total_load=total,
            devices=routes.devices,
            total_devices=routes.total_devices,
        )
        found = self._callers.get(name) or self._begin(name)
        if name == order[0] and not evenly and spread == 1:
            firsts[key] = found, routes.room_at(name)
        return found

    def why(self, key: bytes) -> str:
        """Which member makes the next call of a function, and the rule that decides."""
        routes = self.routes()
        chosen, order = self.of_key(key).member.name, routes.order(key)
        first, spread = order[0], routes.spread(key)
        if spread > 1:
            return (
                f"on member {chosen}, one of the first {spread} of {len(order)} for its key, which "
                "has many calls open in the pool"
            )
        if chosen == first:
            return f"on member {chosen}, the first of {len(order)} for its key"
        loads, total = self.loads(routes)
        return (
            f"on member {chosen}, number {order.index(chosen) + 1} of {len(order)} for its key, as "
            f"{first} has {loads.get(first, 0)} of the {total} calls that are open"
        )

    def home(self, deadline: float | None = None) -> MemberCaller:
        """The member for what has neither values nor a key: that which has values, if one has."""
        routes = self.routes(deadline)
        home = self._home
        if home is None or not self._takes_calls(home):
            names = (each.member.name for each in self.holders())
            name = next((each for each in names if each in routes.loads), None)
            home = self._home = self.named(name or routes.least_loaded(self.loads(routes)[0]))
        return home

    def named(self, name: str) -> MemberCaller:
        """The member of that name.

        Raises:
            NoServer: when it takes no calls, or there is none.
        """
        routes = self.routes()
        caller = self._callers.get(name)
        if caller is not None and (name in routes.loads or self._is_needed(caller)):
            return caller
        if name in routes.loads:
            return self._begin(name)
        member = self.member(name)
        known = ", ".join(sorted(self.keeper.view.members))
        what = f"no {name}; its members are {known}" if member is None else self._told(member)
        raise NoServer(
            f"the pool at {self.keeper.address} has {what}. Leave on(member=…) out to have any "
            "member answer, or see: jaxd pool status."
        )

    def _is_needed(self, caller: MemberCaller) -> bool:
        """Whether this process has arrays on a member, which cannot go elsewhere."""
        return caller.session.holds_values and not self.drains(caller)

    def everywhere(self, *, also_draining: bool = False) -> tuple[MemberCaller, ...]:
        """The members that take calls, that for what has no key first."""
        home = self.home()
        names = list(self._routes.names)
        if also_draining:
            view = self.keeper.view
            names += [name for name, each in view.members.items() if each.state == "draining"]
        others = [self._callers.get(name) or self._begin(name) for name in names]
        return home, *(each for each in others if each is not home)

    def holder_of(self, store: object) -> MemberCaller | None:
        """That whose session has the arrays of a store; None: it is over."""
        return next((each for each in self._used if each.session.store is store), None)

    def have_all_members(self, stores: Collection[object]) -> bool:
        """Whether each member that takes calls has the arrays of one of these stores."""
        callers = [self._callers.get(name) for name in self._routes.names]
        return bool(stores) and all(each and each.session.store in stores for each in callers)

    def _begin(self, name: str) -> MemberCaller:
        """What makes the calls on a member from now on."""
        with self._lock:
            found = self._callers.get(name)
            member = self.keeper.view.members.get(name)
            if found is not None:
                return found
            if member is None:
                raise NoServer(f"{name} has just left the pool. Call again.")
            known = (each for each in self._used if each.is_with(member))  # it was lost for a while
            made = next(known, None) or MemberCaller(self._caller, self, member)
            self._callers[name] = made
            self._used = (*(each for each in self._used if each is not made), made)
            return made

    # members that come and go (see `MemberPool`) -------------------------------------------------

    def member(self, name: str) -> PoolMember | None:
        """The member of that name, as it is now."""
        return self.keeper.view.members.get(name)

    def is_lost(self, member: PoolMember) -> bool:
        """Whether that start of a member is gone, as the director sees it."""
        now = self.member(member.name)
        return now is None or now.epoch != member.epoch or now.state == "lost"

    def ask_about(self, member: PoolMember, error: JaxdError) -> Seen | None:
        """How the director sees a member that cannot be reached from here; None: it is away."""
        if self.is_lost(member):
            return Seen("lost")
        return self.keeper.report_unreachable(member, str(error))

    def avoid(self, member: PoolMember, error: JaxdError | None = None) -> None:
        """Sends no new calls to a member for a while: it cannot be reached, or refuses them."""
        until, reason = time.monotonic() + _AVOIDED_S, str(error or "it is stopping")
        with self._lock:
            self._avoided[member.name] = member.epoch, until, reason
        self.changed()

    def another(self, tried: Collection[Incarnation], deadline: float | None = None) -> PoolMember:
        """A member that takes calls and was not tried.

        Raises:
            NoServer: when there is none.
        """
        found = self._wait_for_members(tried, deadline)
        loads, _ = self.loads(self._routes)
        return min(found, key=lambda each: loads.get(each.name, 0) / max(1, each.devices))

    def another_session(self, than: Session, key: bytes) -> Session:
        """That with the next member for a key; does not wait for one.

        Raises:
            NoServer: when there is none.
        """
        for name in self._routes.order(key):
            found = (self._callers.get(name) or self._begin(name)).session
            if found is not than:
                return found
        raise self._nobody_left()

    def _wait_for_members(
        self, tried: Collection[Incarnation], deadline: float | None
    ) -> list[PoolMember]:
        """The members that take calls and were not tried, one at least.

        Raises:
            NoServer: when there is none in time.
        """
        began = time.monotonic()
        while True:
            news, members = self.keeper.news, self.keeper.view.members.values()
            found = [each for each in members if _is_new(each, self._routes, tried)]
            if found:
                return found
            starting = any(each.state == "starting" for each in members)
            until = began + (_START_S if starting else _LOST_S)
            until = until if deadline is None else min(until, deadline)
            if self.keeper.failure is not None or not self.keeper.wait(news, until):
                raise self._nobody_left()

    def _nobody_left(self) -> NoServer:
        members = sorted(self.keeper.view.members.values(), key=lambda each: each.name)
        told = "; ".join(map(self._told, members)) or "it has none"
        away = " Its director does not answer either." if self.keeper.failure else ""
        address = self.keeper.address
        return NoServer(
            f"no member of the pool at {address} takes calls: {told}.{away} See: jaxd pool "
            f"status, and from here: jaxd doctor --server '{address}'"
        )

    def _told(self, member: PoolMember) -> str:
        epoch, _, reason = self._avoided.get(member.name, (None, 0.0, ""))
        return described(member, reason if epoch == member.epoch else None)

    def changed(self) -> None:
        """There is another view, or members are to be avoided."""
        now = time.monotonic()
        with self._lock:
            view = self.keeper.view
            self._avoided = {
                name: (epoch, until, reason)
                for name, (epoch, until, reason) in self._avoided.items()
                if until > now and name in view.members and view.members[name].epoch == epoch
            }
            drain = (each for each in view.members.values() if each.state == "draining")
            self.draining = frozenset(map(incarnation, drain))
            ready = (each for each in view.members.values() if each.state == "ready")
            free = (each for each in ready if each.name not in self._avoided)
            self._routes = Routes.of(free, self._routes, view.spreads, self._recent_calls())
            self._callers = {
                name: caller
                for name, caller in self._callers.items()
                if name not in self._avoided and not self.is_lost(caller.member)
            }
            self._firsts = BoundedDict(_MAX_ORDERS)  # last: what is found by the others is old

    def _recent_calls(self) -> dict[str, int]:
        """The most calls that this process has had open at each member when it got the last views.

        A load that is told now was looked at between these.
        """
        now = {name: each.session.open_calls for name, each in self._callers.items()}
        self._recent = (now, *self._recent)[:_VIEWS]
        return {name: max(each.get(name, 0) for each in self._recent) for name in now}

    def look_after(self) -> bool:
        """Ends the sessions that are of no more use; whether some are still to be ended."""
        if self._avoided:
            self.changed()
        left = [each for each in self._used if not self._takes_calls(each)]
        for each in left:
            self._cut_if_lost(each)
            if self.drains(each) and self._routes.names:
                with suppress(JaxdError):  # it is tried again
                    each.give_idle(self.others_for(self.home()))
        unused = {each for each in left if _is_unused(each)}
        ended = unused & self._unused  # twice, for a call may just be about to go there
        with self._lock:
            self._unused = unused - ended
            self._used = tuple(each for each in self._used if each not in ended)
            for each in ended:
                if self._callers.get(each.member.name) is each:
                    del self._callers[each.member.name]
            if ended:
                self._firsts = BoundedDict(_MAX_ORDERS)
        for each in ended:
            each.session.end()
        return len(left) > len(ended)

    def drains(self, caller: MemberCaller) -> bool:
        """Whether a member is to be left."""
        return incarnation(caller.session.at) in self.draining

    def others_for(self, first: MemberCaller) -> list[MemberCaller]:
        """Some members that may take arrays of one that drains, one before all others."""
        names = nsmallest(_FEW, self._routes.names, key=self._routes.loads.__getitem__)
        others = [self._callers.get(name) or self._begin(name) for name in names]
        return [first, *(each for each in others if each is not first)]

    def _takes_calls(self, caller: MemberCaller) -> bool:
        name = caller.member.name
        return self._callers.get(name) is caller and name in self._routes.loads

    def _cut_if_lost(self, caller: MemberCaller) -> None:
        """Ends the connection to a member that is gone, whose machine cannot say so any more."""
        at, connection = caller.session.at, caller.session.open_connection
        if connection is None or not self.is_lost(at):
            return
        if not self._can_be_reached([*usable_addresses(at), *caller.session.relays]):
            connection.shut()

    def _can_be_reached(self, ways: Sequence[Address]) -> bool:
        from jaxd.connection.connect import Patience, dial

        for address in ways:
            try:
                patience = Patience(time.monotonic() + _PROBE_S)
                dial(address, self._caller.settings, patience).close()
            except (JaxdError, OSError):
                continue
            return True
        return False

    def close(self) -> None:
        """Ends all sessions; the next call begins others."""
        self.keeper.stop()
        with self._lock:
            used, self._used = self._used, ()
            self._callers.clear()
            self._routes = Routes.of(())
            self._firsts = BoundedDict(_MAX_ORDERS)
        for each in used:
            each.session.close()


def _is_new(member: PoolMember, routes: Routes, tried: Collection[Incarnation]) -> bool:
    """Whether a member takes calls and was not tried."""
    return member.name in routes.loads and incarnation(member) not in tried


def _is_unused(caller: MemberCaller) -> bool:
    session = caller.session
    return not (session.open_calls or session.holds_values)
