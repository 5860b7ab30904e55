"""The process of a client, as its code finds it while it is unpacked and traced here.

`install` exchanges what gives access to the environment, the arguments, the current folder, files,
the locale, the levels of loggers and the recursion limit. Outside of `reading` these do what they
always did. Within it, the code of a client gets what its client has: the client is asked, each
thing once for an unpacked function, and what was found is recorded, also that there is nothing.
What the client does not tell is refused. Installed packages that are imported meanwhile find this
process, and so do installed functions, except for what the client's code names.
"""

from __future__ import annotations

import builtins
import errno
import io
import locale
import logging
import os
import posix
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import FrameType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from jaxd_protocol.base.shared_memory import create_private
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.access_paths import TRANSPARENT
from jaxd_protocol.fingerprint.values import settings
from jaxd_protocol.messages.recorded_reads import (
    STANDARD_VARIABLES,
    ProcessRead,
    RecordedRead,
    recorded,
)
from jaxd_protocol.packages.installed import is_local_file
from jaxd_protocol.pickling.unpack.private_modules import is_private

Ask = Callable[[bytes, ProcessRead], Any]
"""A client's answer for a function of that fingerprint. Raises `PackingError` when it has none."""

OWN: Final[Any] = object()
"""In place of an answer: what this process has."""

_MAX_SEARCHED: Final = 1 << 20
"""Bytes of a packed function up to which it is looked at before its client is asked."""

_ALWAYS_NAMED: Final = frozenset({"arguments", "folder", "locale", "recursion"})
_READ_BY_PYTHON: Final = STANDARD_VARIABLES | {"HOME", ""}


class ProcessReads:
    """What one unpacked function has read of its client's process. Safe from any thread.

    Attributes:
        refused: the first read that was refused; what was unpacked is of no use then.
    """

    def __init__(self, fingerprint: bytes = b"", code: bytes | memoryview = b"") -> None:
        self.refused: PackingError | None = None
        self._fingerprint = fingerprint
        self._code = bytes(code) if 0 < len(code) <= _MAX_SEARCHED else None
        self._values: dict[ProcessRead, Any] = {}
        self._unknown: set[ProcessRead] = set()

    @property
    def found(self) -> dict[ProcessRead, Any]:
        """What was found so far: literals."""
        return dict(self._values)

    @property
    def recorded(self) -> tuple[RecordedRead, ...]:
        """The same, as it is in a key."""
        return recorded(self._fingerprint, self.found) if self._values else ()

    def answer(self, read: ProcessRead, ask: Ask) -> Any:
        """What the client has; `OWN` when its code does not name it."""
        if read in self._values:
            return self._values[read]
        if read in self._unknown or not self._may_name(read):
            return OWN
        try:
            found = self._values[read] = ask(self._fingerprint, read)
        except PackingError:
            self._unknown.add(read)
            return OWN
        return found

    def agree(self, found: dict[ProcessRead, Any], ask: Ask) -> bool:
        """Whether the client has what another one had that ran the same modules."""
        return all(self.answer(read, ask) == value for read, value in list(found.items()))

    def _may_name(self, read: ProcessRead) -> bool:
        """Whether the client is asked at all; it decides by itself."""
        if self._code is None or read.kind in _ALWAYS_NAMED or read.name in _READ_BY_PYTHON:
            return True
        name = os.path.basename(read.name) if read.kind == "file" else read.name
        return name.encode("utf-8", "surrogatepass") in self._code


class _Reader:
    """Reads of one thread: for whom, and of whom to ask.

    Attributes:
        reads: what was read.
        ask: asks the client.
        changed: loggers, and their manager, that the client's code has changed: the attributes as
            they were before. What these say is from then on what that code has set.
    """

    def __init__(self, reads: ProcessReads, ask: Ask) -> None:
        self.reads = reads
        self.ask = ask
        self.changed: dict[Any, dict[str, Any]] = {}

    def find(self, kind: str, name: str, what: str, *, is_own: bool = False) -> Any:
        """What code finds: of the client's process, or `OWN`.

        Args:
            kind: see `ProcessRead`.
            name: the same.
            what: in words, for an error.
            is_own: whether the client's code may have what this process has.

        Raises:
            PackingError: when it is the client's code that reads, and its client does not tell.
        """
        by = _who_reads()
        if by == "server":
            return OWN
        found = self.reads.answer(ProcessRead(kind, name), self.ask)
        if found is OWN and by == "client" and not is_own:
            self.refuse(what)
        return found

    def change(self, loggers: Any, name: str, before: Any) -> None:
        """Notes that an attribute of a logger, or of the manager, is about to be changed."""
        if _who_reads() != "server":
            self.changed.setdefault(loggers, {}).setdefault(name, before)

    def restore(self) -> None:
        """Gives loggers back what they had: they are those of all clients."""
        for changed, attributes in self.changed.items():
            vars(changed).update(attributes)
            manager: Any = changed.manager if isinstance(changed, logging.Logger) else changed
            manager._clear_cache()  # noqa: SLF001  of what loggers let through; as `setLevel` does

    def refuse(self, what: str) -> NoReturn:
        """Refuses to show something of this process.

        Raises:
            PackingError: always.
        """
        error = PackingError(
            f"the function, or a module that it imports inside of itself, reads {what} while it is "
            "traced on the server, and its client does not tell that: only what stands as text in "
            "the function's code is told, such as os.environ['NAME'] or a file of the project. "
            "Read it outside of the function, and pass what it gives as an argument, or import "
            "the module at the top of the file."
        )
        self.reads.refused = self.reads.refused or error
        raise error


_reader: ContextVar[_Reader | None] = ContextVar("_reader", default=None)


@contextmanager
def reading(reads: ProcessReads, ask: Ask) -> Iterator[None]:
    """Within it, the code of a client finds the client's process.

    Raises:
        PackingError: what was refused within it, also where code has caught that: it would go on
            with a default.
    """
    reader = _Reader(reads, ask)
    token = _reader.set(reader)
    try:
        yield
    except Exception as error:
        if reads.refused is not None and error is not reads.refused:
            raise reads.refused from error
        raise
    finally:
        _reader.reset(token)
        reader.restore()
    if reads.refused is not None:
        raise reads.refused


# who reads ----------------------------------------------------------------------------------------

_STANDARD_LIBRARY: Final = os.path.join(os.path.dirname(os.__file__), "")
_OF_INSTALLED: Final = (
    "<frozen importlib",
    os.path.join(os.path.dirname(os.path.dirname(__file__)), ""),
    *(
        _STANDARD_LIBRARY + name
        for name in (
            *("gettext.py", "importlib/", "inspect.py", "linecache.py", "pkgutil.py"),
            *("tokenize.py", "warnings.py"),
        )
    ),
)
"""Files of code that looks for installed packages, shows lines of source or translates texts, and
those of this package: jax calls its disk cache when it compiles a constant of the client's code."""


def _who_reads() -> Literal["client", "library", "server"]:
    """Whose code it is that reads: the nearest that does not belong to the standard library.

    `server`: something that a client's code does not wait for, such as the import of an installed
    package, or the source of a line that is shown.
    """
    is_library = False
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  cheaper than `inspect`
    while frame is not None:
        if is_private(frame.f_builtins):
            return "library" if is_library else "client"
        file = frame.f_code.co_filename
        if file.startswith(_OF_INSTALLED) and file != __file__:
            return "server"
        is_library = is_library or not _is_standard(file)
        frame = frame.f_back
    return "server"


@lru_cache(maxsize=4096)
def _is_standard(file: str) -> bool:
    if file in (__file__, settings.__file__) or file.startswith("<frozen "):
        return True
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file


# the environment and the arguments ----------------------------------------------------------------


class _Environment(type(os.environ)):  # type: ignore[misc]  # which has no public name
    """`os.environ`."""

    def __getitem__(self, key: Any) -> Any:
        reader = _reader.get()
        if reader is None or not isinstance(key, str | bytes):
            return super().__getitem__(key)
        name = os.fsdecode(key)
        found = reader.find("variable", name, f"the variable {name!r} of the environment")
        if found is OWN:
            return super().__getitem__(key)
        if found is None:
            raise KeyError(key)
        return found if isinstance(key, str) else os.fsencode(found)

    def __setitem__(self, key: Any, value: Any) -> None:
        reader = _reader.get()
        if reader is not None and _who_reads() == "client" and self.get(key) != value:
            reader.refuse(f"and sets the variable {key!r} of the environment")
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        reader = _reader.get()
        if reader is not None and _who_reads() == "client":
            reader.refuse(f"and removes the variable {key!r} of the environment")
        super().__delitem__(key)

    def __iter__(self) -> Iterator[Any]:
        _refuse_to_client("the whole environment")
        names: Iterator[Any] = super().__iter__()
        return names

    def __len__(self) -> int:
        _refuse_to_client("the whole environment")
        return int(super().__len__())


def _refuse_to_client(what: str) -> None:
    """Refuses something to the code of a client.

    Raises:
        PackingError: when it is that which reads.
    """
    reader = _reader.get()
    if reader is not None and _who_reads() == "client":
        reader.refuse(what)


class _Arguments(list[str]):
    """`sys.argv`; what the list itself holds are those of this process."""

    def _now(self) -> list[str]:
        reader = _reader.get()
        found = OWN if reader is None else reader.find("arguments", "", "sys.argv")
        return list(list.__iter__(self)) if found is OWN else list(found)

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, value: object) -> bool:
        return value in self._now()

    def __eq__(self, other: object) -> bool:
        return self._now() == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self._now())

    def __add__(self, other: Any) -> Any:
        return self._now() + other

    def copy(self) -> list[str]:
        """A list of them."""
        return self._now()

    def index(self, *args: Any) -> int:
        """Where one of them stands."""
        return self._now().index(*args)

    def count(self, value: Any) -> int:
        """How often one of them stands there."""
        return self._now().count(value)


class _InterpreterArguments(_Arguments):
    """`sys.orig_argv`, which no client tells."""

    def _now(self) -> list[str]:
        _refuse_to_client("sys.orig_argv")
        return list(list.__iter__(self))


# files and folders --------------------------------------------------------------------------------


def _is_own_file(path: str) -> bool:
    """Whether a file belongs to the installation, or to no project at all."""
    if not os.path.isabs(path):
        return False
    return path.startswith(_NO_PROJECT) or not is_local_file(path)


_NO_PROJECT: Final = ("/dev/", "/etc/", "/proc/", "/sys/", os.path.join(tempfile.gettempdir(), ""))


def _path_of(file: Any) -> str | None:
    """A path as text; None for a number, and for what is no path."""
    try:
        return None if isinstance(file, int) else os.fsdecode(os.fspath(file))
    except (TypeError, UnicodeError):
        return None


def _content(path: str) -> Any:
    """What a client answers for a file; `OWN` for one of this machine."""
    reader = _reader.get()
    if reader is None:
        return OWN
    found = reader.find("file", path, f"the file {path!r}", is_own=_is_own_file(path))
    if found is OWN and not _is_own_file(path) and _who_reads() != "server":
        reader.refuse(f"the file {path!r}")
    return found


def _no_such_file(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _in_memory(content: bytes) -> int:
    """The descriptor of a file in memory with that content."""
    number = create_private()
    os.write(number, content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
    """Replaces `open`."""
    path = _path_of(file)
    if _reader.get() is None or path is None or {*"wax+"} & {*str(mode)}:
        return _originals[_open](file, mode, *args, **kwargs)
    found = _content(path)
    if found is OWN:
        return _originals[_open](file, mode, *args, **kwargs)
    if found is None:
        raise _no_such_file(path)
    if not isinstance(found, bytes):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return _originals[_open](_in_memory(found), mode, *args, **kwargs)


def _stat(path: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces `os.stat`."""
    name = _path_of(path)
    reader = _reader.get()
    if reader is None or name is None:
        return _originals[_stat](path, *args, **kwargs)
    is_own = _is_own_file(name)
    found = reader.find("file", name, f"the file {name!r}", is_own=is_own)
    if found is OWN:
        return _originals[_stat](path, *args, **kwargs)
    if found is None:
        raise _no_such_file(name)
    if not isinstance(found, bytes):
        return _originals[_stat](os.sep)
    number = _in_memory(found)
    try:
        return _originals[_stat](number)
    finally:
        os.close(number)


def _listing(original: Callable[..., Any]) -> Callable[..., Any]:
    """What lists folders, and what opens files without Python's `open`."""

    def listing(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        name = _path_of(path)
        if _reader.get() is not None and name is not None and not _is_own_file(name):
            _refuse_to_client(f"the folder or file {name!r} ({original.__name__})")
        return original(path, *args, **kwargs)

    return listing


def _getcwd() -> str:
    """Replaces `os.getcwd`."""
    reader = _reader.get()
    found = OWN if reader is None else reader.find("folder", "", "the current folder")
    return str(_originals[_getcwd]() if found is OWN else found)


def _getcwdb() -> bytes:
    """Replaces `os.getcwdb`."""
    return os.fsencode(_getcwd())


# the rest -----------------------------------------------------------------------------------------


def _getrecursionlimit() -> int:
    """Replaces `sys.getrecursionlimit`."""
    reader = _reader.get()
    found = OWN if reader is None else reader.find("recursion", "", "the recursion limit")
    return int(_originals[_getrecursionlimit]() if found is OWN else found)


def _of_locale(original: Callable[..., Any]) -> Callable[..., Any]:
    name = original.__name__

    def of_locale(*args: Any, **kwargs: Any) -> Any:
        reader = _reader.get()
        if reader is None:
            return original(*args, **kwargs)
        if name == "setlocale" and (kwargs or len(args) > 1) and args[1:] not in ((), (None,)):
            _refuse_to_client("and sets the locale")
            return original(*args, **kwargs)
        call = " ".join([name, *(str(each) for each in args[:1] if isinstance(each, int))])
        found = reader.find("locale", call, "the locale")
        if found is OWN:
            return original(*args, **kwargs)
        return {key: _as_list(item) for key, item in found} if name == "localeconv" else found

    return of_locale


def _as_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


_LOGGING: Final = logging.__file__


class _LoggerState(NamedTuple):
    """What decides which records a logger of a client lets through."""

    effective: int
    below: int  # as `logging.disable` says
    is_disabled: bool
    level: int


def _client_logger(logger: logging.Logger) -> _LoggerState | None:
    """What a client's logger of that name has; None for a read that is not a client's.

    A logger that is asked by one of its own methods, as by `debug`, only decides what is printed.
    One that has no name has come from the client, with what is read of it.
    """
    reader = _reader.get()
    if reader is None or "name" not in vars(logger):
        return None
    if sys._getframe(2).f_code.co_filename == _LOGGING:  # noqa: SLF001  cheaper than `inspect`
        return None
    if reader.changed and _is_changed(logger, reader):
        return None
    name = "" if logger.name == "root" else logger.name
    found = reader.find("logger", name, f"the level of the logger {logger.name!r}")
    return None if found is OWN else _LoggerState(*found)


def _is_enabled_for(self: logging.Logger, level: int) -> bool:
    """Replaces `logging.Logger.isEnabledFor`."""
    found = _client_logger(self)
    if found is None:
        return bool(_originals[_is_enabled_for](self, level))
    return not found.is_disabled and level > found.below and level >= found.effective


def _get_effective_level(self: logging.Logger) -> int:
    """Replaces `logging.Logger.getEffectiveLevel`."""
    found = _client_logger(self)
    return int(_originals[_get_effective_level](self)) if found is None else found.effective


def _is_changed(logger: logging.Logger, reader: _Reader) -> bool:
    """Whether the code that reads has changed a logger, one above it, or all of them."""
    above: logging.Logger | None = logger
    while above is not None:
        if above in reader.changed:
            return True
        above = above.parent
    return logger.manager in reader.changed


class _LoggerAttribute:
    """An attribute of loggers that says what the client's has; each keeps its own in its dict."""

    def __init__(self, name: str, field: str) -> None:
        self._name = name
        self._field = field

    def __get__(self, logger: Any, owner: type) -> Any:
        if logger is None:
            return self
        found = _client_logger(logger)
        if found is not None:
            return getattr(found, self._field)
        try:
            return vars(logger)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, logger: Any, value: Any) -> None:
        reader, own = _reader.get(), vars(logger)
        if reader is not None and self._name in own:  # else the logger is being made
            reader.change(logger, self._name, own[self._name])
        own[self._name] = value


def _disabled_levels(manager: Any) -> int:
    """Replaces the property `logging.Manager.disable`, which `logging.disable` sets."""
    found = _client_logger(manager.root)
    return int(_originals[_disabled_levels](manager)) if found is None else found.below


def _disable_levels(manager: Any, value: Any) -> None:
    """Replaces what sets it."""
    reader = _reader.get()
    if reader is not None:
        reader.change(manager, "_disable", vars(manager)["_disable"])
    _originals[_disable_levels](manager, value)


def _start_thread(self: threading.Thread) -> None:
    """Replaces `threading.Thread.start`: what a thread of the client's reads is the client's."""
    reader = _reader.get()
    if reader is not None and _who_reads() != "server":
        run = self.run

        def reading_as_here() -> None:
            _reader.set(reader)
            run()

        vars(self)["run"] = reading_as_here
    _originals[_start_thread](self)


def _popen(self: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces `subprocess.Popen.__init__`."""
    _refuse_to_client("its environment, folder and files in another process that it starts")
    _originals[_popen](self, *args, **kwargs)


_originals: Final[dict[Callable[..., Any], Callable[..., Any]]] = {}


def install() -> None:
    """Exchanges what reads this process. Done once, before the code of any client runs."""
    if _originals:
        return
    for environment in (os.environ, os.environb):
        environment.__class__ = _Environment
    sys.argv = _Arguments(sys.argv)
    sys.orig_argv = _InterpreterArguments(sys.orig_argv)
    _exchange(_open, "open", builtins, io, sys.modules["_io"])
    _exchange(_stat, "stat", os, posix)
    _exchange(_getcwd, "getcwd", os, posix)
    _exchange(_getcwdb, "getcwdb", os, posix)
    _exchange(_getrecursionlimit, "getrecursionlimit", sys)
    for name in ("listdir", "scandir", "open", "access"):
        _exchange(_listing(getattr(posix, name)), name, os, posix)
    for name in ("system", "posix_spawn", "posix_spawnp"):
        _exchange(_starting(getattr(posix, name)), name, os, posix)
    for name in ("getlocale", "getpreferredencoding", "localeconv", "nl_langinfo", "setlocale"):
        _exchange(_of_locale(getattr(locale, name)), name, locale)
    _exchange(_is_enabled_for, "isEnabledFor", logging.Logger)
    _exchange(_get_effective_level, "getEffectiveLevel", logging.Logger)
    TRANSPARENT.add(_LoggerAttribute)
    loggers: Any = logging.Logger
    loggers.level = _LoggerAttribute("level", "level")
    loggers.disabled = _LoggerAttribute("disabled", "is_disabled")
    managers: Any = logging.Manager
    _originals[_disabled_levels] = managers.disable.fget
    _originals[_disable_levels] = managers.disable.fset
    managers.disable = property(_disabled_levels, _disable_levels)
    _exchange(_start_thread, "start", threading.Thread)
    _exchange(_popen, "__init__", subprocess.Popen)


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    def starting(*args: Any, **kwargs: Any) -> Any:
        _refuse_to_client("its environment, folder and files in another process that it starts")
        return original(*args, **kwargs)

    return starting


def _exchange(replacement: Callable[..., Any], name: str, *places: Any) -> None:
    """Puts a replacement into modules or a class, under the name of what it replaces."""
    original = getattr(places[0], name)
    named: Any = replacement
    named.__module__ = original.__module__
    named.__name__ = original.__name__
    named.__qualname__ = original.__qualname__
    named.__doc__ = original.__doc__
    _originals[replacement] = original
    for place in places:
        setattr(place, name, replacement)
