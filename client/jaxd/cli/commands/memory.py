"""`jaxd values` and `jaxd devices`: who holds memory on a server, and on which devices."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any, Final

from jaxd.cli.query import add_query_options, ask_server, print_report
from jaxd_protocol.base.terminal import ago, duration, size, table, truncate

_MAX_WIDTH: Final = 40

Row = Mapping[str, Any]


class Values:
    """`jaxd values`: lists the arrays that stay on a server, and the memory they take."""

    SUMMARY = "list the arrays that stay on the server, and who holds them"
    EXAMPLE = "jaxd values --json"

    configure = staticmethod(add_query_options)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints the list; starts no server.

        Raises:
            NoServer: when none runs.
            JaxdError: when a server runs but does not answer.
        """
        report = ask_server(arguments.server, "values")
        return print_report(arguments, report, lambda: _table_text(report))


_AFTER_A_DEATH: Final = (
    "Which of its arrays a client can make again if the worker ends: jaxd.kept() there."
)


def _table_text(report: Row) -> str:
    rows, totals = report["holders"], report["totals"]
    if not rows:
        return "no arrays stay on the server"
    count = "1 array" if totals["values"] == 1 else f"{totals['values']:,} arrays"
    limit = f" of {size(totals['limit_bytes'])}" if totals["limit_bytes"] else ""
    head = ("what", "arrays", "size", "oldest", "ends in")
    total = f"{count}, {size(totals['bytes'])}{limit}"
    kept = [line for each in report.get("kept", ()) for line in _kept_lines(each)]
    return "\n".join([table([head, *map(_holder_cells, rows)]), total, *(kept or [_AFTER_A_DEATH])])


def _kept_lines(kept: Row) -> list[str]:
    """What a process keeps to make its arrays again, and what it could not make."""
    name = f"process {kept['process']}" if kept["process"] else "a process"
    first = f"{name} keeps {size(kept['snapshot_bytes'])} in snapshots"
    if kept["snapshot_age_s"] is not None:
        age_s = max(0.0, time.time() - kept["at"]) + kept["snapshot_age_s"]
        first += f", the last one {ago(age_s)}, which took {duration(kept['snapshot_seconds'])}"
    first += f"; {size(kept['call_bytes'])} of calls, of {size(kept['limit_bytes'])} in all"
    stopped = [f"  no more snapshots: {kept['stopped']}"] if kept["stopped"] else []
    lost = kept["lost_with_worker"].items()
    return [first, *stopped, *(f"  cannot make again {size(n)}: {why}" for why, n in lost)]


def _holder_cells(row: Row) -> tuple[str, ...]:
    return (
        truncate(row["what"], _MAX_WIDTH),
        "" if row["values"] is None else f"{row['values']:,}",
        size(row["bytes"]),
        "" if row["age_s"] is None else ago(row["age_s"]),
        _expiry_text(row),
    )


def _expiry_text(row: Row) -> str:
    """When it goes: a name with its time, the rest with the process that holds it."""
    if row["ttl_s"] is not None:
        return duration(max(0.0, float(row["ttl_s"])))
    return "never" if row["name"] is not None else ""


class Devices:
    """`jaxd devices`: what a server computes on."""

    SUMMARY = "list the devices of the server, their memory and their clients"
    EXAMPLE = "jaxd devices --json"

    configure = staticmethod(add_query_options)

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        """Prints the list; starts no server.

        Raises:
            NoServer: when none runs.
            JaxdError: when a server runs but does not answer.
        """
        report = ask_server(arguments.server, "devices")
        rows = list(map(_without_own_session, report["devices"]))
        head = ("index", "kind", "memory in use", "of", "sessions")
        return print_report(
            arguments, {**report, "devices": rows}, lambda: table([head, *map(_device_cells, rows)])
        )


def _without_own_session(row: Row) -> Row:
    """A device without the session of this command, which is a client as well."""
    others = {name: value for name, value in row.items() if name != "is_yours"}
    return {**others, "sessions": row["sessions"] - row["is_yours"]}


def _device_cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["index"]),
        truncate(row["kind"], _MAX_WIDTH),
        size(row["bytes_in_use"]),
        size(row["bytes_limit"]),
        str(row["sessions"]),
    )
