"""The arguments of `jaxd serve` that say whom it trusts, and with what."""

from __future__ import annotations

import argparse

from jaxd_server.argument_values import (
    parse_count,
    parse_folder,
    parse_name,
    parse_user,
    parse_users,
)

__all__ = ["add_trust_arguments"]


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Who may connect, how far apart clients are kept, and what they may send."""
    _add_trust(parser.add_argument_group("who may connect"))
    _add_separation(parser.add_argument_group("how far apart they are kept"))
    _add_code(parser.add_argument_group("what they may send"))


def _add_trust(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--token-file",
        metavar="PATH",
        help="token that clients on TCP and TLS must prove to hold, as made by `jaxd token`",
    )
    group.add_argument(
        "--token-dir",
        type=parse_folder,
        metavar="PATH",
        help="folder of further tokens, one for each name, as made by `jaxd token --name`, or "
        "`none` (default: where that puts them)",
    )
    group.add_argument(
        "--allow-uid",
        action="append",
        type=parse_user,
        dest="allow_uids",
        metavar="USER",
        help="another user, by number or name, that may connect to the Unix socket and so run code "
        "as you; may be repeated",
    )
    group.add_argument(
        "--tls-cert",
        type=parse_folder,
        metavar="PATH",
        help="certificate for tls:// addresses, which clients check by name "
        "(default: one that the server makes, which they know by its fingerprint)",
    )
    group.add_argument(
        "--tls-key", type=parse_folder, metavar="PATH", help="its key (default: in the same file)"
    )
    group.add_argument(
        "--advertise",
        type=parse_name,
        metavar="HOST[:PORT]",
        help="what clients elsewhere call this machine, for the line that is printed for them "
        "(default: its host name)",
    )
    group.add_argument(
        "--insecure-plaintext",
        action="store_true",
        help="listen beyond this machine, although everything on the wire can then be read and "
        "changed; clients say the same with tcp://…?insecure=1",
    )
    group.add_argument(
        "--allow-unauthenticated-loopback",
        action="store_true",
        help="let every user and program of this machine run code here over loopback TCP; clients "
        "without a token say tcp://…?insecure=1",
    )


def _add_separation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--worker-per-principal",
        action="store_true",
        help="a process for each user and account, with a cache of its own; where root starts the "
        "server, as that user of this machine, or one of --worker-uids",
    )
    group.add_argument(
        "--worker-uids",
        type=parse_users,
        metavar="FIRST-LAST",
        help="numbers of users, nobody else's, that the workers of accounts run as; `none`: all "
        "workers run as the server's own user",
    )
    group.add_argument(
        "--max-workers",
        type=parse_count,
        metavar="N",
        help="such processes at the same time; who comes then is told to come again (default: 8)",
    )


def _add_code(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--accept",
        choices=("code", "exported"),
        help="code: functions, which run in the server; exported: only programs that clients have "
        "traced by themselves, and data (default: code)",
    )
    group.add_argument(
        "--allow-target",
        action="append",
        dest="allow_targets",
        metavar="NAME",
        help="with exported, native code that programs may call beside jax's own, with whatever "
        "shapes and attributes they say: nobody checks these; may be repeated",
    )
