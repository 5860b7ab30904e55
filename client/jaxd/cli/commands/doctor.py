"""`jaxd doctor`: checks for the usual problems and shows how to fix each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from jaxd.cli.query import add_query_options, print_json
from jaxd.connection.settings import Settings

if TYPE_CHECKING:
    from jaxd.cli.doctor.context import Check, DoctorContext

SUMMARY = "look for the usual causes of trouble"
EXAMPLE = "jaxd doctor --server tls://gpu-host:18861#sha256=…"

_MARKS = {"ok": "ok  ", "note": "note", "bad": "BAD "}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints what was found; 0 when nothing is bad, 1 when something is. Starts no server."""
    from jaxd.cli.doctor.context import DoctorContext

    checks = examine(DoctorContext(Settings.resolve(server=arguments.server)))
    bad = [check for check in checks if check.state == "bad"]
    if arguments.json:
        print_json({"healthy": not bad, "checks": [asdict(check) for check in checks]})
    else:
        print("\n".join(_line(check) for check in checks))
    return 1 if bad else 0


def all_checks(context: DoctorContext) -> Iterable[Callable[[DoctorContext], Check | None]]:
    """The checks in the order in which one thing depends on another."""
    # Slow to import, and the other commands do not need them.
    from jaxd.cli.doctor import connection, gpu, installation

    of_gpu = (
        gpu.driver,
        gpu.plugin,
        gpu.jax_sees_gpu,
        gpu.other_processes,
        gpu.preallocation,
        gpu.shared_memory,
    )
    return (
        installation.python,
        installation.packages,
        installation.server_extra,
        installation.configuration,
        installation.runtime_directory,
        installation.disk,
        installation.shared_memory_files,
        installation.token,
        installation.store,
        *(of_gpu if gpu.has_gpu(context) else ()),
        connection.local_server,
    )


def examine(context: DoctorContext) -> list[Check]:
    """The results of all checks that apply, and of the steps towards the server."""
    from jaxd.cli.doctor.connection import steps

    found = [check(context) for check in all_checks(context)]
    return [each for each in found if each is not None] + steps(context)


def _line(check: Check) -> str:
    line = f"{_MARKS[check.state]} {check.name:<18} {check.found}"
    return f"{line}\n{'':<24}{check.advice}" if check.advice else line
