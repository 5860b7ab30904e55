"""The command line of `jaxd serve`, read into `ServerOptions`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from jaxd_protocol.terminal import Parser
from jaxd_protocol.tokens import default_token_file
from jaxd_server.argument_values import (
    parse_address,
    parse_count,
    parse_folder,
    parse_gpus,
    parse_name,
    parse_seconds,
    parse_share,
    parse_size,
    parse_user,
    parse_users,
)
from jaxd_server.options import ServerOptions

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
    _add_trust(parser.add_argument_group("who may connect"))
    _add_separation(parser.add_argument_group("how far apart they are kept"))
    _add_code(parser.add_argument_group("what they may send"))
    _add_devices(parser.add_argument_group("which devices, and how much of them"))
    _add_limits(parser.add_argument_group("how much"))
    _add_program_limits(parser.add_argument_group("how many programs stay in memory"))
    _add_value_limits(parser.add_argument_group("how much data stays"))
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
        help="listen beyond this machine, although everything on the wire can then be read",
    )
    group.add_argument(
        "--allow-unauthenticated-loopback",
        action="store_true",
        help="let every user and program of this machine run code here over loopback TCP",
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
        help="with exported, native code that programs may call beside jax's own; may be repeated",
    )


def _add_devices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--devices",
        type=parse_gpus,
        metavar="LIST",
        help="GPUs to use, by the numbers or UUIDs that `nvidia-smi -L` shows, such as 0,1 "
        "(default: all)",
    )
    group.add_argument(
        "--devices-per-session",
        type=parse_count,
        metavar="N",
        help="how many devices a client process has for itself, as far as there are enough; its "
        "calls run on the first of them (default: 1)",
    )
    group.add_argument(
        "--device-memory-fraction",
        type=parse_share,
        metavar="SHARE",
        help="of each GPU's memory, for arrays and programs (default: 0.75)",
    )
    group.add_argument(
        "--preallocate",
        action=argparse.BooleanOptionalAction,
        help="take that memory at the start, or as it is needed (default: at the start)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], Any], metavar: str, text: str) -> None:
        group.add_argument(name, type=kind, metavar=metavar, help=text)

    def add_size(name: str, text: str) -> None:
        add(name, parse_size, "SIZE", text)

    add_size("--max-frame-bytes", "largest message received, such as 512M (default: 8G)")
    add_size("--max-result-bytes", "largest result sent (default: 8G)")
    add_size("--budget-bytes", "messages in memory (default: a quarter of the memory)")
    add_size("--disk-bytes", "kept in the cache folder (default: 10G)")
    add_size(
        "--principal-disk-bytes",
        "of that, of what one client's user has had made; its own goes first (default: all of it)",
    )
    add("--max-calls", parse_count, "N", "calls held that have to wait (default: 1000)")
    add(
        "--call-share",
        parse_share,
        "SHARE",
        "of these, and of --budget-bytes while others are connected, for one client's user "
        "(default: 0.5)",
    )
    add("--max-connections", parse_count, "N", "clients at the same time (default: 4000)")
    add("--slots", parse_count, "N", "calls in flight on one connection (default: 32)")
    add("--threads", parse_count, "N", "calls that run at the same time (default: 8)")
    add("--builds", parse_count, "N", "compilations at the same time (default: half of the cores)")


def _add_program_limits(group: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], Any], metavar: str, text: str) -> None:
        group.add_argument(name, type=kind, metavar=metavar, help=text)

    add("--max-executables", parse_count, "N", "executables, whatever their size (default: 400)")
    add("--program-bytes", parse_size, "SIZE", "of this process (default: a quarter of the memory)")
    add("--device-program-bytes", parse_size, "SIZE", "of the device (default: a tenth of it)")
    add("--map-share", parse_share, "SHARE", "of vm.max_map_count, such as 0.5 (the default)")
    add(
        "--memory-share",
        parse_share,
        "SHARE",
        "of the memory of machine or device; with more in use, what is idle goes (default: 0.92)",
    )
    add(
        "--principal-share",
        parse_share,
        "SHARE",
        "of all this, what a client's user keeps when others need room; at most an equal part "
        "for each (default: 0.5)",
    )
    add(
        "--principal-build-s",
        parse_seconds,
        "SECONDS",
        "of tracing and compiling for one client's user in an hour (default: no limit)",
    )


def _add_value_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--value-bytes",
        type=parse_size,
        metavar="SIZE",
        help="of all arrays that stay on the server (default: half of the device's memory)",
    )
    group.add_argument(
        "--value-share",
        type=parse_share,
        metavar="SHARE",
        help="of that, for one client's user (default: 1)",
    )
    group.add_argument(
        "--content-bytes",
        type=parse_size,
        metavar="SIZE",
        help="of arrays that clients send again and again over a network (default: an eighth of "
        "the device's memory)",
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
