"""`jaxd restart`: replaces a server's worker without failing any call."""

from __future__ import annotations

import argparse
import sys

from jaxd.cli.query import ServerReport, add_query_options, ask_host, print_report
from jaxd.cli.terminal import duration

SUMMARY = "replace a server's worker by a fresh one; calls wait meanwhile, and none fails"
EXAMPLE = "jaxd restart --server unix:///run/jaxd/server.sock"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="also when clients have arrays on the server, which are lost then",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Returns when the new worker is ready: 0; 1 when it was not replaced.

    Raises:
        NoServer: when none runs.
        ConfigurationError: when the server is on another machine.
        ConnectionLost: when its host does not reply.
    """
    request = {"ask": "restart", "force": arguments.force}
    report = ask_host(arguments.server, request, is_slow=True)
    ready = [row for row in report.get("workers", [report]) if "refused" not in row]
    if ready or arguments.json:
        print_report(arguments, report, lambda: "\n".join(map(_ready_text, ready)))
    if "refused" in report:
        advice = "" if arguments.force else " Try again later, or: jaxd restart --force"
        print(f"jaxd: the worker was not replaced: {report['refused']}.{advice}", file=sys.stderr)
        return 1
    return 0


def _ready_text(row: ServerReport) -> str:
    whose = f" of {row['principal']}" if "principal" in row else ""
    return f"worker {row['epoch']}{whose} is ready after {duration(row['seconds'])}"
