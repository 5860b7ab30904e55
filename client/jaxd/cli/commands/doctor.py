"""`jaxd doctor`: checks for the usual problems and says how to fix each."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxd.cli.query import add_json_option, add_server_option, print_json
from jaxd.connection.settings import Settings

if TYPE_CHECKING:
    from jaxd.cli.doctor.context import Check


SUMMARY = "look for the usual causes of trouble"
EXAMPLE = "jaxd doctor --server tls://gpu-host:18861#sha256=…"

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_server_option(parser)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found; 0 when nothing is bad, 1 when something is. Starts no server."""
    # Slow to import, and the other commands do not need them.
    from jaxd.cli.doctor import checks as every
    from jaxd.cli.doctor.context import DoctorContext

    checks = every.examine(DoctorContext(Settings.resolve(server=arguments.server)))
    bad = [check for check in checks if check.state == "bad"]
    if arguments.json:
        print_json({"healthy": not bad, "checks": [asdict(check) for check in checks]})
    else:
        print("\n".join(_line(check) for check in checks))
    return 1 if bad else 0


def _line(check: Check) -> str:
    line = f"{_MARKS[check.state]} {check.name:<18} {check.found}"
    return f"{line}\n{'':<24}{check.advice}" if check.advice else line
