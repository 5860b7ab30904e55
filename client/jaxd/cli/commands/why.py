"""`jaxd why`: what a server would do with a call of a function, or did last, and why."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from jaxd.api.decorator import persistent_call
from jaxd.api.function import PersistentFunction
from jaxd.api.method import PersistentMethod
from jaxd.cli.query import (
    OUTCOME_WORDS,
    ServerReport,
    add_query_options,
    ask_server,
    positive_int,
    print_report,
)
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jax_objects.names import kind_of

SUMMARY = "show whether a function is compiled, what was last, and why"
EXAMPLE = "jaxd why train:train_step; jaxd why --recent 5 --json"

_DEFAULT_RECENT: Final = 20


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
        type=positive_int,
        const=_DEFAULT_RECENT,
        help=f"the last N programs made (default: {_DEFAULT_RECENT}), each with the reason",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the answer; starts no server.

    Raises:
        ConfigurationError: when the function cannot be found.
        NoServer: when none runs.
        JaxdError: when a server runs but does not answer.
    """
    if arguments.function is None:
        report = ask_server(arguments.server, "recent", arguments.recent)
        return print_report(arguments, report, lambda: _recent_text(report))
    if arguments.server is not None:
        os.environ["JAXD_SERVER"] = arguments.server  # for functions that name no server themselves
    why = _as_persistent(_find_function(arguments.function), arguments.function).why()
    return print_report(arguments, why.to_dict(), lambda: str(why))


# the last builds --------------------------------------------------------------------------------


def _recent_text(report: ServerReport) -> str:
    lines = map(_build_text, report["decisions"])
    return "\n".join(lines) or "nothing was compiled since the server's worker started"


def _build_text(decision: Mapping[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(decision["time"]))
    verb = OUTCOME_WORDS.get(decision["verdict"], decision["verdict"])
    return (
        f"{at}  {decision['function']}  {verb} in {decision['seconds']:.1f} s: {decision['reason']}"
    )


# one function -----------------------------------------------------------------------------------


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
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module}.".startswith(f"{missing}."):
            raise ConfigurationError(
                f"there is no module {module!r}. Run this in the folder where it is, or install it."
            ) from error
        raise ConfigurationError(
            f"importing {module} raised {type(error).__name__}: {error}. See the whole of it: "
            f"python -c 'import {module}'"
        ) from error


def _as_persistent(found: Any, target: str) -> PersistentFunction[..., Any]:
    if isinstance(found, PersistentMethod):
        found = found.func
    if isinstance(found, PersistentFunction):
        return found
    if not callable(found):
        raise ConfigurationError(
            f"{target} is a {type(found).__name__} and no function. Name a function."
        )
    if kind_of(found) == "jit":
        raise ConfigurationError(
            f"{target} is made by jax.jit, and `jaxd run` serves it with options of its own. Ask "
            "what was compiled last, and why: jaxd why --recent"
        )
    made: PersistentFunction[..., Any] = persistent_call(found)
    return made
