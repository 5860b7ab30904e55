"""The command line of `jaxd serve`, read into `ServerOptions`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from jaxd_protocol.terminal import Parser
from jaxd_protocol.tokens import default_token_file
from jaxd_server.argument_values import (
    parse_address,
    parse_count,
    parse_folder,
    parse_seconds,
    parse_size,
)
from jaxd_server.limit_arguments import add_limit_arguments
from jaxd_server.options import ServerOptions
from jaxd_server.trust_arguments import add_trust_arguments

__all__ = ["parse_arguments"]

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
    given["listen"] = tuple(given["listen"]) if "listen" in given else None
    for name in ("allow_uids", "allow_targets"):
        given[name] = tuple(given[name]) if name in given else None
    given["token_file"] = given.get("token_file") or _token_file_of_environment()
    return ServerOptions(**{name: value for name, value in given.items() if value is not None})


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
    _add_places(parser.add_argument_group("where"))
    add_trust_arguments(parser)
    add_limit_arguments(parser)
    _add_lifetime(parser.add_argument_group("how long, and what is said"))
    return parser


def _add_places(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--listen",
        action="append",
        type=parse_address,
        metavar="ADDRESS",
        help="unix:///path, tcp://host:port or tls://host:port, may be repeated; port 0 takes a "
        "free one (default: the local socket of this environment)",
    )
    group.add_argument(
        "--control",
        metavar="PATH",
        help="socket of `jaxd status` and `jaxd stop` (default: beside the first "
        "address if that is a Unix socket, else in this environment's own directory)",
    )
    group.add_argument(
        "--cache-dir",
        type=parse_folder,
        metavar="PATH",
        help="where compiled programs are kept over restarts, or `none` "
        "(default: JAXD_CACHE_DIR, else ~/.cache/jaxd)",
    )


def _add_lifetime(group: argparse._ArgumentGroup) -> None:
    def add(name: str, text: str) -> None:
        group.add_argument(name, type=parse_seconds, metavar="SECONDS", help=text)

    add("--idle-timeout-s", "stop after this long without connections and calls (default: never)")
    add(
        "--rest-after-s",
        "give the device back after this long without a call, and take it again for the next one "
        "(default: never)",
    )
    add("--max-call-s", "how long a call may run (default: as long as it likes)")
    add("--max-build-s", "how long calls wait for a build once it has begun (default: the same)")
    add(
        "--stop-grace-s",
        "what nobody waits for any more, such as a call that was cancelled, may go on this long "
        "before its process is replaced, if no array is lost by that (default: 30; 0: for ever)",
    )
    add("--drain-timeout-s", "when stopping, kill a worker that runs no call after (default: 30)")
    add("--recycle-after-s", "replace the worker when it is this old (default: never)")
    add("--stuck-after-s", "say that a worker is stuck when it has not answered for (default: 10)")
    add(
        "--recycle-stuck-s",
        "kill a worker that has not answered for this long, if nobody else has arrays in it than "
        "whose call it hangs in (default: never)",
    )
    group.add_argument(
        "--recycle-after-calls",
        type=parse_count,
        metavar="N",
        help="replace the worker after so many calls (default: never)",
    )
    group.add_argument(
        "--recycle-above-bytes",
        type=parse_size,
        metavar="SIZE",
        help="replace the worker when it has this much memory (default: never)",
    )
    group.add_argument(
        "--standby",
        action=argparse.BooleanOptionalAction,
        help="keep a second process, without a device, that has imported jax and takes over when "
        "the worker ends; takes about 80 MB (default: yes)",
    )
    add("--session-grace-s", "keep what a client left on the server this long (default: 60)")
    group.add_argument(
        "--trace-in",
        choices=("auto", "worker", "tracer"),
        help="where functions are traced: in the worker, in a process beside it, or (auto) beside "
        "it when several clients are connected; on GPU and TPU always in the worker",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        help="lines for people or one JSON object a line (default: text)",
    )
    group.add_argument("--auto", action="store_true", help=argparse.SUPPRESS)
