"""The command `jaxd`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from jaxd.cli.commands import (
    demo,
    doctor,
    functions,
    lifecycle,
    memory,
    relay,
    run,
    status,
    token,
    warm,
    why,
)
from jaxd.connection.discovery import require_server_extra
from jaxd_protocol import __version__
from jaxd_protocol.base.terminal import Parser
from jaxd_protocol.errors import JaxdError, NoServer


class Command(Protocol):
    """A command: a module of `jaxd.cli.commands`, or an object in one."""

    SUMMARY: str
    EXAMPLE: str

    def configure(self, parser: argparse.ArgumentParser, /) -> None:
        """Adds its options."""

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Does it; the exit code."""


_COMMANDS: dict[str, Command] = {
    "run": run,
    "env": run.Env(),
    "start": lifecycle.Start(),
    "stop": lifecycle.Stop(),
    "restart": lifecycle.Restart(),
    "status": status,
    "doctor": doctor,
    "token": token,
    "why": why,
    "functions": functions,
    "values": memory.Values(),
    "devices": memory.Devices(),
    "warm": warm,
    "verify": run.Verify(),
    "relay": relay,
    "demo": demo,
}

_FORWARDED_COMMANDS = {
    "serve": ("run a server in the foreground", "jaxd_server"),
    "cache": (
        "list the programs that are kept on disk; check or remove them",
        "jaxd_server.cache",
    ),
}
"""Commands that a module of the server package runs: their summary, and that module."""

_QUERIES = {"status", "restart", "why", "functions", "values", "devices"}
_WITH_PROGRAM = (["warm"], ["verify"])
_FAILED, _NO_SERVER, _INTERRUPTED = 1, 3, 130

_EXAMPLES = """\
examples:
  jaxd run train.py     run a program as it is, with what it jits served
  jaxd doctor           check whether all is well
  jaxd status --json    what the server has compiled and answered
  jaxd why --recent     what was compiled last, and why
  jaxd warm warm.lock   build ahead what was recorded
  jaxd serve --help     listen elsewhere, with a token
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command (default: `sys.argv[1:]`) and returns the exit code of the process.

    Returns:
        0 done, 1 failed, 3 no server runs (`status`, `restart`, `why`, `functions`, `values`,
        `devices`),
        130 after Ctrl-C; `warm --record` and `verify`: that of the program that it runs, and of
        `verify` 3 when it found a mismatch.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after `--help` and `--version`.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(words)
        finally:
            sys.stdout.flush()  # a closed pipe shows here, and not at Python's exit
    except JaxdError as error:
        print(f"jaxd: {error}", file=sys.stderr)
        is_absent = isinstance(error, NoServer) and words[0] in _QUERIES
        return _NO_SERVER if is_absent else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # `jaxd status | head -1`: the reader has gone, and Python would report that at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def _run(words: Sequence[str]) -> int:
    if words and words[0] in _FORWARDED_COMMANDS:
        _become(words[0], words[1:])
    words, program = _split_program(words)
    arguments = _parser().parse_args(words)
    arguments.program = program
    code: int = arguments.run(arguments)
    return code


def _become(command: str, words: Sequence[str]) -> NoReturn:
    """Replaces this process by a program of the server, which the client never imports.

    Raises:
        ConfigurationError: when a server cannot run because jax is not installed here.
    """
    if command == "serve" and {"-h", "--help"}.isdisjoint(words):
        require_server_extra()
    _, module = _FORWARDED_COMMANDS[command]
    program = [sys.executable, "-P", "-m", module, *words]
    os.execv(sys.executable, program)  # noqa: S606  no shell is wanted


def _split_program(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The command's own words, and those behind `--`: argparse would drop a `--` among these."""
    if words[:1] == ["run"]:
        own, program = run.split(words[1:])
        return ["run", *own], program
    if words[:1] not in _WITH_PROGRAM or "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jaxd",
        description="A warm JAX, one function call away.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"jaxd {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name, (summary, _) in _FORWARDED_COMMANDS.items():
        commands.add_parser(name, help=summary)  # for the list only
    for name, command in _COMMANDS.items():
        own = commands.add_parser(
            name,
            help=command.SUMMARY,
            description=f"{command.SUMMARY[0].upper()}{command.SUMMARY[1:]}.",
            epilog=f"example: {command.EXAMPLE}",
            allow_abbrev=False,
        )
        command.configure(own)
        own.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
