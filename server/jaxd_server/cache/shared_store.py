"""A store that the servers of several machines share: signed records, and leases of builds.

The records are those of the cache. Others may be able to write to the store, and what lies in it
is code that runs. So each record is signed with a key that all who share the store have, and what
is not signed with it is not there.

A lease is a file that its holder touches every two seconds. Whoever waits sees by its own clock
that this has stopped, so clocks of machines are not compared. Each lease has a generation, and the
next one is taken by making its file, which only one process can do: two never take over the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import ConfigurationError, JaxdError
from jaxd_protocol.network.tokens import read_store_key, without_password
from jaxd_server.cache.directory import Directory, Kind
from jaxd_server.cache.disk_usage import Entry, entries
from jaxd_server.cache.record_file import (
    InvalidRecord,
    Record,
    Sign,
    encode,
    read_file,
    read_header,
    write_file,
)
from jaxd_server.cache.store_files import (
    Beat,
    FolderFiles,
    HeldFile,
    StoreFiles,
    UrlFiles,
    is_url,
    path_of,
)
from jaxd_server.cache.writer import Troubles
from jaxd_server.runtime.logs import log_event

SHARED_KINDS: Final = frozenset({"reads", "calls", "programs", "environments"})
"""What is shared. No code of functions: whoever calls one has it."""

LEASE_S: Final = 10.0
"""A lease that its holder has not touched for so long is over."""

_BEAT_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LEASES: Final = "leases"
_MOST_WAIT_S: Final = 1800.0
"""Nobody waits longer for another machine: it builds by itself."""

_TARGET: Final = re.compile("[0-9a-f]{16}")


def signing(key: str) -> Sign:
    """Signs with a secret key."""
    secret = hashlib.blake2b(key.encode(), digest_size=32, person=b"jaxd store").digest()
    return lambda data: hashlib.blake2b(data, key=secret, digest_size=32).digest()


class Waiting(NamedTuple):
    """Who builds what this process waits for.

    Attributes:
        host: the name of the machine.
        seconds: since this process waits.
    """

    host: str
    seconds: float


def open_shared_store(
    store: str | None,
    target: str,
    facts: Mapping[str, str],
    *,
    read_only: bool = False,
) -> SharedStore | None:
    """The store of a target; None: there is none.

    Or it cannot be used, which is logged.

    Args:
        store: its folder, or a URL of fsspec; None: there is none.
        target: what the records are good for, 16 hex digits.
        facts: what these stand for, for people.
        read_only: whether nothing is written to it; `JAXD_STORE_READ_ONLY=1` says so as well.
    """
    if store is None:
        return None
    troubles = Troubles()
    read_only = read_only or os.environ.get("JAXD_STORE_READ_ONLY", "") not in ("", "0")
    try:
        key = read_store_key()
        files, is_readable_only = _opened(path_of(store), target, facts, read_only=read_only)
    except (ConfigurationError, OSError) as error:
        troubles.warn("store_refused", folder=without_password(store), reason=str(error))
        return None
    read_only = read_only or is_readable_only
    log_event("store_opened", folder=without_password(store), read_only=read_only)
    return SharedStore(files, key, troubles, read_only=read_only, name=without_password(store))


def _opened(
    store: str, target: str, facts: Mapping[str, str], *, read_only: bool
) -> tuple[StoreFiles, bool]:
    """The files of a store, and whether they can only be read.

    Raises:
        ConfigurationError, OSError: when it cannot be opened.
    """
    if is_url(store):
        files = UrlFiles(store, target, facts)
        return files, files.is_web
    if not read_only:
        os.makedirs(store, exist_ok=True)
    os.listdir(store)
    return FolderFiles(Directory(store, target), facts), not os.access(store, os.W_OK)


class SharedStore:
    """The records of one target that several servers share. Thread-safe.

    Nothing here raises for what the store does; each kind of trouble is logged once.

    Args:
        files: where they are.
        key: the secret that they are signed with.
        troubles: where warnings go.
        read_only: whether nothing is written.
        name: what people call the store.

    Attributes:
        name: the same.
        read_only: likewise.
        loaded: how many programs this process has taken from it.
        added: how many it has added.
    """

    def __init__(
        self,
        files: StoreFiles,
        key: str,
        troubles: Troubles,
        *,
        read_only: bool = False,
        name: str = "",
    ) -> None:
        self.name = name
        self.read_only = read_only
        self.loaded = self.added = 0  # counted by the threads that read and write; nearly right
        self._files = files
        self._directory = files.directory
        self._sign = signing(key)
        self._troubles = troubles
        self._refused: dict[str, object] = {}  # by path; each step on it is atomic

    # records -------------------------------------------------------------------------------------

    def read(self, kind: Kind, name: bytes, *, payload: bool = True) -> Record | None:
        """The record; None when there is none that is signed and whole."""
        if kind not in SHARED_KINDS:
            return None
        path = self._directory.file(kind, name)
        refused = self._refused.get(path)
        if refused is not None and refused == self._files.state(path):
            return None
        try:
            found = self._files.read(kind, name, self._sign, payload=payload)
        except InvalidRecord as error:
            self._refused[path] = self._files.state(path)  # until somebody has made it anew
            self._troubles.warn("store_entry_refused", str(error), path=path, reason=str(error))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._troubles.warn("store_unreadable", str(error.errno), reason=str(error))
        else:
            self.loaded += payload and kind == "programs"
            return found
        return None

    def lacks(self, kind: Kind, name: bytes) -> bool:
        """Whether a record is to be written: there is no file of it, or one that was refused."""
        if self.read_only or kind not in SHARED_KINDS:
            return False
        path = self._directory.file(kind, name)
        try:
            return path in self._refused or not self._files.has(path)
        except OSError as error:
            self._troubles.warn("store_unreadable", str(error.errno), reason=str(error))
            return False

    def write(self, kind: Kind, name: bytes, record: Record) -> None:
        """Writes a record; returns when it is there, or given up."""
        if self.read_only or kind not in SHARED_KINDS:
            return
        path = self._directory.file(kind, name)
        pieces = encode(kind, name, self._directory.target, *record, self._sign)
        try:
            self._files.write(path, pieces)
        except OSError as error:
            self._troubles.warn("store_not_written", str(error.errno), reason=str(error))
        else:
            self._refused.pop(path, None)
            self.added += kind == "programs"

    # leases --------------------------------------------------------------------------------------

    @contextmanager
    def lease(
        self, name: bytes, is_there: Callable[[], bool], on_wait: Callable[[Waiting], None]
    ) -> Iterator[Lease | None]:
        """Within it, no other process builds what has that name; at first it may be waited for.

        None where it is there by then, where whoever had the lease is done without it (what cannot
        be kept, and what fails, is not waited for once more by each), and where there can be none.
        The block hands the lease on to `Lease.release`, or it is released at its end.

        Args:
            name: of the call.
            is_there: whether there is nothing to wait for.
            on_wait: called again and again while another process builds it; may raise.
        """
        if self.read_only:
            yield None
            return
        try:
            lease = self._taken(name, is_there, on_wait)
        except JaxdError:  # of `on_wait`; some are of the next kind as well
            raise
        except OSError as error:
            self._troubles.warn("store_not_written", str(error.errno), reason=str(error))
            lease = None
        try:
            yield lease
        finally:
            if lease is not None and not lease.is_handed_on:
                lease.release()

    def _taken(
        self, name: bytes, is_there: Callable[[], bool], on_wait: Callable[[Waiting], None]
    ) -> Lease | None:
        stem = f"{self._directory.folder}/{_LEASES}/{name.hex()}."
        pause = _FIRST_PAUSE_S
        began = touched_at = time.monotonic()
        seen: Beat | None = None
        while True:
            beat = self._files.newest(stem)  # first: who is done has written before
            now = time.monotonic()
            if is_there() or (beat is None and seen is not None) or now - began > _MOST_WAIT_S:
                return None
            if beat != seen:
                seen, touched_at = beat, now
            if beat is None or now - touched_at > LEASE_S or beat.is_old():
                held = self._files.take(stem, 0 if beat is None else beat.generation + 1)
                if held is not None:
                    return Lease(held)
            host = self._files.holder(stem, beat.generation) if beat else ""
            on_wait(Waiting(host, now - began))
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)


class Lease:
    """The right to build something for all who share a store; kept by touching its file.

    Args:
        held: the file, which this process has made.

    Attributes:
        is_handed_on: whether somebody else will release it.
    """

    def __init__(self, held: HeldFile) -> None:
        self.is_handed_on = False
        self._held = held
        self._ended = threading.Event()
        try:
            start_daemon("jaxd-lease", self._beat)
        except BaseException:
            self.release()
            raise

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            with contextlib.suppress(OSError):  # the store is gone for a while, or for good
                self._held.touch()

    def release(self) -> None:
        """What was to be built is there, or will not be."""
        self._ended.set()
        self._held.drop()


# one file ----------------------------------------------------------------------------------------


class Archived(NamedTuple):
    """What became of the records that were packed into a file, or unpacked from it.

    Attributes:
        records: how many.
        bytes: of them.
        refused: how many were broken, or not signed with the key.
    """

    records: int
    bytes: int
    refused: int


def pack(root: str, path: str, key: str) -> Archived:
    """Writes what can be shared of a cache folder into one file, signed.

    Args:
        root: the cache folder, which is trusted.
        path: of the file, a tar archive; it is replaced at once when all is in it.
        key: the secret.

    Raises:
        OSError: when it cannot be written.
    """
    sign, count, total, refused = signing(key), 0, 0, 0
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        with tarfile.open(draft, "w") as archive:
            for entry in _shared_below(root):
                target, kind, file = os.path.basename(entry.target), entry.kind, entry.path
                try:
                    header = read_header(file)
                    record = read_file(file, header.kind, header.name, header.target)
                except InvalidRecord:
                    refused += 1
                    continue
                except OSError:
                    continue  # a server has removed it
                data = b"".join(encode(kind, header.name, target, *record, sign))
                member = tarfile.TarInfo(f"{target}/{kind}/{os.path.basename(file)}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
                count, total = count + 1, total + len(data)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
    return Archived(count, total, refused)


def _shared_below(root: str) -> list[Entry]:
    """All records that can be shared: programs before their calls."""
    found = [entry for entry in entries(root) if entry.kind in SHARED_KINDS]
    return sorted(found, key=lambda entry: (entry.target, entry.kind == "calls", entry.path))


def unpack(root: str, path: str, key: str) -> Archived:
    """Adds what `pack` wrote to a cache folder, but for what is not signed with the key.

    Args:
        root: the cache folder, as `make_trusted` has made it.
        path: of the file.
        key: the secret.

    Raises:
        ConfigurationError: when the file is no archive, or the folder cannot be trusted.
        OSError: when it cannot be read, or the folder not be written.
    """
    sign, count, total, refused = signing(key), 0, 0, 0
    draft = f"{root}/.{os.getpid()}-{secrets.token_hex(8)}.tmp"
    try:
        with tarfile.open(path, "r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                data = b"" if content is None else content.read()
                write_file(draft, (data,))
                try:
                    _add(root, draft, sign)
                except InvalidRecord:
                    refused += 1
                else:
                    count, total = count + 1, total + len(data)
    except tarfile.TarError as error:
        raise ConfigurationError(f"{path} is no archive of `jaxd cache pack`: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(draft)
    return Archived(count, total, refused)


def _add(root: str, file: str, sign: Sign) -> None:
    """Adds the record in a file to a cache folder.

    Raises:
        InvalidRecord: when it is none, or not signed.
    """
    header = read_header(file)
    record = read_file(file, header.kind, header.name, header.target, sign=sign)
    kind: Any = header.kind
    if kind not in SHARED_KINDS or not _TARGET.fullmatch(header.target):
        raise InvalidRecord("it is not one that is shared")
    directory = Directory(root, header.target)
    directory.make(kind)
    pieces = encode(kind, header.name, header.target, *record)
    write_file(directory.file(kind, header.name), pieces)
