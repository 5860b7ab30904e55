from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import CannotListen, ConfigurationError
from jaxd_protocol.network.accounts import add_account
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import write_token_file
from jaxd_server.auth.listen_policy import check_trust
from jaxd_server.config.argument_types import SAME_USER
from jaxd_server.config.options import ServerOptions

LOOPBACK = (Address.tcp("127.0.0.1", 0),)
EVERYWHERE = (Address.tcp("0.0.0.0", 0),)


@pytest.fixture
def token_file(runtime: Path) -> str:
    """A proper token file."""
    path = str(runtime / "token")
    write_token_file(path)
    return path


def test_a_unix_socket_needs_nothing(runtime: Path) -> None:
    """Its directory is the lock."""
    check_trust(ServerOptions())


def test_loopback_needs_a_token(token_file: str) -> None:
    """Every user of the machine can reach it, and the error says so and what to do."""
    with pytest.raises(CannotListen, match=r"every user of this machine .* `jaxd token`"):
        check_trust(ServerOptions(listen=LOOPBACK))
    check_trust(ServerOptions(listen=LOOPBACK, token_file=token_file))


def test_loopback_without_a_token_can_be_asked_for(runtime: Path) -> None:
    """The flag's name says what it does."""
    check_trust(ServerOptions(listen=LOOPBACK, allow_unauthenticated_loopback=True))


def test_beyond_loopback_a_token_alone_does_not_do(token_file: str) -> None:
    """Plain text across a network has to be accepted in words."""
    with pytest.raises(CannotListen, match=r"not encrypted.*--insecure-plaintext"):
        check_trust(ServerOptions(listen=EVERYWHERE, token_file=token_file))
    check_trust(ServerOptions(listen=EVERYWHERE, token_file=token_file, insecure_plaintext=True))


def test_beyond_loopback_no_flag_replaces_the_token(runtime: Path) -> None:
    """Neither flag, nor both, opens the machine to everybody."""
    with pytest.raises(CannotListen, match="does not waive that"):
        check_trust(
            ServerOptions(
                listen=EVERYWHERE, insecure_plaintext=True, allow_unauthenticated_loopback=True
            )
        )


def test_workers_for_each_need_to_know_who_comes(token_file: str) -> None:
    """Where everybody is let in there is nobody to tell apart."""
    with pytest.raises(ConfigurationError, match="clients are not identified"):
        check_trust(
            ServerOptions(
                listen=LOOPBACK,
                token_file=token_file,
                worker_per_principal=True,
                allow_unauthenticated_loopback=True,
            )
        )


def test_workers_for_each_share_no_programs(token_file: str) -> None:
    """What one user's worker has compiled would run in another's."""
    with pytest.raises(ConfigurationError, match="nobody shares programs"):
        check_trust(
            ServerOptions(
                listen=LOOPBACK, token_file=token_file, worker_per_principal=True, store="/store"
            )
        )


def test_who_holds_a_token_is_not_root_unawares(
    token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root says as whom their workers run, or that it shall be root; of sockets it is known."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told: dict[str, Any] = {"token_file": token_file, "worker_per_principal": True}
    with pytest.raises(ConfigurationError, match="would run code as root"):
        check_trust(ServerOptions(listen=LOOPBACK, **told))
    check_trust(ServerOptions(listen=LOOPBACK, worker_uids=(61000, 61009), **told))
    check_trust(ServerOptions(listen=LOOPBACK, worker_uids=SAME_USER, **told))
    check_trust(ServerOptions(**told))


def test_only_root_has_workers_of_other_users(
    token_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only where each has one of its own."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    told: dict[str, Any] = {
        "listen": LOOPBACK,
        "token_file": token_file,
        "worker_per_principal": True,
    }
    check_trust(ServerOptions(**told))
    check_trust(ServerOptions(worker_uids=SAME_USER, **told))
    with pytest.raises(ConfigurationError, match="only root can"):
        check_trust(ServerOptions(worker_uids=(61000, 61009), **told))
    with pytest.raises(ConfigurationError, match="--worker-per-principal"):
        check_trust(ServerOptions(worker_uids=(61000, 61009)))


def test_a_python_that_keeps_roots_groups_starts_no_workers_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They could read what root's group may, such as disks."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told = ServerOptions(worker_per_principal=True, worker_uids=(61000, 61009))
    check_trust(told)
    monkeypatch.setattr(sys, "version_info", (3, 12, 0, "final", 0))
    with pytest.raises(ConfigurationError, match="CVE-2023-6507"):
        check_trust(told)
    with pytest.raises(ConfigurationError, match="CVE-2023-6507"):
        check_trust(replace(told, worker_uids=None))
    check_trust(replace(told, worker_uids=SAME_USER))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_trust(replace(told, worker_uids=None))


def test_a_user_of_the_machine_is_not_also_an_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two principals would be one user."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told = ServerOptions(
        worker_per_principal=True, worker_uids=(61000, 61009), allow_uids=(0, 61009)
    )
    with pytest.raises(ConfigurationError, match="--allow-uid names one of them"):
        check_trust(told)
    check_trust(replace(told, allow_uids=(0, 61010)))
    check_trust(replace(told, worker_uids=SAME_USER))


def test_tls_needs_a_token_on_every_address(token_file: str) -> None:
    """It hides what is said, not from whom."""
    for address in (Address.tls("127.0.0.1", 0), Address.tls("0.0.0.0", 0)):
        with pytest.raises(CannotListen, match="`jaxd token`"):
            check_trust(ServerOptions(listen=(address,), insecure_plaintext=True))
        check_trust(ServerOptions(listen=(address,), token_file=token_file))


def test_a_token_file_that_others_can_read_is_refused(token_file: str) -> None:
    """Also when only a Unix socket is opened: who named a file wants it to work."""
    Path(token_file).chmod(0o644)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {token_file}"):
        check_trust(ServerOptions(token_file=token_file))


def test_a_named_token_does_as_well(runtime: Path) -> None:
    """One without a name need not exist; a folder that others can change is refused."""
    folder = runtime / "tokens"
    options = ServerOptions(listen=LOOPBACK, token_dir=str(folder))
    with pytest.raises(CannotListen):
        check_trust(options)
    add_account("alice", str(folder))
    check_trust(options)
    folder.chmod(0o777)
    with pytest.raises(ConfigurationError, match="chmod 700"):
        check_trust(options)


def test_other_users_are_let_in_only_where_the_system_tells_who_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else everybody would come in."""
    shared = ServerOptions(allow_uids=(1000,))
    check_trust(shared)
    monkeypatch.delattr(socket, "SO_PEERCRED")
    with pytest.raises(ConfigurationError, match=r"--allow-uid.*jaxd token --name.*tls://"):
        check_trust(shared)
    check_trust(ServerOptions())
