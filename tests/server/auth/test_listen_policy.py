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

LOOPBACK: dict[str, Any] = {"listen": (Address.tcp("127.0.0.1", 0),)}
EVERYWHERE: dict[str, Any] = {"listen": (Address.tcp("0.0.0.0", 0),)}
OPEN: dict[str, Any] = {"allow_unauthenticated_loopback": True}
PLAIN: dict[str, Any] = {"insecure_plaintext": True}
TOKEN: dict[str, Any] = {"token_file": "TOKEN"}
EACH: dict[str, Any] = {"worker_per_principal": True}
RANGE: dict[str, Any] = {"worker_uids": (61000, 61009)}
SAME: dict[str, Any] = {"worker_uids": SAME_USER}

ROOT, USER = 0, 1000

# The options, who starts the server, and what is wrong with that; "" where nothing is.
POLICY: list[tuple[dict[str, Any], int, str]] = [
    # every user of the machine can reach the loopback; the directory of a socket is its lock
    ({}, USER, ""),
    (LOOPBACK, USER, r"every user of this machine .* `jaxd token`"),
    (LOOPBACK | TOKEN, USER, ""),
    (LOOPBACK | OPEN, USER, ""),
    # plain text across a network is accepted in words, and no flag replaces the token
    (EVERYWHERE | TOKEN, USER, r"not encrypted.*--insecure-plaintext"),
    (EVERYWHERE | TOKEN | PLAIN, USER, ""),
    (EVERYWHERE | PLAIN | OPEN, USER, "does not waive that"),
    # TLS hides what is said, not from whom
    *(
        row
        for host in ("127.0.0.1", "0.0.0.0")
        for row in (
            ({"listen": (Address.tls(host, 0),)} | PLAIN, USER, "`jaxd token`"),
            ({"listen": (Address.tls(host, 0),)} | TOKEN, USER, ""),
        )
    ),
    # where everybody is let in there is nobody to tell apart, and nobody shares programs
    (LOOPBACK | TOKEN | EACH | OPEN, USER, "clients are not identified"),
    (LOOPBACK | TOKEN | EACH | {"store": "/store"}, USER, "nobody shares programs"),
    # root says as whom the workers of tokens run, or that it shall be root; of sockets it is known
    (LOOPBACK | TOKEN | EACH, ROOT, "would run code as root"),
    (LOOPBACK | TOKEN | EACH | RANGE, ROOT, ""),
    (LOOPBACK | TOKEN | EACH | SAME, ROOT, ""),
    (TOKEN | EACH, ROOT, ""),
    # only root has workers of other users, and only where each has one of its own
    (LOOPBACK | TOKEN | EACH, USER, ""),
    (LOOPBACK | TOKEN | EACH | SAME, USER, ""),
    (LOOPBACK | TOKEN | EACH | RANGE, USER, "only root can"),
    (RANGE, USER, "--worker-per-principal"),
    # a user of the machine is not also an account's: two principals would be one user
    (EACH | RANGE | {"allow_uids": (0, 61009)}, ROOT, "--allow-uid names one of them"),
    (EACH | RANGE | {"allow_uids": (0, 61010)}, ROOT, ""),
    (EACH | SAME | {"allow_uids": (0, 61009)}, ROOT, ""),
]


@pytest.fixture
def token_file(runtime: Path) -> str:
    """A proper token file."""
    path = str(runtime / "token")
    write_token_file(path)
    return path


@pytest.mark.parametrize(("options", "user", "wrong"), POLICY)
def test_a_server_that_would_be_open_does_not_start(
    token_file: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], user: int, wrong: str
) -> None:
    """The error says to whom, and what to do."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if "token_file" in options:
        options = options | {"token_file": token_file}
    if not wrong:
        check_trust(ServerOptions(**options))
        return
    about_addresses = "worker_per_principal" not in options and "worker_uids" not in options
    with pytest.raises(CannotListen if about_addresses else ConfigurationError, match=wrong):
        check_trust(ServerOptions(**options))


def test_a_python_that_keeps_roots_groups_starts_no_workers_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They could read what root's group may, such as disks."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    told = ServerOptions(worker_per_principal=True, worker_uids=(61000, 61009))
    check_trust(told)
    monkeypatch.setattr(sys, "version_info", (3, 12, 0, "final", 0))
    for options in (told, replace(told, worker_uids=None)):
        with pytest.raises(ConfigurationError, match="CVE-2023-6507"):
            check_trust(options)
    check_trust(replace(told, worker_uids=SAME_USER))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    check_trust(replace(told, worker_uids=None))


def test_a_token_that_others_can_reach_is_refused(token_file: str, runtime: Path) -> None:
    """Who named a file wants it to work; a named token does as well, in a folder of one's own."""
    Path(token_file).chmod(0o644)
    with pytest.raises(ConfigurationError, match=f"chmod 600 {token_file}"):
        check_trust(ServerOptions(token_file=token_file))
    folder = runtime / "tokens"
    options = ServerOptions(**LOOPBACK, token_dir=str(folder))
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
