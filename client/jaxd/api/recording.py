"""What the calls of this process spend their time on: spans for `jaxd trace`, a table of one call.

While somebody looks, methods of the client are replaced by ones that record how long they take
(`_TIMED`). At all other times they are what they are, and no call does anything for this.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import secrets
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.api.transforms import hide_frames
from jaxd.interop.after_import import AfterImport
from jaxd_protocol.base.process import PerProcess, clock_id, reset_after_fork
from jaxd_protocol.errors import JaxdError

if TYPE_CHECKING:
    from types import ModuleType

    from jaxd.connection.connection import ClientConnection
    from jaxd.dispatch.caller import Caller
    from jaxd.dispatch.session import Session

TRACE_VARIABLE: Final = "JAXD_TRACE"
"""Of the environment: the name of a trace in hex digits, a colon, and a folder for its files."""

_ROUND_TRIPS: Final = 8
"""After so many the difference between two clocks is known as well as it can be."""

_FETCH_AFTER: Final = 256
"""Calls after which the server's spans are fetched: it keeps only so many."""

_MAX_SPANS: Final = 2_000_000
"""That a process writes; those after them are left out."""

OUTER: Final = frozenset({"call", "remote", "submit", "warm"})
"""Spans of what a program asks for; all others are stages of these."""


class Span(NamedTuple):
    """Something that took time.

    Attributes:
        name: of it.
        thread: the native id of the thread that was busy with it.
        started_ns, ended_ns: when, as `time.monotonic_ns`.
        about: plain values: `function`, or `number` and `connection` of a request.
    """

    name: str
    thread: int
    started_ns: int
    ended_ns: int
    about: Mapping[str, Any]


_labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_label_numbers: Final = itertools.count(1)


def _of_function(function: Any, *_: Any) -> dict[str, Any]:
    return {"function": str(getattr(function, "__name__", "?"))}


def _of_message(connection: Any, number: int, verb: str, *_: Any) -> dict[str, Any]:
    about = {"number": number, "connection": _labels.get(connection, "")}
    return about if verb == "call" else {**about, "verb": verb}


def _of_reply(reader: Any, number: int, *_: Any) -> dict[str, Any]:
    return {"number": number, "connection": _labels.get(reader._connection, "")}  # noqa: SLF001  of a reader


def _of_verb(_: Any, verb: str, *__: Any) -> dict[str, Any]:
    return {"verb": verb}


class _Timed(NamedTuple):
    """A method whose time is taken."""

    method: str  # as `Class.method`
    name: str  # of its spans
    about: Callable[..., dict[str, Any]] = lambda *_: {}


_TIMED: Final[Mapping[str, Sequence[_Timed]]] = {
    "jaxd.api.function": (
        _Timed("PersistentFunction.__call__", "call", _of_function),
        _Timed("PersistentFunction.remote", "remote", _of_function),
        _Timed("PersistentFunction.warm", "warm", _of_function),
        _Timed("FunctionBinding.run_here", "run here"),
    ),
    "jaxd.api.submission": (
        _Timed("Submission.start", "submit", lambda each, *_: _of_function(each.binding.function)),
    ),
    "jaxd.request.function_snapshot": (_Timed("SnapshotCache.spec", "key"),),
    "jaxd.request.known_calls": (_Timed("KnownCalls.run", "run here"),),
    "jaxd.dispatch.caller": (
        _Timed("Caller.encode", "pack"),
        _Timed("Caller.answer_request", "answer", _of_verb),
        _Timed("Caller.call_back", "callback"),
        _Timed("OpenCall.result", "decode"),
    ),
    "jaxd.dispatch.session": (_Timed("Session._connect", "connect"),),
    "jaxd.transfer.routing": (_Timed("TransferRouter.prepare", "copy"),),
    "jaxd.remote_values.store": (_Timed("RemoteStore.ask", "values", _of_verb),),
    "jaxd.remote_values.pipelined_calls": (_Timed("PipelinedCalls._completed_result", "decode"),),
    "jaxd.connection.connection": (_Timed("ClientConnection._send", "send", _of_message),),
    "jaxd.connection.shared_reader": (
        _Timed("SharedReader.wait", "wait"),
        _Timed("SharedReader.finish", "reply", _of_reply),
    ),
}
"""By module; one that is not loaded yet is changed once it is."""

_recorders: list[TraceFile | OneCall] = []
_originals: dict[tuple[type, str], Any] = {}
_changing: Final = PerProcess(threading.Lock)  # guards both
_muted: Final = threading.local()


def _timed(original: Callable[..., Any], entry: _Timed) -> Callable[..., Any]:
    """The method, which records how long it takes."""
    name, about_of = entry.name, entry.about

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if getattr(_muted, "now", False):
            return original(*args, **kwargs)
        about = about_of(*args)
        started_ns = time.monotonic_ns()
        if name in OUTER:
            for recorder in tuple(_recorders):
                recorder.began(name, started_ns, about)
        try:
            result = original(*args, **kwargs)
            if name == "connect":
                _follow_all(args[0], result.connection)
            return result
        except BaseException as error:
            about["error"] = type(error).__name__
            if name in OUTER:
                hide_frames(error)  # that of this function as well
            raise
        finally:
            span = Span(name, threading.get_native_id(), started_ns, time.monotonic_ns(), about)
            for recorder in tuple(_recorders):
                recorder.add(span)

    return timed


def _change(module: ModuleType) -> None:
    """Replaces the methods of a module by ones whose time is taken."""
    for entry in _TIMED[module.__name__]:
        owner_name, _, method = entry.method.partition(".")
        owner = getattr(module, owner_name)
        with _changing():
            if _recorders and (owner, method) not in _originals:
                original = _originals[owner, method] = vars(owner)[method]
                setattr(owner, method, _timed(original, entry))


_finder: Final = AfterImport(_TIMED.keys(), _change)


def _begin(recorder: TraceFile | OneCall) -> None:
    with _changing():
        _recorders.append(recorder)
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)
    for name in _TIMED:
        if name in sys.modules:
            _change(sys.modules[name])


def _end(recorder: TraceFile | OneCall) -> None:
    with _changing():
        _recorders.remove(recorder)
        if not _recorders:
            sys.meta_path.remove(_finder)
            for (owner, method), original in _originals.items():
                setattr(owner, method, original)
            _originals.clear()


@contextmanager
def unrecorded() -> Iterator[None]:
    """Within it, nothing that the calling thread does is recorded."""
    before, _muted.now = getattr(_muted, "now", False), True
    try:
        yield
    finally:
        _muted.now = before


_NO_TIME: Final = 1 << 63  # in nanoseconds
_BAD_JSON: Final = (AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError)


def follow(connection: ClientConnection, name: bytes, label: str) -> dict[str, Any] | None:
    """Has the server record what follows on a connection.

    Args:
        connection: an open one.
        name: of the trace; empty: it stops.
        label: of the connection, which both ends put into their spans.

    Returns:
        `server`, its process; `offset_ns`, what has to be taken from its times to have ours; and
        `error_ns`, by how much that may be wrong. None: it does not answer as a server.
    """
    found: list[dict[str, Any]] = []
    with suppress(JaxdError, *_BAD_JSON):
        for _ in range(_ROUND_TRIPS):
            before = time.monotonic_ns()
            told = json.loads(connection.request("trace", (name, label))[0])
            after = time.monotonic_ns()
            server, clock_ns = int(told["pid"]), int(told["clock_ns"])
            if not (0 <= server < 1 << 32 and 0 <= clock_ns < _NO_TIME):
                break
            if told["clock"] is not None and told["clock"] == clock_id():
                return {"server": server, "offset_ns": 0, "error_ns": 0}
            offset_ns, error_ns = clock_ns - (before + after) // 2, (after - before + 1) // 2
            found.append({"server": server, "offset_ns": offset_ns, "error_ns": error_ns})
    return min(found, key=lambda each: int(each["error_ns"]), default=None)


def fetched(connection: ClientConnection, name: bytes) -> dict[str, Any] | None:
    """The server's spans of a trace since the last time; None where it does not answer.

    `spans` has those that can be read, each `[label, number, name, started, ended, thread, about]`.
    """
    with suppress(JaxdError, *_BAD_JSON), unrecorded():
        found = json.loads(connection.request("traced", (name,))[0])
        threads = {str(number): str(thread) for number, thread in found["threads"].items()}
        spans = [row for row in found["spans"] if _is_row(row)]
        return {"spans": spans, "threads": threads, "left_out": int(found["left_out"])}
    return None


def server_rows(told: Mapping[str, Any]) -> list[list[Any]]:
    """The spans that were `fetched`, of requests of which more is known.

    Replies to what is recorded of no request, such as this question itself, are left out.
    """
    known = {(row[0], row[1]) for row in told["spans"] if row[2] != "send"}
    return [row for row in told["spans"] if (row[0], row[1]) in known]


def _is_row(row: Any) -> bool:
    kinds = [str, int, str, int, int, int, dict]
    return (
        isinstance(row, list)
        and list(map(type, row)) == kinds
        and all(0 <= time_ns < _NO_TIME for time_ns in row[3:5])
        and not any(isinstance(value, list | dict) for value in row[6].values())
    )


def _follow_all(session: Session, connection: ClientConnection) -> None:
    """The server records a connection for whoever looks since the latest; or no longer."""
    recorders = list(_recorders)
    label = _labels.setdefault(connection, f"{os.getpid()}.{next(_label_numbers)}")
    with unrecorded():
        found = follow(connection, recorders[-1].name if recorders else b"", label)
    if found is not None:
        for recorder in recorders:
            recorder.connected(session, {**found, "connection": label})


class TraceFile:
    """Writes the spans of this process, each at once, so that none is lost where it is killed.

    Args:
        name: of the trace.
        folder: where its files are. Where it is gone, so is whoever wanted them.
    """

    def __init__(self, name: bytes, folder: str) -> None:
        self.name = name
        self._folder = folder
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._open()
        reset_after_fork(self)

    def _open(self) -> None:
        self._threads: set[int] = set()
        self._calls = 0
        self._left = _MAX_SPANS
        path = f"{self._folder}/{os.getpid()}-{time.monotonic_ns()}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(path, flags, 0o600)
        about = {"pid": os.getpid(), "parent": os.getppid(), "words": sys.argv[:8]}
        self._write("process", {**about, "clock": clock_id(), "at_ns": time.monotonic_ns()})

    def after_fork(self) -> None:
        """The child has a file of its own."""
        if self._file is not None:
            os.close(self._file)
        self._sessions = weakref.WeakSet()
        self._open()

    def _write(self, kind: str, *values: Any) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.write(self._file, json.dumps([kind, *values], default=str).encode() + b"\n")

    def began(self, name: str, started_ns: int, about: Mapping[str, Any]) -> None:
        """Writes it: if this process ends now, it is known what it was at."""
        self._write("begin", name, threading.get_native_id(), started_ns, dict(about))

    def add(self, span: Span) -> None:
        """Writes the span, and fetches those of the server from time to time."""
        self._left -= 1
        if self._left <= 0:
            return
        if span.thread not in self._threads:
            self._threads.add(span.thread)
            self._write("thread", span.thread, threading.current_thread().name)
        self._write("span", *span)
        self._calls += span.name in OUTER
        if self._calls >= _FETCH_AFTER and span.name in OUTER:
            self._calls = 0
            self.fetch()

    def connected(self, session: Session, found: Mapping[str, Any]) -> None:
        """Writes which server it is, and how its clock differs."""
        self._sessions.add(session)
        self._write("server", {"address": str(session.address), **found})

    def fetch(self) -> None:
        """Writes what the servers have recorded since the last time."""
        for session in list(self._sessions):
            connection = session.open_connection
            found = None if connection is None else fetched(connection, self.name)
            if found is not None:
                self.told(found)

    def told(self, found: dict[str, Any]) -> None:
        """Writes what a server has recorded."""
        self._write("spans", found)

    def end(self) -> None:
        """This process exits in order."""
        self.fetch()
        self._write("end", time.monotonic_ns(), max(0, -self._left))


@functools.cache
def begin() -> None:
    """Records this process, as `JAXD_TRACE` says; once."""
    name, _, folder = os.environ.get(TRACE_VARIABLE, "").partition(":")
    with suppress(ValueError):
        recorder = TraceFile(bytes.fromhex(name), folder)
        _begin(recorder)
        atexit.register(recorder.end)


class ProfileRow(NamedTuple):
    """A line of a `CallProfile`.

    Attributes:
        end: `client`, `server` or `between`: who was busy with it.
        stage: what it was; docs/trace.md has a list.
        depth: 0 for what the call consists of; a row of depth 1 is a part of the one above it.
        us: how long it took, in microseconds.
        share: of the whole call, from 0 to 1.
    """

    end: str
    stage: str
    depth: int
    us: float
    share: float


_HEAD: Final = ("end", "stage", "µs", "share")


class CallProfile(NamedTuple):
    """Where the time of one call went; `str` of it is for people.

    Attributes:
        function: the function's name.
        us: how long the call took, in microseconds.
        rows: what it consists of, in the order in which it began.
        result: what the call returned.
    """

    function: str
    us: float
    rows: tuple[ProfileRow, ...]
    result: Any

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON, without the result."""
        rows = [row._asdict() for row in self.rows]
        return {"function": self.function, "us": self.us, "rows": rows}

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (f"{'  ' * row.depth}{row.end}", row.stage, f"{row.us:,.1f}", f"{row.share:.1%}")
            for row in self.rows
        ]

    def __repr__(self) -> str:
        from jaxd_protocol.base.terminal import table

        return f"{self.function}: {self.us:,.1f} µs\n{table([_HEAD, *self._cells()])}"

    def _repr_html_(self) -> str:
        from jaxd.interop.html_views import table, titled  # for notebooks

        rows = [(cells[0].replace("  ", "\u2003"), *cells[1:]) for cells in self._cells()]
        return titled(f"{self.function}: {self.us:,.1f} µs", table(_HEAD, rows))


_of_profiles: Final = PerProcess(lambda: (secrets.token_bytes(16), threading.Lock()))
"""The trace that all profiles of this process share at the servers, and its lock.

So none ends that of another thread, and whoever fetches its spans gives them to all.
"""


class OneCall:
    """Keeps the spans of the calls that one thread makes."""

    def __init__(self) -> None:
        self.name = _of_profiles()[0]
        self.spans: list[Span] = []
        self.sessions: dict[int, Session] = {}
        self._rows: list[list[Any]] = []
        self._offset_ns: dict[str, int] = {}
        self._thread = threading.get_native_id()

    def began(self, name: str, started_ns: int, about: Mapping[str, Any]) -> None:
        """Nothing is to be done."""

    def add(self, span: Span) -> None:
        """Keeps it."""
        if span.thread == self._thread or span.name in _FOR_THE_SERVER:
            self.spans.append(span)

    def connected(self, session: Session, found: Mapping[str, Any]) -> None:
        """The session has the server's part."""
        self.sessions[id(session)] = session
        self._offset_ns[found["connection"]] = found["offset_ns"]

    def told(self, found: dict[str, Any]) -> None:
        """Keeps what a server has recorded."""
        self._rows += found["spans"]

    def end(self) -> None:
        """Asks the servers for their part; they record for others, or nothing, from now on."""
        with _of_profiles()[1]:
            found = [(each, each.open_connection) for each in self.sessions.values()]
            opened = [(session, connection) for session, connection in found if connection]
            try:
                for _, connection in opened:
                    self._fetch(connection)
            finally:
                _end(self)
            for session, connection in opened:
                _follow_all(session, connection)

    def _fetch(self, connection: ClientConnection) -> None:
        for _ in range(_ROUND_TRIPS):  # the last span ends when the reply is out
            told = fetched(connection, self.name)
            if told is not None:
                for each in tuple(_recorders):
                    each.told(told)
            if any(span.name == "send" for span in self.server_spans()):
                break

    def server_spans(self) -> list[Span]:
        """What the servers have recorded of these calls, and of those of no other thread."""
        sent = [span.about for span in self.spans if span.name == "send"]
        own = {(about["connection"], about["number"]) for about in sent}
        return [
            Span(name, thread, started - offset, ended - offset, about)
            for label, number, name, started, ended, thread, about in self._rows
            for offset in (self._offset_ns.get(label, 0),)
            if (label, number) in own
        ]


def profiled(
    call: Callable[[], Any],
    function: str,
    caller: Caller | None,
    wait: Callable[[Any], None],
) -> CallProfile:
    """Makes a call, and says where its time goes. Several threads may do so at once.

    Args:
        call: makes it.
        function: its name.
        caller: what makes it on a server; None where it runs here.
        wait: returns when a result that stays on the server is computed.
    """
    recorder = OneCall()
    _begin(recorder)
    try:
        opened = None if caller is None else caller.session.open_connection
        if caller is not None and opened is not None:
            with _of_profiles()[1]:
                _follow_all(caller.session, opened)
        started_ns = time.monotonic_ns()
        result = call()
        wait(result)
        ended_ns = time.monotonic_ns()
    finally:
        recorder.end()
    rows = tuple(_rows(recorder.spans, recorder.server_spans(), started_ns, ended_ns))
    return CallProfile(function, (ended_ns - started_ns) / 1000, rows, result)


_FOR_THE_SERVER: Final = frozenset({"answer", "callback"})
"""What other threads of the client do meanwhile, for the server that works on the call."""

_BUILDING: Final = frozenset({"queued", "load", "trace", "lower", "compile"})


def _rows(
    spans: Sequence[Span], server: Sequence[Span], started_ns: int, ended_ns: int
) -> Iterator[ProfileRow]:
    """The lines of a profile: stages that were several times there are added up.

    Each moment counts for one line: for the server, where that was busy, else for the client.
    """
    total_us = max(1, ended_ns - started_ns) / 1000
    within = started_ns, ended_ns
    busy = list(_apart((s for s in server if s.name not in {"call", *_BUILDING}), *within))
    own = list(_apart((s for s in spans if s.name not in OUTER | _FOR_THE_SERVER), *within))
    spent = [(s.started_ns, ("server", s.name), _us(s)) for s in busy]
    for span in own:
        is_on_the_way = busy and span.name == "wait"  # nobody works while the client waits
        key = ("between", "on the way") if is_on_the_way else ("client", span.name)
        spent.append((span.started_ns, key, _us(span) - _common_us(span, busy)))
    found: defaultdict[tuple[str, str], float] = defaultdict(float)
    for _, key, us in sorted(spent):
        found[key] += us
    found["client", "other"] = max(0.0, total_us - sum(found.values()))
    parts: defaultdict[tuple[Any, tuple[str, str]], float] = defaultdict(float)
    by_time = sorted(server, key=lambda each: each.started_ns)
    inner = [(("server", s.name), s) for s in by_time if s.name in _BUILDING]
    asked = [s for s in spans if s.name in _FOR_THE_SERVER]
    inner += [(("client", f"{s.name} {s.about.get('verb', '')}".rstrip()), s) for s in asked]
    for key, span in inner:
        for stage in busy:
            if stage.started_ns <= span.started_ns < stage.ended_ns:
                parts[("server", stage.name), key] += _us(span)
    for key, us in found.items():
        yield ProfileRow(*key, 0, us, us / total_us)
        for part, part_us in [(part, us) for (of, part), us in parts.items() if of == key]:
            yield ProfileRow(*part, 1, part_us, part_us / total_us)


def _us(span: Span) -> float:
    return (span.ended_ns - span.started_ns) / 1000


def _common_us(one: Span, others: Iterable[Span]) -> float:
    """How long one of the others went on as well; none of them overlap."""
    return sum(
        max(0, min(one.ended_ns, each.ended_ns) - max(one.started_ns, each.started_ns)) / 1000
        for each in others
    )


def _apart(spans: Iterable[Span], started_ns: int, ended_ns: int) -> Iterator[Span]:
    """The spans in the order of time, without what is in an earlier one, or outside of the time."""
    at = started_ns
    for span in sorted(spans, key=lambda each: (each.started_ns, -each.ended_ns)):
        begin, end = max(at, span.started_ns), min(span.ended_ns, ended_ns)
        if begin < end:
            at = end
            yield span._replace(started_ns=begin, ended_ns=end)
