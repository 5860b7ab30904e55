"""Re-emits the output of functions on the server: prints, warnings and log records, each once.

This happens while a connection is read, in the order of the events. A warning that the user's
filters turn into an error is raised in the thread of the call.
"""

from __future__ import annotations

import builtins
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from types import ModuleType
from typing import Any, Final, TextIO

from jaxd.events.progress import Progress
from jaxd.events.warnings import WarningQueue
from jaxd.interop.jax_runtime import logs_compiles
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.messages.tracebacks import display_file
from jaxd_protocol.packages.installed import content_of

OUTPUT_EVENTS: Final = frozenset({"print", "warned", "logged", "compiled"})
"""The kinds of events that are output."""

_MAX_LOGGERS: Final = 256
"""Loggers that a server can create here."""

_MAX_FILES: Final = 1000
"""Source files with a registry of the warnings that were shown."""


class OutputPrinter:
    """Prints, warns and logs what calls emit on the server. Thread-safe; never raises.

    Args:
        warning_queue: defers what has to run in the thread of the call.
        progress: its line on the terminal is cleared before other output.
    """

    def __init__(self, warning_queue: WarningQueue, progress: Progress) -> None:
        self._warning_queue = warning_queue
        self._progress = progress
        self._registries = BoundedDict[str, dict[Any, Any]](_MAX_FILES)
        self._logger_count = 0

    def event(self, connection: object, number: int, kind: str, content: dict[str, Any]) -> None:
        """Handles an output event of call `number` of a connection."""
        later = partial(self._warning_queue.run_later, connection, number)
        with suppress(Exception):  # whatever a stream or handler of the user's raises
            if kind == "print":
                self._print(content)
            elif kind == "warned":
                self._warn(content, later)
            elif kind == "logged":
                self._log(content)
            else:
                later(partial(self._log_compile, content))

    def _print(self, content: dict[str, Any]) -> None:
        stream = sys.stderr if content["stream"] == "stderr" else sys.stdout
        self._progress.clear_line()
        if stream is not None:
            _write(stream, content["text"])
            if content["flush"]:
                stream.flush()

    def _warn(self, content: dict[str, Any], later: Callable[[Callable[[], None]], None]) -> None:
        file, line = content["file"], content["line"]
        category = _warning_category(content)
        module = _module_of(file)
        name = "<unknown>" if module is None else module.__name__
        registry = self._registries.setdefault(file, {})
        if module is not None:
            registry = vars(module).setdefault("__warningregistry__", {})
        self._progress.clear_line()
        try:
            warnings.warn_explicit(
                content["text"], category, display_file(file), line, name, registry
            )
        except Warning as error:  # the user's filters want it raised
            later(partial(_raise, error))

    def _log_compile(self, content: dict[str, Any]) -> None:
        """Runs in the thread of the call, because jax_log_compiles is a setting of the thread."""
        if logs_compiles():
            self._log(content)

    def _log(self, content: dict[str, Any]) -> None:
        import logging  # only calls that log need it

        logger = logging.getLogger(content["name"] if self._may_log_as(content["name"]) else None)
        record = logger.makeRecord(
            content["name"],
            content["level"],
            content["file"],
            content["line"],
            content["text"],
            (),
            None,
            content["function"],
        )
        record.exc_text = content["traceback"]
        if logger.isEnabledFor(record.levelno):
            self._progress.clear_line()
            logger.handle(record)

    def _may_log_as(self, name: str) -> bool:
        """Whether a logger of that name exists, or may be made: Python never removes one."""
        import logging

        if name not in logging.root.manager.loggerDict:
            if self._logger_count >= _MAX_LOGGERS:
                return False
            self._logger_count += 1
        return True


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
    except UnicodeEncodeError:  # on the server it was printed without an error
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _raise(error: Warning) -> None:
    raise error


def _warning_category(content: dict[str, Any]) -> type[Warning]:
    """The category in this process; if there is none, the nearest of Python's own.

    The server names it and it is instantiated here, so its class may define no code for that.
    """
    from jaxd_protocol.messages.failures import has_code  # most calls emit no warning

    module, name = content["category"]
    found: Any = content_of(module).get(name)
    if (
        isinstance(found, type)
        and issubclass(found, Warning)
        and not has_code(found, _CODE_METHODS)
    ):
        return found
    known = (getattr(builtins, base, None) for base in content["bases"])
    return next((c for c in known if isinstance(c, type) and issubclass(c, Warning)), UserWarning)


_CODE_METHODS: Final = frozenset({"__init__", "__new__", "__del__", "__str__", "__repr__"})


def _module_of(file: str) -> ModuleType | None:
    """The module of this process that was loaded from a file."""
    name = _names_by_file(len(sys.modules)).get(file)
    module = sys.modules.get(name) if name is not None else None
    return module if isinstance(module, ModuleType) else None


@lru_cache(maxsize=1)
def _names_by_file(count: int) -> Mapping[str, str]:  # noqa: ARG001  when there are more, look again
    """The first module of each file."""
    names = [(str(content_of(name).get("__file__")), name) for name in list(sys.modules)]
    return dict(reversed(names))
