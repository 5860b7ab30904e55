"""Makes the calls of persistent functions on a pool: each on the member that is chosen for it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from jaxd.dispatch.caller import Caller, CallerLookup
from jaxd.dispatch.session import Session
from jaxd.interop.handle_ranges import HandleRange, HandleRanges
from jaxd.interop.jax_runtime import leaves_of
from jaxd.interop.remote_array import RemoteArray
from jaxd.pool.members import MemberCaller, move, stores_with
from jaxd.pool.routes import Pool
from jaxd.remote_values.store import OpenSession, RemoteStore
from jaxd.request.call_request import (
    CallRequest,
    callback_origin,
    result_policy_for,
    running_callbacks,
)
from jaxd_protocol.errors import ConfigurationError, ValuesDied

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import Settings
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.results.reader import ResultsAs

_LARGEST_COUNTS: Final = ("epoch", "uptime_s")
"""The figures of a server that are not added up over members."""


class PoolSession(Session):
    """What a pool has in place of the session with a server: the sessions with its members.

    What is asked of it goes to the member for what has neither values nor a key.

    Args:
        settings: address of the director, and credentials.
        handler: makes the calls.
        pool: the members.
    """

    def __init__(self, settings: Settings, handler: Caller) -> None:
        super().__init__(settings, handler)
        self.pool = Pool(settings, handler)
        self._director = settings.server

    def current(self, fresh: bool = False, deadline: float | None = None) -> OpenSession:
        """As of any session, with the member for what has neither values nor a key."""
        session = self.pool.home(deadline).session
        opened = session.current(fresh, deadline)
        self.accepts, self.platform, self.id = session.accepts, session.platform, session.id
        self.address = self._director
        return opened

    @property
    def open_connection(self) -> ClientConnection | None:
        """One to a member that is open now."""
        found = (each.session.open_connection for each in self.pool.used)
        return next((each for each in found if each is not None), None)

    @property
    def stores(self) -> Sequence[RemoteStore]:
        """The arrays of this process, of each member that has some."""
        found = (each.session.store for each in self.pool.used)
        return [each for each in found if each is not None]

    def drain(self, connection: ClientConnection) -> None:
        """As of any session: of that whose connection it is."""
        for each in self.pool.used:
            each.session.drain(connection)

    def close(self) -> None:
        """Ends the connections to all members and to the director."""
        self.pool.close()

    def use(self) -> dict[str, float]:
        """What the members have done for this process."""
        return _added_up([each.session.use() for each in self.pool.used])

    def ask(self, verb: str, *args: Any) -> dict[str, Any]:
        """As of any session; of `statistics` all members are asked, and their numbers added up."""
        if verb != "statistics":
            return super().ask(verb, *args)
        reports = [each.session.ask(verb, *args) for each in self.pool.everywhere()]
        largest = {name: max(each[name] for each in reports) for name in _LARGEST_COUNTS}
        return {**_added_up(reports), **largest}


def _added_up(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The sums of the numbers that have the same name."""
    total: dict[str, Any] = {}
    for report in reports:
        for name, value in report.items():
            if type(value) in {int, float}:
                total[name] = total.get(name, 0) + value
    return total


class PoolCaller(Caller):
    """Makes calls on a pool for persistent functions. Thread-safe; connects at first use.

    Args:
        settings: address of the director, and credentials.
        other: the caller whose pool it uses, where there is one already.

    Raises:
        ConfigurationError: when the settings ask for what a pool does not do.
    """

    session: PoolSession

    def __init__(self, settings: Settings, other: Caller | None = None) -> None:
        if settings.verify or settings.place == "here":
            raise ConfigurationError(
                f"verify=True and place='here' are for one server, and {settings.server} is a "
                "pool. Leave them out, or use the address of a member (jaxd pool status)."
            )
        super().__init__(settings, other)
        self._pool = self.session.pool

    def _new_session(self) -> Session:
        return PoolSession(self.settings, self)

    @property
    def breadth(self) -> int:
        """How many members may have calls of one `map` at the same time."""
        return self._pool.breadth

    def requires_export(self, timeout_s: float | None = None) -> bool:
        """As of any caller; the director says so, and no member is connected to."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._pool.routes(deadline)
        self.session.accepts = self._pool.keeper.accepts
        if self.session.accepts == "exported":
            self.session.current(deadline=deadline)  # for what they compute on
        return self.session.accepts == "exported"

    def encode(
        self,
        spec: FunctionSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout_s: float | None,
        results: ResultsAs,
        strict: bool = False,
        fallback: str | None = "error",
    ) -> CallRequest:
        """As of any caller: arrays that are with the member that has most of them do not move."""
        pool = self._pool
        while True:
            holders = pool.holders()
            if len(holders) > 1 or pool.draining:
                until = None if timeout_s is None else time.monotonic() + timeout_s
                holders = self._holders_of(spec, args, kwargs, until)
            # the first has all of them by now: it need not look
            one = holders[0] if holders else self
            made = Caller.encode(one, spec, args, kwargs, timeout_s, results, strict, fallback)
            if not pool.draining or _are_together(made):  # else some have just moved
                return made

    def _holders_of(
        self,
        spec: FunctionSpec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        until: float | None,
    ) -> list[MemberCaller]:
        """The member that has most bytes of the arrays among arguments; empty: none has any.

        It takes those that it lacks from the others, and has copies of them from then on.
        """
        arrays = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, RemoteArray)]
        left = self._have_left(spec, arrays, until) if self._pool.draining else ()
        nbytes: Counter[RemoteStore] = Counter()
        for array in arrays:
            nbytes.update(dict.fromkeys(_stores_to_use(array, left), 1 + array.nbytes))
        total = sum(1 + array.nbytes for array in arrays)
        whole = [store for store, found in nbytes.items() if found == total]
        if arrays and self._pool.have_all_members(whole):
            return [self._pool.of_key(spec.key, evenly=True)]
        for sink, _ in nbytes.most_common():
            holder = self._pool.holder_of(sink)
            if holder is not None:
                lacking = [each for each in arrays if sink not in stores_with(each)]
                move(lacking, sink, until)
                return [holder]
        return []

    def _have_left(
        self, spec: FunctionSpec, arrays: Sequence[RemoteArray], until: float | None
    ) -> list[RemoteStore]:
        """Has arrays go on elsewhere whose members drain; the stores of those members.

        Not those of a call whose callback this is: it is under way there.
        """
        pool = self._pool
        left = [each for each in pool.used if pool.drains(each)]
        stores = [each.session.store for each in left]
        if not running_callbacks or callback_origin() is None:
            for caller, store in zip(left, stores, strict=True):
                own = [each for each in arrays if each.fetcher is store]
                if own:
                    caller.give(own, self._takers(spec, arrays), until)
        return [each for each in stores if each is not None]

    def _takers(self, spec: FunctionSpec, arrays: Sequence[RemoteArray]) -> list[MemberCaller]:
        """The members that may take arrays for a call, the best first."""
        pool, nbytes = self._pool, Counter[RemoteStore]()
        for array in arrays:
            nbytes.update(dict.fromkeys(stores_with(array), array.nbytes))
        holders = [pool.holder_of(store) for store, _ in nbytes.most_common()]
        ready = (each for each in holders if each is not None and not pool.drains(each))
        return pool.others_for(next(ready, None) or pool.of_key(spec.key))

    def route(
        self, spec: FunctionSpec, values: Sequence[HandleRange] = (), *, evenly: bool = False
    ) -> Caller:
        """What makes a call: that on the member which has its values, else the first for its key.

        Args:
            spec: what is called.
            values: the arrays on a member that it takes.
            evenly: whether all members are to have as much to do.

        Raises:
            NoServer: when no member takes calls.
        """
        holder = self._pool.holder_of(values[0].origin.fetcher) if values else None
        return holder or self._pool.of_key(spec.key, evenly=evenly)

    def call(self, call: CallRequest) -> Any:
        """As of any caller.

        A call on arrays that have copies elsewhere is made there when their member is gone.
        """
        if not call.values:
            return self._pool.of_key(call.spec.key).call(call)
        while True:
            try:
                return self.route(call.spec, call.values).call(call)
            except ValuesDied:
                again = None if call.spec.snapshot.calls_back else _on_copies(call)
                if again is None:
                    raise
                call = again  # each time on copies that are not known to be gone

    def everywhere(self, *, also_draining: bool = False) -> Sequence[Caller]:
        """What makes calls on each member."""
        return self._pool.everywhere(also_draining=also_draining)

    def on_member(self, name: str) -> Caller:
        """What makes calls on one member; raises `NoServer` when there is none of that name."""
        return self._pool.named(name)

    def placed(self, call: CallRequest | None) -> str:
        """Where a call runs, and the rule that decided."""
        if call is None:
            return "server: on the member that has its values, else on the first for its key"
        holder = self._pool.holder_of(call.values[0].origin.fetcher) if call.values else None
        if holder is not None:
            return f"server: on member {holder.session.at.name}, which has its values"
        return f"server: {self._pool.why(call.spec.key)}"


def _stores_to_use(array: RemoteArray, left: Sequence[RemoteStore]) -> list[RemoteStore]:
    """Those that have an array, without those to be left; where only these have it, these."""
    found = stores_with(array)
    stay = [each for each in found if each not in left]
    return stay or found


def _are_together(call: CallRequest) -> bool:
    """Whether the arrays of a call are on one member, and where they were when it was encoded."""
    are_there = all(a.origin is each.origin for each in call.values for a in each.arrays)
    return are_there and len({each.origin.fetcher for each in call.values}) <= 1


def _on_copies(call: CallRequest) -> CallRequest | None:
    """The call with copies in the place of arrays that are gone; None where one has no copy."""
    ranges = HandleRanges()
    for gone in call.values:
        for place, array in enumerate(gone.arrays):
            if array.origin is gone.origin:
                return None
            ranges.add(gone.leaf + place, (array,))
    values = ranges.ranges
    if len({each.origin.fetcher for each in values}) != 1:
        return None
    policy = result_policy_for(call.results, on_values=True)
    return call._replace(values=values, result_policy=policy)


class MemberLookup(CallerLookup):
    """Gives the caller of a function whose calls one member makes.

    Args:
        outer: gives that of the pool.
        name: of the member.
    """

    __slots__ = ("_name", "outer")

    def __init__(self, outer: CallerLookup, name: str) -> None:
        super().__init__()
        self.outer: CallerLookup = outer.outer if isinstance(outer, MemberLookup) else outer
        self._name = name

    def __call__(self) -> Caller | None:
        """What makes the calls; None where they run in this process.

        Raises:
            ConfigurationError: when the server is no pool.
            NoServer: when the pool has no such member, or it takes no calls.
        """
        caller = self.outer()
        return None if caller is None else caller.on_member(self._name)
