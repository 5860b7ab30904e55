"""The store of arrays that stay on the server: owners, sizes, lifetimes.

A value belongs to a session and is named by a number that its client has chosen; it lives until
the client drops it or the session ends. Values under a name belong to a principal and outlive
sessions.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from jaxd_protocol.errors import ValueDeleted
from jaxd_protocol.messages.data_locations import call_number_of, value_ids_of
from jaxd_server.values.byte_accounting import ValueAccounting, holder_rows
from jaxd_server.values.held_snapshots import HeldSnapshots
from jaxd_server.values.value import Batch, NamedValues, SessionValues, Value

ContentId = tuple[int, int]
"""What `jaxd_protocol.messages.data_locations.content_id` returns."""


class ContentStore:
    """A bounded store: the least recently used array goes first. Thread-safe.

    A reclaimer can have it emptied: all of it can be sent again.

    Args:
        limit: bytes of all arrays; 0: nothing is held.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[str, ContentId], Value] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()  # guards both

    def __len__(self) -> int:
        return len(self._held)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self._nbytes

    def put(self, principal: str, content: ContentId, value: Value) -> None:
        """Takes an array in if it has room at all; others go for it."""
        if value.nbytes > self._limit:
            return
        with self._lock:
            gone = [self._held.pop((principal, content), None)]
            self._held[principal, content] = value
            self._nbytes += value.nbytes - (gone[0].nbytes if gone[0] is not None else 0)
            while self._nbytes > self._limit:
                gone.append(self._take_oldest())
        del gone  # frees memory, and not under the lock

    def forget(self, principal: str) -> None:
        """Drops all arrays of a principal."""
        with self._lock:
            theirs = [key for key in self._held if key[0] == principal]
            gone = [self._held.pop(key) for key in theirs]
            self._nbytes -= sum(value.nbytes for value in gone)
        del gone  # frees memory, and not under the lock

    def find(self, principal: str, content: ContentId) -> Value | None:
        """The array with that content, of that principal's; None when it is not here."""
        with self._lock:
            value = self._held.get((principal, content))
            if value is not None:
                self._held.move_to_end((principal, content))
            return value

    def shrink(self) -> int:
        """Nothing: it is never above its limit."""
        return 0

    def reclaim(self, count: int) -> int:
        """Drops up to so many arrays; returns how many."""
        with self._lock:
            gone = [self._take_oldest() for _ in range(min(count, len(self._held)))]
        return len(gone)

    def _take_oldest(self) -> Value:
        _, value = self._held.popitem(last=False)
        self._nbytes -= value.nbytes
        return value


class ValueStore:
    """All values of a worker. Thread-safe.

    Args:
        limit: bytes that all of them may take; 0: as many as there is room for.
        share: of this, what one principal may take.
        clock: seconds that only grow.
        contents: arrays that may become values; by default none are held.
        on_owners: called with the principals that may have any, whenever there is a new one; quick.
        snapshots: those that clients have had written; None: there is no place for any.
    """

    def __init__(
        self,
        limit: int = 0,
        share: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        contents: ContentStore | None = None,
        on_owners: Callable[[Collection[str]], None] = lambda _: None,
        snapshots: HeldSnapshots | None = None,
    ) -> None:
        self.snapshots = snapshots
        self.contents = ContentStore() if contents is None else contents
        self._clock = clock
        self._sessions: set[SessionValues] = set()
        self._names: dict[tuple[str, str], NamedValues] = {}
        self._room = ValueAccounting(limit, share)
        self._count_of: Counter[str] = Counter()
        self._on_owners = on_owners
        self._owners: set[str] = set()
        self._lock = threading.Lock()  # guards these, the values of each session, and `holders`

    def __len__(self) -> int:
        with self._lock:
            return self._count_of.total()

    @property
    def nbytes(self) -> int:
        """Bytes of all values; one that several numbers or names stand for counts once."""
        return self._room.values.used

    @property
    def limit(self) -> int:
        """Bytes that all of them may take; 0: as many as there is room for."""
        return self._room.values.limit

    def of(self, principal: str) -> dict[str, int]:
        """How many values a principal has, in its sessions and under names, and their bytes."""
        with self._lock:
            nbytes = self._room.values.used_by[principal]
            return {"values": self._count_of[principal], "value_bytes": nbytes}

    def has_only_copies(self) -> bool:
        """Whether there is any that its client does not have as well."""
        with self._lock:
            return bool(self._find_owners())

    def owners(self) -> list[str]:
        """The principals of which there is any that they do not have as well."""
        with self._lock:
            self._owners = self._find_owners()
            self._on_owners(self._owners)
            return sorted(self._owners)

    def _find_owners(self) -> set[str]:
        return {who for who, _ in self._names} | {
            owner.principal
            for owner in self._sessions
            if owner.batches or not all(value.copied for value in owner.values.values())
        }

    def _own(self, principal: str) -> None:
        """A principal has values now. The lock is held."""
        self._owners.add(principal)
        self._on_owners(self._owners)

    # of a session -----------------------------------------------------------------------------

    @contextmanager
    def room(
        self, owner: SessionValues, nbytes: int, given_up: Iterable[range] = (), spare: int = 0
    ) -> Iterator[None]:
        """Within it, there is room for so many bytes more, which no other can take.

        Args:
            owner: the session that needs them.
            nbytes: how many.
            given_up: ids of values that go at the same time.
            spare: bytes that have to be free beside them.

        Raises:
            ValuesFull: when there is none; lists what takes the most.
        """
        promised = self._promise(owner, nbytes, given_up, spare)
        try:
            yield
        finally:
            if promised:
                with self._lock:
                    self._room.promise(owner.principal, -promised)

    def _promise(
        self, owner: SessionValues, nbytes: int, given_up: Iterable[range], spare: int
    ) -> int:
        who = owner.principal
        if not self.limit or nbytes <= 0:
            return 0
        with self._lock:
            self._forget_expired()
            more = nbytes
            if not self._room.has(who, more + spare):
                more = max(0, nbytes - owner.freed(given_up))
                if not self._room.has(who, more + spare):
                    raise self._room.full(who, nbytes, self._rows(who))
            self._room.promise(who, more)
            return more

    def add(self, owner: SessionValues, values: Mapping[int, Value]) -> None:
        """Takes single values in, without asking for room; not when the session is over."""
        with self._lock:
            if owner.ended or not values:
                return
            nbytes = self._hold(owner.principal, values.values())
            replaced = self._take_out(owner, [range(id_, id_ + 1) for id_ in values])
            owner.nbytes += nbytes
            with owner.lock:
                owner.values.update(values)
            self._register(owner)
        del replaced  # frees memory, and not under the lock

    def add_batch(self, owner: SessionValues, batch: Batch) -> None:
        """Takes in what a call returned; otherwise as `add`."""
        with self._lock:
            if owner.ended or not batch.count:
                return
            number = call_number_of(batch.first)
            replaced = self._take_out(owner, [value_ids_of(number)])
            with owner.lock:
                owner.batches[number] = batch
            owner.nbytes += batch.nbytes
            self._count_of[owner.principal] += batch.count
            self._room.charge(owner.principal, batch.nbytes)
            self._register(owner)
        del replaced  # as above

    def _register(self, owner: SessionValues) -> None:
        """A session has values now. The lock is held."""
        self._sessions.add(owner)
        if owner.principal not in self._owners:
            self._own(owner.principal)

    @contextmanager
    def held(self, principal: str, values: Collection[Value]) -> Iterator[None]:
        """Within it, values are held as by a name: a call that is given one gets a copy."""
        with self._lock:
            self._hold(principal, values)
        try:
            yield
        finally:
            with self._lock:
                self._hold(principal, values, -1)

    def drop(self, owner: SessionValues, spans: Iterable[range]) -> None:
        """Drops the values with these ids, of those that are still there."""
        with self._lock:
            gone = self._take_out(owner, spans)
            if not owner.values and not owner.batches:
                self._sessions.discard(owner)
        del gone  # as above

    def end(self, owner: SessionValues) -> None:
        """Drops all values of a session, which is over."""
        with self._lock:
            owner.ended = True
            batches = list(owner.batches.values())
            spans = [range(each.first, each.first + len(each.arrays)) for each in batches]
            gone = self._take_out(owner, (*spans, *(range(i, i + 1) for i in list(owner.values))))
            self._sessions.discard(owner)
        del gone  # as above
        if self.snapshots is not None:
            self.snapshots.leave(owner)

    def _take_out(self, owner: SessionValues, spans: Iterable[range]) -> object:
        arrays, values, nbytes = owner.take_out(spans)
        owner.nbytes -= nbytes + self._hold(owner.principal, values, -1)
        if arrays:
            self._count_of[owner.principal] -= len(arrays)
            self._room.charge(owner.principal, -nbytes)
        return arrays, values

    def _hold(self, principal: str, values: Collection[Value], step: int = 1) -> int:
        """A session, or a name, holds values; or with -1 no longer. The lock is held.

        Returns:
            the bytes of all of them.
        """
        nbytes = count = total = 0
        for value in values:
            value.holders += step
            total += value.nbytes
            if value.holders == max(step, 0):  # the first holder, or there is none left
                nbytes, count = nbytes + value.nbytes, count + 1
        self._count_of[principal] += step * count
        self._room.charge(principal, step * nbytes)
        return total

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
            self._names[principal, name] = NamedValues(skeleton, tuple(values), until)
            self._own(principal)
        del replaced  # as above

    def named(self, principal: str, name: str) -> NamedValues:
        """What a principal has under a name.

        Raises:
            ValueDeleted: when there is nothing.
        """
        with self._lock:
            self._forget_expired()
            found = self._names.get((principal, name))
            others = sorted(other for who, other in self._names if who == principal)
        if found is None:
            known = f"There are: {', '.join(map(repr, others))}" if others else "You have none here"
            raise ValueDeleted(
                f"no values are named {name!r} on this server: nothing was put under that name, it "
                "was forgotten, its ttl_s has passed, or the server or its worker has ended. "
                f"{known}."
            )
        return found

    def named_values(self) -> list[tuple[str, str, tuple[Value, ...]]]:
        """What there is under names: the principal, the name, and the values."""
        with self._lock:
            self._forget_expired()
            return [(who, name, found.values) for (who, name), found in self._names.items()]

    def unname(self, principal: str, name: str) -> bool:
        """Removes a name; whether it was there."""
        with self._lock:
            self._forget_expired()
            gone = self._remove(principal, name)
        return gone is not None

    def forget(self, principal: str) -> None:
        """Drops the values under names, and the contents, of a principal that is gone for good."""
        with self._lock:
            names = [name for who, name in self._names if who == principal]
            gone = [self._remove(principal, name) for name in names]
        self.contents.forget(principal)
        del gone  # as above

    def poll(self) -> None:
        """Forgets the names and snapshots whose time has passed; to be called often."""
        with self._lock:
            self._forget_expired()
        if self.snapshots is not None:
            self.snapshots.poll()

    def _remove(self, principal: str, name: str) -> NamedValues | None:
        gone = self._names.pop((principal, name), None)
        if gone is not None:
            self._hold(principal, gone.values, -1)
        return gone

    def _forget_expired(self) -> None:
        now = self._clock()
        for (principal, name), named in list(self._names.items()):
            if named.until is not None and named.until <= now:
                self._remove(principal, name)

    def holders(self, principal: str) -> list[dict[str, Any]]:
        """What is held, the largest first: one row for each name, and for each maker of a session.

        Args:
            principal: of the client that asks; what others hold is one row for each of them.
        """
        with self._lock:
            self._forget_expired()
            return self._rows(principal)

    def kept(self, principal: str) -> list[dict[str, Any]]:
        """What the clients of a principal that have values keep to make them again."""
        with self._lock:
            found = [each.kept for each in self._sessions if each.principal == principal]
        return sorted(filter(None, found), key=lambda each: -each["at"])

    def _rows(self, principal: str) -> list[dict[str, Any]]:
        return holder_rows(
            principal, self._names, self._sessions, self._room.values.used_by, self._clock()
        )
