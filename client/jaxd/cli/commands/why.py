"""`jaxd why`: what a server would do with a call of a function, or did last, and why."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from jaxd.api.decorator import persistent_call
from jaxd.api.function import PersistentFunction
from jaxd.api.method import PersistentMethod
from jaxd.cli.query import (
    add_json_option,
    add_server_option,
    ask_server,
    print_json,
    report_no_server,
)
from jaxd_protocol.errors import ConfigurationError, NoServer

SUMMARY = "say whether a function is compiled, what was compiled last, and why"
EXAMPLE = "jaxd why train:train_step; jaxd why --recent 5 --json"

_DEFAULT_RECENT: Final = 20
_OUTCOME_WORDS: Final = {"compile": "compiled", "load": "loaded"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "function",
        nargs="?",
        metavar="MODULE:FUNCTION",
        help="a persistent or plain function; its module is imported, here from this folder",
    )
    asked.add_argument(
        "--recent",
        nargs="?",
        metavar="N",
        type=_parse_count,
        const=_DEFAULT_RECENT,
        help=f"the last N programs made (default: {_DEFAULT_RECENT}), each with the reason",
    )
    add_server_option(parser)
    add_json_option(parser)


def _parse_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer: 0 when a server gave it, 3 when none runs. Starts no server.

    Raises:
        ConfigurationError: when the function cannot be found.
        JaxdError: when a server runs but does not answer.
    """
    try:
        if arguments.function is None:
            _print_recent(arguments)
        else:
            _print_function(arguments)
    except NoServer as error:
        return report_no_server(error)
    return 0


# the last builds --------------------------------------------------------------------------------


def _print_recent(arguments: argparse.Namespace) -> None:
    report = ask_server(arguments.server, "recent", arguments.recent)
    if arguments.json:
        print_json(report)
    elif not report["decisions"]:
        print("nothing was compiled since the server's worker started")
    else:
        print("\n".join(map(_build_text, report["decisions"])))


def _build_text(decision: Mapping[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(decision["time"]))
    verb = _OUTCOME_WORDS.get(decision["verdict"], decision["verdict"])
    return (
        f"{at}  {decision['function']}  {verb} in {decision['seconds']:.1f} s: {decision['reason']}"
    )


# one function -----------------------------------------------------------------------------------


def _print_function(arguments: argparse.Namespace) -> None:
    with _with_server(arguments.server):
        why = _as_persistent(_find_function(arguments.function), arguments.function).why()
    if arguments.json:
        print_json(why.to_dict())
    else:
        print(why)


@contextmanager
def _with_server(server: str | None) -> Iterator[None]:
    """`--server` for functions that name no server themselves."""
    before = os.environ.get("JAXD_SERVER")
    if server is not None:
        os.environ["JAXD_SERVER"] = server
    try:
        yield
    finally:
        if server is not None:
            os.environ.pop("JAXD_SERVER")
            if before is not None:
                os.environ["JAXD_SERVER"] = before


def _find_function(target: str) -> Any:
    module, colon, names = target.partition(":")
    if not (colon and module and names) or module.endswith(".py"):
        raise ConfigurationError(
            f"{target!r} does not name a function. Write MODULE:FUNCTION, such as train:train_step "
            "for the function train_step in train.py."
        )
    found = _import(module)
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise ConfigurationError(
                f"{module} has no {names!r}. Name a function or method that is there once the "
                "module is imported."
            ) from error
    return found


def _import(module: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as `python -m` does
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _not_importable(module, error) from error
        raise ConfigurationError(
            f"there is no module {module!r}. Run this in the folder where it is, or install it."
        ) from error
    except Exception as error:
        raise _not_importable(module, error) from error


def _not_importable(module: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"importing {module} raised {type(error).__name__}: {error}. See the whole of it: "
        f"python -c 'import {module}'"
    )


def _as_persistent(found: Any, target: str) -> PersistentFunction[..., Any]:
    if isinstance(found, PersistentMethod):
        found = found.func
    if isinstance(found, PersistentFunction):
        return found
    if not callable(found):
        raise ConfigurationError(
            f"{target} is a {type(found).__name__} and no function. Name a function."
        )
    made: PersistentFunction[..., Any] = persistent_call(found)
    return made
