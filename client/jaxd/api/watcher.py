"""`jaxd.watch`: what there is to see of a server, as it changes, and what can be done about it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, Self

from jaxd.api.client import Client
from jaxd.api.why import running_server
from jaxd.connection.control_client import ControlStream, open_stream, send_request
from jaxd.connection.settings import Settings
from jaxd.dispatch.caller import Caller
from jaxd_protocol.base.process import Lazy
from jaxd_protocol.errors import Busy, ConfigurationError, ConnectionLost, NoServer, ProtocolError
from jaxd_protocol.messages.server_view import (
    LEAST_S,
    MAX_NUMBER,
    MAX_ROWS,
    MOST_S,
    TABLES,
    ServerView,
)
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles, control_path, has_listener

_AWAY: Final = (NoServer, ConnectionLost, Busy)
_TABLES: Final = frozenset({"counters", *TABLES})
_WHOLE: Final = frozenset({"server", *_TABLES})


class _Message(NamedTuple):
    """One piece of news of a server.

    Attributes:
        content: a view, or a change of the one before.
        is_whole: which of the two.
    """

    content: dict[str, Any]
    is_whole: bool


class _Source(Protocol):
    """Where the news of a server come from. Its methods may be called anew after an error."""

    def receive(self, timeout_s: float) -> _Message | None:
        """The next piece; None when there was none in time.

        Raises:
            NoServer, ConnectionLost, Busy: when the server does not answer now.
            JaxdError: when it will not.
        """

    def close(self) -> None:
        """Ends the connection; whoever waits in `receive` may get an error."""


class _ControlSocket:
    """News of the host of a server on this machine, which come also while its worker hangs."""

    def __init__(self, address: Address, every_s: float, closing: threading.Event) -> None:
        self._address = address
        self._every_s = every_s
        self._closing = closing
        self._stream: ControlStream | None = None

    def receive(self, timeout_s: float) -> _Message | None:
        if self._stream is None:
            request = {"ask": "watch", "every_s": self._every_s}
            path = control_path(self._address)
            self._stream = open_stream(path, request, self._address.uid)
        stream = self._stream
        if stream is None:
            raise NoServer(f"no server runs at {self._address}. Start one: jaxd start")
        if self._closing.is_set():  # while it was opened
            self.close()
        try:
            line = stream.receive(timeout_s)
        except ConnectionLost:
            self.close()
            raise
        return None if line is None else _message_of(line)

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class _Questions:
    """News of the worker of a server, by asking it again and again over the client's protocol."""

    def __init__(self, client: Client, every_s: float, closing: threading.Event) -> None:
        self._client = client
        self._every_s = every_s
        self._closing = closing
        self._known: tuple[int, str] = (0, "")
        self._unfinished = _Message({}, is_whole=False)
        self._due = 0.0

    def receive(self, timeout_s: float) -> _Message | None:
        until = time.monotonic() + timeout_s
        while not self._closing.wait(max(0.0, min(self._due, until) - time.monotonic())):
            if time.monotonic() < self._due:
                return None
            if self._ask():
                if time.monotonic() < until:
                    continue
                return None
            self._due = time.monotonic() + self._every_s
            message, self._unfinished = self._unfinished, _Message({}, is_whole=False)
            if message.content.keys() - {"sequence"} or message.is_whole:
                return message
        return None

    def _ask(self) -> bool:
        """Adds a piece to what is unfinished; whether there is another one.

        A server that says so without having got any further has none: it may not hold whoever asks.
        """
        reply = self._client.caller.session.ask("view", *self._known)
        piece = _message_of(reply)
        before = 0 if piece.is_whole else self._known[0]
        if piece.is_whole:
            self._unfinished = _Message({}, is_whole=True)
        _add_piece(self._unfinished.content, piece.content)
        source = reply.get("source")
        self._known = (_sequence_in(piece.content), source if type(source) is str else "")
        return reply.get("more") is True and self._known[0] > before

    def close(self) -> None:
        self._known = (0, "")
        self._unfinished = _Message({}, is_whole=False)


def _add_piece(content: dict[str, Any], piece: Mapping[str, Any]) -> None:
    """Adds the rows of a piece to those of the pieces before it.

    Raises:
        ProtocolError: when they are no rows, or too many.
    """
    for name, new in piece.items():
        if name in _TABLES and not isinstance(new, dict):
            raise ProtocolError(
                f"the server shows {name} that are no table. Install the same jaxd on both sides."
            )
        rows = content.get(name)
        if isinstance(rows, dict) and isinstance(new, dict):
            rows.update(new)
        else:
            content[name] = new
        if name in _TABLES and len(content[name]) > MAX_ROWS:
            raise ProtocolError(
                f"the server shows more than {MAX_ROWS} rows of {name}. Watch it where it runs."
            )


def _message_of(line: Any) -> _Message:
    match line:
        case {"view": dict(view)}:
            return _Message(view, is_whole=True)
        case {"change": dict(change)}:
            return _Message(change, is_whole=False)
    problem = line.get("error") if isinstance(line, Mapping) else None
    raise ProtocolError(
        f"the server does not show itself: {problem or 'its answer is another one'}. "
        "Install the same jaxd on both sides."
    )


def _sequence_in(content: Mapping[str, Any]) -> int:
    sequence = content.get("sequence", 0)
    return sequence if type(sequence) is int and abs(sequence) < MAX_NUMBER else 0


@dataclass(frozen=True, slots=True)
class ProgramDetail:
    """A program in memory, looked at closely.

    Attributes:
        name: its name in the table of programs.
        arguments: as ``x: float32[3,4]``.
        memory: bytes that it takes, by what for, as XLA says; empty where XLA says nothing.
        cost: what XLA expects of a run, such as ``flops``; likewise.
    """

    name: str
    arguments: str
    memory: Mapping[str, float]
    cost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FunctionDetail:
    """A function, looked at closely.

    Attributes:
        key: its name in the table of functions.
        name: of the function.
        where: file and line; empty when unknown.
        history: why its programs were made, the latest first: each with `time`, `verdict`,
            `seconds`, `reason` and `differences`, as `jaxd why --recent` has them.
        advice: what would make it compile less.
        programs: those in memory.
    """

    key: str
    name: str
    where: str
    history: tuple[Mapping[str, Any], ...]
    advice: tuple[str, ...]
    programs: tuple[ProgramDetail, ...]

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Self:
        """Reads what a server answered.

        Raises:
            ProtocolError: when it is something else.
        """
        try:
            programs = tuple(
                ProgramDetail(*(each[name] for name in ProgramDetail.__slots__))
                for each in report["programs"]
            )
            key, name, where = (str(report[one]) for one in ("key", "name", "where"))
            history, advice = tuple(report["history"]), tuple(map(str, report["advice"]))
        except (KeyError, TypeError) as error:
            raise ProtocolError(
                "what the server says of a function cannot be read. Install the same jaxd on both "
                "sides."
            ) from error
        return cls(key, name, where, history, advice, programs)


class Watch:
    """A server, as it changes: iterate over it, or call `next`. Made by `jaxd.watch`.

    One thread waits for what is new; `close` and the methods that do something may be called from
    any other. It goes on when the server is restarted.

    Attributes:
        address: of the server.
        is_local: whether its host is asked, which answers also while the worker hangs.
        view: as it was seen last.
        changed: the names of the tables that this has other than the view before it, and
            ``counters`` and ``server``.
        problem: why the server does not answer now; empty while it does.
    """

    def __init__(self, settings: Settings, address: Address, every_s: float) -> None:
        self.address = address
        self.view = ServerView()
        self.changed: frozenset[str] = frozenset()
        self.problem = ""
        self._settings = settings
        self._every_s = every_s
        self._closing = threading.Event()
        self._connected = Lazy(self._new_client)
        self.is_local, self._source = self._opened()

    def _opened(self) -> tuple[bool, _Source]:
        """Where the news come from; the first is here when this returns.

        Raises:
            NoServer: when no server runs there.
            JaxdError: when it does not answer.
        """
        if self.address.is_loopback:
            host = _ControlSocket(self.address, self._every_s, self._closing)
            try:
                self._take(host.receive(_FIRST_S))
                return True, host
            except NoServer:
                if self.address.kind == "unix" and not has_listener(self.address.path):
                    raise
        worker = _Questions(self._connected(), self._every_s, self._closing)
        self._take(worker.receive(_FIRST_S))
        return False, worker

    def __iter__(self) -> Iterator[ServerView]:
        """Each view, the present one first, until it is closed.

        When the server is gone, or back, the view comes as well; `problem` says which.

        Raises:
            JaxdError: when the server refuses, or answers something else.
        """
        yield self.view
        while not self._closing.is_set():
            found = self.next()
            if found is not None:
                yield found

    def next(self, timeout_s: float | None = None) -> ServerView | None:
        """The next view, as soon as anything has changed; None after `timeout_s`, or when closed.

        Args:
            timeout_s: seconds to wait; None: any number.

        Raises:
            JaxdError: when the server refuses, or answers something else.
        """
        until = time.monotonic() + (_ANY_S if timeout_s is None else timeout_s)
        while not self._closing.is_set():
            left_s = max(0.0, until - time.monotonic())
            try:
                message = self._source.receive(min(left_s, MOST_S))
            except _AWAY as error:
                if self._is_gone(str(error)):
                    return self.view
                self._closing.wait(min(self._every_s, left_s))
                message = None
            if self._take(message):
                return self.view
            if time.monotonic() >= until:
                break
        return None

    def _is_gone(self, problem: str) -> bool:
        """Whether it was there until now."""
        is_news, self.problem = not self.problem, problem
        self.changed = frozenset()
        return is_news and not self._closing.is_set()

    def _take(self, message: _Message | None) -> bool:
        if message is None:
            return False
        before = ServerView() if message.is_whole else self.view
        now = before.patched(message.content)
        if message.is_whole:
            self.changed = frozenset(
                name for name in _WHOLE if getattr(now, name) != getattr(self.view, name)
            )
        else:
            named = _WHOLE & message.content.keys()
            is_same = named == {"counters"} and now.counters == before.counters
            self.changed = frozenset() if is_same else named
        is_back = bool(self.problem)
        self.view, self.problem = now, ""
        return bool(self.changed) or message.is_whole or is_back

    def close(self) -> None:
        """Ends it: whoever waits in `next` or iterates returns."""
        self._closing.set()
        self._source.close()
        if self._connected.made is not None:
            self._connected.made.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # what can be asked and done -------------------------------------------------------------------

    def detail(self, function: str) -> FunctionDetail:
        """A function looked at closely; connects to the worker.

        Args:
            function: its key, as in the table of functions.

        Raises:
            NoServer: when the worker cannot be reached.
            NotPermitted: when it is not known, or was never called by this principal.
        """
        return FunctionDetail.from_report(self._ask("detail", _key(function), "", ""))

    def text(self, function: str, program: str, stage: Literal["jaxpr", "hlo"]) -> str:
        """The jaxpr of a program, traced anew, or the optimized HLO of the one in memory.

        Args:
            function: the key of the function.
            program: its name, as in the table of programs.
            stage: which of the two.

        Raises:
            NoServer: when the worker cannot be reached.
            NotPermitted: when there is no such program that this principal may see.
            JaxdError: when there is no text of it; says why.
        """
        return str(self._ask("detail", _key(function), program, stage)["text"])

    def cancel(self, call: str) -> bool:
        """Cancels a call, as its own client could; whether it could be cancelled.

        Args:
            call: its id, as in the table of calls.

        Raises:
            NoServer: when the worker cannot be reached.
        """
        return bool(self._ask("cancel_call", call)["cancelled"])

    def clear(self, function: str) -> int:
        """Drops the programs of a function, on disk as well; returns how many there were.

        Args:
            function: its key, as in the table of functions.

        Raises:
            NoServer: when the worker cannot be reached.
        """
        return int(self._ask("forget", _key(function))["executables"])

    def forget(self, name: str) -> bool:
        """Removes values under a name of this principal's; whether it was there.

        Raises:
            NoServer: when the worker cannot be reached.
        """
        return self._connected().forget(name)

    def release(self, what: str) -> int:
        """Releases functions from quarantine, by name or fingerprint; returns how many.

        Raises:
            ConfigurationError: when the server is on another machine.
            NoServer: when it does not run.
        """
        return len(self._ask_host({"ask": "release", "what": what}).get("released", ()))

    def restart(self, *, force: bool = False) -> Mapping[str, Any]:
        """Replaces the worker; returns when the next one is ready, or why not under ``refused``.

        Args:
            force: also when arrays of clients are lost.

        Raises:
            ConfigurationError: when the server is on another machine.
            NoServer: when it does not run.
        """
        return self._ask_host({"ask": "restart", "force": force})

    def _ask_host(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.is_local:
            raise ConfigurationError(
                f"{self.address} is on another machine, and a server is controlled from its own. "
                f"Watch it on {self.address.host}."
            )
        path = control_path(self.address)
        reply = send_request(path, request, self.address.uid, is_slow=True)
        if reply is None:
            raise NoServer(f"no server runs at {self.address}. Start one: jaxd start")
        return reply

    def _ask(self, verb: str, *args: Any) -> Mapping[str, Any]:
        return self._connected().caller.session.ask(verb, *args)

    def _new_client(self) -> Client:
        return Client(running_server(Caller(self._settings.replaced(server=self.address))))


_FIRST_S: Final = 30.0
_ANY_S: Final = 1e9


def _key(function: str) -> bytes:
    """The key behind its name in a table, which begins with a principal where each has a worker.

    Raises:
        ConfigurationError: when it is none.
    """
    try:
        return bytes.fromhex(function.rpartition("/")[2])
    except ValueError as error:
        raise ConfigurationError(
            f"{function!r} is no key of a function. Take one of the table `functions`."
        ) from error


def watch(server: str | Address | None = None, *, every_s: float = 0.5) -> Watch:
    """What there is to see of a server, as it changes; starts none.

    Args:
        server: its address, as of `jaxd.connect`; by default the server that a persistent function
            would use.
        every_s: seconds from one view to the next at least, 0.1 to 60.

    Returns:
        An iterable of `ServerView`s; use it as a context manager, or call its `close`.

    Raises:
        ConfigurationError: when `every_s` is out of range.
        NoServer: when no server runs there.
        JaxdError: when it does not answer.
    """
    if not LEAST_S <= every_s <= MOST_S:
        raise ConfigurationError(f"every_s is {every_s!r}. Give {LEAST_S:g} to {MOST_S:g} seconds.")
    settings = Settings.resolve(server)
    address = settings.server or Address.unix(LocalServerFiles.of_this_environment().socket)
    return Watch(settings, address, every_s)
