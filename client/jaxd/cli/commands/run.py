"""`jaxd run` and `jaxd env`: programs whose `jax.jit` is served, without a changed line in them.

And `jaxd verify`, which compares what answers such and other programs.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from typing import Final, NoReturn

from jaxd.api.launch import ENABLED, Says, paths_without_hook, variables
from jaxd.cli.query import add_query_options, add_server_option, print_json
from jaxd.connection.settings import Settings
from jaxd_protocol.base.terminal import print_message

SUMMARY = "run a Python program; a server answers what it gives to jax.jit"
EXAMPLE = "jaxd run train.py --steps 100"

_MORE: Final = """
more:
  jaxd run -m pytest tests                        as: python -m pytest tests
  jaxd run -m pdb train.py                        a debugger
  jaxd run --report -W error train.py             Python's options; what ran
  jaxd run --server ssh://gpu-host train.py       on another machine's server
"""

_WITH_VALUE: Final = ("-X", "-W", "--check-hash-based-pycs")
MISMATCH: Final = 3
"""The exit code of `jaxd verify` where a program was another one than it should be."""

_OUT_OF_REACH: Final = frozenset("IES")
"""Options with which Python looks neither at PYTHONPATH nor for a `sitecustomize`."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.usage = "jaxd run [--server ADDRESS] [--report] PYTHON-ARGUMENTS ..."
    parser.description = f"{parser.description}\n\n" + textwrap.fill(
        "It is `python PYTHON-ARGUMENTS`: a script, `-m module`, `-c code` or `-`, with its own "
        "arguments. What the program and its libraries give to jax.jit is answered by a server, "
        "where it stays compiled; what a server cannot answer runs under plain jax.jit. "
        "Everything else is as with python: exit code, signals, tracebacks, child processes. "
        "See docs/run.md.",
        78,
    )
    parser.epilog = f"example: {EXAMPLE}\n{_MORE}"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_server_option(parser)
    parser.add_argument(
        "--report", action="store_true", help="at the end say what ran in the program, and why"
    )
    parser.add_argument(
        "program", nargs="*", metavar="PYTHON-ARGUMENTS", help="as python takes them"
    )


def split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The command's own words, and those of Python: from the first that is none of its options."""
    at = 0
    while at < len(words) and words[at].startswith("--") and words[at] not in _WITH_VALUE:
        if words[at] == "--":
            return words[:at], words[at + 1 :]
        at += 2 if words[at] == "--server" else 1
    if at < len(words) and words[at] == "-h":
        at += 1
    return words[:at], words[at:]


def run(arguments: argparse.Namespace) -> int:
    """Becomes that program; 2 where there is none, as Python.

    Raises:
        ConfigurationError: when an address cannot be read.
        NoServer, AuthenticationFailed, VersionMismatch: when the server that is named does not
            answer.
    """
    words = arguments.program
    wrong = _wrong_program(words)
    if wrong:
        print_message(wrong)
        return 2
    settings = Settings.resolve(server=arguments.server)
    if settings.server is not None and not settings.inline:
        from jaxd.api.client import connect  # else the program is begun at once

        with connect(settings.server) as client:  # here its errors are not the program's
            client.caller.session.current()
    return _become(words, arguments.server, "report" if arguments.report else "line")


def _become(words: Sequence[str], server: str | None, says: Says) -> NoReturn:
    environment = {**os.environ, **variables(os.environ, server, says)}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *words], environment)  # noqa: S606  no shell is wanted


def _wrong_program(words: Sequence[str]) -> str:
    """Why Python would not run it; empty where it would."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        if word.startswith(("-m", "-c")):
            return ""
        if not word.startswith("--") and not _OUT_OF_REACH.isdisjoint(word.partition("X")[0]):
            return (
                f"with {word} Python does not look at PYTHONPATH, by which jaxd reaches the "
                "program. Leave it out; or call jaxd.install() in the program's first line."
            )
        at += 2 if word in _WITH_VALUE else 1
    if at == len(words):
        return f"there is no program to run. Write one, such as: {EXAMPLE}"
    if words[at] != "-" and not os.path.exists(words[at]):
        return (
            f"there is no file {words[at]!r}. Options of jaxd come before the program, and those "
            "of the program behind it."
        )
    return ""


class Env:
    """`jaxd env`: the same for programs that others start."""

    SUMMARY = "print shell variables that make every `python` a `jaxd run`"
    EXAMPLE = 'eval "$(jaxd env)"; make experiments; eval "$(jaxd env --off)"'

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        add_server_option(parser)
        parser.add_argument("--off", action="store_true", help="print the lines that undo it")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints them for a POSIX shell.

        Raises:
            ConfigurationError: when an address cannot be read.
        """
        if arguments.off:
            left = os.pathsep.join(paths_without_hook(os.environ.get("PYTHONPATH", "")))
            print(f"unset {ENABLED}")
            print(f"export PYTHONPATH={shlex.quote(left)}" if left else "unset PYTHONPATH")
            return 0
        Settings.resolve(server=arguments.server)
        for name, value in variables(os.environ, arguments.server).items():
            print(f"export {name}={shlex.quote(value)}")
        return 0


class Verify:
    """`jaxd verify`: compares each program that answers one with its own jax's."""

    SUMMARY = "run a program; compare what answers it with what jax makes here"
    EXAMPLE = "jaxd verify -- python train.py"

    @staticmethod
    def configure(parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        parser.usage = "jaxd verify [--server ADDRESS] [--json] -- COMMAND ..."
        parser.description = (
            f"{parser.description}\nCOMMAND, such as `python train.py` or `python -m train`, runs "
            "with JAXD_VERIFY=1: its functions are traced once more in its own processes, which "
            "need jax in the server's version, and a program that differs raises "
            "StaleProgramError there. Ends with the exit code of COMMAND, or "
            f"{MISMATCH} when programs differed. See docs/verify.md."
        )
        add_query_options(parser)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Runs the program, then prints what was compared.

        Returns:
            The exit code of the program; 3 when there were mismatches.

        Raises:
            ConfigurationError: when there is no program, or it cannot be started.
            NoServer: when `JAXD_INLINE=1` rules a server out.
        """
        from jaxd.api.launch.summary import VerificationReport, described
        from jaxd.cli.child_program import checked_program, run_program

        program = checked_program(arguments, Verify.EXAMPLE, "compared")
        report = VerificationReport()
        code = run_program(program, arguments.server, Verify.EXAMPLE, **report.variables)
        summary = report.summary()
        if arguments.json:
            print_json(summary)
        else:
            print_message(described(summary))
        return MISMATCH if summary["mismatches"] else code
