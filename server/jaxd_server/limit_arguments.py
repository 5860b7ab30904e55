"""The arguments of `jaxd serve` that say how much: of devices, calls, programs and data."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from jaxd_server.argument_values import (
    parse_count,
    parse_gpus,
    parse_seconds,
    parse_share,
    parse_size,
)

__all__ = ["add_limit_arguments"]


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Which devices there are to be, and how much is held and done at a time."""
    _add_devices(parser.add_argument_group("which devices, and how much of them"))
    _add_limits(parser.add_argument_group("how much"))
    _add_program_limits(parser.add_argument_group("how many programs stay in memory"))
    _add_value_limits(parser.add_argument_group("how much data stays"))


def _add_devices(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--devices",
        type=parse_gpus,
        metavar="LIST",
        help="GPUs to use, by the numbers or UUIDs that `nvidia-smi -L` shows, such as 0,1 "
        "(default: all)",
    )
    group.add_argument(
        "--devices-per-session",
        type=parse_count,
        metavar="N",
        help="how many devices a client process has for itself, as far as there are enough; its "
        "calls run on the first of them (default: 1)",
    )
    group.add_argument(
        "--device-memory-fraction",
        type=parse_share,
        metavar="SHARE",
        help="of each GPU's memory, for arrays and programs (default: 0.75)",
    )
    group.add_argument(
        "--preallocate",
        action=argparse.BooleanOptionalAction,
        help="take that memory at the start, or as it is needed (default: at the start)",
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], Any], metavar: str, text: str) -> None:
        group.add_argument(name, type=kind, metavar=metavar, help=text)

    def add_size(name: str, text: str) -> None:
        add(name, parse_size, "SIZE", text)

    add_size("--max-frame-bytes", "largest message received, such as 512M (default: 8G)")
    add_size("--max-result-bytes", "largest result sent (default: 8G)")
    add_size("--budget-bytes", "messages in memory (default: a quarter of the memory)")
    add_size("--disk-bytes", "kept in the cache folder (default: 10G)")
    add_size(
        "--principal-disk-bytes",
        "of that, of what one client's user has had made; its own goes first (default: all of it)",
    )
    add("--max-calls", parse_count, "N", "calls held that have to wait (default: 1000)")
    add(
        "--call-share",
        parse_share,
        "SHARE",
        "of these, and of --budget-bytes while others are connected, for one client's user "
        "(default: 0.5)",
    )
    add("--max-connections", parse_count, "N", "clients at the same time (default: 4000)")
    add("--slots", parse_count, "N", "calls in flight on one connection (default: 32)")
    add("--threads", parse_count, "N", "calls that run at the same time (default: 8)")
    add("--builds", parse_count, "N", "compilations at the same time (default: half of the cores)")


def _add_program_limits(group: argparse._ArgumentGroup) -> None:
    def add(name: str, kind: Callable[[str], Any], metavar: str, text: str) -> None:
        group.add_argument(name, type=kind, metavar=metavar, help=text)

    add("--max-executables", parse_count, "N", "executables, whatever their size (default: 400)")
    add("--program-bytes", parse_size, "SIZE", "of this process (default: a quarter of the memory)")
    add("--device-program-bytes", parse_size, "SIZE", "of the device (default: a tenth of it)")
    add("--map-share", parse_share, "SHARE", "of vm.max_map_count, such as 0.5 (the default)")
    add(
        "--memory-share",
        parse_share,
        "SHARE",
        "of the memory of machine or device; with more in use, what is idle goes (default: 0.92)",
    )
    add(
        "--principal-share",
        parse_share,
        "SHARE",
        "of all this, what a client's user keeps when others need room; at most an equal part "
        "for each (default: 0.5)",
    )
    add(
        "--principal-build-s",
        parse_seconds,
        "SECONDS",
        "of tracing and compiling for one client's user in an hour (default: no limit)",
    )


def _add_value_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--value-bytes",
        type=parse_size,
        metavar="SIZE",
        help="of all arrays that stay on the server (default: half of the device's memory)",
    )
    group.add_argument(
        "--value-share",
        type=parse_share,
        metavar="SHARE",
        help="of that, for one client's user (default: 1)",
    )
    group.add_argument(
        "--content-bytes",
        type=parse_size,
        metavar="SIZE",
        help="of arrays that clients send again and again over a network (default: an eighth of "
        "the device's memory)",
    )
