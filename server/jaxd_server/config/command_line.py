"""The command line of `jaxd serve`, read into `ServerOptions`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from jaxd_protocol.base.terminal import Parser
from jaxd_protocol.network.tokens import default_token_file
from jaxd_server.config.options import ServerOptions, words_of

_EXAMPLES = """\
examples:
  jaxd serve
      this user, this machine: a Unix socket that nobody else can reach
  jaxd token && jaxd serve --listen unix:///run/jaxd/server.sock --listen tcp://127.0.0.1:18861
      also over TCP, for those who hold the token
  jaxd serve --listen tls://0.0.0.0:18861
      for other machines: makes token and certificate, and prints what to type there

Ctrl-C or SIGTERM finishes the running calls and stops; a second one stops at once.
"""


def parse_arguments(argv: Sequence[str] | None = None) -> ServerOptions:
    """The options that `argv` asks for (default: `sys.argv[1:]`).

    The token file is, in this order: `--token-file`; none when `JAXD_TOKEN` holds the token
    itself; `JAXD_TOKEN_FILE`; the file that `jaxd token` writes, when it exists.

    Raises:
        SystemExit: with 2 after a usage message; with 0 after `--help`.
    """
    given = vars(_parser().parse_args(argv))
    given["token_file"] = given.get("token_file") or _token_file_of_environment()
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    return ServerOptions(**options)


def _token_file_of_environment() -> str | None:
    if os.environ.get("JAXD_TOKEN"):
        return None
    default = default_token_file()
    return os.environ.get("JAXD_TOKEN_FILE") or (default if os.path.exists(default) else None)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jaxd serve",
        description="Own the accelerator, keep compiled functions warm, and answer calls.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # ServerOptions holds the defaults
        allow_abbrev=False,
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in fields(ServerOptions):
        words = words_of(option)
        if words.group not in groups:
            groups[words.group] = parser.add_argument_group(words.group)
        text = f"{words.help} (default: {words.shown})" if words.shown else words.help
        groups[words.group].add_argument(words.flag, dest=option.name, help=text, **words.argument)
    return parser
