"""The gateway process, used with one worker per principal: authenticates clients, hands them over.

It imports no jax and runs no code of clients. The host starts it as it starts a worker, with one
JSON argument, and starts another one when it dies; workers are not affected.
"""

from __future__ import annotations

import hashlib
import itertools
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import (
    AuthenticationFailed,
    Busy,
    JaxdError,
    NoServer,
    ServerStartFailed,
)
from jaxd_protocol.network.accounts import Account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.handshake import peer_uid, refuse_client
from jaxd_protocol.wire import tune_socket
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth.acceptor import Acceptor, Authenticates
from jaxd_server.auth.accounts import Accounts, ConnectedAccounts
from jaxd_server.auth.authenticator import AuthenticatedPeer, authenticator_factory
from jaxd_server.auth.connection_handover import hand_over
from jaxd_server.config.options import ServerOptions
from jaxd_server.runtime import logs
from jaxd_server.runtime.child_startup import die_with_the_parent, exit_process, read_argument
from jaxd_server.runtime.json_lines import HostChannel
from jaxd_server.runtime.limits import Quota
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import allow_files

_POLL_S: Final = 0.5
_ANSWER_TIMEOUT_S: Final = 30.0
"""The host answers at once, except while it starts a process."""


def main() -> None:
    """Accepts clients until the host stops it or ends."""
    argument = read_argument()
    options = ServerOptions.from_json(argument["options"])
    logs.configure(options.log_format, "door")
    die_with_the_parent()
    allow_files(2 * options.max_connections)  # two for a client whose TLS is relayed
    gateway = Gateway(options)
    host_channel = HostChannel(
        socket.socket(fileno=argument["tether_fd"]),
        gateway.status,
        gateway.stopping.set,
        gateway.handle_order,
    )
    gateway.open(host_channel, argument["listeners"])
    host_channel.notify({"event": "ready"})
    gateway.watch()
    exit_process()


class Gateway:
    """The gateway: all its listeners, and its requests to the host.

    Args:
        options: of the server.

    Attributes:
        stopping: set when no more clients are accepted.
        connected_accounts: the open connections of accounts.
        max_clients: how many may be connected at the same time.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.stopping = threading.Event()
        self._options = options
        self._accounts = Accounts(options)
        self.connected_accounts = ConnectedAccounts(self._accounts)
        self.max_clients = options.max_connections
        self._host_channel: HostChannel  # set by `open`
        self._listeners: list[GatewayListener] = []
        self._numbers = itertools.count(1)
        self._pending: dict[int, Future[Mapping[str, Any]]] = {}  # each step on it is atomic
        self._clients = Quota(options.max_connections, options.call_share)
        self._lock = threading.Lock()  # guards it
        self._reported_tokens: dict[str, str] | None = None  # as last reported to the host
        # guards them from reading the tokens until the host is notified, so that the last
        # notification is current
        self._report_lock = threading.RLock()
        self._busy_at = time.monotonic()

    def open(self, host_channel: HostChannel, listeners: list[dict[str, Any]]) -> None:
        """Accepts clients from now on."""
        self._host_channel = host_channel
        self._report_accounts()
        authenticator_at = authenticator_factory(self._options, self._accounts)
        for listener in listeners:
            address = Address.parse(listener["address"])
            gateway_listener = GatewayListener(
                socket.socket(fileno=listener["fd"]),
                address,
                authenticator_at(address),
                self,
            )
            gateway_listener.start_in_thread()
            self._listeners.append(gateway_listener)

    def watch(self) -> None:
        """Closes connections of revoked accounts; returns when all clients are disconnected."""
        while not self.stopping.wait(_POLL_S):
            self.connected_accounts.poll()
            self._report_accounts()
        for listener in self._listeners:
            listener.close()
        while self._clients.used:  # workers finish their calls
            time.sleep(_POLL_S / 10)

    def status(self) -> dict[str, Any]:
        """The status for the host."""
        here = self._clients.used
        idle_s = 0.0 if here else time.monotonic() - self._busy_at
        is_short = any(one.is_short for one in self._listeners)
        return {
            "running_calls": here,
            "connections": here,
            "idle_s": idle_s,
            "is_short": is_short,
        }

    def handle_order(self, order: Mapping[str, Any]) -> None:
        """Handles the host's answer to a request."""
        waiting = self._pending.pop(order.get("id", 0), None)
        if waiting is not None:
            waiting.set_result(order)

    def worker_path_for(self, admitted: AuthenticatedPeer) -> str:
        """The socket path of a client's worker, which the host starts if needed.

        Raises:
            Busy: when the limit of workers is reached.
            ServerStartFailed: when it ends again and again before it is ready.
            NoServer: when it cannot be started for another reason.
            AuthenticationFailed: when the client's account was revoked meanwhile.
        """
        self._busy_at = time.monotonic()
        account = admitted.account
        found = self._ask(admitted.principal, account)
        self._check_still_valid(account)
        match found:
            case {"path": str(path)}:
                return path
            case {"busy": str(text), "retry_after_s": float(seconds)}:
                raise Busy(text, seconds)
            case {"refused": str(text), "is_broken": True}:
                raise ServerStartFailed(text)
        raise NoServer(str(found.get("refused", "the server does not name a worker.")))

    @contextmanager
    def counting_client(self, principal: str) -> Iterator[None]:
        """Counts a client that the gateway handles: during handover, or while its TLS is relayed.

        Raises:
            Busy: when the principal has reached its share of the limit.
        """
        limit = self._clients.max_per_principal
        with self._lock:
            if self._clients.used_by[principal] >= limit:
                raise Busy(
                    f"{limit} clients of yours are coming in, or are here over TLS, which is your "
                    "share of --max-connections. Close some, or connect later."
                )
            self._clients.add(principal, 1)
        try:
            yield
        finally:
            with self._lock:
                self._clients.add(principal, -1)
            self._busy_at = time.monotonic()

    def _check_still_valid(self, account: Account | None) -> None:
        if account is not None and not self._accounts.is_still_valid(account):
            self._report_accounts(again=True)  # the host may have started a worker for it
            raise AuthenticationFailed(f"{account.principal} was revoked while it connected.")

    def _ask(self, principal: str, account: Account | None) -> Mapping[str, Any]:
        token = None if account is None else _digest(account)
        request = {"event": "wanted", "principal": principal, "token": token}
        answer: Future[Mapping[str, Any]] = Future()
        number = next(self._numbers)
        self._pending[number] = answer
        try:
            with self._report_lock:
                self._check_still_valid(account)  # an old token would end the worker of the new one
                if self._reported_tokens is not None and token is not None:
                    self._reported_tokens[principal] = token
                self._host_channel.notify({**request, "id": number})
            return answer.result(_ANSWER_TIMEOUT_S)
        except TimeoutError as error:
            raise NoServer("the server's host does not answer. See its log.") from error
        finally:
            self._pending.pop(number, None)

    def _report_accounts(self, *, again: bool = False) -> None:
        """Reports to the host which accounts are valid: those whose token is unchanged."""
        with self._report_lock:
            now = {account.principal: _digest(account) for account in self._accounts.now()}
            is_known, self._reported_tokens = now == self._reported_tokens, dict(now)
            if again or not is_known:
                self._host_channel.notify({"event": "accounts", "valid": now})


def _digest(account: Account) -> str:
    """A digest that distinguishes tokens of an account."""
    return hashlib.sha256(account.token.encode()).hexdigest()


class GatewayListener(Acceptor):
    """Accepts the clients of one listener and hands them over to their workers."""

    def __init__(
        self,
        listener: socket.socket,
        address: Address,
        authenticator: Authenticates,
        gateway: Gateway,
    ) -> None:
        super().__init__(listener, address, self, gateway.max_clients, gateway.connected_accounts)
        self._authenticator = authenticator
        self._gateway = gateway

    def admit(self, sock: socket.socket) -> AuthenticatedPeer:
        """Authenticates one peer; each user may have its share of handshakes at a time.

        Raises:
            Busy: when the user has reached its share.
            Exception: as `Authenticator.admit`.
        """
        uid = peer_uid(sock) if sock.family == socket.AF_UNIX else None
        if uid is None:
            return self._authenticator.admit(sock)  # which limits handshakes over TCP
        with self._gateway.counting_client(f"uid:{uid} comes in"):
            return self._authenticator.admit(sock)

    def _serve_client(self, admitted: AuthenticatedPeer, end: ExitStack) -> None:
        line = admitted.stream
        try:
            with self._gateway.counting_client(admitted.principal):
                path = self._gateway.worker_path_for(admitted)
                with hand_over(path, admitted) as worker:
                    if not isinstance(line, socket.socket):
                        relay_tls(line, worker)
        except JaxdError as error:
            if admitted.client_identity is not None:
                refuse_client(line, error)
            raise
        except OSError as error:
            log_event("worker_not_reached", principal=admitted.principal, reason=str(error))
            raise


_STEP_BYTES: Final = 1 << 18
_CONNECTION_ENDED: Final = (EOFError, OSError, ssl.SSLError)


def relay_tls(client: TlsSocket, worker: socket.socket) -> None:
    """Relays bytes both ways until either end closes; both are shut then.

    The calling thread relays the bytes of the worker, and another one those of the client. A slow
    reader slows the other end down: no more than one piece is buffered each way.
    """
    client.settimeout(None)
    tune_socket(client.raw)
    worker.settimeout(None)
    inward = start_daemon("jaxd-tls-inward", _inward, client, worker)
    try:
        _outward(client, worker)
    finally:
        _shut(client.raw, worker)
        inward.join()


def _inward(client: TlsSocket, worker: socket.socket) -> None:
    room = memoryview(bytearray(_STEP_BYTES))
    try:
        while True:
            counts: list[int] = []
            client.receive_into([room], counts)
            worker.sendall(room[: sum(counts)])
    except _CONNECTION_ENDED:
        _shut(client.raw, worker)


def _outward(client: TlsSocket, worker: socket.socket) -> None:
    room = memoryview(bytearray(_STEP_BYTES))
    with suppress(*_CONNECTION_ENDED):
        while count := worker.recv_into(room):
            client.sendall(room[:count])


def _shut(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):  # it is closed already
            sock.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
