"""`jaxd functions`, `values` and `devices`: what a server has built and holds, for whom."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jaxd.cli.query import add_query_options, ask_host, ask_server, print_report
from jaxd_protocol.base.terminal import ago, counted, duration, print_message, size, table, truncate

SUMMARY = "list what is compiled, what that cost and what it has saved"
EXAMPLE = "jaxd functions --sort saved"

_SHOWN_DIGITS: Final = 8
_FINGERPRINT_DIGITS: Final = 12

Row = Mapping[str, Any]

_SORTS: Final = {
    "calls": lambda row: -row["calls"],
    "saved": lambda row: -row["saved_s"],
    "bytes": lambda row: -_bytes(row),
    "last": lambda row: float("inf") if row["last_use_s"] is None else row["last_use_s"],
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the command."""
    parser.add_argument(
        "--sort",
        choices=tuple(_SORTS),
        default="last",
        help="most calls, most seconds saved, most bytes, or used last (default) first",
    )
    parser.add_argument(
        "--quarantined",
        action="store_true",
        help="list instead the functions in quarantine, which are refused because they ended the "
        "server's worker repeatedly",
    )
    parser.add_argument(
        "--release",
        metavar="FUNCTION",
        help="take a function out of quarantine, by its name or the first digits of its "
        "fingerprint; --release all for all of them",
    )
    add_query_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the list; starts no server.

    Returns:
        0; with `--release`, 1 when there is no such function in quarantine.

    Raises:
        NoServer: when none runs.
        JaxdError: when a server runs but does not answer.
    """
    if arguments.quarantined or arguments.release is not None:
        return _run_quarantine(arguments)
    report = ask_server(arguments.server, "functions")
    rows = sorted(report["functions"], key=_SORTS[arguments.sort])
    return print_report(
        arguments, {**report, "functions": rows}, lambda: _table_text(rows, report["totals"])
    )


def _table_text(rows: Sequence[Row], totals: Row) -> str:
    if not rows:
        return "nothing is compiled, in memory or on disk"
    head = ("key", "function", "arguments", "where", "calls", "last use", "built", "saved", "size")
    built, saved = duration(totals["build_s"]), duration(totals["saved_s"])
    return (
        f"{table([head, *map(_row_cells, rows)])}\n"
        f"{counted(len(rows), 'program')}; since the server's worker started, {built} of building "
        f"and {saved} saved"
    )


def _row_cells(row: Row) -> tuple[str, ...]:
    shared = row["shared_with"]
    return (
        row["key"][:_SHOWN_DIGITS],
        truncate(row["name"]),
        truncate(row["arguments"]),
        row["state"],
        f"{row['calls']:,}",
        ago(row["last_use_s"]),
        duration(row["build_s"]),
        duration(row["saved_s"]),
        size(_bytes(row)) + (f", shared by {shared + 1}" if shared else ""),
    )


def _bytes(row: Row) -> int:
    """What it takes where it is: in memory, or on disk."""
    if row["state"] == "disk":
        return int(row["disk_bytes"])
    return int(row["host_bytes"] + row["device_bytes"])


def _run_quarantine(arguments: argparse.Namespace) -> int:
    """Lists the functions in quarantine, or releases some of them."""
    what = arguments.release
    if what is None:
        report = ask_host(arguments.server, {"ask": "quarantined"})
        return print_report(arguments, report, lambda: _quarantine_text(report["quarantined"]))
    report = ask_host(arguments.server, {"ask": "release", "what": what})
    if report["released"] or arguments.json:
        lines = map(_release_text, report["released"])
        print_report(arguments, report, lambda: "\n".join(lines))
    if report["released"]:
        return 0
    print_message(f"nothing in quarantine is called {what}. See: jaxd functions --quarantined")
    return 1


def _release_text(row: Row) -> str:
    whose = f" of {row['principal']}" if "principal" in row else ""
    return f"released {row['name']} {row['fingerprint'][:_FINGERPRINT_DIGITS]}{whose}"


def _quarantine_text(rows: list[Mapping[str, Any]]) -> str:
    if not rows:
        return "no function is in quarantine"
    head = ["fingerprint", "function", "workers ended", "how", "last"]
    if "principal" in rows[0]:  # where each has a worker of its own
        head.append("of")
    return table([head, *map(_quarantined_cells, rows)])


def _quarantined_cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["fingerprint"][:_FINGERPRINT_DIGITS],
        row["name"],
        str(row["workers_ended"]),
        row["how"],
        ago(row["ago_s"]),
        *([row["principal"]] if "principal" in row else []),
    ]


# arrays and devices ----------------------------------------------------------------------------


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
        return print_report(arguments, report, lambda: _values_text(report))


_AFTER_A_DEATH: Final = (
    "Which of its arrays a client can make again if the worker ends: jaxd.kept() there."
)


def _values_text(report: Row) -> str:
    rows, totals = report["holders"], report["totals"]
    if not rows:
        return "no arrays stay on the server"
    limit = f" of {size(totals['limit_bytes'])}" if totals["limit_bytes"] else ""
    head = ("what", "arrays", "size", "oldest", "ends in")
    total = f"{counted(totals['values'], 'array')}, {size(totals['bytes'])}{limit}"
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
    if kept["limit_seconds"] is not None:
        ran, most = duration(kept["call_seconds"]), duration(kept["limit_seconds"])
        first += f"; calls that ran for {ran}, of {most}"
    stopped = [f"  no more snapshots: {kept['stopped']}"] if kept["stopped"] else []
    lost = kept["lost_with_worker"].items()
    return [first, *stopped, *(f"  cannot make again {size(n)}: {why}" for why, n in lost)]


def _holder_cells(row: Row) -> tuple[str, ...]:
    return (
        truncate(row["what"]),
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
        truncate(row["kind"]),
        size(row["bytes_in_use"]),
        size(row["bytes_limit"]),
        str(row["sessions"]),
    )
