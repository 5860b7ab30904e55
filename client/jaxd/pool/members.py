"""One member of a pool, as this process uses it: an ordinary server, with an ordinary session.

What is added is what follows when the member is gone: the session goes on at another one, with all
that it has open. To its calls that is the next worker of a server: `OpenCall` decides what is sent
again, arrays are made again where the client asked for that, and are lost where it did not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd.dispatch.caller import Caller
from jaxd.dispatch.session import Session
from jaxd.interop.jax_runtime import current_config, leaves_of
from jaxd.interop.remote_array import RemoteArray
from jaxd.remote_values.lineage import NoLineage, died_with_member_error
from jaxd.remote_values.store import OpenSession, RemoteStore, groups_of
from jaxd.results.reader import specs_in
from jaxd_protocol.base.process import machine_id
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    NoServer,
)
from jaxd_protocol.messages.data_locations import (
    first_value_id,
    new_call_number,
    pack_ids,
    value_ids_of,
)
from jaxd_protocol.messages.pool_view import PEERS_IN_WELCOME, PoolMember
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd.connection.settings import Settings
    from jaxd.interop.remote_array import ResultBatch
    from jaxd.pool.view import Seen
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.results.reader import ResultsAs

Incarnation = tuple[str, int]
"""Names one start of one member: its name and its epoch."""

_TRIED: Final = "_jaxd_member"
"""The attribute of an error that has the member which could not be reached."""

_STAY_S: Final = 10.0
"""For so long arrays stay on a member that drains, where another one could not take them."""

_MOVE_S: Final = 10.0
"""For so long at most arrays that no call uses are waited for, while they move."""

_MOVED: Final = "they came from another member of the pool, and no snapshot was taken since"


def incarnation(member: PoolMember) -> Incarnation:
    """Which start of which member it is."""
    return member.name, member.epoch


def usable_addresses(member: PoolMember) -> list[Address]:
    """Those at which this process may reach a member, the best first."""
    found = [Address.parse(text) for text in member.addresses]
    here = machine_id()
    is_here = bool(here) and member.machine == here
    return [each for each in found if is_here or each.kind != "unix"]


class MemberPool(Protocol):
    """What the session with a member needs of its pool."""

    def member(self, name: str) -> PoolMember | None:
        """The member of that name, as it is now."""

    def is_lost(self, member: PoolMember) -> bool:
        """Whether that start of a member is gone, as the director sees it."""

    def ask_about(self, member: PoolMember, error: JaxdError) -> Seen | None:
        """How the director sees a member that cannot be reached from here; None: it is away."""

    def avoid(self, member: PoolMember, error: JaxdError | None = None) -> None:
        """Sends no new calls to a member for a while: it cannot be reached, or refuses them."""

    def another(self, tried: Collection[Incarnation], deadline: float | None = None) -> PoolMember:
        """A member that takes calls and was not tried; raises `NoServer` when there is none."""

    def another_session(self, than: Session, key: bytes) -> Session:
        """That with the next member for a key; raises `NoServer` when there is none."""

    def holders(self) -> Sequence[MemberCaller]:
        """Those with which this process may hold arrays."""


class MemberSession(Session):
    """The session with one member, from which it goes on at another one when that is gone.

    Args:
        settings: credentials.
        handler: makes the calls.
        pool: the members.
        member: the one to begin with.

    Attributes:
        at: the member that it is with, as it was then.
        relays: where the director relays to that, if it was needed.
    """

    def __init__(
        self, settings: Settings, handler: Caller, pool: MemberPool, member: PoolMember
    ) -> None:
        super().__init__(settings, handler)
        self._pool = pool
        self.at = member

    def after_fork(self) -> None:
        """As of any session."""
        super().after_fork()
        self._moving = threading.Lock()  # guards `at`, and these
        self.relays: tuple[Address, ...] = ()
        self._tried: set[Incarnation] = set()

    @property
    def open_calls(self) -> int:
        """Requests of this process that have no reply yet."""
        found = self._current
        return 0 if found is None else len(found.connection.shared_reader.pending)

    def read_replies(self) -> None:
        """Reads the replies that are here: those of the last calls of a loop nobody waits for."""
        connection = self.open_connection
        if connection is not None:
            connection.shared_reader.read_available(in_background=True)

    @property
    def holds_values(self) -> bool:
        """Whether this process may hold arrays there."""
        store = self.store
        return store is not None and store.loss_error is None and store.release_queue.is_holding

    def end(self) -> None:
        """Ends it for good: nothing is held or under way there."""
        if self.store is not None:
            self.notify(self.store, "bye")
        self.close()

    def elsewhere(self, call: CallRequest) -> Session | None:
        """The session for a call that the member refuses, as it stops; None: there is no other."""
        self._pool.avoid(self.at)
        with suppress(NoServer):
            return self._pool.another_session(self, call.spec.key)
        return None

    # connecting ----------------------------------------------------------------------------------

    def _connect(self, deadline: float | None) -> OpenSession:
        at = self.at
        try:
            return self._connect_by_best(at, deadline)
        except JaxdError as error:
            vars(error)[_TRIED] = at
            raise

    def _connect_by_best(self, at: PoolMember, deadline: float | None) -> OpenSession:
        """Connects by the first way that there is; the error is that of the last one."""
        *others, last = self._ways(at)
        for address in others:
            with suppress(NoServer, AuthenticationFailed):  # others may listen at a Unix socket
                return self._connect_by(address, at, deadline)
        return self._connect_by(last, at, deadline)

    def _ways(self, at: PoolMember) -> list[Address]:
        """The addresses to try; the one that was of use before comes first.

        Raises:
            NoServer: when the member is gone, or has no address for this process.
        """
        now = self._pool.member(at.name)
        if now is None or self._pool.is_lost(at):
            raise NoServer(f"{at.name}, a member of the pool, is gone. Call again.")
        ways = [*usable_addresses(now), *self.relays]
        if not ways:
            raise NoServer(
                f"{at.name}, a member of the pool, has no address that can be used from here: "
                f"{', '.join(now.addresses) or 'none'}. Have it listen on tls:// as well."
            )
        return sorted(ways, key=lambda way: way != self.address)

    def _connect_by(self, address: Address, at: PoolMember, deadline: float | None) -> OpenSession:
        self.settings = self.settings.replaced(server=address)
        self.member = at.name
        opened = super()._connect(deadline)
        opened.values.address = str(address)  # of arrays that are made again it is another one
        self._tried.clear()
        return opened

    def _outage_pause_s(self, error: JaxdError, deadline: float | None) -> float:
        """As of any session; what has no way to its member goes on at another one."""
        at = vars(error).get(_TRIED, self.at)
        if at is not self.at:  # another thread has gone on
            return 0.0
        was_there = self.id is not None
        # who uses a relay cannot tell: it ends with its director, and nobody else listens here
        is_gone = was_there and not self.relays and nobody_listens(error)
        seen = None if is_gone else self._pool.ask_about(at, error)
        if seen is not None:
            if seen.relay is not None and self._may_use_relay(seen.relay):
                return 0.0
            is_gone = seen.state == "lost"
        if was_there and not is_gone and self.holds_values:  # it may be a network that comes back
            return super()._outage_pause_s(error, deadline)
        self._leave_member(at, error, deadline)
        return 0.0

    def _may_use_relay(self, address: Address) -> bool:
        """Whether the director's way to the member is another one than was tried."""
        if address.kind != "tls" or address in self.relays:
            return False
        self.relays = (address,)
        return True

    def _leave_member(self, left: PoolMember, error: JaxdError, deadline: float | None) -> None:
        """Goes on at another member, unless another thread has; arrays are lost or made again.

        Raises:
            NoServer: when there is no other.
        """
        self._pool.avoid(left, error)
        with self._moving:
            if self.at is not left:
                return
            self._tried.add(incarnation(left))
            tried = set(self._tried)
        store = self.store
        if store is not None:
            use_copies(store)
            # who had them is said once, though the members that are tried next are gone as well
            if store.loss_error is None and not store.may_restore():
                store.invalidate(died_with_member_error(left.name))
        other = self._pool.another(tried, deadline)
        with self._moving:
            if self.at is left:
                self.at, self.id, self.relays = other, None, ()


def nobody_listens(error: BaseException) -> bool:
    """Whether the host of a server is gone: it keeps its sockets while workers come and go."""
    return isinstance(error.__cause__, ConnectionRefusedError | FileNotFoundError)


def use_copies(store: RemoteStore) -> None:
    """Has the arrays of a store that have copies with other members go on as these."""
    for batch in store.live_batches():
        for array in batch.arrays:
            if array.origin is batch:  # else it has gone elsewhere already
                array.use_copy()


class MemberCaller(Caller):
    """Makes the calls on one member.

    Args:
        pool_caller: of the pool: the server may ask for all functions that are known to it.
        pool: the members.
        member: the member.

    Attributes:
        member: the member, as it was when the first call went there.
    """

    session: MemberSession

    def __init__(self, pool_caller: Caller, pool: MemberPool, member: PoolMember) -> None:
        super().__init__(pool_caller.settings, pool_caller)
        self._members = pool
        self._giving = threading.Lock()  # held while arrays go elsewhere; guards these
        self._given: tuple[list[_Given], list[_Given]] = [], []  # since the last look, and before
        self._refused_by: set[str] = set()
        self._stay_until = 0.0
        self.member = member
        self.session = session = MemberSession(self.settings, self, pool, member)
        shared = pool_caller.session  # progress is one line, and a warning is issued once
        session.progress, session.warning_queue = shared.progress, shared.warning_queue
        session.output_printer = shared.output_printer

    def is_with(self, member: PoolMember) -> bool:
        """Whether its session is with that start of a member, as it was from the beginning."""
        return self.session.at is self.member and incarnation(self.member) == incarnation(member)

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
        """As of any caller: this member takes arrays that it lacks from others."""
        if any(each is not self for each in self._members.holders()):
            until = None if timeout_s is None else time.monotonic() + timeout_s
            self._take((args, kwargs), until)
        return super().encode(spec, args, kwargs, timeout_s, results, strict, fallback)

    def _take(self, tree: Any, until: float | None) -> None:
        arrays = [leaf for leaf in leaves_of(tree) if isinstance(leaf, RemoteArray)]
        own = self.session.store
        lacking = [each for each in arrays if own is None or own not in stores_with(each)]
        if lacking:
            move(lacking, own or self.session.current(deadline=until).values, until)

    # while it drains ------------------------------------------------------------------------------

    def give(
        self, arrays: Sequence[RemoteArray], others: Sequence[MemberCaller], until: float | None
    ) -> bool:
        """Has arrays of this member go on at another one, as this one is to be left.

        What they are here is released once no call can be on its way to it: see `give_idle`.

        Args:
            arrays: those that are to go.
            others: the members that may take them, the best first; one of them is asked.
            until: `time.monotonic()` after which nobody waits; None: there is none.

        Returns:
            whether they have gone; else they stay, and no member is asked again for a while.

        Raises:
            DeadlineExceeded: when that has passed.
            BaseException: what the call raised that was to compute one.
        """
        wait_s = -1.0 if until is None else max(0.0, until - time.monotonic())
        if time.monotonic() < self._stay_until or not self._giving.acquire(timeout=wait_s):
            return False
        try:
            fresh = [each for each in others if each.member.name not in self._refused_by]
            other = (fresh or others)[0]
            if not fresh:
                self._refused_by.clear()
            try:
                has_given = self._give(arrays, other, until)
            except DeadlineExceeded:
                self._stay(other)
                raise
            if has_given:
                self._refused_by.clear()
            else:
                self._stay(other)
            return has_given
        finally:
            self._giving.release()

    def _stay(self, refused_by: MemberCaller) -> None:
        """Arrays stay for a while, and another member is asked then."""
        self._refused_by.add(refused_by.member.name)
        self._stay_until = time.monotonic() + _STAY_S

    def _give(
        self, arrays: Sequence[RemoteArray], other: MemberCaller, until: float | None
    ) -> bool:
        source = self.session.store
        different = {id(each): each for each in arrays}.values()  # or one copy would end another
        own = [each for each in different if each.fetcher is source]  # no thread has been faster
        if source is None or not own:
            return True
        source.calls.settle(until, takers_of={each.origin for each in own})  # they may be donated
        own = [each for each in own if not each.is_deleted()]
        for each in own:
            source.wait(each, until)
        sink = _store_of(other, until)
        copies = None if sink is None else _copies_with(own, source, sink, until)
        if sink is None or copies is None:
            return False
        for array, copy in zip(own, copies, strict=True):
            if array.is_deleted():  # or donated, by another thread since
                continue
            data = source.data_here(array)
            if data is not None:
                array.receive(data)
            place = array.origin, array.number
            self._given[0].append(_Given(*place, array.go_on_as(copy)))
        if sink.recovery is not None:
            sink.recovery().snapshots.make_due()
        return True

    def give_idle(self, others: Sequence[MemberCaller]) -> None:
        """Has what no call uses go on at other members, some at a time; called again and again.

        Args:
            others: as of `give`, one at least.

        Raises:
            JaxdError: when that is not possible now.
        """
        store = self.session.store
        self.session.read_replies()
        is_there = store is not None and store.loss_error is None and self.session.connected
        if store is None or not is_there or self.session.open_calls:
            return
        give_up_copies([each.session.store for each in self._members.holders()], store)
        idle = idle_arrays(store)
        if not store.calls.are_over:
            return
        if not self._giving.acquire(blocking=False):  # the pool is to be looked at meanwhile
            return
        try:
            (since, before) = self._given
            self._given = [], since
        finally:
            self._giving.release()
        for each in before:  # looked at twice, for a call may just be about to go there
            each.origin.release(range(each.number, each.number + 1))
        some = next(iter(groups_of(idle)), [])
        if some and self.give(some, others, time.monotonic() + _MOVE_S):
            taken = some[0].fetcher
            if isinstance(taken, RemoteStore) and taken.recovery is not None:
                taken.recovery().snapshots.take_if_due()

    def placed(self, call: CallRequest | None) -> str:
        """Where a call runs, and the rule that decided."""
        return f"server: on member {self.member.name}, which on(member=…) names"

    def __repr__(self) -> str:
        return f"<calls on member {self.member.name}>"


class _Given(NamedTuple):
    """An array as it was on a member that drains, until it went elsewhere.

    Attributes:
        origin: its batch there.
        number: its place in that.
        held: the copy there that stood for it; None: it was none.
    """

    origin: ResultBatch
    number: int
    held: RemoteArray | None


def _store_of(caller: MemberCaller, until: float | None) -> RemoteStore | None:
    """The arrays with a member; None: it cannot be reached."""
    try:
        return caller.session.store or caller.session.current(deadline=until).values
    except DeadlineExceeded:
        raise
    except JaxdError:
        return None


def described(member: PoolMember, why: str | None = None) -> str:
    """A member that takes no calls, and why, for people."""
    told = f"cannot be reached from here ({why.rstrip('.')})" if why else f"is {member.state}"
    return f"{member.name} {told}"


# arrays that go from one member to another --------------------------------------------------------


def stores_with(array: RemoteArray) -> list[RemoteStore]:
    """Which members of a pool have an array: that which made it, and those with usable copies."""
    copies = [each.fetcher for each in array.replicas if not each.is_deleted()]
    kept = [each for each in copies if isinstance(each, RemoteStore) and each.loss_error is None]
    first = array.fetcher
    return [first, *kept] if isinstance(first, RemoteStore) else kept


def move(arrays: Sequence[RemoteArray], sink: RemoteStore, until: float | None) -> None:
    """Has the member of a store take arrays from others; what it cannot take goes with the call.

    They stay where they are as well: as long as they are held here, either member can go.
    """
    different = {id(each): each for each in arrays}.values()
    for source in {each.fetcher: None for each in different}:
        if isinstance(source, RemoteStore):
            of_source = [each for each in different if each.fetcher is source]
            source.calls.check(of_source)
            _move_from(source, of_source, sink, until)


def _move_from(
    source: RemoteStore, arrays: Sequence[RemoteArray], sink: RemoteStore, until: float | None
) -> None:
    moved = [each for each in arrays if not each.is_here]
    for array in moved:
        array.refuse_deleted()
        source.wait(array, until)
    copies = _taken(moved, source, sink, until) if moved else ()
    if copies is None:
        source.fetch_all(moved, until)
        return
    for array, copy in zip(moved, copies, strict=True):
        array.replicas = (*array.replicas, copy)


def _copies_with(
    arrays: Sequence[RemoteArray], source: RemoteStore, sink: RemoteStore, until: float | None
) -> list[RemoteArray] | None:
    """What the member of another store has of arrays, which it takes where it lacks them.

    Returns:
        the same arrays there, in order; None: it cannot take them.

    Raises:
        DeadlineExceeded: when the time of the call has passed.
    """
    if not source.takes_data:  # there are several devices, and on which they are is not kept
        return None
    found = {id(each): _copy_with(each, sink) for each in arrays}
    for group in groups_of([each for each in arrays if found[id(each)] is None]):
        taken = _taken(group, source, sink, until)
        if taken is None:
            return None
        found.update(zip(map(id, group), taken, strict=True))
    return [copy for each in arrays if (copy := found[id(each)]) is not None]


def _copy_with(array: RemoteArray, sink: RemoteStore) -> RemoteArray | None:
    """A usable copy of an array in another store, of the same number in its batch."""
    there = (each for each in array.replicas if each.fetcher is sink)
    usable = (each for each in there if each.number == array.number and not each.is_deleted())
    return next(usable, None)


def _taken(
    arrays: Sequence[RemoteArray], source: RemoteStore, sink: RemoteStore, until: float | None
) -> list[RemoteArray] | None:
    """Has the member of one store take arrays from that of another.

    Returns:
        the copies, in order; each has the number in its batch that the array has in its own. None:
        it cannot take them.

    Raises:
        DeadlineExceeded: when the time of the call has passed.
    """
    origins = [each.origin for each in arrays]  # which may be others at any moment
    calls = {origin: new_call_number() for origin in dict.fromkeys(origins)}
    numbers = tuple(calls.values())
    places = [(calls[origin], each.number) for origin, each in zip(origins, arrays, strict=True)]
    ids = [first_value_id(call) + number for call, number in places]
    try:
        ends = source.connection(until), sink.connection(until)
        if not all(each.welcome.get(PEERS_IN_WELCOME) for each in ends):
            return None
        each_id = (o.first + number for o, (_, number) in zip(origins, places, strict=True))
        offered = pack_ids(each_id)
        (_, ticket, member), _ = source.ask("offer", offered, deadline=until)
        taken = member, ticket, current_config(), pack_ids(ids)
        value, _ = sink.ask("take", *taken, over=ends[1], makes=numbers, deadline=until)
    except DeadlineExceeded:
        raise
    except ConnectionLost:  # it may have taken them all the same
        for number in numbers:
            sink.drop(value_ids_of(number))
        return None
    except JaxdError:  # the two cannot reach each other, or one has no room
        return None
    if list(specs_in(value[1])) != [each.leaf for each in arrays]:
        for number in numbers:
            sink.drop(value_ids_of(number))
        return None
    made: dict[tuple[int, int], RemoteArray] = {}
    for origin, call in calls.items():
        own = sorted(number for each, number in places if each == call)
        lineage = NoLineage(call, _MOVED)
        copies = sink.remote(first_value_id(call), origin.leaves, own, lineage=lineage)
        made.update(zip([(call, number) for number in own], copies, strict=True))
    return [made[place] for place in places]


def idle_arrays(store: RemoteStore) -> list[RemoteArray]:
    """The arrays of a store that somebody holds and that are computed."""
    from jaxd.remote_values.snapshots import usable_arrays  # few members drain

    done = (e for e in store.live_batches() if e.pending_call is None or e.pending_call.done)
    found = ((batch, each.owner) for batch in done for each in usable_arrays(batch))
    # not what has gone elsewhere since, nor the copy that stood for it here
    return [owner for batch, owner in found if owner is not None and owner.origin is batch]


def give_up_copies(stores: Sequence[RemoteStore | None], left: RemoteStore) -> None:
    """Has the arrays of all stores have no copies in one, whose member is to be left."""
    batches = [batch for each in stores if each is not None for batch in each.live_batches()]
    for array in [each for batch in batches for each in batch.arrays]:
        owner = array.owner
        if owner is not None and any(each.fetcher is left for each in owner.replicas):
            owner.replicas = tuple(each for each in owner.replicas if each.fetcher is not left)
