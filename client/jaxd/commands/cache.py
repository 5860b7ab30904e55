"""`jaxd cache`: the programs that are kept on disk."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.commands.asking import add_json_option, add_server_option, ask, print_json
from jaxd_protocol.errors import ConfigurationError, JaxdError, NoServer
from jaxd_protocol.terminal import Parser

__all__ = ["SUMMARY", "run"]

SUMMARY = "look at the programs that are kept on disk; check or remove them"

COMMAND: Final = (sys.executable, "-P", "-m", "jaxd_server.cache_command")

_SAMPLE: Final = 3


def run(words: Sequence[str]) -> int:
    """Hands the words to the command that knows the folder; returns its exit code.

    `verify` asks a running server besides to build some programs anew and to compare.

    When none can, the files are still checked, and it is said why nothing was built.
    """
    if words[:1] != ["verify"]:
        os.execv(COMMAND[0], [*COMMAND, *words])  # noqa: S606  no shell is wanted
    return _verify(words[1:])


def _verify(words: Sequence[str]) -> int:
    """0 when all is as it was written and built; 1 when something is not, or no server tells."""
    own = _parser().parse_args(words)
    folder = [] if own.cache_dir is None else ["--cache-dir", own.cache_dir]
    done = subprocess.run(  # noqa: S603  our own command, without a shell
        [*COMMAND, "verify", *folder, *(["--json"] if own.json else [])],
        stdout=subprocess.PIPE if own.json else None,
        text=True,
        check=False,
    )
    if done.returncode > 1:
        return done.returncode
    answer, error = _ask(own) if own.sample else (None, None)
    if own.json:
        why = {"programs_error": str(error)} if error else {}
        print_json({**json.loads(done.stdout or "{}"), "programs": answer, **why})
    elif answer is not None:
        print(_text(answer))
    if error:
        print(f"jaxd: no program was built anew: {error}", file=sys.stderr)
    is_wrong = bool(done.returncode or (answer and answer["different"]))
    return 1 if is_wrong or (error and not _is_usual(error, own)) else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="jaxd cache verify",
        description="Read each byte that is kept, and remove what is broken. Then have the server "
        "compile some programs anew and compare their results, bit by bit. Exits with 1 when "
        "anything was broken or different.",
        allow_abbrev=False,
    )
    parser.add_argument("--cache-dir", metavar="PATH", help="another folder than the usual one")
    add_server_option(parser)
    parser.add_argument(
        "--sample",
        type=int,
        default=_SAMPLE,
        metavar="N",
        help=f"how many programs to compile anew; 0 asks no server (default: {_SAMPLE})",
    )
    add_json_option(parser)
    return parser


def _ask(own: argparse.Namespace) -> tuple[Mapping[str, Any] | None, JaxdError | None]:
    """What a server finds that builds some programs anew, or why none does."""
    try:
        return ask(own.server, "verify", own.sample), None
    except JaxdError as error:
        return None, error


def _is_usual(error: JaxdError, own: argparse.Namespace) -> bool:
    """Whether nobody expected more: no server runs, or the one that does keeps nothing on disk."""
    return own.server is None and isinstance(error, NoServer | ConfigurationError)


def _text(answer: Mapping[str, Any]) -> str:
    lines = [f"not the same when built anew: {each}" for each in answer["different"]]
    count = f"{answer['checked']} programs built anew, {answer['same']} of them the same"
    skipped = len(answer["skipped"])
    return "\n".join([*lines, f"{count}, {skipped} skipped" if skipped else count])
