"""What this process tells a server of itself, for a function of its own that is traced there.

It answers only for names that stand as text in the function that it sends: in its code, or among
the values that travel with it. A file has to be a regular one inside of the project. A name that
the server has come up with gets nothing, also where code of the user's has kept it in such a value.
"""

from __future__ import annotations

import locale
import logging
import os
import pickletools
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from jaxd.results.local_objects import texts_in, texts_of
from jaxd.results.reader import parts_of_path, received_texts
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.process_view import current_arguments
from jaxd_protocol.fingerprint.walk import short_repr
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recorded_reads import (
    STANDARD_VARIABLES,
    ProcessRead,
    RecordedRead,
    recorded,
)
from jaxd_protocol.packages.installed import is_local_file
from jaxd_protocol.pytree.literals import is_literal

MAX_FILE: Final = 64 << 20
"""Bytes of the largest file that is sent."""

FOLDER: Final = True
"""What is answered for the name of a file that is a folder; None: there is nothing."""

_LONGEST_TICK_NS: Final = 20_000_000

_MAX_TEXT: Final = 4096
_MAX_VALUES: Final = 1000

_EXPANDED: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_HOME: Final = frozenset({"expanduser", "home"})
_ARGUMENTS: Final = frozenset({"argv", "argparse", "ArgumentParser", "parse_args", "FLAGS"})
_FOLDERS: Final = frozenset(
    ["getcwd", "getcwdb", "cwd", "abspath", "realpath", "relpath", "absolute", "resolve"]
)


class NamedTexts:
    """The texts that stand in a packed function.

    Args:
        code: the packed function.
        functions: the user's own in it, and the code of modules that it imports later. What stands
            in the code of these is theirs, whatever servers have sent.
    """

    def __init__(self, code: bytes, functions: Iterable[FunctionType | CodeType] = ()) -> None:
        arguments: Iterator[Any] = (argument for _, argument, _ in pickletools.genops(code))
        own = texts_of(functions)
        # bytes among the values may be those of numbers, which a server has sent
        written = arguments if not own else (each for each in arguments if type(each) is str)
        found = own.union(text for each in written for text in texts_in(each))
        self._texts = frozenset(text for text in found if len(text) < _MAX_TEXT)
        self._parts = frozenset(part for text in self._texts for part in parts_of_path(text))
        self._own = frozenset(
            part for text in own for part in (*parts_of_path(text), *_expanded(text))
        )

    def answer(self, read: ProcessRead) -> Any:
        """What this process has: a literal.

        Raises:
            PackingError: when the function does not name it.
        """
        return _ANSWERS[read.kind](self, read.name)

    def has_any(self, names: Iterable[str]) -> bool:
        """Whether one of these stands there, and is no text that a server has sent."""
        return any(name in self._texts and self._is_own(name) for name in names)

    def _is_own(self, text: str) -> bool:
        return text in self._own or text not in received_texts

    def variable(self, name: str) -> str | None:
        """A variable of the environment; None where there is none of that name."""
        is_named = name in STANDARD_VARIABLES or (name == "HOME" and self.has_any(_HOME))
        is_named = is_named or self.has_any([name])
        is_named = is_named or (
            self._is_own(name)
            and any(name in _expanded(text) and self._is_own(text) for text in self._texts)
        )
        if not is_named:
            raise PackingError(f"no code of the function names the variable {name!r}.")
        return os.environ.get(name)

    def arguments(self, name: str) -> tuple[str, ...]:
        """`sys.argv`."""
        self._require(name, _ARGUMENTS, "the arguments of the command")
        return current_arguments()

    def folder(self, name: str) -> str:
        """The current folder."""
        self._require(name, _FOLDERS, "the current folder")
        return os.getcwd()

    def recursion(self, name: str) -> int:
        """The recursion limit."""
        from jaxd_protocol.fingerprint import recursion_limit  # few functions read it

        self._require(name, {"getrecursionlimit"}, "the recursion limit")
        return recursion_limit()

    def logger(self, name: str) -> tuple[int, int, bool, int]:
        """Its effective level, that of `logging.disable`, whether it is disabled, its own level."""
        self._require("", {name} if name else {"logging"}, f"the logger {name!r}")
        logger = logging.getLogger(name or None)
        return logger.getEffectiveLevel(), logger.manager.disable, logger.disabled, logger.level

    def locale(self, call: str) -> Any:
        """What a function of the module `locale` gives, by its name and perhaps a number."""
        self._require("", {"locale"}, "the locale")
        name, _, category = call.partition(" ")
        if name not in _LOCALE or not (category == "" or category.isdecimal()):
            raise PackingError(f"{call!r} asks for nothing of the locale.")
        try:
            found = _LOCALE[name](*map(int, category.split()))
        except (TypeError, ValueError, locale.Error) as error:
            raise PackingError(f"this process has no {call}: {error}") from error
        return _literal(found)

    def file(self, path: str) -> Any:
        """The content of a file of the project; `FOLDER` for a folder, None for nothing.

        Raises:
            PackingError: also when it is none of the project's, or cannot be sent.
        """
        real = os.path.realpath(path)
        inside = _in_project(real, os.path.abspath(path))
        if inside is None:
            raise PackingError(f"{path} is no file of the project.")
        parts = inside.split(os.sep)
        if not all(part in self._parts and self._is_own(part) for part in parts):
            raise PackingError(f"no code of the function names the file {path}.")
        if any(part.startswith(".") for part in parts):
            raise PackingError(f"{path} is hidden: it is not sent.")
        return _content(real)

    def _require(self, name: str, names: Iterable[str], what: str) -> None:
        if name or not self.has_any(names):
            raise PackingError(f"no code of the function names {what}.")


_ANSWERS: Final[dict[str, Callable[[NamedTexts, str], Any]]] = {
    "variable": NamedTexts.variable,
    "arguments": NamedTexts.arguments,
    "folder": NamedTexts.folder,
    "file": NamedTexts.file,
    "logger": NamedTexts.logger,
    "recursion": NamedTexts.recursion,
    "locale": NamedTexts.locale,
}

_LOCALE: Final[dict[str, Callable[..., Any]]] = {
    "getlocale": locale.getlocale,
    "getpreferredencoding": lambda *_: locale.getpreferredencoding(False),
    "localeconv": locale.localeconv,
    "nl_langinfo": locale.nl_langinfo,
    "setlocale": locale.setlocale,
}


class PackedFunction(Protocol):
    """What is needed of a function, whose code this process has sent or would send."""

    manifest: FunctionManifest

    @property
    def named_texts(self) -> NamedTexts:
        """What its code names."""


def confirmed(snapshot: PackedFunction, reads: Iterable[ProcessRead]) -> tuple[RecordedRead, ...]:
    """What this process has now of what a function reads.

    Raises:
        PackingError: when the function does not name one of them.
    """
    values = {read: snapshot.named_texts.answer(read) for read in reads}
    found = recorded(snapshot.manifest.fingerprint, values)
    for each in found:
        values_seen[each.part.digest.hex()] = _shown(values[each.read])
    return found


values_seen: Final = BoundedDict[str, str](_MAX_VALUES)
"""What this process has told, as people read it, by the digest of its part of a key in hex."""


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    return short_repr(value)


def _literal(value: Any) -> Any:
    """Dicts and lists as tuples."""
    if isinstance(value, dict):
        return tuple((key, _literal(item)) for key, item in sorted(value.items()))
    if isinstance(value, list):
        return tuple(map(_literal, value))
    assert is_literal(value)
    return value


def _expanded(text: str) -> set[str]:
    """The variables that `os.path.expandvars` looks up for a text."""
    return {name for names in _EXPANDED.findall(text) for name in names} if "$" in text else set()


def _in_project(real: str, shown: str) -> str | None:
    """The way from a folder of the project to a file inside of it; None when it is in none.

    Args:
        real: the file, without links.
        shown: the file as it was named, which has to lie there as well.
    """
    for root in sorted(_roots(), key=len, reverse=True):
        inner = os.path.realpath(root)
        below = os.path.join(inner, "")
        if real.startswith(below):
            return os.path.relpath(shown, root) if _is_below(shown, root) else real[len(below) :]
    return None


def _is_below(path: str, root: str) -> bool:
    return path.startswith(os.path.join(root, ""))


def _roots() -> set[str]:
    """The folders in which the project lies: the current one, and those of its modules."""
    roots = {os.getcwd()}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." not in name and isinstance(file, str) and is_local_file(file):
            folder = os.path.dirname(os.path.abspath(file))
            is_package = os.path.basename(file) == "__init__.py"
            roots.add(os.path.dirname(folder) if is_package else folder)
    return {root for root in roots if root != os.path.dirname(root)}


def _content(path: str) -> Any:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if stat.S_ISDIR(found.st_mode):
        return FOLDER
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_FILE:
        raise PackingError(f"{path} is no regular file of at most {MAX_FILE >> 20} MiB.")
    try:
        with open(path, "rb") as opened:
            return opened.read()
    except OSError as error:
        raise PackingError(f"{path} cannot be read: {error}") from error


def file_stamp_of(path: str) -> Any:
    """What changes when a file does; of one that was just written, another one each time.

    Before Linux 6.13 a file that is written twice within a tick of its clock keeps its time. That
    of its content can be set back, as `cp -p` and `rsync -t` do it; that of its entry cannot.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    now = time.time_ns()
    times_ns = found.st_mtime_ns, found.st_ctime_ns
    settled = 0 if now - max(times_ns) > _LONGEST_TICK_NS else now
    return *times_ns, found.st_size, found.st_ino, found.st_mode, settled
