"""`jaxd verify`: runs a program, and compares each program that answers with its own jax's."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from jaxd.api.launch.summary import VerificationReport, described
from jaxd.cli.child_program import run_program
from jaxd.cli.query import add_query_options, print_json
from jaxd.connection.settings import Settings
from jaxd_protocol.errors import ConfigurationError, NoServer

SUMMARY = "run a program, and compare each program that answers it with what its own jax makes"
EXAMPLE = "jaxd verify -- python train.py"

MISMATCH: Final = 3
"""The exit code where a program was another one than it should be."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.usage = "jaxd verify [--server ADDRESS] [--json] -- COMMAND ..."
    parser.description = (
        "Runs COMMAND, such as `python train.py` or `python -m train`, with JAXD_VERIFY=1: its "
        "functions are traced once more in its own processes, which need jax in the server's "
        "version, and a program that differs raises StaleProgramError there. Ends with the exit "
        f"code of COMMAND, or {MISMATCH} when programs differed. See docs/verify.md."
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the program, then prints what was compared.

    Returns:
        The exit code of the program; 3 when there were mismatches.

    Raises:
        ConfigurationError: when there is no program, or it cannot be started.
        NoServer: when `JAXD_INLINE=1` rules a server out.
    """
    if not arguments.program:
        raise ConfigurationError(f"there is no program to run. Write it behind --: {EXAMPLE}")
    if Settings.resolve(server=arguments.server).inline:
        raise NoServer(
            "JAXD_INLINE=1 means that no server is used, so there is nothing to be compared. Unset "
            "JAXD_INLINE."
        )
    report = VerificationReport()
    code = run_program(arguments.program, arguments.server, EXAMPLE, **report.variables)
    summary = report.summary()
    if arguments.json:
        print_json(summary)
    else:
        print(f"jaxd: {described(summary)}", file=sys.stderr, flush=True)
    return MISMATCH if summary["mismatches"] else code
