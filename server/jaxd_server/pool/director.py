"""The director of a pool: tells clients which members there are, and relays to those out of reach.

It speaks the protocol of a server, with two verbs of its own (`messages.pool_view`), and takes the
orders of `jaxd pool` from its own user. It runs no code of clients and imports no jax.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import Busy, ConfigurationError, NotPermitted, ProtocolError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import encode_failure
from jaxd_protocol.messages.pool_view import (
    LOAD_EVERY_S,
    MOST_WAIT_S,
    POOL_IN_WELCOME,
    POOL_ORDER,
    POOL_UNREACHABLE,
    POOL_VIEW,
    packed,
)
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.addresses import RELAY_GREETING_BYTES, Address, relay_greeting
from jaxd_protocol.network.handshake import finish_handshake, refuse_client
from jaxd_protocol.wire import BulkChannel, BulkConnection, BulkStream, stream_over
from jaxd_protocol.wire.stream import tune_socket
from jaxd_server.auth.acceptor import Acceptor, Authenticates
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, authenticator_factory
from jaxd_server.auth.listeners import Listener
from jaxd_server.auth.tls_setup import advertised
from jaxd_server.config.options import ServerOptions
from jaxd_server.pool.members import MemberTable
from jaxd_server.runtime.limits import RateLimiter
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import allow_files

_MAX_FRAME_BYTES: Final = 1 << 20
_MOST_RELAYED: Final = 256
"""Connections to one member at a time."""

_BYTES_S: Final = 50e6
"""News for all clients together; where they are more, they are told less often."""

_MOST_PAUSE_S: Final = 2.0
_MOST_ANSWERS: Final = 64
"""Clients that follow know the last change or the one before it: few answers serve all of them."""

_MOST_TICKETS: Final = 1 << 16
_POLL_S: Final = 0.5
_CONNECT_S: Final = 5.0
_RELAY_PAUSE_S: Final = 0.1
_STEP_BYTES: Final = 1 << 18
_MOST_LETTERS: Final = 300
_LOG_BURST: Final = 20
"""Lines of the log about what one principal cannot reach; after that it is one a second."""


Obey = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]


def _no_orders(order: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
    raise ConfigurationError(
        f"this pool has a fixed list of members, and no order {order!r}. Change its pool.toml, and "
        "run `jaxd pool up` again."
    )


class Director:
    """Serves the clients of a pool from now until `close`, in threads of its own.

    Args:
        table: the members.
        options: of the listeners, as `ready_for_tls` returned them.
        listeners: the open listeners; the director closes its own copies.
        obey: does what `jaxd pool` orders; None: nothing can be ordered.
        epoch: the number of this director in its pool.
    """

    def __init__(
        self,
        table: MemberTable,
        options: ServerOptions,
        listeners: Sequence[Listener],
        obey: Obey | None = None,
        epoch: int = 1,
    ) -> None:
        self.table = table
        self.options = options
        self.epoch = epoch
        self.obey = obey or _no_orders
        self._accounts = Accounts(options)
        self.relays = Relays(table, options, self._accounts.is_still_valid)
        self._connected = ConnectedAccounts(self._accounts)
        self._log_limiter = RateLimiter(_LOG_BURST, 1.0)
        self._closing = threading.Event()
        self._open: set[ViewConnection] = set()
        self._lock = threading.Lock()  # guards it
        allow_files(2 * options.max_connections)  # two for each client
        authenticator_at = authenticator_factory(options, self._accounts)
        self._acceptors = [
            ViewAcceptor(one, authenticator_at(one.address), self._connected, self)
            for one in listeners
        ]
        self._has_news = threading.Event()
        self._answers: BoundedDict[tuple[int, str], str | bytes] = BoundedDict(_MOST_ANSWERS)
        self.told, self._told_bytes = 0, 0
        table.on_news = self._has_news.set
        threading.Thread(target=self._tell, name="jaxd-tell", daemon=True).start()
        for acceptor in self._acceptors:
            acceptor.start_in_thread()
        threading.Thread(target=self._watch_accounts, name="jaxd-accounts", daemon=True).start()

    def close(self) -> None:
        """Accepts nobody any more, and ends all connections."""
        self._closing.set()
        self._has_news.set()
        for acceptor in self._acceptors:
            acceptor.close()
        self.relays.close()
        with self._lock:
            for connection in self._open:
                connection.interrupt()

    def _watch_accounts(self) -> None:
        while not self._closing.wait(_POLL_S):
            self._connected.poll()

    def _tell(self) -> None:
        """Tells all clients what is new: all at once, and no more often than it can be sent."""
        while True:
            self._has_news.wait()
            if self._closing.is_set():
                return
            self._has_news.clear()
            self._told_bytes, self._answers = 0, BoundedDict(_MOST_ANSWERS)
            self.told = self.table.sequence
            with self._lock:
                for connection in self._open:
                    connection.wake()
            self._closing.wait(LOAD_EVERY_S)
            self._closing.wait(min(_MOST_PAUSE_S, self._told_bytes / _BYTES_S))

    def is_news(self, known: int, source: str) -> bool:
        """Whether a client that knows this is told something now."""
        return known < self.told or source != self.table.source

    def answer(self, known: int, source: str) -> str | bytes:
        """What such a client is told; written once for all that know the same."""
        found = self._answers.get((known, source))
        if found is None:
            found = packed(self.table.news(known, source).to_message())
            if known < self.told and source == self.table.source:
                self._answers[known, source] = found
        self._told_bytes += len(found)
        return found

    def serve(self, stream: BulkStream, admitted: AuthenticatedPeer) -> None:
        """Answers one client until it leaves."""
        connection = ViewConnection(stream, self, admitted)
        with self._lock:
            self._open.add(connection)
        try:
            with suppress(EOFError):  # it has left
                connection.serve()
        finally:
            with self._lock:
                self._open.discard(connection)
                connection.close()

    def log_unreachable(self, member: str, epoch: int, principal: str, reason: str) -> None:
        """Logs what a client says, at a limited rate, so that it cannot fill the disk."""
        skipped = self._log_limiter.acquire(principal)
        if skipped is not None:
            log_event(
                "pool_member_unreachable",
                member=member[:_MOST_LETTERS],
                epoch=epoch,
                principal=principal,
                reason=reason[:_MOST_LETTERS],
                not_logged=skipped or None,
            )

    def welcome(self) -> dict[str, Any]:
        """What the handshake sends a client."""
        return {
            "auth": "none",
            "session": os.urandom(8).hex(),
            POOL_IN_WELCOME: self.table.pool,
            "epoch": self.epoch,
            "pid": os.getpid(),
            "slots": 1,
            "max_frame_bytes": _MAX_FRAME_BYTES,
            "accept": self.options.accept,
        }


class ViewAcceptor(Acceptor):
    """Accepts the clients of one listener of a director."""

    def __init__(
        self,
        listener: Listener,
        authenticator: Authenticates,
        connected: ConnectedAccounts,
        director: Director,
    ) -> None:
        most = director.options.max_connections
        super().__init__(listener.socket.dup(), listener.address, authenticator, most, connected)
        self._director = director

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        if admitted.client_identity is None:
            return  # a stock client understands nothing
        if len(self._clients) > self._max_clients:
            busy = Busy(f"{self._max_clients} clients are connected. Come again later.", _CONNECT_S)
            refuse_client(admitted.stream, busy)
            return
        finish_handshake(admitted.stream, {}, admitted.proof, self._director.welcome())
        self._director.serve(stream_over(admitted.stream), admitted)


class _Asked(NamedTuple):
    """A question for the view that is not answered yet.

    Attributes:
        seq: its number.
        known, source: what the client has.
        until: when it is answered in any case.
    """

    seq: int
    known: int
    source: str
    until: float


class ViewConnection:
    """The connection of one client to the director; one thread reads and answers.

    Args:
        stream: past the handshake.
        director: whose client it is.
        admitted: the client.
    """

    def __init__(self, stream: BulkStream, director: Director, admitted: AuthenticatedPeer) -> None:
        self._channel = BulkChannel(stream, _MAX_FRAME_BYTES)
        self._connection = BulkConnection(director, self._channel, {})
        self._director = director
        self._admitted = admitted
        self._asked: _Asked | None = None
        self._news = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._news, select.POLLIN)
        self._poll.register(stream.sock, select.POLLIN)
        self._answers: Mapping[str, Callable[..., str]] = {
            POOL_UNREACHABLE: self._unreachable,
            POOL_ORDER: self._order,
        }

    def wake(self) -> None:
        """There is news."""
        with suppress(BlockingIOError):
            os.eventfd_write(self._news, 1)

    def interrupt(self) -> None:
        """Ends the connection; its own thread closes it."""
        self._channel.stream.shutdown()

    def close(self) -> None:
        """Ends it."""
        self._connection.shut()
        os.close(self._news)

    def serve(self) -> None:
        """Answers until the client leaves.

        Raises:
            EOFError: when it has left.
            JaxdError: when it sends something that no client sends.
        """
        while True:
            if self._asked is not None and not self._channel.poll(0):
                self._answer_or_wait(self._asked)
                continue
            message = self._connection.read_message(self._channel.recv())
            if message is not None:
                self._on_message(*message)

    def _answer_or_wait(self, asked: _Asked) -> None:
        director, left_s = self._director, asked.until - time.monotonic()
        if left_s > 0 and not director.is_news(asked.known, asked.source):
            self._poll.poll(left_s * 1000)
            with suppress(BlockingIOError):
                os.eventfd_read(self._news)
            return
        self._asked = None
        self._connection.send_reply(asked.seq, director.answer(asked.known, asked.source))

    def _on_message(self, verb: str | None, seq: int, args: Any) -> None:
        if verb is None:
            return  # a reply, and nothing was asked
        try:
            answer = self._answer(verb, seq, args)
        except Exception as error:  # noqa: BLE001  sent to the client, whatever it is
            self._connection.send_reply(seq, (FAILED, encode_failure(error)))
        else:
            if answer is not None:
                self._connection.send_reply(seq, answer)

    def _answer(self, verb: str, seq: int, args: tuple[Any, ...]) -> str | None:
        """The answer to a question; None: it comes later.

        Raises:
            JaxdError: when it is none, or may not be asked.
        """
        kinds = _VERBS.get(verb)
        if kinds is None:
            raise ConfigurationError(
                f"this is the director of a pool, which does not answer {verb!r} itself. Name it "
                "as a pool: JAXD_SERVER=pool://… in place of tls://…"
            )
        if tuple(map(type, args)) != kinds:
            raise ProtocolError(f"the arguments of {verb!r} are not those that it takes.")
        if verb == POOL_VIEW:
            self._ask(seq, *args)
            return None
        return self._answers[verb](*args)

    def _ask(self, seq: int, known: int, source: str, wait_s: float) -> None:
        if known < 0:
            raise ProtocolError("the client asks for what came after a change that there is not.")
        if self._asked is not None:
            raise ProtocolError("the client asks for the view a second time before the answer.")
        wait_s = min(MOST_WAIT_S, wait_s) if wait_s > 0 else 0.0
        self._asked = _Asked(seq, known, source, time.monotonic() + wait_s)

    def _unreachable(self, name: str, epoch: int, reason: str) -> str:
        found = {each.member.name: each.member for each in self._director.table.entries()}
        member = found.get(name)
        state = "lost" if member is None else member.state
        self._director.log_unreachable(name, epoch, self._admitted.principal, reason)
        can_relay = member is not None and state != "lost"
        address = self._director.relays.address(name, self._admitted) if can_relay else None
        ticket = {"ticket": address.ticket} if address is not None else {}
        return json.dumps({"state": state, "address": str(address or ""), **ticket})

    def _order(self, order: str, content: str) -> str:
        if self._admitted.account is not None:
            raise NotPermitted(
                "only the user of the director orders what the pool does, on its own machine. Run "
                "the same command there."
            )
        return json.dumps(self._director.obey(order, json.loads(content)))


_VERBS: Final[Mapping[str, tuple[type, ...]]] = {
    POOL_VIEW: (int, str, float),
    POOL_UNREACHABLE: (str, int, str),
    POOL_ORDER: (str, str),
}
"""For each verb the types of its arguments."""


# members out of reach -----------------------------------------------------------------------------


class Relays:
    """Ports of the director that lead to members, opened when a client needs one. Thread-safe.

    What is relayed is TLS between client and member. Nothing is passed on for who does not show a
    ticket that the director has given to a client: a member sees all that is relayed come from the
    director, and would refuse that for the wrong tokens of strangers.

    Args:
        table: the members.
        options: where the director listens.
        is_valid: whether an account is still one.
    """

    def __init__(
        self,
        table: MemberTable,
        options: ServerOptions,
        is_valid: Callable[[Account], bool] = lambda _: True,
    ) -> None:
        self._table = table
        self._options = options
        self._is_valid = is_valid
        self._secret = os.urandom(32)
        self._given: BoundedDict[str, tuple[str, Account | None]] = BoundedDict(_MOST_TICKETS)
        self._open: dict[str, Relay] = {}
        self._lock = threading.Lock()  # guards it

    def address(self, name: str, client: AuthenticatedPeer) -> Address | None:
        """Where a client reaches a member through the director; None: there is no way to it.

        It has the client's ticket: the same for all that it is asked for.

        Args:
            name: of the member.
            client: who asks.

        Raises:
            OSError: when no port can be opened.
        """
        target = self._target(name)
        own = next((each for each in self._options.listen if each.kind == "tls"), None)
        if target is None or own is None:
            return None
        with self._lock:
            relay = self._open.get(name)
            if relay is None:
                admits = partial(self._admits, name)
                relay = self._open[name] = Relay(own.host, partial(self._target, name), admits)
        ticket = self._ticket(name, client)
        place = advertised(self._options, own)
        return place._replace(port=relay.port, pin=target.pin, ticket=ticket)

    def _ticket(self, name: str, client: AuthenticatedPeer) -> str:
        about = json.dumps([name, client.principal]).encode()
        ticket = blake2b(about, key=self._secret, digest_size=16).hexdigest()
        self._given[ticket] = name, client.account
        return ticket

    def _admits(self, name: str, greeting: bytes) -> bool:
        """Whether what somebody says first to the relay of a member has a ticket for it."""
        ticket = greeting[-32:].decode("ascii", "replace")
        member, account = self._given.get(ticket, ("", None))
        is_right = compare_digest(greeting, relay_greeting(ticket)) and member == name
        return is_right and (account is None or self._is_valid(account))

    def _target(self, name: str) -> Address | None:
        """The TLS address of a member, as it is now."""
        with suppress(ConfigurationError):
            addresses = map(Address.parse, self._table.entry(name).member.addresses)
            return next((each for each in addresses if each.kind == "tls"), None)
        return None

    def close(self) -> None:
        """Closes all ports."""
        with self._lock:
            for relay in self._open.values():
                relay.close()


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two connections that a relay joins."""

    client: socket.socket
    member: socket.socket

    def run(self) -> None:
        """Relays both ways until either ends."""
        with self.client, self.member:
            inward = threading.Thread(
                target=self._copy, args=(self.client, self.member), name="jaxd-relay", daemon=True
            )
            inward.start()
            self._copy(self.member, self.client)
            inward.join()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        room = memoryview(bytearray(_STEP_BYTES))
        with suppress(OSError):
            while count := source.recv_into(room):
                sink.sendall(room[:count])
        for sock in (self.client, self.member):
            with suppress(OSError):  # it has ended
                sock.shutdown(socket.SHUT_RDWR)


def _greeting(client: socket.socket) -> bytes:
    """What somebody says first; it may take no longer than to connect.

    Raises:
        OSError: when it takes longer.
    """
    greeting, until = b"", time.monotonic() + _CONNECT_S
    while len(greeting) < RELAY_GREETING_BYTES:
        client.settimeout(max(0.001, until - time.monotonic()))
        part = client.recv(RELAY_GREETING_BYTES - len(greeting))
        if not part:
            break
        greeting += part
    return greeting


class Relay:
    """A port that leads to one member.

    Args:
        host: where to listen.
        target: the address of the member now; None: it has none.
        admits: whether what somebody says first is a ticket.

    Attributes:
        port: the port.
    """

    def __init__(
        self,
        host: str,
        target: Callable[[], Address | None],
        admits: Callable[[bytes], bool],
    ) -> None:
        self._target = target
        self._admits = admits
        self._slots = threading.BoundedSemaphore(_MOST_RELAYED)
        self._closed = threading.Event()
        self._listening = socket.create_server((host, 0))
        self.port: int = self._listening.getsockname()[1]
        start_thread(threading.Thread(target=self._run, name="jaxd-relay", daemon=True))

    def close(self) -> None:
        """Accepts nobody any more."""
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listening.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._slots.acquire()
            try:
                self._accept()
            except (OSError, Busy):  # closed, or short of descriptors or threads: for a moment
                self._slots.release()
                self._closed.wait(_RELAY_PAUSE_S)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        thread = threading.Thread(target=self._join, args=(client,), name="jaxd-relay", daemon=True)
        try:
            start_thread(thread)
        except Busy:
            client.close()
            raise

    def _join(self, client: socket.socket) -> None:
        try:
            with client, suppress(OSError):
                target = self._target()
                if target is not None and self._admits(_greeting(client)):
                    member = socket.create_connection(target.place, _CONNECT_S)
                    for each in (client, member):
                        tune_socket(each)  # a peer that is gone is noticed
                    _Pair(client, member).run()
        finally:
            self._slots.release()
