"""`jaxd logs`: what a server of this machine has logged, and what it logs now."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from jaxd.cli.query import (
    add_server_option,
    control_socket_of,
    no_server_at,
    positive_int,
    server_address,
)
from jaxd.connection.control_client import send_request
from jaxd_protocol.base.terminal import one_word
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address

SUMMARY = "show what a server has logged, and what it logs now"
EXAMPLE = "jaxd logs -f --level warning; jaxd logs --since 10m --function train_step"

_LEVELS: Final = ("info", "warning", "error")
_LOOK_S: Final = 0.2
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT_LINE: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) +(?P<process>\w+) +"
    r"(?P<rest>.*)"
)
_FIELD: Final = re.compile(r' (\w+)=("(?:[^"\\]|\\.)*"|\[.*?\](?= |$)|\{.*?\}(?= |$)|\S*)')
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d+)?|true|false")
_FIRST: Final = ("time", "level", "process", "event")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with what comes, until Ctrl-C"
    )
    parser.add_argument("-n", "--lines", metavar="N", type=positive_int, help="only the last N")
    parser.add_argument(
        "--since", metavar="AGE", type=_seconds, help="only of the last 30s, 10m, 2h or 1d"
    )
    parser.add_argument(
        "--level", choices=_LEVELS, default="info", help="only this and more serious ones"
    )
    parser.add_argument("--function", metavar="NAME", help="only what is about this function")
    parser.add_argument("--call", metavar="ID", help="only what is about the call of an error")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    add_server_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints them; with `--follow` it does not return.

    Returns:
        0.

    Raises:
        NoServer: when none runs, and none has left a log.
        ConfigurationError: when the server is on another machine, when its log is no file, or when
            that cannot be read.
    """
    log = LogFile(_log_of(server_address(arguments.server)))
    selection = Selection(arguments)
    shown = selection.texts(log.lines(whole=not arguments.follow))
    _print(shown if arguments.lines is None else deque(shown, maxlen=arguments.lines))
    while arguments.follow:
        time.sleep(_LOOK_S)
        _print(selection.texts(log.lines()))
    return 0


def _print(texts: Iterable[str]) -> None:
    """Prints lines at once: a pipe behind `--follow` waits for them."""
    for text in texts:
        print(text)
    sys.stdout.flush()


def _seconds(text: str) -> float:
    """The value of `--since`.

    Raises:
        ArgumentTypeError: when it is no length of time.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 30s, 10m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


def _log_of(address: Address) -> str:
    """The file that a server of this machine logs to, or the last one there has logged to.

    Raises:
        NoServer, ConfigurationError: as `run`.
    """
    control = control_socket_of(address)
    status = send_request(control, {"ask": "status"}, address.uid)
    if status is None:
        left = os.path.join(os.path.dirname(control), "server.log")
        if not os.path.exists(left):
            raise no_server_at(address)
        return left
    path = (status.get("host") or {}).get("log")
    if not isinstance(path, str):
        raise ConfigurationError(
            f"the server at {address} writes its log to its stderr, which is no file: look where "
            "it was started (a terminal, journalctl, docker logs), or have it write to one: "
            "jaxd serve 2>> FILE"
        )
    return path


# the lines of a file ------------------------------------------------------------------------------


class LogFile:
    """The lines of a log, over the times when it is shortened, removed, or written by the next.

    Args:
        path: where it is; what it held before it was shortened is in `PATH.1`.
    """

    def __init__(self, path: str) -> None:
        self._path, self._earlier = path, f"{path}.1"
        self._read_to = 0
        self._last = b""  # the line before that place: whether it is there tells the file
        self._is_new = True

    def lines(self, *, whole: bool = False) -> Iterator[str]:
        """The lines that were not returned yet, oldest first.

        Args:
            whole: also a last one that has no end yet.

        Raises:
            ConfigurationError: when the file cannot be read.
        """
        try:
            for line in self._new_lines(whole):
                yield line.decode(errors="surrogateescape")
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {error.filename}: {error.strerror}. The log of a server is its "
                "user's: run the same command as that user."
            ) from error

    def _new_lines(self, whole: bool) -> Iterator[bytes]:
        if self._is_new:
            self._is_new = False
            yield from _lines_of(self._earlier, 0)
        if not self._holds(self._path):
            if self._holds(self._earlier):  # it was shortened, after more was written
                yield from _lines_of(self._earlier, self._read_to)
            self._read_to, self._last = 0, b""
        for line in _lines_of(self._path, self._read_to, whole=whole):
            self._read_to += len(line)
            self._last = line
            yield line

    def _holds(self, path: str) -> bool:
        """Whether a file has the line that was read last, where that was."""
        if not self._last:
            return True
        if not os.path.exists(path):
            return False
        with open(path, "rb") as file:
            file.seek(self._read_to - len(self._last))
            return file.read(len(self._last)) == self._last


def _lines_of(path: str, begin: int, *, whole: bool = True) -> Iterator[bytes]:
    """The lines of a file from a byte on; none where there is no file."""
    if not os.path.exists(path):
        return
    with open(path, "rb") as file:
        file.seek(begin)
        for line in file:
            if whole or line.endswith(b"\n"):
                yield line


# what is shown ------------------------------------------------------------------------------------


class LogLine(NamedTuple):
    """One event.

    Attributes:
        fields: all that the line says, by name; `time`, `level`, `process` and `event` among it.
        at: when, as `time.time()`.
    """

    fields: Mapping[str, Any]
    at: float

    @property
    def text(self) -> str:
        """It for people, with the time of this place."""
        when = datetime.fromtimestamp(self.at).astimezone()
        head = f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d}"
        level, process = one_word(self.fields["level"].upper()), one_word(self.fields["process"])
        words = [f"{head} {level:<7} {process:<6}", _printable(str(self.fields["event"]))]
        rest = {name: value for name, value in self.fields.items() if name not in _FIRST}
        traceback = rest.pop("traceback", None)
        words += [f"{_printable(name)}={one_word(value)}" for name, value in rest.items()]
        below = [] if traceback is None else map(_printable, str(traceback).splitlines())
        return "\n".join([" ".join(words), *below])


def parse_line(line: str) -> LogLine | None:
    """The event in a line of either format of a server; None: something else was printed."""
    try:
        if line.startswith("{"):
            fields = json.loads(line)
        elif match := _TEXT_LINE.fullmatch(line):
            fields = {
                "time": match["time"],
                "level": match["level"].lower(),
                "process": match["process"],
                **_event_and_fields(match["rest"]),
            }
        else:
            return None
        at = datetime.fromisoformat(fields["time"]).replace(tzinfo=UTC).timestamp()
        known = all(isinstance(fields[name], str) for name in _FIRST)
        return LogLine(fields, at) if known else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _event_and_fields(text: str) -> dict[str, Any]:
    """The rest of a line of text."""
    event, space, rest = text.partition(" ")
    found = _FIELD.findall(space + rest)
    if sum(len(name) + len(value) + 2 for name, value in found) != len(space + rest):
        return {"event": text}  # a library's message
    return {"event": event, **{name: _value(word) for name, word in found}}


def _value(word: str) -> Any:
    """What a word stands for; those of digits that are too long to be counts are names."""
    if word[:1] in ('"', "[", "{") or _NUMBER.fullmatch(word):
        return json.loads(word)
    return word


def _printable(text: str) -> str:
    """A line that does nothing to a terminal."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in text)


class Selection:
    """Chooses lines by the options of the command, and formats them.

    Lines that are no events are what functions and libraries print, or the traceback of the event
    before them: with an option that asks for events, only these tracebacks are shown.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._levels = _LEVELS[_LEVELS.index(arguments.level) :]
        self._after = 0.0 if arguments.since is None else time.time() - arguments.since
        self._function: str | None = arguments.function
        self._call: str | None = arguments.call
        self._as_json: bool = arguments.json
        self._shows_next = not self._is_selective

    @property
    def _is_selective(self) -> bool:
        asked = (self._function, self._call, self._after or None)
        return any(one is not None for one in asked) or self._levels != _LEVELS

    def texts(self, lines: Iterable[str]) -> Iterator[str]:
        """What is to be printed of some lines."""
        for line in lines:
            line = line.rstrip("\n")  # noqa: PLW2901  the same line
            event = parse_line(line)
            if event is None:
                if self._shows_next:
                    yield json.dumps({"text": line}) if self._as_json else _printable(line)
                continue
            is_chosen = self._is_chosen(event)
            is_error = event.fields["level"] == "error"
            self._shows_next = is_chosen and (is_error or not self._is_selective)
            if is_chosen:
                yield json.dumps(event.fields) if self._as_json else event.text

    def _is_chosen(self, event: LogLine) -> bool:
        fields = event.fields
        name = str(fields.get("function", ""))
        return (
            event.at >= self._after
            and (fields["level"] in self._levels or fields["level"] not in _LEVELS)
            and (self._call is None or fields.get("call") == self._call)
            and (self._function is None or f".{name}".endswith(f".{self._function}"))
        )
