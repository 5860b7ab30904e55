"""`python -m jaxd_server.cache`: the command `jaxd cache`. Needs no server and no jax."""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from jaxd_protocol.base.terminal import Parser, ago, size, table, truncate
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import cache_root, is_server_running, runtime_dir
from jaxd_protocol.network.tokens import read_store_key
from jaxd_server.cache.catalog import CachedCall, cached_calls, check_records, target_facts
from jaxd_server.cache.directory import check_trusted, make_trusted
from jaxd_server.cache.disk_usage import FolderUsage, usage
from jaxd_server.cache.record_file import remove_file
from jaxd_server.cache.shared_store import pack, unpack
from jaxd_server.cache.sweep import clear, kept_parts, purge, sweep
from jaxd_server.config.argument_types import parse_size
from jaxd_server.config.options import GIB
from jaxd_server.runtime.logs import claim_folder

_INTERRUPTED: Final = 130
_MIN_DIGITS: Final = 4
_SHOWN_DIGITS: Final = 12
_MAX_WIDTH: Final = 48
_EXAMPLES: Final = """\
examples:
  jaxd cache ls              what is kept, the one used last first
  jaxd cache show 3f2a91     one of them, by its first digits or its function
  jaxd cache gc --max-bytes 2G
  jaxd cache purge --dry-run how large all of it is, before it is removed
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command (default: `sys.argv[1:]`); returns the exit code of the process.

    Returns:
        0 done; 1 nothing was found, or something was broken, or the folder cannot be trusted; 130
        after Ctrl-C.

    Raises:
        SystemExit: with 2 after a usage error, with 0 after `--help`.
    """
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words or ["--help"])
    root = cache_root(arguments.cache_dir)
    if root is None:
        _print_error("the cache is switched off (JAXD_CACHE_DIR=none)")
        return 1
    try:
        root = _real(root)
        code: int = arguments.run(root, arguments)
        sys.stdout.flush()  # a closed pipe shows here
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (EOFError, KeyboardInterrupt):  # in the place of an answer
        return _INTERRUPTED
    except (ConfigurationError, OSError) as error:
        _print_error(str(error))
        return 1


def _real(root: str) -> str:
    """The folder's real path; nothing is made, and a missing one is an empty one."""
    real = os.path.join(os.path.realpath(os.path.dirname(root)), os.path.basename(root))
    if os.path.lexists(real):
        check_trusted(real)
    return real


def _parser() -> Parser:
    parser = Parser(
        prog="jaxd cache",
        description="Look at the compiled programs that are kept on disk, and remove them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, run: Callable[..., int], text: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        own.add_argument("--cache-dir", metavar="PATH", help="another folder than the usual one")
        own.add_argument("--json", action="store_true", help="one JSON object, for programs")
        own.set_defaults(run=run)
        return own

    add("ls", _ls, "List what is kept, the one used last first.")
    show = add("show", _show, "Print what is known of one of them.")
    show.add_argument(
        "key", metavar="KEY", help="the first digits of a program or its key, or a function's name"
    )
    gc = add("gc", _gc, "Remove programs, the longest unused first, until the rest fits the limit.")
    gc.add_argument(
        "--max-bytes", type=parse_size, metavar="SIZE", default=10 * GIB, help="(default: 10G)"
    )
    add("verify", _verify, "Check each byte that is kept; remove what is broken, and exit with 1.")
    pack_ = add("pack", _pack, "Write what is kept into one signed file, for another machine.")
    pack_.add_argument("file", metavar="FILE", help="a tar archive, which is made or replaced")
    unpack_ = add("unpack", _unpack, "Add what `pack` wrote, if it was signed with the same key.")
    unpack_.add_argument("file", metavar="FILE", help="what `pack` wrote")
    clear_ = add(
        "clear", _clear, "Remove all programs. Running servers compile again what they need."
    )
    purge_ = add("purge", _purge, "Remove all that jaxd keeps in the folder, and the folder.")
    for removing in (clear_, purge_):
        removing.add_argument("--yes", action="store_true", help="do not ask on a terminal")
        removing.add_argument("--dry-run", action="store_true", help="say what would be removed")
    return parser


# looking -----------------------------------------------------------------------------------------


def _ls(root: str, arguments: argparse.Namespace) -> int:
    calls, all_ = cached_calls(root), usage(root)
    head = ("key", "function", "arguments", "build", "size", "last use")
    listing = [table([head, *map(_row, calls)])] if calls else []
    listing.append(f"{len(calls)} kept, {size(all_.bytes)} in {root}")
    rows = [_json(call) for call in calls]
    whole = {"folder": root, "bytes": all_.bytes, "files": all_.files, "calls": rows}
    return _print(arguments, whole, *listing)


def _json(call: CachedCall) -> dict[str, Any]:
    return asdict(call) | {"build_s": call.build_s}


def _row(call: CachedCall) -> tuple[str, ...]:
    return (
        call.record[:_SHOWN_DIGITS],
        call.name or "?",
        truncate(", ".join(f"{name}: {form}" for name, form in call.arguments.items()), _MAX_WIDTH),
        f"{call.build_s:.2f} s",
        size(call.bytes),
        ago(max(0.0, time.time() - call.last_use)),
    )


def _show(root: str, arguments: argparse.Namespace) -> int:
    calls = cached_calls(root)
    found = [call for call in calls if _matches(arguments.key, call)]
    if not found:
        _print_error(f"nothing kept is called {arguments.key}. See: jaxd cache ls")
        return 1
    names = {call.record: call.name for call in calls}
    rows = [_json(call) | {"facts": target_facts(root, call.target)} for call in found]
    text = "\n\n".join("\n".join(_lines(root, call, names)) for call in found)
    return _print(arguments, {"calls": rows}, text)


def _matches(text: str, call: CachedCall) -> bool:
    digits = text.lower()
    by_digits = len(digits) >= _MIN_DIGITS and (call.record, call.key, call.program)
    return text == call.name or any(each.startswith(digits) for each in by_digits or ())


def _lines(root: str, call: CachedCall, names: dict[str, str]) -> list[str]:
    others = [f"{names[other] or '?'} ({other[:_SHOWN_DIGITS]})" for other in call.shared_with]
    facts = [
        f"{name} {truncate(fact, _MAX_WIDTH)}"
        for name, fact in target_facts(root, call.target).items()
    ]
    sections = [
        ("function", [call.name or "?"]),
        ("arguments", [f"{name}: {form}" for name, form in call.arguments.items()]),
        ("record", [call.record]),
        ("key", [call.key]),
        ("program", [call.program]),
        ("shared with", others),
        ("not kept", [f"its program: {call.obstacle}"] if call.obstacle else []),
        ("built", [_built(call)]),
        ("by", [call.principal] if call.principal else []),
        ("last use", [ago(max(0.0, time.time() - call.last_use))]),
        ("size", [size(call.bytes)]),
        ("good for", [call.target, *facts]),
    ]
    return [
        f"{label if i == 0 else '':<12} {line}"
        for label, lines in sections
        for i, line in enumerate(lines)
    ]


def _built(call: CachedCall) -> str:
    at = "?"
    if call.created:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(call.created))
    return f"{at}, tracing {call.trace_s:.2f} s, compiling {call.compile_s:.2f} s"


# moving ------------------------------------------------------------------------------------------


def _pack(root: str, arguments: argparse.Namespace) -> int:
    packed = pack(root, arguments.file, read_store_key())
    broken = f"; {packed.refused} are broken and were left out" if packed.refused else ""
    text = f"packed {packed.records} files, {size(packed.bytes)}, into {arguments.file}{broken}"
    return _print(arguments, packed._asdict(), text)


def _unpack(root: str, arguments: argparse.Namespace) -> int:
    unpacked = unpack(make_trusted(root), arguments.file, read_store_key())
    lines = [f"unpacked {unpacked.records} files, {size(unpacked.bytes)}, into {root}"]
    if unpacked.refused:
        lines.append(
            f"{unpacked.refused} were left out: they are broken, or not signed with this key "
            "(JAXD_STORE_KEY, or the file store.key beside your other settings)"
        )
    _print(arguments, {"folder": root, **unpacked._asdict()}, *lines)
    return 1 if unpacked.refused else 0


# removing ----------------------------------------------------------------------------------------


def _gc(root: str, arguments: argparse.Namespace) -> int:
    swept = sweep(root, None, arguments.max_bytes)
    text = f"removed {swept.files} files, {size(swept.bytes)}; {size(swept.left)} left in {root}"
    return _print(arguments, asdict(swept), text)


def _verify(root: str, arguments: argparse.Namespace) -> int:
    checked, bad = 0, []
    for entry, reason in check_records(root):
        checked += 1
        if reason is not None:
            bad.append({"path": entry.path, "reason": reason})
            remove_file(entry.path)
    lines = [f"removed {each['path']}: {each['reason']}" for each in bad]
    lines.append(f"{checked} files checked, {len(bad)} broken")
    _print(arguments, {"folder": root, "checked": checked, "broken": bad}, *lines)
    return 1 if bad else 0


def _clear(root: str, arguments: argparse.Namespace) -> int:
    return _remove_all(root, arguments, _programs, clear)


def _programs(root: str) -> Mapping[str, FolderUsage]:
    found = usage(root)
    return {"programs": FolderUsage(found.bytes, sum(found.files.values()))}


def _purge(root: str, arguments: argparse.Namespace) -> int:
    if os.path.isdir(root) and _is_claimed(root):
        raise ConfigurationError(
            f"a server has its table of users in {root}, and would give their numbers to others. "
            "Stop it first: jaxd stop"
        )
    for address in _running_servers():
        _print_error(
            f"a server runs at {address}. If it keeps its programs here, it writes them again. "
            f"Stop it first: jaxd stop --server {address}"
        )
    return _remove_all(root, arguments, kept_parts, purge)


def _is_claimed(root: str) -> bool:
    """Whether a server with a worker for each principal has the folder for itself."""
    descriptor = claim_folder(root)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _running_servers() -> list[str]:
    """The addresses of this user's local servers, those of other environments as well."""
    sockets = sorted(glob.glob(f"{runtime_dir()}/*/server.sock"))
    return [str(Address.unix(path)) for path in sockets if is_server_running(path)]


def _remove_all(
    root: str,
    arguments: argparse.Namespace,
    measure: Callable[[str], Mapping[str, FolderUsage]],
    remove: Callable[[str], None],
) -> int:
    """Removes what is measured, on a terminal once the user agrees; prints what was freed.

    Returns:
        0; 1 when the user did not agree, or something could not be removed.
    """
    parts = measure(root)
    found = FolderUsage.total(parts.values())
    whole = {"folder": root, **found._asdict()}
    if arguments.dry_run:
        head = f"would remove {_words(found)}, from {root}"
        rows = [
            (f"  {name}", f"{part.files} files", size(part.bytes)) for name, part in parts.items()
        ]
        return _print(arguments, whole, head, *([table(rows)] if rows else []))
    if found.files and not arguments.yes and sys.stdin.isatty():
        answer = input(f"Remove {_words(found)}, from {root}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return 1
    remove(root)
    left = FolderUsage.total(measure(root).values())
    freed = FolderUsage(found.bytes - left.bytes, found.files - left.files)
    _print(arguments, {**whole, **freed._asdict()}, f"removed {_words(freed)}")
    if left.files:
        _print_error(
            f"{_words(left)}, are left in {root}: a server has just written them, which has to be "
            "stopped first (jaxd stop), or they belong to another user, who has to remove them"
        )
    return int(left.files > 0)


def _words(found: FolderUsage) -> str:
    return f"{found.files} files, {size(found.bytes)}"


# output ------------------------------------------------------------------------------------------


def _print(arguments: argparse.Namespace, value: dict[str, Any], *lines: str) -> int:
    """Prints a value as JSON, or the lines that show it to people; returns 0."""
    text = json.dumps(value, indent=2) if arguments.json else "\n".join(lines)
    sys.stdout.write(f"{text}\n")
    return 0


def _print_error(text: str) -> None:
    sys.stderr.write(f"jaxd: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
