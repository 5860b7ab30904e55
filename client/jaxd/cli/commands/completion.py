"""`jaxd completion`: what bash, zsh and fish complete, made from the parsers of all commands."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from jaxd_protocol.base.terminal import DESCRIBE, Parser
from jaxd_protocol.errors import ConfigurationError

Fill = Callable[[Parser, str], None]
"""Gives a parser the options of a module of the server package."""

_SHELLS: Final = ("bash", "zsh", "fish")
_FILE_NAMES: Final = ("FILE", "PATH", "PYTHON-ARGUMENTS")
"""What stands for a file in help."""


class Completion:
    """The command.

    Args:
        parser: makes that of `jaxd`.
    """

    SUMMARY = "print a script for completion in bash, zsh or fish"
    EXAMPLE = "jaxd completion fish > ~/.config/fish/completions/jaxd.fish"

    def __init__(self, parser: Callable[[Fill], Parser]) -> None:
        self._parser = parser

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options of the command."""
        parser.add_argument("shell", choices=_SHELLS, help="see docs/configuration.md for each")

    def run(self, arguments: argparse.Namespace) -> int:
        """Prints the script; 0.

        Raises:
            ConfigurationError: when the package that writes it is not installed.
        """
        try:
            import shtab
        except ImportError as error:
            raise ConfigurationError(
                "the package shtab, which writes the script, is not installed. "
                "Run: pip install 'jaxd[completion]'"
            ) from error
        parser = self._parser(_fill)
        _mark_files(parser, shtab.FILE)
        parser.commands["help"]._actions[-1].choices = [*parser.commands]  # noqa: SLF001
        print(shtab.complete(parser, arguments.shell))
        return 0


def _fill(parser: Parser, module: str) -> None:
    command = [sys.executable, "-P", "-m", module, DESCRIBE]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603  our own program
    _add(parser, json.loads(done.stdout))


def _add(parser: Parser, described: Mapping[str, Any]) -> None:
    """Adds the options and commands that `Parser.described` tells of."""
    for names, keywords in described["arguments"]:
        parser.add_argument(*names, **keywords)
    if described["commands"]:
        commands = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
        for name, own in described["commands"].items():
            _add(commands.add_parser(name, help=own["help"], add_help=False), own)


def _mark_files(parser: Parser, how: object) -> None:
    """Has files completed where the help has the name of one, also for its commands."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
        if action.metavar in _FILE_NAMES:
            action.complete = how  # type: ignore[attr-defined]  # shtab looks there
    for own in parser.commands.values():
        _mark_files(own, how)
