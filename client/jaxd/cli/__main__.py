"""The command `jaxd`."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from jaxd.cli.query import add_command, add_json_option, print_report
from jaxd.connection.discovery import require_server_extra
from jaxd_protocol import __version__
from jaxd_protocol.base.terminal import Parser, print_message
from jaxd_protocol.errors import JaxdError, NoServer

if TYPE_CHECKING:
    from jaxd.cli.commands.completion import Fill


class Command(Protocol):
    """A command: a module of `jaxd.cli`, or an object in one."""

    SUMMARY: str
    EXAMPLE: str

    def configure(self, parser: argparse.ArgumentParser, /) -> None:
        """Adds its options."""

    def run(self, arguments: argparse.Namespace, /) -> int:
        """Does it; the exit code."""


class Deferred(NamedTuple):
    """A command whose module is imported when it is asked for, or its help.

    Attributes:
        module: in `jaxd.cli`.
        made_by: what in it makes the command; empty: the module is one.
        given: what that takes.
    """

    module: str
    made_by: str = ""
    given: tuple[Any, ...] = ()

    def load(self) -> Command:
        """The command."""
        module: Any = import_module(f"jaxd.cli.{self.module}")
        command: Command = getattr(module, self.made_by)(*self.given) if self.made_by else module
        return command


class Forwarded(NamedTuple):
    """A command that a module of the server package runs."""

    SUMMARY: str
    module: str


class Help:
    """`jaxd help`: what `--help` prints."""

    SUMMARY = "show the help of a command, as its --help"
    EXAMPLE = "jaxd help cache gc"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        parser.add_argument(
            "command", nargs="*", metavar="COMMAND", help="all, where none is given"
        )

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints it: 0, or for one command does not return, as after its `--help`."""
        if arguments.command:
            return run_words([*arguments.command, "--help"])
        print(_help_text())
        return 0


class Version:
    """`jaxd version`: the versions that matter to jaxd, also as `jaxd --version`."""

    SUMMARY = "show the versions of jaxd, Python, jax and what else matters"
    EXAMPLE = "jaxd version --json"

    configure = staticmethod(add_json_option)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints them; 0. Imports none of the packages."""
        from jaxd.cli.doctor.context import installed_version

        packages = {name: installed_version(name) for name in _VERSIONED}
        versions = {"jaxd": __version__, "Python": sys.version.split()[0], **packages}
        lines = (f"{name} {version or '(not installed)'}" for name, version in versions.items())
        report = {name.lower(): version for name, version in versions.items()}
        return print_report(arguments, report, lambda: "\n".join(lines))


_VERSIONED = ("jax", "jaxlib", "numpy", "rpyc", "cloudpickle")

_GROUPS: dict[str, dict[str, Command | Deferred | Forwarded]] = {
    "run programs": {
        "run": Deferred("commands.run"),
        "env": Deferred("commands.run", "Env"),
        "demo": Deferred("commands.demo"),
    },
    "look": {
        "status": Deferred("commands.status"),
        "top": Deferred("commands.status", "Top"),
        "dashboard": Deferred("commands.dashboard"),
        "functions": Deferred("commands.functions"),
        "why": Deferred("commands.why"),
        "report": Deferred("commands.report"),
        "trace": Deferred("commands.trace"),
        "profile": Deferred("commands.trace", "Profile"),
        "logs": Deferred("commands.logs"),
        "values": Deferred("commands.functions", "Values"),
        "devices": Deferred("commands.functions", "Devices"),
        "doctor": Deferred("commands.doctor"),
    },
    "build ahead, compare": {
        "warm": Deferred("commands.warm"),
        "verify": Deferred("commands.run", "Verify"),
    },
    "server": {
        "start": Deferred("commands.lifecycle", "Start"),
        "stop": Deferred("commands.lifecycle", "Stop"),
        "restart": Deferred("commands.lifecycle", "Restart"),
        "serve": Forwarded("run a server in the foreground", "jaxd_server"),
        "relay": Deferred("commands.lifecycle", "Relay"),
        "pool": Deferred("pool"),
    },
    "cache and access": {
        "cache": Forwarded("list, check or remove what is kept on disk", "jaxd_server.cache"),
        "token": Deferred("commands.token"),
    },
    "this command": {
        "help": Help(),
        "version": Version(),
        "completion": Deferred(
            *("commands.completion", "Completion"),
            (lambda fill: _parser(fill),),  # noqa: PLW0108  is below
        ),
    },
}
"""The commands as `jaxd --help` lists them."""

_COMMANDS: dict[str, Command | Deferred | Forwarded] = {
    name: command for group in _GROUPS.values() for name, command in group.items()
}

_ALIASES = {"-h": "help", "--help": "help", "-V": "version", "--version": "version"}
_QUERIES = {
    *("status", "top", "dashboard", "restart", "why", "report", "functions"),
    *("values", "devices", "logs", "profile"),
}
_WITH_PROGRAM = (["warm"], ["verify"], ["trace"])
_FAILED, _NO_SERVER, _INTERRUPTED = 1, 3, 130

_DESCRIPTION = "A warm JAX, one function call away."
_EXAMPLES = """\
examples:
  jaxd run train.py     run a program as it is; a server answers its jax.jit
  jaxd doctor           check whether all is well
  jaxd status --json    what the server has compiled and answered
  jaxd why --recent     what was compiled last, and why
  jaxd report           what was saved, and what was compiled needlessly
  jaxd trace -- python train.py   where the time goes, as a trace for Perfetto
  jaxd warm warm.lock   build ahead what was recorded
  jaxd serve --help     listen elsewhere, with a token
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command (default: `sys.argv[1:]`) and returns the exit code of the process.

    Returns:
        0 done, 1 failed, 3 no server runs (`status`, `top`, `dashboard`, `restart`, `why`,
        `functions`, `values`, `devices`, `logs`, `report`, `profile`),
        130 after Ctrl-C; `warm --record`, `verify` and `trace`: that of the program that they run,
        and of `verify` 3 when it found a mismatch.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after the `--help` of a command.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return run_words(words)
        finally:
            sys.stdout.flush()  # a closed pipe shows here, and not at Python's exit
    except JaxdError as error:
        print_message(error)
        is_absent = isinstance(error, NoServer) and words[0] in _QUERIES
        return _NO_SERVER if is_absent else _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # `jaxd status | head -1`: the reader has gone, and Python would report that at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED


def run_words(words: Sequence[str]) -> int:
    """Runs one command, and returns its exit code.

    Raises:
        JaxdError: as the command.
        SystemExit: as `main`.
    """
    first = words[0] if words else "help"
    words = [_ALIASES.get(first, first), *words[1:]]
    if isinstance(command := _COMMANDS.get(words[0]), Forwarded):
        _become(command, words)
    words, program = _split_program(words)
    names = words[:1] if words[0] in _COMMANDS else [*_COMMANDS]
    arguments = _parser(names=names).parse_args(words)
    arguments.program = program
    code: int = arguments.run(arguments)
    return code


def _become(command: Forwarded, words: Sequence[str]) -> NoReturn:
    """Replaces this process by a program of the server, which the client never imports.

    Raises:
        ConfigurationError: when a server cannot run because jax is not installed here.
    """
    asks_for_help = not {"-h", "--help", "--help-all"}.isdisjoint(words)
    if not asks_for_help and (words[0] == "serve" or not hasattr(socket, "AF_UNIX")):
        require_server_extra()
    program = [sys.executable, "-P", "-m", command.module, *words[1:]]
    os.execv(sys.executable, program)  # noqa: S606  no shell is wanted


def _split_program(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The command's own words, and those behind `--`: argparse would drop a `--` among these."""
    if words[:1] == ["run"]:
        from jaxd.cli.commands import run

        own, program = run.split(words[1:])
        return ["run", *own], program
    if words[:1] not in _WITH_PROGRAM or "--" not in words:
        return words, ()
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _help_text() -> str:
    """The commands by what they are for, as wide as the terminal, 80 columns at most."""
    import shutil  # neither is needed for anything else
    import textwrap

    width = min(80, shutil.get_terminal_size().columns)
    lines = ["usage: jaxd COMMAND ...   (jaxd help COMMAND has more)", "", _DESCRIPTION]
    for title, commands in _GROUPS.items():
        lines += ["", f"{title}:"]
        for name, command in commands.items():
            head = f"  {name:<10}  "
            filled = textwrap.fill(
                _loaded(command).SUMMARY,
                max(width, 32),
                initial_indent=head,
                subsequent_indent=" " * 14,
            )
            lines.append(filled)
    return "\n".join([*lines, "", _EXAMPLES.rstrip()])


def _loaded(command: Command | Deferred | Forwarded) -> Command | Forwarded:
    return command.load() if isinstance(command, Deferred) else command


def _parser(fill: Fill = lambda *_: None, names: Iterable[str] = _COMMANDS) -> Parser:
    """The parser of some commands; `fill` adds the options of those that are forwarded."""
    parser = Parser(prog="jaxd", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("-V", "--version", action="store_true", help="as the command version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in names:
        command = _loaded(_COMMANDS[name])
        if isinstance(command, Forwarded):
            own = commands.add_parser(name, help=command.SUMMARY, add_help=False)
            fill(own, command.module)
            continue
        own = add_command(commands, name, command.SUMMARY, command.EXAMPLE)
        command.configure(own)
        own.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
