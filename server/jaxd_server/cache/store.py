"""Records by kind and name, kept on disk for one target."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.local_server import cache_root
from jaxd_server.cache.directory import TARGET_FILE, Directory, Kind, make_trusted
from jaxd_server.cache.disk_usage import room
from jaxd_server.cache.record_file import (
    InvalidRecord,
    Record,
    Sign,
    encode,
    encode_stored,
    read_file,
    read_stored,
    remove_file,
    write_file,
)
from jaxd_server.cache.shared_store import SharedStore
from jaxd_server.cache.sweep import sweep
from jaxd_server.cache.writer import Troubles, Writer

DISK_BYTES: Final = 10 << 30

_SCAN_S: Final = 900.0
_SWEEP_LEVEL: Final = 0.9
_SCANS_PER_SHARE: Final = 4
"""Scans while one principal could write as much as it may have."""
_WITHOUT_PAYLOAD: Final = {"calls", "reads", "environments"}
_ABSENT: Final = {errno.ENOENT, errno.ENOTDIR}


OpenShared = Callable[[str, Mapping[str, str]], SharedStore | None]
"""Opens what others have for a target and its facts; None: there is nothing."""


def open_store(
    target: str,
    facts: Mapping[str, str],
    cache_dir: str | None = None,
    disk_bytes: int = DISK_BYTES,
    principal_disk_bytes: int = 0,
    shared: OpenShared | None = None,
    *,
    is_brief: bool = False,
) -> Store | None:
    """The store of a target in the cache folder; None: nothing is kept on disk.

    That is so when it is switched off, and when the folder cannot be made or trusted, which is
    logged once.

    Args:
        target: what the records are good for, 16 hex digits.
        facts: what these stand for, for people.
        cache_dir: see `cache_root`.
        disk_bytes: how much may lie in the whole folder.
        principal_disk_bytes: how much of that may be made for one principal; 0: all of it.
        shared: opens the store that other machines share, for a target and its facts; None: there
            is none.
        is_brief: whether this process may soon end: what is too much is looked for later.
    """
    root = cache_root(cache_dir)
    if root is None:
        return None
    troubles = Troubles()
    try:
        directory = Directory(make_trusted(root), target)
        directory.make()
    except (ConfigurationError, OSError) as error:
        troubles.warn("cache_refused", reason=str(error))
        return None
    others = None if shared is None else shared(target, facts)
    return Store(
        directory, disk_bytes, troubles, facts, principal_disk_bytes, others, is_brief=is_brief
    )


class _Copy(Record):
    """A record of the shared store."""

    __slots__ = ()


class Store:
    """The records of one target. Thread-safe; other processes may use the same folder.

    What is found in a shared store is kept here as well, and what is made here is written to that.

    Nothing here raises for what the disk does: a record that cannot be read is absent, one that
    cannot be written is not kept, and each kind of trouble is logged once.

    Attributes:
        root: the absolute path of the cache folder, which has those of other targets as well.
        folder: the absolute path of this target's folder.
        target: what the records are good for.
        shared: what other machines have; None: nothing.
    """

    def __init__(
        self,
        directory: Directory,
        disk_bytes: int,
        troubles: Troubles,
        facts: Mapping[str, str],
        principal_disk_bytes: int = 0,
        shared: SharedStore | None = None,
        *,
        is_brief: bool = False,
    ) -> None:
        """Keeps records in a folder that `make_trusted` has made, and writes what it is for."""
        self._directory = directory
        self.root, self.folder, self.target = directory.root, directory.folder, directory.target
        self._facts = facts
        self._limit = disk_bytes
        self._principal_limit = principal_disk_bytes
        self._troubles = troubles
        self._touched: dict[tuple[Kind, bytes], float] = {}  # each step on it is atomic
        self.shared = shared
        self._removed: set[tuple[Kind, bytes]] = set()  # not looked for in it any more; atomic
        self._off = False
        self._bytes = 0  # as far as the writing thread knows; its own
        self._news = 0  # of these, what was written since it looked; its own, too
        self._scanned = time.monotonic() if is_brief else 0.0
        self._describe()
        self._writer = Writer(self._write, self._unlink, self._tidy, troubles)

    def label(self, kind: Kind, name: bytes) -> str:
        """What a record is called below the cache folder, the same in every server."""
        return self._directory.file(kind, name).removeprefix(f"{self._directory.root}/")

    # reading -------------------------------------------------------------------------------------

    def read(self, kind: Kind, name: bytes, payload: bool = True) -> Record | None:
        """The record; None when there is none, or the one on disk is broken and now removed.

        What still waits to be written is found. With its payload, that counts as a use.
        """
        record = self.read_here(kind, name, payload)
        if record is None and not self._writer.hides(kind, name):
            return self._read_shared(kind, name, payload)
        if payload and record is not None:
            self.touch(kind, name)
        return record

    def read_here(self, kind: Kind, name: bytes, payload: bool = True) -> Record | None:
        """As `read`, but of what is here; it is no use of it."""
        waiting = self._writer.find(kind, name)
        if waiting is not None:
            return waiting if payload else Record(waiting.content, b"")
        return None if self._writer.hides(kind, name) else self._read_file(kind, name, payload)

    def pieces_here(
        self, kind: Kind, name: bytes, sign: Sign, *, payload: bool
    ) -> tuple[bytes, int] | None:
        """A record that is here for another store: the bytes of its file, signed, and their size.

        Args:
            kind: of the record.
            name: of it.
            sign: signs it.
            payload: whether its payload is wanted, which is not packed for that.
        """
        target = self._directory.target
        waiting = self._writer.find(kind, name)
        if waiting is not None:
            pieces = encode(kind, name, target, *waiting, sign)  # the last is the payload
            return b"".join(pieces if payload else pieces[:-1]), sum(map(len, pieces))
        if self._writer.hides(kind, name):
            return None
        path = self._directory.file(kind, name)
        with contextlib.suppress(InvalidRecord, OSError):  # it is not here, or read by its owner
            header, stored = read_stored(path, kind, name, target, payload=payload)
            head = encode_stored(header, b"", sign)
            return b"".join((*head, stored)), sum(map(len, head)) + header.stored
        return None

    def read_other(self, kind: Kind, name: bytes, payload: bool = True) -> Record | None:
        """The record of the shared store, which may be another one than is here."""
        if self.shared is None or (kind, name) in self._removed:
            return None
        return self.shared.read(kind, name, payload=payload)

    def adopt(self, kind: Kind, name: bytes, record: Record) -> None:
        """Keeps a record of the shared store here, unless another one waits to be written."""
        if not self._off and self._writer.find(kind, name) is None:
            self._writer.put(kind, name, _Copy(*record))

    def _read_shared(self, kind: Kind, name: bytes, payload: bool) -> Record | None:
        """A record of the shared store, which is kept here from now on."""
        record = self.read_other(kind, name, payload)
        if record is not None and (payload or kind in _WITHOUT_PAYLOAD):
            self.adopt(kind, name, record)
        return record

    def publish(self, kind: Kind, name: bytes) -> None:
        """Has a record that is here written to the shared store as well, if it is not in it."""
        if self.shared is not None and self.shared.lacks(kind, name):
            record = self.read(kind, name)
            if record is not None and self._writer.find(kind, name) is None:
                self._writer.put(kind, name, Record(*record))

    def _read_file(self, kind: Kind, name: bytes, payload: bool) -> Record | None:
        path = self._directory.file(kind, name)
        try:
            return read_file(path, kind, name, self._directory.target, payload=payload)
        except InvalidRecord as error:
            self._troubles.warn("cache_broken", path=path, reason=str(error))
            self._unlink(kind, name)
            return None
        except OSError as error:
            if error.errno not in _ABSENT:
                self._troubles.warn("cache_unreadable", str(error.errno), reason=str(error))
            return None

    def has(self, kind: Kind, name: bytes) -> bool:
        """Whether there is such a record; it may still turn out to be broken."""
        if self._writer.find(kind, name) is not None:
            return True
        path = self._directory.file(kind, name)
        if not self._writer.hides(kind, name) and os.path.exists(path):
            return True
        return self._read_shared(kind, name, payload=False) is not None

    def room(self, kind: Kind, name: bytes) -> int:
        """What a record takes of the disk; 0 when it is not there."""
        try:
            return room(os.path.getsize(self._directory.file(kind, name)))
        except OSError:
            return 0

    def names(self, kind: Kind) -> list[bytes]:
        """The names of all records of a kind, in no order, but for long ones."""
        found = set(self._writer.names(kind))
        with contextlib.suppress(OSError):
            for file in os.listdir(self._directory.kind(kind)):
                with contextlib.suppress(ValueError):  # not finished, or long
                    found.add(bytes.fromhex(file))
        return list(found)

    def by_last_use(self, kind: Kind) -> list[bytes]:
        """The names of the records of a kind, those used last first."""
        self._note_uses()
        used = {}
        for name in self.names(kind):
            with contextlib.suppress(OSError):  # it waits to be written, or is gone
                used[name] = os.stat(self._directory.file(kind, name)).st_mtime_ns
        return sorted(used, key=used.__getitem__, reverse=True)

    # writing -------------------------------------------------------------------------------------

    def write(self, kind: Kind, name: bytes, content: Any, payload: bytes = b"") -> None:
        """Keeps a record; returns at once, and never fails.

        Args:
            kind: its folder.
            name: what it will be found by; replaces a record of this name.
            content: a literal.
            payload: opaque bytes.
        """
        self._removed.discard((kind, name))
        if not self._off:
            self._writer.put(kind, name, Record(content, payload))

    def remove(self, kind: Kind, name: bytes) -> None:
        """Removes a record, if there is one; that in a shared store is not used any more."""
        self._removed.add((kind, name))
        self._writer.drop(kind, name)
        self._unlink(kind, name)

    def touch(self, kind: Kind, name: bytes) -> None:
        """Notes that a record is used now; costs less than a microsecond."""
        self._touched[kind, name] = time.time()

    def flush(self, timeout_s: float) -> bool:
        """Returns when all that was written is on disk, or given up; False: not in that time."""
        done = self._writer.flush(timeout_s)
        self._note_uses()
        return done

    def close(self, timeout_s: float = 10.0) -> bool:
        """As `flush`; nothing is written afterwards."""
        done = self._writer.close(timeout_s)
        self._note_uses()
        return done

    # room ----------------------------------------------------------------------------------------

    def _tidy(self) -> None:
        """What the writing thread does when it has nothing to write."""
        self._note_uses()
        is_due = time.monotonic() - self._scanned > _SCAN_S or not self._scanned
        limit = self._principal_limit
        is_due = is_due or 0 < limit < self._news * _SCANS_PER_SHARE  # by one principal
        if self._off or not (is_due or self._bytes > self._limit):
            return
        # to less than the limit, so that the next record does not sweep again
        swept = sweep(
            self._directory.root,
            self._directory.target,
            self._limit,
            int(self._limit * _SWEEP_LEVEL),
            limit,
        )
        self._bytes, self._news = swept.left, 0
        self._scanned = time.monotonic()

    def _note_uses(self) -> None:
        while self._touched:
            try:
                (kind, name), at = self._touched.popitem()
            except KeyError:  # another thread took the last one
                return
            with contextlib.suppress(OSError):
                os.utime(self._directory.file(kind, name), (at, at))

    # the disk ------------------------------------------------------------------------------------

    def _write(self, kind: Kind, name: bytes, record: Record) -> None:
        """In the writing thread."""
        pieces = encode(kind, name, self._directory.target, *record)
        try:
            self._put(kind, self._directory.file(kind, name), pieces)
            size = sum(map(len, pieces))
            self._bytes += size
            self._news += size
        except ConfigurationError as error:
            self._off = True
            self._troubles.warn("cache_refused", reason=str(error))
        except OSError as error:
            self._troubles.warn("cache_not_written", str(error.errno), reason=str(error))
        if self.shared is not None and not isinstance(record, _Copy):
            self.shared.write(kind, name, record)

    def _put(self, kind: Kind, path: str, pieces: tuple[bytes, ...]) -> None:
        try:
            write_file(path, pieces)
        except FileNotFoundError:  # the first of its kind, or the folder was removed
            self._directory.make(kind)
            if not os.path.lexists(f"{self.folder}/{TARGET_FILE}"):
                self._describe()
            write_file(path, pieces)
        except IsADirectoryError:
            remove_file(path)
            write_file(path, pieces)

    def _describe(self) -> None:
        """For people."""
        text = json.dumps(dict(self._facts), indent=2, sort_keys=True) + "\n"
        with contextlib.suppress(OSError):  # a full disk can still be read
            write_file(f"{self.folder}/{TARGET_FILE}", (text.encode("utf-8", "replace"),))

    def _unlink(self, kind: Kind, name: bytes) -> None:
        with contextlib.suppress(OSError):  # it stays, and is not accepted
            remove_file(self._directory.file(kind, name))
