"""Where the files of a shared store lie: in a folder, or behind a URL of `fsspec`.

Others may be able to write there. So nothing that is found is taken for more than bytes: links are
not followed, and what a lease says is read as a time and the name of a machine.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.tokens import without_password
from jaxd_server.cache.directory import TARGET_FILE, Directory, Kind
from jaxd_server.cache.record_file import (
    Record,
    Sign,
    read_file,
    read_record,
    write_file,
)

T = TypeVar("T")

_STALE_S: Final = 3600.0
"""Clocks of machines that share files differ by less; a lease that old is over at once."""

_READING: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_GENERATION: Final = re.compile("[0-9]{1,6}")
_MOST_LEASE: Final = 256


class Beat(NamedTuple):
    """The newest lease of a name.

    Attributes:
        generation: its number.
        touched: when its holder has touched it last, in nanoseconds of the clock of whoever keeps
            the files, or of its holder.
    """

    generation: int
    touched: int

    def is_old(self) -> bool:
        """Whether it is of a job of long ago, whatever the clocks of machines say."""
        return time.time() - self.touched / 1e9 > _STALE_S


class HeldFile(Protocol):
    """The file of a lease that this process holds."""

    def touch(self) -> None:
        """Shows others that its holder lives.

        Raises:
            OSError: when that is not possible now.
        """

    def drop(self) -> None:
        """Removes it, and those that were there before it; never raises."""


class StoreFiles(Protocol):
    """The files of one target in a store. Thread-safe.

    All of them raise `OSError` when the store cannot be reached, or does not let one do it.
    """

    @property
    def directory(self) -> Directory:
        """Their paths."""

    def read(self, kind: Kind, name: bytes, sign: Sign, *, payload: bool) -> Record:
        """The record of that name; raises as `read_file`."""

    def has(self, path: str) -> bool:
        """Whether there is a file."""

    def state(self, path: str) -> object:
        """How a file looks now: something else once it was replaced; None when there is none."""

    def write(self, path: str, pieces: tuple[bytes, ...]) -> None:
        """Writes a file that nobody sees in part."""

    def newest(self, stem: str) -> Beat | None:
        """The newest lease; None when there is none."""

    def holder(self, stem: str, generation: int) -> str:
        """The name of the machine of a lease's holder; empty when it has just ended."""

    def take(self, stem: str, generation: int) -> HeldFile | None:
        """Makes a lease of that generation; None when another process was faster."""


def is_url(store: str) -> bool:
    """Whether a store is named by a URL, and is no path."""
    return "://" in store


def path_of(store: str) -> str:
    """The folder that a URL such as `file:///shared/jaxd` names; anything else as it is."""
    parts = urlsplit(store)
    is_here = parts.scheme in ("file", "local") and parts.netloc in ("", "localhost")
    return unquote(parts.path) if is_url(store) and is_here else store


def _own_name() -> str:
    return socket.gethostname()


def _machine(text: str) -> str:
    """The name of a machine, without what does not belong to one."""
    return "".join(re.findall(r"[\w.-]", text))[:64]


def _numbers(files: list[str], stem: str) -> Iterator[int]:
    """The generations of the leases among some files that begin as `stem` does, highest first."""
    prefix = os.path.basename(stem)
    found = (file[len(prefix) :] for file in files if file.startswith(prefix))
    return iter(sorted((int(each) for each in found if _GENERATION.fullmatch(each)), reverse=True))


# a folder ----------------------------------------------------------------------------------------


class FolderFiles:
    """The files of a store that is a folder.

    A lease is a file that its holder touches.

    Args:
        directory: their paths.
        facts: what the target stands for, for people.
    """

    def __init__(self, directory: Directory, facts: Mapping[str, str]) -> None:
        self.directory = directory
        self._facts = facts

    def read(self, kind: Kind, name: bytes, sign: Sign, *, payload: bool) -> Record:
        """See `StoreFiles`."""
        path, target = self.directory.file(kind, name), self.directory.target
        return read_file(path, kind, name, target, payload=payload, sign=sign)

    def has(self, path: str) -> bool:
        """See `StoreFiles`."""
        return os.path.exists(path)

    def state(self, path: str) -> object:
        """See `StoreFiles`."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode

    def write(self, path: str, pieces: tuple[bytes, ...]) -> None:
        """See `StoreFiles`."""
        mode = self._make_folder(os.path.dirname(path))
        write_file(path, pieces, mode & 0o666)

    def _make_folder(self, folder: str) -> int:
        """Makes a folder of the target, open to whom the store is open to; returns its mode."""
        mode = stat.S_IMODE(os.stat(self.directory.root).st_mode)
        above = self.directory.folder
        is_new = False
        for each in (os.path.dirname(above), above, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(each)
                os.chmod(each, mode)  # whatever the umask
                is_new = True
            if os.path.islink(each):
                raise OSError(errno.ELOOP, "a folder of the store is a link", each)
        if is_new:
            write_file(f"{above}/{TARGET_FILE}", (_described(self._facts),), mode & 0o666)
        return mode

    def newest(self, stem: str) -> Beat | None:
        """See `StoreFiles`."""
        try:
            files = os.listdir(os.path.dirname(stem))
        except FileNotFoundError:
            return None
        for generation in _numbers(files, stem):
            with contextlib.suppress(FileNotFoundError):  # its holder has just released it
                try:
                    descriptor = os.open(f"{stem}{generation}", _READING)  # so that NFS looks anew
                except OSError as error:
                    if error.errno in (errno.ELOOP, errno.ENXIO):
                        return Beat(generation, 0)  # it is no lease: the next one may be taken
                    raise
                try:
                    return Beat(generation, os.fstat(descriptor).st_mtime_ns)
                finally:
                    os.close(descriptor)
        return None

    def holder(self, stem: str, generation: int) -> str:
        """See `StoreFiles`."""
        with contextlib.suppress(OSError):
            descriptor = os.open(f"{stem}{generation}", _READING)
            try:
                return _machine(os.read(descriptor, _MOST_LEASE).decode("utf-8", "replace"))
            finally:
                os.close(descriptor)
        return ""

    def take(self, stem: str, generation: int) -> HeldFile | None:
        """See `StoreFiles`."""
        mode = self._make_folder(os.path.dirname(stem)) & 0o666
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(f"{stem}{generation}", flags, mode)
        except FileExistsError:
            return None
        held = _Held(
            partial(os.utime, descriptor),
            partial(_remove_leases, stem, generation, descriptor),
        )
        try:
            os.fchmod(descriptor, mode)  # whatever the umask
            os.write(descriptor, _own_name().encode("utf-8", "replace"))
        except BaseException:
            held.drop()
            raise
        return held


class _Held:
    """See `HeldFile`.

    Args:
        touch: shows that the holder lives.
        remove: removes the lease, and those before it.
    """

    def __init__(self, touch: Callable[[], None], remove: Callable[[], None]) -> None:
        self._touch = touch
        self._remove = remove
        self._is_dropped = False
        self._lock = threading.Lock()  # a lease that is removed is not touched again

    def touch(self) -> None:
        with self._lock:
            if not self._is_dropped:
                self._touch()

    def drop(self) -> None:
        with self._lock:
            self._is_dropped = True
            self._remove()


def _remove_leases(stem: str, own: int, descriptor: int) -> None:
    """Removes the lease of a descriptor, which is closed, and those before it."""
    with contextlib.suppress(OSError):
        for generation in sorted(_numbers(os.listdir(os.path.dirname(stem)), stem)):
            path = f"{stem}{generation}"  # its own last
            is_own = os.path.samestat(os.lstat(path), os.fstat(descriptor))
            if is_own or generation < own:
                os.unlink(path)
    os.close(descriptor)


def _described(facts: Mapping[str, str]) -> bytes:
    text = json.dumps(dict(facts), indent=2, sort_keys=True) + "\n"
    return text.encode("utf-8", "replace")


# a URL -------------------------------------------------------------------------------------------

_AWAY_S: Final = 60.0
"""A store that could not be reached is not asked again for so long: each try may take long."""

_FIRST_BYTES: Final = 1 << 16
"""What is fetched of a program whose header is wanted."""

_LEASE: Final = re.compile(r"([0-9]{1,20}) [0-9a-f]{16} ([\w.-]{0,64})")
_WEB: Final = frozenset({"http", "https"})

_CHANGING: Final = frozenset(
    {
        *("Content-MD5", "Digest", "ETag", "Last-Modified", "LastModified", "VersionId", "created"),
        *("etag", "generation", "last_modified", "md5Hash", "mtime", "updated", "version_id"),
    }
)
"""What file systems of fsspec say of a file that is something else once it was replaced."""


class UrlFiles:
    """The files of a store behind a URL: object storage, a web server, a file server.

    A lease is an object that its holder writes again and again, with the time of its clock.

    Args:
        url: of any kind that fsspec knows, and for which it finds what it needs.
        target: the name of the target.
        facts: what that stands for, for people.

    Attributes:
        is_web: whether it is a web server, to which nothing is written.

    Raises:
        ConfigurationError: when fsspec, or what it needs for the URL, is not installed.
    """

    def __init__(self, url: str, target: str, facts: Mapping[str, str]) -> None:
        self._fs, root = _file_system(url)
        self.directory = Directory(root.rstrip("/"), target)
        self.is_web = urlsplit(url).scheme in _WEB
        self._facts = facts
        self._is_described = False
        self._away_until = 0.0

    def _ask(self, do: Callable[[], T]) -> T:
        """What the file system answers.

        Raises:
            FileNotFoundError, FileExistsError: as it says.
            OSError: when it cannot be reached, or could not be a moment ago.
        """
        if time.monotonic() < self._away_until:
            raise OSError(errno.EIO, "the store could not be reached a moment ago")
        try:
            return do()
        except (FileNotFoundError, FileExistsError):
            raise
        except Exception as error:
            self._away_until = time.monotonic() + _AWAY_S
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error

    def read(self, kind: Kind, name: bytes, sign: Sign, *, payload: bool) -> Record:
        """See `StoreFiles`."""
        path, target = self.directory.file(kind, name), self.directory.target
        if payload or kind != "programs":
            data = self._ask(lambda: self._fs.cat_file(path))
            size = len(data)
        else:
            size = self._ask(lambda: self._fs.size(path)) or 0
            data = self._ask(lambda: self._fs.cat_file(path, 0, min(size, _FIRST_BYTES)))
        file = io.BytesIO(data)
        return read_record(file, size, kind, name, target, payload=payload, sign=sign)

    def has(self, path: str) -> bool:
        """See `StoreFiles`."""
        return self._ask(lambda: bool(self._fs.exists(path)))

    def state(self, path: str) -> object:
        """See `StoreFiles`."""
        if time.monotonic() < self._away_until:
            return None
        try:
            self._fs.invalidate_cache(path)
            facts = dict(self._fs.info(path))
        except Exception:  # noqa: BLE001  whatever a file system says of a file that it has not
            return None
        # not every web server says anything that changes with a file
        minute = 0 if _CHANGING & facts.keys() else time.monotonic() // _AWAY_S
        return repr(sorted(facts.items(), key=str)), minute

    def write(self, path: str, pieces: tuple[bytes, ...]) -> None:
        """See `StoreFiles`."""
        self._put(path, b"".join(pieces))
        if not self._is_described:
            self._is_described = True
            self._put(f"{self.directory.folder}/{TARGET_FILE}", _described(self._facts))

    def _put(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        def put() -> None:
            try:
                self._fs.pipe_file(path, data, mode=mode)
            except FileNotFoundError:  # a file system that has folders
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._fs.pipe_file(path, data, mode=mode)

        self._ask(put)

    def newest(self, stem: str) -> Beat | None:
        """See `StoreFiles`."""
        for generation in self._generations(stem):
            with contextlib.suppress(FileNotFoundError):  # its holder has just released it
                found = self._lease(stem, generation)
                return Beat(generation, int(found[1]) if found else 0)
        return None

    def holder(self, stem: str, generation: int) -> str:
        """See `StoreFiles`."""
        with contextlib.suppress(OSError):
            found = self._lease(stem, generation)
            return _machine(found[2]) if found else ""
        return ""

    def _lease(self, stem: str, generation: int) -> re.Match[str] | None:
        """What a lease says; None where something else is in its place."""
        path = f"{stem}{generation}"
        data = self._ask(lambda: self._fs.cat_file(path, 0, _MOST_LEASE))
        return _LEASE.fullmatch(data.decode("utf-8", "replace"))

    def _generations(self, stem: str) -> list[int]:
        folder = stem.rpartition("/")[0]

        def listed() -> list[str]:
            self._fs.invalidate_cache()
            return [path.rpartition("/")[2] for path in self._fs.ls(folder, detail=False)]

        try:
            return list(_numbers(self._ask(listed), stem))
        except FileNotFoundError:
            return []

    def take(self, stem: str, generation: int) -> HeldFile | None:
        """See `StoreFiles`."""
        path, nonce = f"{stem}{generation}", secrets.token_hex(8)
        text = _lease_text(nonce)
        try:
            self._put(path, text, "create")
            is_ours = self._ask(lambda: self._fs.cat_file(path)) == text  # whoever wrote last
        except FileExistsError:
            return None
        if not is_ours:
            return None
        return _Held(
            lambda: self._put(path, _lease_text(nonce)),
            lambda: self._remove_leases(stem, generation),
        )

    def _remove_leases(self, stem: str, own: int) -> None:
        """Removes a lease that this process has taken, and those before it."""
        with contextlib.suppress(OSError):
            for generation in sorted(self._generations(stem)):
                if generation <= own:
                    self._ask(partial(self._fs.rm_file, f"{stem}{generation}"))


def _lease_text(nonce: str) -> bytes:
    """What stands in a lease that is touched now."""
    return f"{time.time_ns()} {nonce} {_machine(_own_name())}".encode()


def _file_system(url: str) -> tuple[Any, str]:
    """What fsspec has for a URL, and the path in it.

    Raises:
        ConfigurationError: when it has nothing.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ConfigurationError(
            f"JAXD_STORE={without_password(url)} is a URL, which needs fsspec where it is used. "
            "Run: pip install 'jaxd[store]'"
        ) from error
    try:
        found, path = url_to_fs(url)
    except ImportError as error:  # of what fsspec itself needs for this kind
        scheme = urlsplit(url).scheme
        raise ConfigurationError(
            f"JAXD_STORE={without_password(url)} cannot be opened: {error}. Install that where "
            f"it is used; the documentation of fsspec says which package has {scheme}://."
        ) from error
    except Exception as error:  # whatever a file system makes of its URL
        raise ConfigurationError(
            f"JAXD_STORE={without_password(url)} cannot be opened: {type(error).__name__}: "
            f"{error}. Correct the URL, or name a folder."
        ) from error
    return found, str(path)
