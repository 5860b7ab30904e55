"""`jaxd token`: makes the secret that a server on TCP and its clients share."""

from __future__ import annotations

import argparse

from jaxd_protocol.tokens import default_token_file, write_token_file

__all__ = ["EXAMPLE", "SUMMARY", "configure", "run"]

SUMMARY = "make a token, which both ends of a TCP connection must hold"
EXAMPLE = "jaxd token --file ~/gpu-host.token"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--file",
        metavar="PATH",
        default=default_token_file(),
        help="where it goes, readable by you alone (default: %(default)s, where both ends look)",
    )
    parser.add_argument("--force", action="store_true", help="replace a token that exists")
    parser.add_argument("--print", action="store_true", help="also print the token itself")


def run(arguments: argparse.Namespace) -> int:
    """Writes the file and says where it is; 0.

    Raises:
        ConfigurationError: when the file exists and is not to be replaced, or cannot be written.
    """
    token = write_token_file(arguments.file, replace=arguments.force)
    print(token if arguments.print else f"wrote {arguments.file}")
    return 0
