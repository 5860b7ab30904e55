"""Snapshots that a server keeps for clients on other machines, to which they would have to travel.

They are files in a folder that the host has made, in memory where the system has such a folder:
they outlive the worker that has written them, and go with the host. Of each client there may be
several. Who knows the client's secret can have them read, if it is the same principal.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final

from jaxd_protocol.base import shared_memory
from jaxd_protocol.errors import LimitExceeded, ProtocolError, ValueDeleted
from jaxd_server.values.value import SessionValues

ABANDONED_S: Final = 3600.0
"""So long those of a client are kept that has no session."""

_SECRET: Final = re.compile("[0-9a-f]{32}")
_COUNT: Final = struct.Struct("!Q")
_ALIGNMENT: Final = 64
_PAGE: Final = 4096
_MOST_FILES: Final = 4096
_MOST_NUMBER: Final = 1 << 63


class HeldSnapshots:
    """The snapshots of all clients of a server. Thread-safe.

    Args:
        folder: where they lie; the host's.
        limit: bytes of all of them.
        grace_s: so long those of a client that has no session are kept though there is no room for
            others.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        folder: str,
        limit: int,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._grace_s = grace_s
        self._clock = clock
        self._since = clock()
        self._sessions = Counter[str]()
        self._left_at: dict[str, float] = {}
        self._lock = threading.Lock()  # guards these two, and which files there are

    def write(
        self,
        own: SessionValues,
        secret: str,
        number: int,
        skeleton: bytes,
        data: Sequence[memoryview],
    ) -> None:
        """Writes one; returns when it is complete.

        Args:
            own: the values of the session that has it written.
            secret: of the client.
            number: of the snapshot; there is none with that so far.
            skeleton: what the arrays look like.
            data: theirs.

        Raises:
            LimitExceeded: when there is no room; nothing is written then.
            ProtocolError: when it cannot be written so.
        """
        owner = _owner(own, secret)
        parts = [memoryview(skeleton), *data]
        header = memoryview(b"".join(map(_COUNT.pack, (len(parts), *map(len, parts)))))
        starts = _starts_of([len(header), *map(len, parts)])
        path = self._path(owner, number)
        with self._lock:
            self._make_room(starts[-1])
            descriptor = _created(path, starts[-1])
            self._has_session(own, owner)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for start, part in zip(starts, (header, *parts), strict=False):
                    _write(file.fileno(), part, start)
        except BaseException:
            _remove(path)
            raise

    def read(
        self, own: SessionValues, secret: str, number: int
    ) -> tuple[bytes, Sequence[memoryview]]:
        """What arrays look like, and their data, which is there as long as somebody has it.

        Args:
            own: the values of the session that wants it.
            secret: of the client.
            number: of the snapshot.

        Raises:
            ValueDeleted: when there is no such snapshot.
        """
        owner = _owner(own, secret)
        path = self._path(owner, number)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise ValueDeleted(
                "the server has no such snapshot any more: its host was started again, or has "
                "needed the room for others (--snapshot-bytes). Restore a checkpoint."
            ) from error
        with self._lock:
            self._has_session(own, owner)
        try:
            size = os.fstat(descriptor).st_size
            view = shared_memory.map_file(descriptor, size, writable=False)
        finally:
            os.close(descriptor)
        (count,) = _COUNT.unpack_from(view)
        sizes = struct.unpack_from(f"!{count}Q", view, _COUNT.size)
        starts = _starts_of([_COUNT.size * (1 + count), *sizes])[1:]
        skeleton, *data = (view[a : a + n] for a, n in zip(starts, sizes, strict=False))
        return bytes(skeleton), data

    def remove(self, own: SessionValues, secret: str, numbers: Iterable[int]) -> None:
        """Removes some of a client's; all where no number is given."""
        owner = _owner(own, secret)
        some = {os.path.basename(self._path(owner, number)) for number in numbers}
        with self._lock:
            for name in list(self._of(owner)):
                if name in some or not some:
                    _remove(os.path.join(self._folder, name))

    def leave(self, own: SessionValues) -> None:
        """A session is over: its client may come back in another one."""
        with self._lock:
            for owner in own.held:
                self._sessions[owner] -= 1
                if self._sessions[owner] < 1:
                    del self._sessions[owner]
                    if any(self._of(owner)):
                        self._left_at[owner] = self._clock()

    def poll(self) -> None:
        """Removes what was abandoned; to be called now and then."""
        with self._lock:
            for owner in list(self._abandoned(ABANDONED_S)):
                self._remove_all(owner)
            there = set(map(_owner_of, self._names()))
            self._left_at = {o: at for o, at in self._left_at.items() if o in there}

    def _has_session(self, own: SessionValues, owner: str) -> None:
        """The client that a file is of has this session. The lock is held."""
        if owner not in own.held and not own.ended:
            own.held.add(owner)
            self._sessions[owner] += 1

    def _path(self, owner: str, number: int) -> str:
        if type(number) is not int or not 0 <= number < _MOST_NUMBER:
            raise ProtocolError("the client numbers its snapshots in a way that is not known.")
        return os.path.join(self._folder, f"{owner}-{number}")

    def _names(self) -> list[str]:
        with suppress(OSError):  # the host has ended
            return os.listdir(self._folder)
        return []

    def _of(self, owner: str) -> Iterator[str]:
        return (name for name in self._names() if name.startswith(f"{owner}-"))

    def _remove_all(self, owner: str) -> None:
        for name in self._of(owner):
            _remove(os.path.join(self._folder, name))
        self._left_at.pop(owner, None)

    def _abandoned(self, seconds: float) -> Iterator[str]:
        """Whose client has had no session for so long, the longest first. The lock is held."""
        before = self._clock() - seconds
        owners = set(map(_owner_of, self._names()))
        left_at = {o: self._left_at.get(o, self._since) for o in owners if self._sessions[o] < 1}
        return iter(sorted((o for o in left_at if left_at[o] < before), key=left_at.__getitem__))

    def _make_room(self, nbytes: int) -> None:
        """Removes what was abandoned, as far as that is needed. The lock is held.

        Raises:
            LimitExceeded: when that is not enough.
        """
        abandoned = self._abandoned(self._grace_s)
        while True:
            names = self._names()
            total = nbytes + sum(map(self._size, names))
            if total <= self._limit and len(names) < _MOST_FILES:
                return
            owner = next(abandoned, None)
            if owner is None:
                raise LimitExceeded(
                    f"with this one, snapshots would take {total:,} bytes and {1 + len(names):,} "
                    f"files where the server runs; {self._limit:,} and {_MOST_FILES:,} are the "
                    "limits. Start it with a larger --snapshot-bytes, or save checkpoints: "
                    "jaxd.save(state, path)."
                )
            self._remove_all(owner)

    def _size(self, name: str) -> int:
        with suppress(OSError):
            return os.stat(os.path.join(self._folder, name)).st_size
        return 0


def _owner(own: SessionValues, secret: str) -> str:
    """The first part of the names of the files of a client."""
    if type(secret) is not str or not _SECRET.fullmatch(secret):
        raise ProtocolError("the client names its snapshots in a way that is not known.")
    digest = hashlib.blake2b(own.principal.encode(), digest_size=8).hexdigest()
    return f"{digest}-{secret}"


def _owner_of(name: str) -> str:
    return name.rpartition("-")[0]


def _starts_of(sizes: Sequence[int]) -> list[int]:
    """Where parts of these sizes begin in a file, and where the last one ends."""
    *starts, end = accumulate((size + -size % _ALIGNMENT for size in sizes), initial=0)
    return [*starts, end + -end % _PAGE]  # of which memory is given


def _created(path: str, nbytes: int) -> int:
    """A new file with room for so many bytes, which a full file system would else deny later.

    Raises:
        LimitExceeded: when there is no room.
        ProtocolError: when there is such a file.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise ProtocolError("there is a snapshot of that number.") from error
    except OSError as error:  # somebody has removed the folder
        raise _no_room(path, nbytes, error) from error
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        os.close(descriptor)
        _remove(path)
        raise _no_room(path, nbytes, error) from error
    return descriptor


def _no_room(path: str, nbytes: int, error: OSError) -> LimitExceeded:
    return LimitExceeded(
        f"{os.path.dirname(path)} has no room for a snapshot of {nbytes:,} bytes "
        f"({error.strerror}). Give it more, or save checkpoints: jaxd.save(state, path)."
    )


def _write(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
