"""What there is, in memory and on disk, what it has cost, and what it has saved."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.explain.key_differences import summarize
from jaxd_protocol.messages.report import NamedUse, Needless, Report, Use
from jaxd_server.cache.disk_usage import Entry, entries
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import CallRecord
from jaxd_server.compilation.history.advice import needless_builds
from jaxd_server.compilation.history.build_history import Records
from jaxd_server.compilation.history.build_log import BuildLogEntry
from jaxd_server.compilation.history.reasons import versions_of
from jaxd_server.execution.pipeline import Pipeline

_CODE: Final = frozenset({"function", "class"})
_MOST_RECENT: Final = 200

Row = dict[str, Any]
Files = Mapping[tuple[str, str], Entry]
"""What lies on disk: by kind, and by name in hex digits."""


def arguments_text(skeleton: bytes, parameters: Sequence[str]) -> str:
    """What the arguments of a call look like, such as ``x: float32[3,4], n: 2``."""
    try:
        forms = argument_shapes(skeleton, parameters)
    except ProtocolError:
        return "?"
    return ", ".join(f"{name}: {argument.form}" for name, argument in forms.items())


def inventory(pipeline: Pipeline, principal: str = "") -> dict[str, Any]:
    """The answer to `functions`, for JSON: one row for each executable, and totals.

    A principal is shown what it may see, and the seconds and calls that were for it.

    Reads the records on disk; not for a thread that others wait for. An executable that is in
    memory and on disk has one row, and bytes in both places.
    """
    build_log, program_cache = pipeline.build_log, pipeline.program_cache
    sees = build_log.known_functions.visibility(principal)
    kept = {
        name: call
        for name, call in (program_cache.calls() if program_cache else {}).items()
        if sees(call.key) or call.principal == principal
    }
    files = _files(program_cache)
    ready = [each for each in pipeline.executables.all() if sees(each.key)]
    parameters = {call.key: call.parameters for call in kept.values()}
    for key in {executable.key for executable in ready} - set(parameters):
        record = build_log.build_history.find(key)
        parameters[key] = record.description.parameters if record else ()
    rows = [_in_memory(each, parameters[each.key], kept, files) for each in ready]
    here = {executable.kept_as for executable in ready}
    rows += [
        _on_disk(name, call, files)
        for name, call in kept.items()
        if name not in here and {("calls", name.hex()), _program_file(call)} <= files.keys()
    ]
    own = None
    if not build_log.known_functions.is_owner(principal):
        own = pipeline.counters.of(principal)
        names = {name.hex() for name in kept} | {call.program.hex() for call in kept.values()}
        files = {place: entry for place, entry in files.items() if place[1] in names}
    totals = _totals(rows, ready, files, pipeline.counters.snapshot(own))
    sharing = Counter(row["program"] for row in rows)
    for row in rows:
        row["shared_with"] = sharing[row.pop("program")] - 1
    return {"functions": rows, "totals": totals}


def _files(program_cache: ProgramCache | None) -> Files:
    if program_cache is None:
        return {}
    above, target = os.path.split(program_cache.store.folder)
    found = entries(os.path.dirname(above), target)
    return {(entry.kind, os.path.basename(entry.path)): entry for entry in found}


def _program_file(call: CallRecord) -> tuple[str, str]:
    return "programs", call.program.hex()


def _in_memory(
    executable: Executable,
    parameters: tuple[str, ...],
    kept: Mapping[bytes, CallRecord],
    files: Files,
) -> Row:
    program, costs = executable.program, executable.costs
    call = kept.get(executable.kept_as)
    return {
        "name": executable.name,
        "key": executable.key.hex(),
        "arguments": arguments_text(executable.recorded.skeleton, parameters),
        "state": "memory",
        "build_s": round(costs.build_s, 6),
        "load_s": round(program.load_s, 6),
        "calls": executable.calls,
        "last_use_s": round(time.monotonic() - executable.last_use, 3),
        "host_bytes": program.host_bytes,
        "device_bytes": program.device_bytes,
        "disk_bytes": _disk_bytes(executable.kept_as, call, files) if call else 0,
        "saved_s": round(executable.saved_s, 6),
        "program": program.id,
    }


def _on_disk(name: bytes, call: CallRecord, files: Files) -> Row:
    used = max(files["calls", name.hex()].used, files[_program_file(call)].used)
    return {
        "name": call.name,
        "key": call.key.hex(),
        "arguments": arguments_text(call.skeleton, call.parameters),
        "state": "disk",
        "build_s": round(call.trace_s + call.compile_s, 6),
        "load_s": 0.0,
        "calls": 0,
        "last_use_s": round(max(0.0, time.time() - used), 3),
        "host_bytes": 0,
        "device_bytes": 0,
        "disk_bytes": _disk_bytes(name, call, files),
        "saved_s": 0.0,
        "program": call.program,
    }


def _disk_bytes(name: bytes, call: CallRecord, files: Files) -> int:
    """Room that a call takes on disk, its program included, which others may share."""
    found = [files.get(("calls", name.hex())), files.get(_program_file(call))]
    return sum(entry.bytes for entry in found if entry is not None)


def _totals(
    rows: Sequence[Row], ready: Sequence[Executable], files: Files, counts: Mapping[str, float]
) -> dict[str, Any]:
    """Sums, each program counted once; seconds are those of this worker since its start."""
    programs = {id(executable.program): executable.program for executable in ready}.values()
    paid = {name: round(counts[name], 6) for name in ("trace_s", "compile_s", "load_s", "saved_s")}
    return {
        "executables": len(ready),
        "programs": len(programs),
        "on_disk": sum(row["disk_bytes"] > 0 for row in rows),
        "calls": int(counts["calls"]),
        "build_s": round(counts["trace_s"] + counts["compile_s"], 6),
        **paid,
        "host_bytes": sum(program.host_bytes for program in programs),
        "device_bytes": sum(program.device_bytes for program in programs),
        "disk_bytes": sum(entry.bytes for entry in files.values()),
    }


# what was saved and spent -------------------------------------------------------------------------


def report(pipeline: Pipeline, principal: str = "") -> Report:
    """The answer to `report`: what was saved, for whom, and what need not have been built.

    A principal is shown its own use, and of functions that it may see.

    Reads and writes files; not for a thread that others wait for.
    """
    known = pipeline.build_log.known_functions
    is_owner = known.is_owner(principal)
    since, uses = pipeline.uses.all() if is_owner else pipeline.uses.of(principal)
    records = pipeline.build_log.build_history.records(known.visibility(principal))
    places = {each.description.name: each.description.where for each in records.values()}
    whose, functions = _summed(uses, 0), _summed(uses, 1)
    return Report(
        since,
        is_owner and pipeline.uses.is_kept,
        sum(uses.values(), Use()),
        tuple(NamedUse(name, use) for name, use in whose),
        tuple(NamedUse(name, use, places.get(name, "")) for name, use in functions),
        tuple(sorted(_needless(records, pipeline, principal), key=lambda one: -one.seconds)),
    )


def _summed(uses: Mapping[tuple[str, str], Use], by: int) -> list[tuple[str, Use]]:
    """The sums by one part of the names, most saved first."""
    found: dict[str, Use] = {}
    for name, use in uses.items():
        found[name[by]] = found.get(name[by], Use()) + use
    return sorted(found.items(), key=lambda item: (-item[1].saved_s, -item[1].built_s, item[0]))


def _needless(records: Records, pipeline: Pipeline, principal: str) -> Iterator[Needless]:
    """Each needless kind of builds once, with the most that any key of the function has of it."""
    found: dict[tuple[str, ...], Needless] = {}
    names: set[str] = set()
    for record in reversed(records.values()):
        described = record.description
        versions = versions_of(records, described) if described.short_name not in names else ()
        names.add(described.short_name)
        for advice, programs, seconds in needless_builds(record, versions):
            kind, function, subject, text = advice
            one = Needless(kind, function, described.where, subject, programs, seconds, text)
            most = found.get(advice[:3])
            found[advice[:3]] = one if most is None or most.programs < programs else most
    yield from found.values()
    yield from _unchanged(pipeline.build_log.recent(_MOST_RECENT, principal))


def _unchanged(entries: Sequence[BuildLogEntry]) -> Iterator[Needless]:
    """The edits, among the last builds, that have left the program as it was."""
    edits: dict[str, list[BuildLogEntry]] = {}
    for entry in entries:
        kinds = {difference.kind for difference in entry.reason.differences}
        if entry.verdict == "compile" and not entry.was_compiled and kinds & _CODE:
            edits.setdefault(entry.function, []).append(entry)
    for function, made in edits.items():
        changes = [one for one in made[0].reason.differences if one.kind in _CODE]
        text = (
            f"{function} was traced again after {len(made)} changes of its code that left the "
            f"program as it was, the last one: {summarize(changes)}. Nothing is wrong with that; "
            "where it happens often, move out of the function what does not count for its result."
        )
        seconds = sum(one.seconds for one in made)
        yield Needless("unchanged", function, changes[0].where, "code", len(made), seconds, text)
