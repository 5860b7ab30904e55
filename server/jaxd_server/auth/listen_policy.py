"""Checks the addresses of a server: clients without authentication could run code as its user."""

from __future__ import annotations

import os
import socket
import sys
from typing import Final

from jaxd_protocol.errors import CannotListen, ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.tls_setup import has_token
from jaxd_server.config.argument_types import SAME_USER
from jaxd_server.config.options import ServerOptions

_KEEPS_GROUPS: Final = (3, 12, 0)


def check_trust(options: ServerOptions) -> None:
    """Refuses addresses without authentication; Unix sockets are protected by their directory.

    Raises:
        CannotListen: when TCP would be open without a token, with TLS or without, or beyond this
            machine in plain text without the option for it; or metrics beyond this machine.
        ConfigurationError: when the token file is missing, empty, or readable by others; when
            others can write to the folder of named tokens; when options conflict with a worker for
            each principal; or when other users are allowed where the system does not identify
            peers.
    """
    _check_separation(options)
    _check_metrics(options)
    if options.allow_uids and not hasattr(socket, "SO_PEERCRED"):
        raise ConfigurationError(
            "--allow-uid needs a system that identifies the peers of a Unix socket (Linux); here "
            "every user of this machine could connect. Leave it out, and give them tokens "
            "(`jaxd token --name`) and a tls:// address."
        )
    open_to_more = [address for address in options.listen if address.needs_token]
    if not open_to_more and options.token_file is None:
        return
    is_guarded = has_token(options)
    for address in open_to_more:
        _check_address(address, options, has_token=is_guarded)


def _check_metrics(options: ServerOptions) -> None:
    if options.metrics is None or options.metrics_token_file is not None:
        return
    if not Address.parse(f"tcp://{options.metrics}").is_loopback:
        raise CannotListen(
            f"--metrics {options.metrics} is reachable from other machines. Give the file of a "
            "token that whoever reads them has to send (--metrics-token-file, made by `jaxd "
            "token`), or use 127.0.0.1."
        )


def _check_separation(options: ServerOptions) -> None:
    if not options.worker_per_principal:
        if options.worker_uids is not None:
            raise ConfigurationError(
                "--worker-uids is for a server with --worker-per-principal. Give both, or neither."
            )
        return
    if options.store is not None:
        raise ConfigurationError(
            "programs in a store (--store, JAXD_STORE) are for all who use it, and with "
            "--worker-per-principal nobody shares programs. Leave out one of the two."
        )
    if options.allow_unauthenticated_loopback:
        raise ConfigurationError(
            "with --allow-unauthenticated-loopback clients are not identified, so there can be no "
            "worker for each. Leave it out, or leave out --worker-per-principal."
        )
    _check_worker_uids(options, is_root=os.geteuid() == 0)


def _check_worker_uids(options: ServerOptions, *, is_root: bool) -> None:
    if options.worker_uids not in (None, SAME_USER) and not is_root:
        raise ConfigurationError(
            "only root can start workers of other users. Leave out --worker-uids, or start the "
            "server as root."
        )
    if is_root and options.worker_uids != SAME_USER and sys.version_info[:3] == _KEEPS_GROUPS:
        raise ConfigurationError(
            "in Python 3.12.0 a process that root starts as another user keeps root's groups "
            "(CVE-2023-6507). Run the server with a later Python, or let all workers run as root "
            "(--worker-uids none)."
        )
    first, last = options.worker_uids or SAME_USER
    if any(first <= uid <= last for uid in options.allow_uids if uid):
        raise ConfigurationError(
            "--worker-uids are for unused uids, and --allow-uid names one of them. Choose others."
        )
    takes_tokens = any(address.needs_token for address in options.listen)
    if is_root and takes_tokens and options.worker_uids is None:
        raise ConfigurationError(
            "clients with a token would run code as root. Name unused uids for the workers "
            "(--worker-uids 70000-70999), or let them run as root (--worker-uids none)."
        )


def _check_address(address: Address, options: ServerOptions, *, has_token: bool) -> None:
    is_local = address.kind == "tcp" and address.is_loopback
    if address.kind == "tcp" and not (is_local or options.insecure_plaintext):
        raise CannotListen(
            f"{address} is reachable from other machines, and the connection is not encrypted: "
            "others can read and change the traffic, and so run code as you. Encrypt it "
            f"(--listen {address._replace(kind='tls')}), or accept that with --insecure-plaintext."
        )
    if has_token or (is_local and options.allow_unauthenticated_loopback):
        return
    if is_local:
        raise CannotListen(
            f"{address} without a token would let every user of this machine run code as you. "
            "Make a token with `jaxd token`, or use --allow-unauthenticated-loopback."
        )
    waived = "" if address.kind == "tls" else "; --insecure-plaintext does not waive that"
    raise CannotListen(
        f"{address} without a token would let everybody who reaches this machine run code as you"
        f"{waived}. Make a token with `jaxd token`."
    )
