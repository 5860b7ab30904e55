"""`jaxd trace` and `jaxd profile`: what a program and its server were busy with, and XLA."""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import secrets
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from jaxd.api.client import Client
from jaxd.api.recording import OUTER, TRACE_VARIABLE, fetched, server_rows
from jaxd.cli.child_program import checked_program, run_program
from jaxd.cli.lockfile import check_writable
from jaxd.cli.query import (
    add_query_options,
    add_server_option,
    client_of,
    positive_int,
    print_report,
    writing,
)
from jaxd_protocol import __version__
from jaxd_protocol.base.terminal import print_message
from jaxd_protocol.errors import JaxdError, ProtocolError
from jaxd_protocol.messages.calls import CLOCK_MARK, MAX_PROFILE_S

SUMMARY = "run a program; write a trace of it and of its server, for Perfetto"
EXAMPLE = "jaxd trace -o trace.json -- python train.py"

_XLA_S: Final = 60
_CALLS_ROW: Final = "calls of process "


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.usage = "jaxd trace [-o FILE] [--xla [SECONDS]] [--server ADDRESS] -- COMMAND ..."
    parser.description = (
        f"{parser.description}\nCOMMAND, such as `python train.py` or `jaxd run train.py`, and the "
        "processes that it starts record the calls of persistent functions; the server records "
        "its part. Open the file at https://ui.perfetto.dev. Ends with the exit code of COMMAND. "
        "See docs/trace.md."
    )
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        default="jaxd-trace.json",
        help="the file, compressed where its name ends in .gz (default: jaxd-trace.json)",
    )
    parser.add_argument(
        "--xla",
        metavar="SECONDS",
        type=positive_int,
        nargs="?",
        const=_XLA_S,
        help="with XLA's own profile of the server, for so many seconds at most (default: "
        f"{_XLA_S}, at most {MAX_PROFILE_S}); only for the user who runs the server",
    )
    add_server_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the program, and writes the trace, also where the program was ended.

    Returns:
        The exit code of the program.

    Raises:
        ConfigurationError: when there is no program, it cannot be started, or the file cannot be
            written.
        NoServer: when `JAXD_INLINE=1` rules a server out.
        NotPermitted: with `--xla`, when the server is another user's.
    """
    program = checked_program(arguments, EXAMPLE, "traced")
    check_writable(arguments.output)
    recording = Recording()
    with tempfile.TemporaryDirectory(prefix="jaxd-trace-") as folder:
        name = secrets.token_bytes(16)
        variables = {TRACE_VARIABLE: f"{name.hex()}:{folder}"}
        with _profiling(arguments, recording):
            code = run_program(program, arguments.server, EXAMPLE, **variables)
        for file in sorted(os.listdir(folder)):
            recording.read(os.path.join(folder, file))
    recording.fetch_rest(name)
    _write(arguments.output, recording.to_json())
    print_message(recording.summary(arguments.output))
    return code


@contextmanager
def _profiling(arguments: argparse.Namespace, recording: Recording) -> Iterator[None]:
    """Within it the server makes a profile, if it is to. No client stays connected meanwhile.

    A second one would change where programs are built.
    """
    if arguments.xla is None:
        yield
        return
    with client_of(arguments.server, starts=True) as client:
        client.caller.session.request("profile", ("start", arguments.xla))
    try:
        yield
    finally:
        recording.add_xla(arguments.server)


def _write(path: str, trace: Mapping[str, Any]) -> None:
    content = json.dumps(trace, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(gzip.compress(content, 6, mtime=0) if path.endswith(".gz") else content)


# what was recorded --------------------------------------------------------------------------------


class Slice(NamedTuple):
    """A slice of the trace.

    Attributes:
        process: which process, a key of `Recording.processes`.
        row: the thread, or another row of the process.
        name: what it is.
        started_ns, ended_ns: on this machine's clock.
        about: what is known of it.
    """

    process: str
    row: str
    name: str
    started_ns: int
    ended_ns: int
    about: Mapping[str, Any]


class _Request(NamedTuple):
    """A request, by the label of its connection and its number there."""

    connection: str
    number: int


class Recording:
    """What the processes of a program have written, and servers have recorded for them.

    Attributes:
        slices: all that took time.
        processes: their names by key, such as `client 4711`.
        servers: the servers by the labels of the connections to them.
        notes: what a reader has to know.
        xla: the events of XLA.
    """

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.processes: dict[str, str] = {}
        self.servers: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.xla: list[dict[str, Any]] = []
        self._told: list[dict[str, Any]] = []
        self._calls = 0

    def read(self, path: str) -> None:
        """Adds what one process has written; its last line may be incomplete."""
        lines: list[list[Any]] = []
        with open(path, "rb") as file:
            for written in file:
                with suppress(ValueError):
                    lines.append(json.loads(written))
        about = next((line[1] for line in lines if line[0] == "process"), None)
        spans = [line[1:] for line in lines if line[0] == "span"]
        begun = [line[1:] for line in lines if line[0] == "begin"]
        if about is None or not (spans or begun):
            return
        key = f"client {about['pid']}"
        self.processes[key] = f"client: {' '.join(about['words'])}"
        threads = {line[1]: f"{line[2]} {line[1]}" for line in lines if line[0] == "thread"}
        for name, thread, started, ended, known in (*spans, *_unfinished(spans, begun)):
            self._add_own(key, threads.get(thread, f"thread {thread}"), name, started, ended, known)
        for line in lines:
            if line[0] == "server":
                self._add_server(line[1])
            elif line[0] == "spans":
                self._told.append(line[1])
        left_out = sum(line[2] for line in lines if line[0] == "end")
        if left_out:
            self.notes.append(f"{key}: {left_out:,} spans were left out, as there were too many")

    def _add_own(
        self, process: str, row: str, name: str, started: int, ended: int, about: dict[str, Any]
    ) -> None:
        title = f"{name} {about['function']}" if "function" in about else name
        self._calls += name in OUTER
        self.slices.append(Slice(process, row, title, started, ended, about))

    def _add_server(self, found: dict[str, Any]) -> None:
        before = self.servers.get(found["connection"])
        if before is None or found["error_ns"] < before["error_ns"]:
            self.servers[found["connection"]] = found
        self.processes.setdefault(_server_key(found), f"jaxd worker at {found['address']}")

    def fetch_rest(self, name: bytes) -> None:
        """Adds what no process of the program has fetched: its end may have come before."""
        for address in sorted({found["address"] for found in self.servers.values()}):
            try:
                with client_of(address) as client:
                    told = fetched(client.caller.session.connection(), name)
            except JaxdError as error:
                told = None
                self.notes.append(f"the server at {address} was not asked again: {error}")
            if told is not None:
                self._told.append(told)

    def add_xla(self, server: str | None) -> None:
        """Adds the events of XLA's profile."""
        try:
            with client_of(server) as client:
                files = _profile_files(client)
            self.xla = next(
                (_xla_events(data) for name, data in files if name.endswith(".trace.json.gz")), []
            )
        except (JaxdError, OSError, ValueError) as error:
            self.notes.append(f"there is no profile of XLA: {error}")

    def merge(self) -> None:
        """Adds the slices of the servers, whose clocks are known by now."""
        told, self._told = self._told, []
        for each in told:
            threads = each["threads"]
            for row in server_rows(each):
                if row[0] in self.servers:
                    self.slices.append(self._server_slice(row, threads))
            if each["left_out"]:
                self.notes.append(f"the server has left out {each['left_out']:,} spans")

    def _server_slice(self, row: Sequence[Any], threads: Mapping[str, str]) -> Slice:
        connection, number, name, started, ended, thread, about = row
        found = self.servers[connection]
        about = {**about, "connection": connection, "number": number}
        process, place = _server_key(found), f"{threads.get(str(thread), 'thread')} {thread}"
        title = name
        if name == "call":
            place = f"{_CALLS_ROW}{connection.partition('.')[0]}"
            title = str(about.get("function", name))
        elif type(about.get("builder")) is int:
            process = f"builder {about['builder']}"
            self.processes.setdefault(process, "jaxd builder")
            place = "builds"
        behind = f" behind {about['behind']}" if about.get("behind") else ""
        offset = found["offset_ns"]
        return Slice(process, place, title + behind, started - offset, ended - offset, about)

    def to_json(self) -> dict[str, Any]:
        """The trace, in the JSON format of Chrome, which Perfetto reads."""
        self.merge()
        base = min((each.started_ns for each in self.slices), default=0)
        return {
            "traceEvents": [*_events(self, base), *_moved(self.xla, base)],
            "displayTimeUnit": "ns",
            "otherData": {
                "jaxd": __version__,
                "clock": "CLOCK_MONOTONIC of the machine of `jaxd trace`",
                "zero_ns": base,
                "servers": [
                    {
                        "address": found["address"],
                        "connection": label,
                        "offset_us": found["offset_ns"] / 1000,
                        "error_us": found["error_ns"] / 1000,
                    }
                    for label, found in self.servers.items()
                ],
                "notes": self.notes,
            },
        }

    def summary(self, path: str) -> str:
        """One line for people, and one for each note."""
        if not self._calls:
            first = (
                f"{path} is empty: the program has called no persistent function. What it gives "
                "to jax.jit is traced by: jaxd trace -- jaxd run PROGRAM"
            )
        else:
            first = f"{path}: {self._calls:,} calls. Open it at https://ui.perfetto.dev"
        return "\n".join([first, *(f"  {note}" for note in self.notes)])


def _server_key(found: Mapping[str, Any]) -> str:
    return f"server {found['server']} {found['address']}"


def _unfinished(spans: Sequence[Any], begun: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """What has begun and not ended: it ends with the last that is known of its process."""
    ended = {(span[1], span[2]) for span in spans}
    last = max((span[3] for span in spans), default=0)
    for name, thread, started, about in begun:
        if (thread, started) not in ended:
            known = {**about, "unfinished": True}
            yield name, thread, started, max(last, started + 1), known


# the events of a trace ----------------------------------------------------------------------------


def _events(recording: Recording, base: int) -> Iterator[dict[str, Any]]:
    """The slices of all processes, with the names of these and of their rows; then the arrows."""
    ends: dict[_Request, dict[str, dict[str, Any]]] = {}
    numbers = _process_numbers(recording.processes)
    errors = {_server_key(found): found["error_ns"] for found in recording.servers.values()}
    for key, pid in numbers.items():
        yield _metadata(pid, 0, "process_name", name=recording.processes[key])
        if errors.get(key):
            label = f"clock within {errors[key] / 1000:,.1f} µs"
            yield _metadata(pid, 0, "process_labels", labels=label)
        own = [each for each in recording.slices if each.process == key]
        for tid, (row, slices) in enumerate(_rows_of(own), 1):
            yield _metadata(pid, tid, "thread_name", name=row)
            for each in slices:
                event = _event(each, pid, tid, base)
                _note_end(ends, each, event)
                yield event
    for number, found in enumerate(ends.values(), 1):
        yield from _arrows(number, [found[end] for end in _ENDS if end in found])


def _process_numbers(processes: Mapping[str, str]) -> dict[str, int]:
    """A number for each process: its own, unless another machine has one with the same."""
    numbers: dict[str, int] = {}
    for key in processes:
        number = int(key.split()[1])
        while number in numbers.values():
            number += _OTHER_MACHINE
        numbers[key] = number
    return numbers


_OTHER_MACHINE: Final = 1 << 24
_ENDS: Final = ("send", "call", "reply")
"""Where the arrow of a call begins, goes through, and ends."""


def _event(one: Slice, pid: int, tid: int, base: int) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": one.name,
        "cat": one.process.partition(" ")[0],
        "pid": pid,
        "tid": tid,
        "ts": (one.started_ns - base) / 1000,
        "dur": max(1, one.ended_ns - one.started_ns) / 1000,
        "args": dict(one.about),
    }


def _metadata(pid: int, tid: int, about: str, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": about, "pid": pid, "tid": tid, "args": args}


def _note_end(ends: dict[Any, Any], one: Slice, event: dict[str, Any]) -> None:
    """Remembers the event, if the arrow of a call has an end there."""
    kind = "call" if one.row.startswith(_CALLS_ROW) else one.name
    at_server = one.process.startswith("server ")
    is_end = kind in _ENDS and at_server == (kind == "call")
    if is_end and one.about.get("connection") and "verb" not in one.about:
        request = _Request(one.about["connection"], one.about["number"])
        ends.setdefault(request, {}).setdefault(kind, event)


def _arrows(number: int, ends: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The arrow through the events of one call."""
    if len(ends) < 2:
        return
    phases = ["s", *["t"] * (len(ends) - 2), "f"]
    for phase, event in zip(phases, ends, strict=True):
        place = {name: event[name] for name in ("pid", "tid", "ts")}
        more = {"bp": "e"} if phase == "f" else {}
        yield {"ph": phase, "name": "call", "cat": "call", "id": number, **place, **more}


def _rows_of(slices: Iterable[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    """The slices by row, in the order of time; those of one row are apart, or one in another."""
    by_row: dict[str, list[Slice]] = {}
    for each in sorted(slices, key=lambda each: (each.started_ns, -each.ended_ns)):
        by_row.setdefault(each.row, []).append(each)
    for row, found in sorted(by_row.items()):
        for number, lane in enumerate(_lanes(found, nests=not row.startswith(_CALLS_ROW)), 1):
            yield (row if number == 1 else f"{row} ({number})"), lane


def _lanes(slices: Sequence[Slice], *, nests: bool) -> list[list[Slice]]:
    """The slices of a row in as many rows as are needed for none to cut another.

    Args:
        slices: in the order of time.
        nests: whether one may be in another.
    """
    lanes: list[list[Slice]] = []
    stacks: list[list[int]] = []  # by lane, the ends of what has not ended
    for each in slices:
        number = next(
            (n for n, stack in enumerate(stacks) if _fits(stack, each, nests)), len(lanes)
        )
        if number == len(lanes):
            lanes.append([])
            stacks.append([])
        lanes[number].append(each)
        stacks[number].append(each.ended_ns)
    return lanes


def _fits(stack: list[int], one: Slice, nests: bool) -> bool:
    """Whether a slice cuts nothing of a lane; what has ended is taken from its stack."""
    while stack and stack[-1] <= one.started_ns:
        stack.pop()
    return not stack or (nests and one.ended_ns <= stack[-1])


# XLA's profile ------------------------------------------------------------------------------------


_MAX_XLA_BYTES: Final = 1 << 29
"""Of an unpacked profile of XLA, which takes several times as much memory when it is read."""

_XLA_PIDS: Final = 1 << 28
_XLA_REST: Final = ("cat", "cname", "id", "bp", "s")
_PLAIN: Final = (str, int, float, bool, type(None))


def _xla_events(data: bytes) -> list[dict[str, Any]]:
    """The events of a profile of XLA, with the times of `time.monotonic`, in microseconds.

    Raises:
        ValueError: when it cannot be read, is too large, or does not say which time it was.
    """
    try:
        found = json.loads(_unpacked(data), parse_float=_finite, parse_constant=_finite)
        events = [_xla_event(each) for each in found["traceEvents"] if each.get("ph")]
        marks = [e for e in events if e["name"].startswith(CLOCK_MARK)]
        if not marks:
            raise ValueError("it does not say when it began.")
        shift = int(marks[0]["name"].removeprefix(CLOCK_MARK)) / 1000 - marks[0]["ts"]
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"it cannot be read ({type(error).__name__}: {error})") from error
    return [{**e, "ts": e["ts"] + shift} if "ts" in e else e for e in events]


def _unpacked(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)  # of gzip
    try:
        found = unpacker.decompress(data, _MAX_XLA_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked ({error})") from error
    if unpacker.eof:
        return found
    if len(found) < _MAX_XLA_BYTES:
        raise ValueError("it ends too early.")
    raise ValueError(f"it has more than {_MAX_XLA_BYTES:,} bytes. Profile less: --xla SECONDS")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has {text[:20]} where a number should be.")
    return number


def _xla_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """What a trace needs of an event, which is of the types that belong there.

    Raises:
        ValueError, TypeError, AttributeError, LookupError, OverflowError: when it is not.
    """
    numbers = {name: float(event[name]) for name in ("ts", "dur") if name in event}
    ids = {name: int(event.get(name, 0)) for name in ("pid", "tid")}
    texts = {name: str(event.get(name, "")) for name in ("ph", "name")}
    rest = {name: event[name] for name in _XLA_REST if type(event.get(name)) in _PLAIN[:2]}
    args = {name: value for name, value in event.get("args", {}).items() if type(value) in _PLAIN}
    if not (0 <= ids["pid"] < _XLA_PIDS and all(map(math.isfinite, numbers.values()))):
        raise ValueError("an event has a number that none has.")
    if texts["name"] == "process_name":
        args["name"] = f"XLA: {args['name']}"
    return {**rest, **texts, **ids, **numbers, "args": args}


def _moved(events: Iterable[Mapping[str, Any]], base: int) -> Iterator[dict[str, Any]]:
    """Events of XLA as processes of their own, in the trace's time."""
    for event in sorted(events, key=lambda event: event.get("ts", 0.0)):
        moved = {"ts": event["ts"] - base / 1000} if "ts" in event else {}
        yield {**event, **moved, "pid": event["pid"] + _XLA_PIDS}


_PROFILE_FILE: Final = re.compile(r"plugins/profile/[\w-][\w.-]*/[\w-][\w.-]*")


def _profile_files(client: Client) -> list[tuple[str, bytes]]:
    """Ends the profile of a server; its files.

    Raises:
        ProtocolError: when the answer, or a name in it, is none of a profile.
        JaxdError: when the server has none.
    """
    value, frame = client.caller.session.request("profile", ("stop", 0))
    with suppress(ValueError, TypeError, LookupError, RecursionError):
        names = [str(name) for name in json.loads(value[0])["files"]]
        if all(map(_PROFILE_FILE.fullmatch, names)):
            return list(zip(names, map(bytes, frame.buffers), strict=True))
    raise ProtocolError("the server sends a profile with other files than XLA writes.")


class Profile:
    """`jaxd profile`: what the worker's jax and XLA are busy with, for XProf."""

    SUMMARY = "profile jax and XLA in the server for some seconds, for XProf"
    EXAMPLE = "jaxd profile --seconds 10; xprof jaxd-profile"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        parser.add_argument(
            "--seconds",
            metavar="N",
            type=positive_int,
            default=10,
            help=f"for how long, {MAX_PROFILE_S} at most; Ctrl-C ends it earlier (default: 10)",
        )
        parser.add_argument(
            *("-o", "--output"),
            metavar="FOLDER",
            default="jaxd-profile",
            help="where the files are put, beside those of earlier profiles (default: "
            "jaxd-profile); what XProf and TensorBoard call the log directory",
        )
        add_query_options(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Makes the profile, and fetches it; starts no server.

        Returns:
            0.

        Raises:
            NoServer: when none runs.
            NotPermitted: when the server is another user's.
            Busy: when it makes another profile.
            ConfigurationError: when the files cannot be written.
        """
        seconds = min(arguments.seconds, MAX_PROFILE_S)
        with client_of(arguments.server) as client:
            client.caller.session.request("profile", ("start", seconds + 1))
            with suppress(KeyboardInterrupt):
                time.sleep(seconds)
            files = _profile_files(client)
            address = str(client.caller.session.address)
        paths = [_put(arguments.output, name, data) for name, data in files]
        report = {"server": address, "folder": arguments.output, "files": paths}
        lines = [*paths, f"Look at it: xprof {arguments.output}, or tensorboard --logdir of it"]
        return print_report(arguments, report, lambda: "\n".join(lines))


def _put(folder: str, name: str, data: bytes) -> str:
    path = os.path.join(folder, name)
    with writing(path, "Name another folder: --output"):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return path
