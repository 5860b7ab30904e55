"""Terminal output of the commands of both ends: usage errors, durations, counts, sizes, tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

DESCRIBE: Final = "--describe-options"
"""Has a command print as JSON what `Parser.described` returns: for completion, not for people."""


class Parser(argparse.ArgumentParser):
    """Its usage errors name what was probably meant, and where there is help.

    Each is that of the command whose words they are: argparse leaves the unknown words of a command
    to the parser above it.
    """

    def error(self, message: str) -> NoReturn:
        """Prints the message and where there is help, and exits with 2."""
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"jaxd: {message}{stop} See: {self.prog} --help\n")

    def described(self) -> dict[str, Any]:
        """Its options and commands as plain values, from which a parser like it can be made."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        listed = [action for action in shown if not isinstance(action.choices, dict)]
        options = [(action.option_strings or [action.dest], _keywords(action)) for action in listed]
        commands = {name: own.described() for name, own in self.commands.items()}
        return {"help": self.description, "arguments": options, "commands": commands}

    @property
    def commands(self) -> dict[str, Parser]:
        """The parsers of its commands, by their names."""
        groups = self._subparsers._group_actions if self._subparsers else []  # noqa: SLF001
        return dict(groups[0].choices or {}) if groups else {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As that of argparse, but nothing is left over: an unknown word is an error."""
        words = list(sys.argv[1:] if args is None else args)
        if words == [DESCRIBE]:
            sys.stdout.write(json.dumps(self.described()))
            self.exit()
        self._check_options(words)
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unexpected argument {unknown[0]!r}")
        return found, unknown

    def _check_options(self, words: Iterable[str]) -> None:
        """Before argparse misses an argument, which an option that is misspelt would have given."""
        for word in words:
            name = word.partition("=")[0]
            if word == "--" or (self._subparsers and not word.startswith("-")):
                return
            is_option = name.startswith("-" if self._subparsers else "--")
            if is_option and name not in self._option_string_actions:
                where = ". Options of a command stand behind it" if self._subparsers else ""
                near = suggestion(name, self._option_string_actions)
                self.error(f"there is no option {name}{near or where}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """In the place of argparse's own, which lists all commands in an order of no meaning."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = suggestion(str(value), known)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  it has no other name
            raise argparse.ArgumentError(None, f"there is no command {str(value)!r}{near}")
        listed = ", ".join(known)
        raise argparse.ArgumentError(action, f"{str(value)!r} is none of: {listed}{near}")


def _keywords(action: argparse.Action) -> dict[str, Any]:
    """What `add_argument` needs for an argument that takes the same words."""
    choices = [str(choice) for choice in action.choices] if action.choices else None
    told = {"metavar": action.metavar, "nargs": action.nargs, "choices": choices}
    return {"help": action.help, **({"action": "store_true"} if action.nargs == 0 else told)}


def suggestion(word: str, known: Iterable[str]) -> str:
    """``. Did you mean 'status'?``; empty where nothing is near."""
    import difflib  # only for errors

    near = difflib.get_close_matches(word, list(known), 1)
    return f". Did you mean {near[0]!r}?" if near else ""


def duration(seconds: float) -> str:
    """``0.25 s``, ``8.2 s``, ``78 s``, ``3 min``."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    digits = 0 if seconds >= 10 else 1 if seconds >= 1 else 2
    return f"{seconds:.{digits}f} s"


def ago(seconds: float | None) -> str:
    """``3 min ago``; None is never."""
    return "never" if seconds is None else f"{duration(seconds)} ago"


def counted(count: int, noun: str) -> str:
    """``1 program``, ``1,200 programs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def print_message(text: object) -> None:
    """Writes to stderr what is no output of a command: an error, or what it waits for."""
    sys.stderr.write(f"jaxd: {text}\n")
    sys.stderr.flush()


def truncate(text: str, width: int = 40) -> str:
    """The text as one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def printable(text: str, most: int) -> str:
    """The first `most` letters of a text, without what a terminal would obey."""
    text = text[:most]
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else "?" for each in text)


def size(count: float) -> str:
    """Bytes: ``1.46 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def one_word(value: Any) -> str:
    """A JSON value as one word for people: quoted if it has a space or a line end."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    is_word = value.isprintable() and not set(value) & {" ", '"', "="}
    return value if value and is_word else json.dumps(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they have to be; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
