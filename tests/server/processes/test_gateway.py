"""A gateway without a process of its own. What it does for a host is in test_manager.py."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from jaxd_protocol.errors import AuthenticationFailed, Busy, NoServer, ServerStartFailed
from jaxd_protocol.network.accounts import Account, add_account, remove_account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.wire.tls_socket import TlsSocket
from jaxd_server.auth.authenticator import AuthenticatedPeer
from jaxd_server.config.options import ServerOptions
from jaxd_server.processes import gateway as module
from jaxd_server.processes.gateway import Gateway, GatewayListener, relay_tls
from jaxd_server.runtime.json_lines import HostChannel
from tests.certificates import tls_pair
from tests.server.staging import until


class Host:
    """What a gateway asks; answers at once, if at all."""

    def __init__(self, gateway: Gateway, answer: Mapping[str, Any] | None) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.answer = answer
        self.before_it_answers: Callable[[], None] = lambda: None
        self._gateway = gateway

    def notify(self, message: Mapping[str, Any]) -> None:
        self.told.append(message)
        if "id" in message and self.answer is not None:
            self.before_it_answers()
            self._gateway.handle_order({"ask": "come", "id": message["id"], **self.answer})


@pytest.fixture
def folder(runtime: Path) -> str:
    """Of tokens, with one for Alice."""
    add_account("alice", f"{runtime}/tokens")
    return f"{runtime}/tokens"


def opened(folder: str, answer: Mapping[str, Any] | None) -> tuple[Gateway, Host]:
    """A gateway without gates, and its host."""
    gateway = Gateway(ServerOptions(token_dir=folder, max_connections=4))
    host = Host(gateway, answer)
    gateway.open(cast("HostChannel", host), [])
    return gateway, host


def of_alice(gateway: Gateway) -> AuthenticatedPeer:
    """A client that has proved to be Alice."""
    (account,) = gateway._accounts.now()
    return AuthenticatedPeer(cast("Any", None), account.principal, account=account)


STRANGER = AuthenticatedPeer(cast("Any", None), "uid:7")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ({"busy": "eight are here", "retry_after_s": 5.0}, Busy, "eight are here"),
        ({"refused": "it does not start"}, NoServer, "it does not start"),
        ({"refused": "its last words", "is_broken": True}, ServerStartFailed, "its last words"),
        ({}, NoServer, "does not name a worker"),
        (None, NoServer, "does not answer"),
    ],
)
def test_who_finds_no_worker_is_told_why(
    folder: str,
    answer: Mapping[str, Any] | None,
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the host's words, where it has some."""
    monkeypatch.setattr(module, "_ANSWER_TIMEOUT_S", 0.01)
    gateway, _ = opened(folder, answer)
    with pytest.raises(error, match=words):
        gateway.worker_path_for(STRANGER)


def test_the_host_hears_whose_token_it_is_and_not_the_token(folder: str) -> None:
    """It has to tell an old one from a new one, and no more."""
    gateway, host = opened(folder, {"path": "/w.sock"})
    admitted = of_alice(gateway)
    assert gateway.worker_path_for(admitted) == "/w.sock"
    said, asked = host.told
    assert asked["token"] == said["valid"]["account:alice"]
    assert admitted.account is not None
    assert admitted.account.token not in str(host.told)
    assert len(asked["token"]) == 64


def test_who_is_revoked_while_a_worker_is_looked_for_does_not_come_in(folder: str) -> None:
    """And the host is told again, since it may have started one."""
    gateway, host = opened(folder, {"path": "/w.sock"})
    admitted = of_alice(gateway)

    def revoke() -> None:
        remove_account("alice", folder)
        gateway._accounts.now()

    host.before_it_answers = revoke
    with pytest.raises(AuthenticationFailed, match="revoked while it connected"):
        gateway.worker_path_for(admitted)
    assert host.told[-1] == {"event": "accounts", "valid": {}}


def test_who_comes_with_an_old_token_does_not_end_the_worker_of_the_new_one(folder: str) -> None:
    """The handshake was under way when it was replaced: the host is not asked for a place."""
    gateway, host = opened(folder, {"path": "/w.sock"})
    old = of_alice(gateway)
    add_account("alice", folder, replace=True)
    assert gateway.worker_path_for(of_alice(gateway)) == "/w.sock"
    asked = [said for said in host.told if said["event"] == "wanted"]
    with pytest.raises(AuthenticationFailed, match="revoked while it connected"):
        gateway.worker_path_for(old)
    assert [said for said in host.told if said["event"] == "wanted"] == asked


def test_the_host_hears_last_what_the_tokens_were_last(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two threads that look, one may be late with an older answer."""
    gateway, host = opened(folder, None)
    now, looks = gateway._accounts.now, [threading.Event(), threading.Event()]

    def slow() -> tuple[Account, ...]:
        found = now()
        looks[0].set()
        looks[1].wait(0.2)  # for the other one, which has to wait for us
        return found

    late = threading.Thread(target=lambda: gateway._report_accounts(again=True))
    monkeypatch.setattr(gateway._accounts, "now", slow)
    late.start()
    looks[0].wait(30)
    monkeypatch.setattr(gateway._accounts, "now", now)
    remove_account("alice", folder)
    gateway._report_accounts(again=True)
    looks[1].set()
    late.join(30)
    assert host.told[-1] == {"event": "accounts", "valid": {}}


def test_an_account_that_came_and_went_between_two_looks_is_not_missed(folder: str) -> None:
    """What the host was asked for counts as told."""
    gateway, host = opened(folder, {"path": "/w.sock"})
    gateway._report_accounts()
    assert len(host.told) == 1  # nothing has changed since
    add_account("bob", folder)
    bob = next(one for one in gateway._accounts.now() if one.principal == "account:bob")
    gateway.worker_path_for(AuthenticatedPeer(cast("Any", None), bob.principal, account=bob))
    remove_account("bob", folder)
    gateway._report_accounts()
    assert host.told[-1]["valid"].keys() == {"account:alice"}


def test_one_principal_has_its_share_of_the_gateway(folder: str) -> None:
    """Others come in meanwhile, and the gateway stays until the last one has gone."""
    gateway, _ = opened(folder, None)
    with gateway.counting_client("account:alice"), gateway.counting_client("account:alice"):
        with (
            pytest.raises(Busy, match="2 clients of yours"),
            gateway.counting_client("account:alice"),
        ):
            pass
        with gateway.counting_client("account:bob"):
            assert gateway.status()["running_calls"] == gateway.status()["connections"] == 3
        assert gateway.status()["idle_s"] == 0.0
        leaving = threading.Thread(target=gateway.watch)
        gateway.stopping.set()
        leaving.start()
        leaving.join(0.2)
        assert leaving.is_alive()
    leaving.join(30)
    assert not leaving.is_alive()
    assert gateway.status()["connections"] == 0


def test_users_who_take_their_time_do_not_keep_others_out(folder: str) -> None:
    """A stock client may be silent for ever, and one user has only so many of these."""

    class Patient:
        def admit(self, sock: socket.socket) -> AuthenticatedPeer:
            sock.recv(1)
            return STRANGER

    gateway, _ = opened(folder, None)
    listener = socket.socket(socket.AF_UNIX)
    gate = GatewayListener(listener, Address.unix("/s"), Patient(), gateway)
    pairs = [socket.socketpair() for _ in range(3)]
    threads = [threading.Thread(target=gate.admit, args=(ours,)) for _, ours in pairs[:2]]
    for thread in threads:
        thread.start()
    until(lambda: gateway.status()["connections"] == 2)
    with pytest.raises(Busy, match="2 clients of yours are coming in"):
        gate.admit(pairs[2][1])
    for theirs, _ in pairs:
        theirs.sendall(b"x")
    for thread in threads:
        thread.join(30)
    assert gate.admit(pairs[2][1]) is STRANGER
    gate.close()
    gate._stopped.close()
    for sock in (listener, *(end for pair in pairs for end in pair)):
        sock.close()


def test_a_gateway_imports_no_jax() -> None:
    """It starts fast, and holds nothing of a device."""
    program = (
        "import sys, jaxd_server.processes.gateway; "
        "print('jax' in sys.modules, 'numpy' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout == "False False\n"


MANY = bytes(range(256)) * 20_000


class Relayed(NamedTuple):
    """A client and a worker, with the relay between them.

    Attributes:
        client: speaks TLS.
        worker: does not.
        thread: in which the relay works.
    """

    client: TlsSocket
    worker: socket.socket
    thread: threading.Thread


@pytest.fixture
def relayed() -> Iterator[Relayed]:
    """One of each."""
    client, gateway = tls_pair(*socket.socketpair())
    worker, inner = socket.socketpair()
    thread = threading.Thread(target=relay_tls, args=(gateway, inner))
    thread.start()
    client.settimeout(30)
    yield Relayed(client, worker, thread)
    client.close()
    worker.close()
    thread.join(30)
    assert not thread.is_alive()
    gateway.close()
    inner.close()


def test_much_goes_both_ways_at_once(relayed: Relayed) -> None:
    """More than any buffer on the way holds; neither direction waits for the other."""
    got = list[bytes]()

    def work() -> None:
        sending = threading.Thread(target=relayed.worker.sendall, args=(MANY,))
        sending.start()
        got.append(relayed.worker.recv(len(MANY), socket.MSG_WAITALL))
        sending.join(30)

    working = threading.Thread(target=work)
    working.start()
    sending = threading.Thread(target=relayed.client.sendall, args=(MANY,))
    sending.start()
    assert relayed.client.recv(len(MANY), socket.MSG_WAITALL) == MANY
    sending.join(30)
    working.join(30)
    assert got == [MANY]


@pytest.mark.parametrize("at", [0, 1], ids=["client", "worker"])
def test_the_end_of_either_is_the_end_of_the_other(relayed: Relayed, at: int) -> None:
    """That of the client, and that of its worker."""
    ends = (relayed.client, relayed.worker)
    ends[at].close()
    assert ends[1 - at].recv(1) == b""
