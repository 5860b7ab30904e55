"""`jaxd token`: creates, lists and revokes the tokens that authenticate clients on TCP."""

from __future__ import annotations

import argparse
import time

from jaxd_protocol.base.terminal import table
from jaxd_protocol.network.accounts import (
    add_account,
    default_token_dir,
    remove_account,
    token_files,
)
from jaxd_protocol.network.tokens import default_token_file, write_token_file

SUMMARY = "make or revoke a token, which both ends of TCP and TLS must hold"
EXAMPLE = "jaxd token --name alice"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--file",
        metavar="PATH",
        help="where the token without a name is written, readable by you alone "
        f"(default: {default_token_file()}, where both ends look)",
    )
    what.add_argument("--name", help="make a token for an account of this name")
    what.add_argument("--list", action="store_true", help="list the names that have a token")
    what.add_argument(
        "--revoke",
        metavar="NAME",
        help="revoke a token: running servers notice, and end the connections of that name",
    )
    parser.add_argument(
        "--token-dir",
        metavar="PATH",
        default=default_token_dir(),
        help="the folder of named tokens (default: %(default)s, where servers look)",
    )
    parser.add_argument("--force", action="store_true", help="replace a token that exists")
    parser.add_argument("--print", action="store_true", help="also print the token itself")


def run(arguments: argparse.Namespace) -> int:
    """Does it and prints what was done; 0.

    Raises:
        ConfigurationError: when a file exists and is not to be replaced, cannot be written, or
            there is none to revoke.
    """
    if arguments.list:
        print(_token_lines(arguments.token_dir))
        return 0
    if arguments.revoke is not None:
        remove_account(arguments.revoke, arguments.token_dir)
        print(f"revoked {arguments.revoke}: servers that run end its connections within seconds")
        return 0
    if arguments.name is None:
        path = arguments.file or default_token_file()
        message, token = f"wrote {path}", write_token_file(path, replace=arguments.force)
    else:
        path, token = add_account(arguments.name, arguments.token_dir, replace=arguments.force)
        message = (
            f"wrote {path}\nGive {arguments.name} a copy over a private way, to be put at "
            "~/.config/jaxd/token with mode 600. Running servers accept it from now on.\n"
            "Accounts that share a worker can run code in each other's answers. Separate those who "
            "do not trust each other: jaxd serve --worker-per-principal"
        )
    print(token if arguments.print else message)
    return 0


def _token_lines(folder: str) -> str:
    rows = [
        (file.name, time.strftime("%Y-%m-%d %H:%M", time.localtime(file.made_at)))
        for file in token_files(folder)
    ]
    if not rows:
        return f"no names have a token in {folder}. Make one: jaxd token --name NAME"
    return table([("NAME", "MADE"), *rows])
