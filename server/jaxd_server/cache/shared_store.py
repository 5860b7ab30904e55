"""A store that the servers of several machines share: signed records, and leases of builds.

The records are those of the cache. Others may be able to write to the folder, and what lies in it
is code that runs. So each record is signed with a key that all who share the store have, and what
is not signed with it is not there.

A lease is a file that its holder touches every two seconds. Whoever waits sees by its own clock
that this has stopped, so clocks of machines are not compared. Each lease has a generation, and the
next one is taken by making its file, which only one process can do: two never take over the same.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import re
import secrets
import socket
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import ConfigurationError, JaxdError
from jaxd_protocol.network.accounts import file_state
from jaxd_protocol.network.tokens import (
    checked_token,
    config_dir,
    made_token_file,
    read_token_file,
)
from jaxd_server.cache.directory import TARGET_FILE, VERSION, Directory, Kind
from jaxd_server.cache.record_file import (
    InvalidRecord,
    Record,
    Sign,
    encode,
    read_file,
    read_header,
    write_file,
)
from jaxd_server.cache.writer import Troubles
from jaxd_server.runtime.logs import log_event

SHARED_KINDS: Final = frozenset({"reads", "calls", "programs", "environments"})
"""What is shared. No code of functions: whoever calls one has it."""

LEASE_S: Final = 10.0
"""A lease that its holder has not touched for so long is over."""

_BEAT_S: Final = 2.0
_STALE_S: Final = 3600.0
"""Clocks of machines that share files differ by less; a lease that old is over at once."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 0.5
_LEASES: Final = "leases"
_MOST_WAIT_S: Final = 1800.0
"""Nobody waits longer for another machine: it builds by itself."""

_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GENERATION: Final = re.compile("[0-9]{1,6}")
_MOST_HOST: Final = 64
_KEY_FILE: Final = "store.key"
_TARGET: Final = re.compile("[0-9a-f]{16}")


def read_store_key() -> str:
    """The secret key of the user's stores.

    That in `JAXD_STORE_KEY`, else in the file `JAXD_STORE_KEY_FILE`, else in `store.key` beside the
    user's other settings, which is made where it is missing.

    Raises:
        ConfigurationError: when it is empty, can be guessed, or can be read by others, or its file
            cannot be read or made.
    """
    key, file = os.environ.get("JAXD_STORE_KEY"), os.environ.get("JAXD_STORE_KEY_FILE")
    if key is not None:  # an empty one is a secret that a CI has not given
        return checked_token(key.strip(), "the key in JAXD_STORE_KEY")
    if file is not None:
        return read_token_file(file)
    return made_token_file(os.path.join(config_dir(), _KEY_FILE))


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
    folder: str | None,
    target: str,
    facts: Mapping[str, str],
    *,
    read_only: bool = False,
) -> SharedStore | None:
    """The store of a target in a folder; None: there is none.

    Or it cannot be used, which is logged.

    Args:
        folder: where it is; None: there is none.
        target: what the records are good for, 16 hex digits.
        facts: what these stand for, for people.
        read_only: whether nothing is written to it; `JAXD_STORE_READ_ONLY=1` says so as well.
    """
    if folder is None:
        return None
    troubles = Troubles()
    read_only = read_only or os.environ.get("JAXD_STORE_READ_ONLY", "") not in ("", "0")
    try:
        key = read_store_key()
        if not read_only:
            os.makedirs(folder, exist_ok=True)
            read_only = not os.access(folder, os.W_OK)
        os.listdir(folder)
    except (ConfigurationError, OSError) as error:
        troubles.warn("store_refused", folder=folder, reason=str(error))
        return None
    log_event("store_opened", folder=folder, read_only=read_only)
    return SharedStore(Directory(folder, target), key, troubles, facts, read_only=read_only)


class SharedStore:
    """The records of one target that several servers share. Thread-safe.

    Nothing here raises for what the disk does; each kind of trouble is logged once.

    Args:
        directory: where they are.
        key: the secret that they are signed with.
        troubles: where warnings go.
        facts: what the target stands for, for people.
        read_only: whether nothing is written.
    """

    def __init__(
        self,
        directory: Directory,
        key: str,
        troubles: Troubles,
        facts: Mapping[str, str],
        *,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self._directory = directory
        self._sign = signing(key)
        self._troubles = troubles
        self._facts = facts
        self._refused: dict[str, tuple[int, ...] | None] = {}  # by path; each step on it is atomic

    # records -------------------------------------------------------------------------------------

    def read(self, kind: Kind, name: bytes, *, payload: bool = True) -> Record | None:
        """The record; None when there is none that is signed and whole."""
        if kind not in SHARED_KINDS:
            return None
        path, target = self._directory.file(kind, name), self._directory.target
        refused = self._refused.get(path)
        if refused is not None and refused == _state(path):
            return None
        try:
            return read_file(path, kind, name, target, payload=payload, sign=self._sign)
        except InvalidRecord as error:
            self._refused[path] = _state(path)  # until somebody has made it anew
            self._troubles.warn("store_entry_refused", str(error), path=path, reason=str(error))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._troubles.warn("store_unreadable", str(error.errno), reason=str(error))
        return None

    def lacks(self, kind: Kind, name: bytes) -> bool:
        """Whether a record is to be written: there is no file of it, or one that was refused."""
        if self.read_only or kind not in SHARED_KINDS:
            return False
        path = self._directory.file(kind, name)
        return path in self._refused or not os.path.exists(path)

    def write(self, kind: Kind, name: bytes, record: Record) -> None:
        """Writes a record; returns when it is there, or given up."""
        if self.read_only or kind not in SHARED_KINDS:
            return
        path = self._directory.file(kind, name)
        pieces = encode(kind, name, self._directory.target, *record, self._sign)
        try:
            mode = self._make_folder(os.path.dirname(path))
            write_file(path, pieces, mode & 0o666)
        except OSError as error:
            self._troubles.warn("store_not_written", str(error.errno), reason=str(error))
        else:
            self._refused.pop(path, None)

    def _make_folder(self, folder: str) -> int:
        """Makes a folder of the target, open to whom the store is open to; returns its mode."""
        mode = stat.S_IMODE(os.stat(self._directory.root).st_mode)
        above = self._directory.folder
        is_new = False
        for each in (os.path.dirname(above), above, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
                os.chmod(each, mode)  # whatever the umask
                is_new = True
            if os.path.islink(each):
                raise OSError(errno.ELOOP, "a folder of the store is a link", each)
        if is_new:
            text = json.dumps(dict(self._facts), indent=2, sort_keys=True) + "\n"
            data = (text.encode("utf-8", "replace"),)
            write_file(f"{above}/{TARGET_FILE}", data, mode & 0o666)
        return mode

    # leases --------------------------------------------------------------------------------------

    @contextmanager
    def lease(
        self, name: bytes, is_there: Callable[[], bool], on_wait: Callable[[Waiting], None]
    ) -> Iterator[Lease | None]:
        """Within it, no other server builds what has that name; at first it may be waited for.

        None where it is there by then, where whoever had the lease is done without it (what cannot
        be kept, and what fails, is not waited for once more by each), and where there can be none.
        The block hands the lease on to `Lease.release`, or it is released at its end.

        Args:
            name: of the call.
            is_there: whether there is nothing to wait for.
            on_wait: called again and again while another server builds it; may raise.
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
        folder = f"{self._directory.folder}/{_LEASES}"
        mode = self._make_folder(folder) & 0o666
        stem = f"{folder}/{name.hex()}."
        pause = _FIRST_PAUSE_S
        began = touched_at = time.monotonic()
        seen: _Beat | None = None
        while True:
            beat = _newest(folder, f"{name.hex()}.")  # first: who is done has written before
            now = time.monotonic()
            if is_there() or (beat is None and seen is not None) or now - began > _MOST_WAIT_S:
                return None
            if beat != seen:
                seen, touched_at = beat, now
            if beat is None or now - touched_at > LEASE_S or beat.is_old():
                lease = Lease(stem, 0 if beat is None else beat.generation + 1)
                if lease.take(mode):
                    return lease
            on_wait(Waiting(_holder(f"{stem}{beat.generation}") if beat else "", now - began))
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, pause * 1.5)


def _state(path: str) -> tuple[int, ...] | None:
    """How a file looks now; None when there is none."""
    try:
        return file_state(os.lstat(path))
    except OSError:
        return None


class Lease:
    """The right to build something for all who share a store; kept by touching its file.

    Attributes:
        is_handed_on: whether somebody else will release it.
    """

    def __init__(self, stem: str, generation: int) -> None:
        self.is_handed_on = False
        self._stem = stem
        self._generation = generation
        self._file = -1
        self._ended = threading.Event()

    def take(self, mode: int) -> bool:
        """Whether this process has it now; False: another one was faster."""
        path = f"{self._stem}{self._generation}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, mode)
        except FileExistsError:
            return False
        try:
            os.fchmod(self._file, mode)  # whatever the umask
            os.write(self._file, socket.gethostname().encode("utf-8", "replace"))
            thread = threading.Thread(target=self._beat, name="jaxd-lease", daemon=True)
            start_thread(thread)
        except BaseException:
            self.release()
            raise
        return True

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            with contextlib.suppress(OSError):  # the store is gone for a while, or for good
                os.utime(self._file)

    def release(self) -> None:
        """What was to be built is there, or will not be."""
        self._ended.set()
        folder, prefix = os.path.split(self._stem)
        with contextlib.suppress(OSError):
            for generation in sorted(_generations(folder, prefix)):  # its own last
                path = f"{self._stem}{generation}"
                is_own = os.path.samestat(os.lstat(path), os.fstat(self._file))
                if is_own or generation < self._generation:
                    os.unlink(path)
        os.close(self._file)


class _Beat(NamedTuple):
    """The newest lease of a name.

    Attributes:
        generation: its number.
        touched: when its holder has touched it last, in nanoseconds of the file system's clock.
    """

    generation: int
    touched: int

    def is_old(self) -> bool:
        """Whether it is of a job of long ago, whatever the clocks of machines say."""
        return time.time() - self.touched / 1e9 > _STALE_S


def _generations(folder: str, prefix: str) -> Iterator[int]:
    for file in os.listdir(folder):
        number = file[len(prefix) :]
        if file.startswith(prefix) and _GENERATION.fullmatch(number):
            yield int(number)


def _newest(folder: str, prefix: str) -> _Beat | None:
    """The lease with the highest generation; None when there is none.

    Raises:
        OSError: when the folder cannot be read now.
    """
    for generation in sorted(_generations(folder, prefix), reverse=True):
        path = f"{folder}/{prefix}{generation}"
        with contextlib.suppress(FileNotFoundError):  # its holder has just released it
            try:
                descriptor = os.open(path, _READING)  # so that NFS looks anew
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    return _Beat(generation, 0)  # it is no lease: the next one may be taken
                raise
            try:
                return _Beat(generation, os.fstat(descriptor).st_mtime_ns)
            finally:
                os.close(descriptor)
    return None


def _holder(path: str) -> str:
    """The name of the machine of a lease's holder; empty when it has just ended."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, _READING)
        try:
            text = os.read(descriptor, _MOST_HOST).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
        return "".join(re.findall(r"[\w.-]", text))
    return ""


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
            for target, kind, file in _records_below(root):
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


def _records_below(root: str) -> Iterator[tuple[str, str, str]]:
    """Target, kind and file of all records that can be shared: programs before their calls."""
    kinds: tuple[Kind, ...] = ("environments", "programs", "reads", "calls")
    for target in _listed(f"{root}/{VERSION}"):
        for kind in kinds:
            folder = Directory(root, target).kind(kind)
            for name in _listed(folder):
                if not name.startswith("."):  # is being written
                    yield target, kind, f"{folder}/{name}"


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


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
