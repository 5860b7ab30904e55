"""Arrays that stay on the server: whose they are, how much room they take, and when they go.

A value belongs to a session and is named by a number that its client has chosen; it lives until
the client lets go of it or the session ends. Values under a name belong to a principal and outlive
sessions.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from jaxd_protocol.elsewhere import call_of
from jaxd_protocol.errors import ValueDeleted, ValuesFull
from jaxd_protocol.failures import Failure, ForwardedFailure
from jaxd_protocol.trees import Leaf
from jaxd_server.contents import Contents
from jaxd_server.value_holders import holder_rows, largest

__all__ = ["Named", "Value", "Values", "ValuesOfSession"]

_MAX_FAILURES: Final = 256
_MIB: Final = 1 << 20


@dataclass(slots=True, eq=False)
class Value:
    """An array on the server.

    Attributes:
        array: jax's; perhaps still being computed.
        leaf: what it looks like in a skeleton.
        nbytes: its size.
        maker: the function that returned it, or how else it came here.
        run: the run that makes it, as long as that is not done; None when another thing has.
        copied: whether its client has the array as well, so that it must not be donated.
        made_at: `time.time()` when it came.
        holders: how many numbers and names stand for it; `Values` counts.
    """

    array: Any
    leaf: Leaf
    nbytes: int
    maker: str
    copied: bool = False
    run: weakref.ref[Any] | None = None
    made_at: float = field(default_factory=time.time)
    holders: int = 0


@dataclass(slots=True, eq=False)
class Named:
    """A tree of values under a name.

    Attributes:
        skeleton: the structure of the tree.
        values: its leaves.
        until: `time.monotonic()` after which it is gone; None: never.
    """

    skeleton: bytes
    values: tuple[Value, ...]
    until: float | None


class ValuesOfSession:
    """The values of one session. Thread-safe; use it through `Values` where room is taken.

    Attributes:
        principal: whose they are.
        values: by number.
        failures: why calls have made no values, by their numbers.
        ended: whether the session is over, so that nothing is taken in any more.
    """

    __slots__ = ("ended", "failures", "principal", "values")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.ended = False
        self.values: dict[int, Value] = {}
        self.failures: dict[int, Failure] = {}

    def get(self, id: int) -> Value:  # noqa: A002
        """The value with that number.

        Raises:
            ForwardedFailure: what the call that was to make it has raised.
            ValueDeleted: when it is not there, or not any more.
        """
        value = self.values.get(id)
        if value is not None:
            return value
        failure = self.failures.get(call_of(id))
        if failure is not None:
            raise ForwardedFailure(failure)
        raise ValueDeleted(
            "an array on the server is not there any more: it was deleted, or donated to a call. "
            "Use the result of that call instead."
        )

    def fail(self, number: int, failure: Failure) -> None:
        """Remembers why a call has made no values, for calls that were to use them."""
        if len(self.failures) >= _MAX_FAILURES:
            self.failures.pop(min(list(self.failures)), None)
        self.failures[number] = failure


class Values:
    """All values of a worker. Thread-safe.

    Args:
        limit: bytes that all of them may take; 0: as many as there is room for.
        share: of this, what one principal may take.
        clock: seconds that only grow.
        contents: arrays that may become values; by default none are held.
    """

    def __init__(
        self,
        limit: int = 0,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        contents: Contents | None = None,
    ) -> None:
        self.limit = limit
        self.contents = Contents() if contents is None else contents
        self._share = share
        self._clock = clock
        self._sessions: set[ValuesOfSession] = set()
        self._names: dict[tuple[str, str], Named] = {}
        self._used: dict[str, int] = {}  # bytes by principal
        self._nbytes = 0
        self._count = 0
        self._lock = threading.Lock()  # guards these, the values of each session, and `holders`

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all values; one that several numbers or names stand for counts once."""
        return self._nbytes

    def are_missed(self) -> bool:
        """Whether there is any that its client does not have as well."""
        with self._lock:
            held = (value for owner in self._sessions for value in owner.values.values())
            return bool(self._names) or not all(value.copied for value in held)

    # of a session -----------------------------------------------------------------------------

    def check_room(self, owner: ValuesOfSession, nbytes: int, given_up: Iterable[int] = ()) -> None:
        """Returns when so many bytes more have room.

        Args:
            owner: who wants to have them.
            nbytes: how many.
            given_up: numbers of values that go at the same time.

        Raises:
            ValuesFull: when not; says who holds the most.
        """
        if not self.limit or nbytes <= 0:
            return
        with self._lock:
            self._forget_expired()
            used, own = self._nbytes, self._used.get(owner.principal, 0)
            mine = int(self.limit * self._share)
            room = min(self.limit - used, mine - own)
            if nbytes <= room or nbytes <= room + _freed(owner, given_up):
                return
            rows = self._rows(owner.principal)
        raise ValuesFull(
            f"{nbytes / _MIB:,.1f} MiB more have no room on the server: its values take "
            f"{used / _MIB:,.1f} of {self.limit / _MIB:,.1f} MiB, yours {own / _MIB:,.1f} of "
            f"{mine / _MIB:,.1f} MiB. The largest: {largest(rows)}. Let go of arrays that you do "
            "not need (del, .delete(), jaxd.forget), or start the server with a larger "
            "--value-bytes."
        )

    def add(self, owner: ValuesOfSession, values: Mapping[int, Value]) -> None:
        """Takes values in, without asking for room; not when the session is over."""
        with self._lock:
            if owner.ended or not values:
                return
            self._hold(owner.principal, values.values())
            again = owner.values.keys() & values.keys()
            replaced = self._take_out(owner, again) if again else ()
            self._sessions.add(owner)
            owner.values.update(values)
        del replaced  # frees memory, and not under the lock

    def drop(self, owner: ValuesOfSession, ids: Iterable[int]) -> None:
        """Lets go of values, of those that are still there."""
        with self._lock:
            gone = self._take_out(owner, ids)
            if not owner.values:
                self._sessions.discard(owner)
        del gone  # as above

    def end(self, owner: ValuesOfSession) -> None:
        """Lets go of all values of a session, which is over."""
        with self._lock:
            owner.ended = True
            gone = self._take_out(owner, list(owner.values))
            self._sessions.discard(owner)
        del gone  # as above

    def _take_out(self, owner: ValuesOfSession, ids: Iterable[int]) -> list[Value]:
        gone = [v for v in [owner.values.pop(number, None) for number in ids] if v is not None]
        self._let_go(owner.principal, gone)
        return gone

    def _hold(self, principal: str, values: Collection[Value]) -> None:
        fresh = {id(value): value for value in values if not value.holders}.values()
        for value in values:
            value.holders += 1
        self._charge(principal, sum(value.nbytes for value in fresh), len(fresh))

    def _let_go(self, principal: str, values: Collection[Value]) -> None:
        for value in values:
            value.holders -= 1
        gone = {id(value): value for value in values if not value.holders}.values()
        self._charge(principal, -sum(value.nbytes for value in gone), -len(gone))

    def _charge(self, principal: str, nbytes: int, count: int) -> None:
        self._count += count
        self._nbytes += nbytes
        self._used[principal] = self._used.get(principal, 0) + nbytes
        if not self._used[principal]:
            del self._used[principal]

    def name(
        self,
        principal: str,
        name: str,
        skeleton: bytes,
        values: Sequence[Value],
        ttl_s: float | None,
    ) -> None:
        """Gives values a name of their principal's; takes the place of what had it."""
        until = None if ttl_s is None else self._clock() + ttl_s
        with self._lock:
            self._hold(principal, values)
            replaced = self._remove(principal, name)
            self._names[principal, name] = Named(skeleton, tuple(values), until)
        del replaced  # as above

    def named(self, principal: str, name: str) -> Named:
        """What a principal has under a name.

        Raises:
            ValueDeleted: when there is nothing.
        """
        with self._lock:
            self._forget_expired()
            found = self._names.get((principal, name))
            others = sorted(other for who, other in self._names if who == principal)
        if found is None:
            known = f"There are: {', '.join(map(repr, others))}." if others else "There is none."
            raise ValueDeleted(
                f"no values are named {name!r} on this server: it was never put there, its ttl_s "
                f"has passed, or the server's worker was replaced. {known}"
            )
        return found

    def unname(self, principal: str, name: str) -> bool:
        """Removes a name; whether it was there."""
        with self._lock:
            self._forget_expired()
            gone = self._remove(principal, name)
        return gone is not None

    def look(self) -> None:
        """Forgets the names whose time has passed; to be called often."""
        with self._lock:
            self._forget_expired()

    def _remove(self, principal: str, name: str) -> Named | None:
        gone = self._names.pop((principal, name), None)
        if gone is not None:
            self._let_go(principal, gone.values)
        return gone

    def _forget_expired(self) -> None:
        now = self._clock()
        for (principal, name), named in list(self._names.items()):
            if named.until is not None and named.until <= now:
                self._remove(principal, name)

    def holders(self, principal: str) -> list[dict[str, Any]]:
        """What is held, the largest first: one row for each name, and for each maker of a session.

        Args:
            principal: who asks; what others hold is one row for each of them.
        """
        with self._lock:
            self._forget_expired()
            return self._rows(principal)

    def _rows(self, principal: str) -> list[dict[str, Any]]:
        return holder_rows(principal, self._names, self._sessions, self._used, self._clock())


def _freed(owner: ValuesOfSession, ids: Iterable[int]) -> int:
    """Bytes that are free when a session lets go of values."""
    found = {number: owner.values.get(number) for number in ids}
    return sum(v.nbytes for v in found.values() if v is not None and v.holders == 1)
