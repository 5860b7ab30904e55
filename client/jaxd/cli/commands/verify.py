"""`jaxd verify`: runs a program, and compares each program that answers with its own jax's."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

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
    from jaxd.tracing.verification import REPORT_VARIABLE

    with tempfile.TemporaryDirectory(prefix="jaxd-verify-") as folder:
        report = Path(folder) / "report"
        variables = {"JAXD_VERIFY": "1", REPORT_VARIABLE: str(report)}
        code = run_program(arguments.program, arguments.server, EXAMPLE, **variables)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    found: list[Mapping[str, str]] = [json.loads(line) for line in lines]
    summary = summary_of(found)
    if arguments.json:
        print_json(summary)
    else:
        print(f"jaxd: {described(summary)}", file=sys.stderr, flush=True)
    return MISMATCH if summary["mismatches"] else code


def summary_of(found: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """How many comparisons ended how, and why some could not be made."""
    outcomes = Counter(each["outcome"] for each in found)
    reasons = Counter(each["reason"] for each in found if each["outcome"] == "incomparable")
    stale = [dict(each) for each in found if each["outcome"] == "stale"]
    return {
        "verified": outcomes["verified"],
        "mismatches": outcomes["stale"],
        "not_comparable": outcomes["incomparable"],
        "reasons": dict(reasons.most_common()),
        "stale": [{"function": each["function"], "difference": each["reason"]} for each in stale],
    }


def described(summary: Mapping[str, Any]) -> str:
    """The summary in a line, and one more for each reason and each mismatch."""
    counts = [summary[name] for name in ("verified", "mismatches", "not_comparable")]
    if not any(counts):
        return "nothing was compared: no function of this program was answered by a server"
    text = "{} verified, {} mismatches, {} not comparable".format(*counts)
    lines = [f"  not comparable, {count}: {why}" for why, count in summary["reasons"].items()]
    lines += [f"  {each['function']}: {each['difference']}" for each in summary["stale"]]
    return "\n".join([text, *lines])
