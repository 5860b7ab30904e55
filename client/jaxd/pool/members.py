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
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.dispatch.caller import Caller
from jaxd.dispatch.session import Session
from jaxd.interop.jax_runtime import current_config, leaves_of
from jaxd.interop.remote_array import RemoteArray
from jaxd.remote_values.lineage import died_with_member_error
from jaxd.remote_values.store import OpenSession, RemoteStore
from jaxd.results.reader import specs_in
from jaxd_protocol.base.process import machine_id
from jaxd_protocol.errors import (
    AuthenticationFailed,
    ConnectionLost,
    DeadlineExceeded,
    JaxdError,
    NoServer,
)
from jaxd_protocol.messages.data_locations import first_value_id, new_call_number, pack_ids
from jaxd_protocol.messages.pool_view import PEERS_IN_WELCOME, PoolMember
from jaxd_protocol.network.addresses import Address

if TYPE_CHECKING:
    from jaxd.connection.settings import Settings
    from jaxd.pool.view import Seen
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.results.reader import ResultsAs

Incarnation = tuple[str, int]
"""Names one start of one member: its name and its epoch."""

_TRIED: Final = "_jaxd_member"
"""The attribute of an error that has the member which could not be reached."""


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

    def placed(self, call: CallRequest | None) -> str:
        """Where a call runs, and the rule that decided."""
        return f"server: on member {self.member.name}, which on(member=…) names"

    def __repr__(self) -> str:
        return f"<calls on member {self.member.name}>"


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
    if moved and not _have_taken(moved, source, sink, until):
        source.fetch_all(moved, until)


def _have_taken(
    arrays: Sequence[RemoteArray], source: RemoteStore, sink: RemoteStore, until: float | None
) -> bool:
    """Has the member of one store take arrays from that of another; False: it cannot.

    Raises:
        DeadlineExceeded: when the time of the call has passed.
    """
    number = new_call_number()
    first = first_value_id(number)
    ids = range(first, first + len(arrays))
    try:
        ends = source.connection(until), sink.connection(until)
        if not all(each.welcome.get(PEERS_IN_WELCOME) for each in ends):
            return False
        offered = pack_ids(each.id for each in arrays)
        (_, ticket, member), _ = source.ask("offer", offered, deadline=until)
        taken = member, ticket, number, current_config()
        value, _ = sink.ask("take", *taken, over=ends[1], makes=number, deadline=until)
    except DeadlineExceeded:
        raise
    except ConnectionLost:  # it may have taken them all the same
        sink.drop(ids)
        return False
    except JaxdError:  # the two cannot reach each other, or one has no room
        return False
    leaves = specs_in(value[1])
    if list(leaves) != [each.leaf for each in arrays]:
        sink.drop(ids)
        return False
    copies = sink.remote(first, leaves)
    for array, copy in zip(arrays, copies, strict=True):
        array.replicas = (*array.replicas, copy)
    return True
