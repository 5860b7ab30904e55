"""What there is, in memory and on disk, what it has cost, and what it has saved."""

from __future__ import annotations

import os
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from jaxd_protocol.base.process import start_daemon
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.explain.argument_shapes import argument_shapes
from jaxd_protocol.explain.key_differences import summarize
from jaxd_protocol.messages.report import NamedUse, Needless, Report, Use
from jaxd_protocol.messages.server_view import FunctionRow, ProgramRow, row_dict
from jaxd_server.cache.disk_usage import Entry, entries
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import CallRecord
from jaxd_server.compilation.history.advice import needless_builds
from jaxd_server.compilation.history.build_history import Records
from jaxd_server.compilation.history.build_log import BuildLogEntry
from jaxd_server.compilation.history.reasons import versions_of
from jaxd_server.execution.pipeline import MAX_TOUCHED, Pipeline
from jaxd_server.runtime.counters import FunctionUse, UsedFunction
from jaxd_server.runtime.view_journal import ROWS_AT_ONCE, Journal

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
    call = kept.get(executable.kept_as)
    disk_bytes = _disk_bytes(executable.kept_as, call, files) if call else 0
    arguments = arguments_text(executable.recorded.skeleton, parameters)
    row = _memory_row(executable, arguments, disk_bytes)
    return _listed(row, time.monotonic() - executable.last_use, executable.program.id)


def _on_disk(name: bytes, call: CallRecord, files: Files) -> Row:
    used = max(files["calls", name.hex()].used, files[_program_file(call)].used)
    return _listed(
        _disk_row(call, _disk_bytes(name, call, files)), time.time() - used, call.program
    )


def _listed(row: ProgramRow, age_s: float, program: bytes) -> Row:
    """A row of a view as one of the inventory: with the seconds since its last use."""
    found = row_dict(row)
    del found["last_use"]
    age_s = round(max(0.0, age_s), 3)
    return {"key": found.pop("function"), **found, "last_use_s": age_s, "program": program}


def _memory_row(
    executable: Executable, arguments: str, disk_bytes: int, last_use: float = 0.0
) -> ProgramRow:
    program = executable.program
    return ProgramRow(
        executable.key.hex(),
        executable.name,
        arguments,
        "memory",
        program.host_bytes,
        program.device_bytes,
        disk_bytes,
        round(executable.costs.build_s, 6),
        round(program.load_s, 6),
        executable.calls,
        round(executable.saved_s, 6),
        last_use,
    )


def _disk_row(call: CallRecord, disk_bytes: int) -> ProgramRow:
    return ProgramRow(
        call.key.hex(),
        call.name,
        arguments_text(call.skeleton, call.parameters),
        "disk",
        disk_bytes=disk_bytes,
        build_s=round(call.trace_s + call.compile_s, 6),
        last_use=round(call.created, 3),
    )


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
    places = {
        (each.description.name, each.description.where.rpartition(":")[0]): each.description.where
        for each in records.values()
    }
    whose = _summed(uses, lambda one: (one.principal, ""))
    functions = _summed(uses, lambda one: (one.function, one.file))
    return Report(
        since,
        is_owner and pipeline.uses.is_kept,
        sum(uses.values(), Use()),
        tuple(NamedUse(name[0], use) for name, use in whose),
        tuple(NamedUse(name[0], use, places.get(name, name[1])) for name, use in functions),
        tuple(sorted(_needless(records, pipeline, principal), key=lambda one: -one.seconds)),
    )


def _summed(
    uses: Mapping[UsedFunction, Use], by: Callable[[UsedFunction], tuple[str, str]]
) -> list[tuple[tuple[str, str], Use]]:
    """The sums by a part of what was counted, most saved first."""
    found: dict[tuple[str, str], Use] = {}
    for name, use in uses.items():
        found[by(name)] = found.get(by(name), Use()) + use
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


# rows of a view --------------------------------------------------------------------------------

_LOOKED_AT_ONCE: Final = 100
_MADE_AT_ONCE: Final = 200
"""To make so many rows takes ten milliseconds, which others may have to wait."""

_TRIES: Final = 50
_MAX_ON_DISK: Final = 10_000


class ProgramRows:
    """The rows of functions and programs: made again for what was noted, and what has gone.

    Args:
        pipeline: what answers calls.
        journal: takes the rows.
        wall: makes times absolute.

    Attributes:
        made: how many rows were made.
    """

    def __init__(
        self, pipeline: Pipeline, journal: Journal, wall: Callable[[float], float]
    ) -> None:
        self.made = 0
        self._pipeline = pipeline
        self._journal = journal
        self._wall = wall
        self._due_programs: dict[str, weakref.ref[Executable]] = {}
        self._due_functions: dict[bytes, FunctionUse] = {}
        self._here: dict[str, bytes] = {}  # the keys of executables in memory, by row
        self._in_memory: Counter[bytes] = Counter()
        self._unwritten: dict[str, tuple[int, bytes]] = {}  # rows that are about to be on disk
        self._on_disk: deque[str] = deque()  # rows that may be of no program in memory
        self._has_begun = False
        self._found: deque[tuple[str, ProgramRow]] = deque()  # on disk, for the next collections

    @property
    def has_due(self) -> bool:
        """Whether rows are left for the next collection: so many at once would hold up calls."""
        return bool(self._due_programs or self._due_functions)

    def collect(self) -> None:
        """Makes some of the rows that are due."""
        touched, dropped = self._pipeline.touched, self._pipeline.executables.dropped
        if not self._has_begun or max(len(touched), len(dropped)) >= MAX_TOUCHED:
            self._note_all()
        self._note()
        for name in list(islice(self._due_programs, _MADE_AT_ONCE)):
            executable = self._due_programs.pop(name)()
            if executable is not None and not executable.is_dropped:
                self._put_program(name, executable)
        if not self._due_programs:
            for key in list(islice(self._due_functions, _MADE_AT_ONCE)):
                self._put_function(self._due_functions.pop(key))
        self._take_found()
        self._look_for_files()
        self._look_for_removed()

    def _note(self) -> None:
        """Adds to what is due the executables that have gone, or of which something was counted."""
        touched, dropped = self._pipeline.touched, self._pipeline.executables.dropped
        while dropped:
            self._leave_memory(dropped.popleft())
        while touched:
            reference, use = touched.popleft()
            executable = reference()
            if executable is not None:
                executable.is_touched = False
                self._due_programs[executable.id] = reference
            if use is not None:
                self._due_functions[use.key] = use

    def _note_all(self) -> None:
        """The same for all that there is: at first, and when more has happened than is noted."""
        if not self._has_begun:
            start_daemon("jaxd-view", self._read_disk)
        self._has_begun = True
        self._pipeline.executables.dropped.clear()
        there = {one.id: weakref.ref(one) for one in self._pipeline.executables.all()}
        for name in self._here.keys() - there.keys():
            self._leave_memory(name)
        self._due_programs |= there
        functions = self._pipeline.counters.functions
        for key in list(functions):
            use = functions.get(key)
            if use is not None:
                self._due_functions[key] = use

    def _leave_memory(self, name: str) -> None:
        """The program is on disk now, or gone."""
        key = self._here.pop(name, None)
        if key is None:
            return
        self._in_memory[key] -= 1
        use = self._pipeline.counters.functions.get(key)
        if use is not None:
            self._due_functions[key] = use
        row = self._journal.get("programs", name)
        gone = {**row, "state": "disk", "host_bytes": 0, "device_bytes": 0}
        self._journal.put("programs", name, gone if row["disk_bytes"] else None)
        if row["disk_bytes"]:
            self._on_disk.append(name)

    def _put_program(self, name: str, executable: Executable) -> None:
        self.made += 1
        use, program = executable.use, executable.program
        if name not in self._here:
            self._here[name] = executable.key
            self._in_memory[executable.key] += 1
            if use is not None:
                self._due_functions[use.key] = use
        known = self._journal.get("programs", name) or {}
        arguments, disk_bytes = known.get("arguments", ""), known.get("disk_bytes", 0)
        if not arguments:
            parameters = () if use is None else use.parameters
            arguments = arguments_text(executable.recorded.skeleton, parameters)
        if executable.kept_as and not disk_bytes:
            self._unwritten[name] = _TRIES, program.id
        row = _memory_row(executable, arguments, disk_bytes, self._wall(executable.last_use))
        self._journal.put("programs", name, row_dict(row))

    def _put_function(self, use: FunctionUse) -> None:
        self.made += 1
        row = FunctionRow(
            use.name,
            use.where,
            self._in_memory[use.key],
            use.hits,
            use.compiled,
            use.loaded,
            round(use.saved_s, 6),
            round(use.built_s, 6),
            round(use.run_s, 6),
            tuple(use.latency),
            self._wall(use.last_use) if use.last_use else 0.0,
        )
        self._journal.put("functions", use.key.hex(), row_dict(row))

    def _take_found(self) -> None:
        for _ in range(min(len(self._found), ROWS_AT_ONCE)):
            name, row = self._found.popleft()
            if self._journal.get("programs", name) is None:
                self._journal.put("programs", name, row_dict(row))
                self._on_disk.append(name)

    def _look_for_files(self) -> None:
        """Programs are written to disk a while after they were made."""
        for name, (tries, program) in list(self._unwritten.items()):
            row = self._journal.get("programs", name)
            found = 0 if row is None else self._disk_bytes(name, program)
            self._unwritten[name] = tries - 1, program
            if row is not None and found:
                self._journal.put("programs", name, {**row, "disk_bytes": found})
            if row is None or found or tries <= 1:
                del self._unwritten[name]

    def _look_for_removed(self) -> None:
        """Looks whether the next few programs on disk are there; others may remove them."""
        for _ in range(min(len(self._on_disk), _LOOKED_AT_ONCE)):
            name = self._on_disk.popleft()
            row = self._journal.get("programs", name)
            if row is None or name in self._here:
                continue
            if self._disk_bytes(name):
                self._on_disk.append(name)
            else:
                self._journal.put("programs", name, None)

    def _disk_bytes(self, name: str, program: bytes = b"") -> int:
        """What a call, and its program, take on disk; 0 while the call is not there."""
        cache = self._pipeline.program_cache
        if cache is None:
            return 0
        found = cache.store.room("calls", bytes.fromhex(name.partition(".")[0]))
        return found and found + (cache.store.room("programs", program) if program else 0)

    def _read_disk(self) -> None:
        """Finds what earlier workers have kept; the records are read once."""
        cache = self._pipeline.program_cache
        if cache is None:
            return
        calls = sorted(cache.calls().items(), key=lambda item: -item[1].created)
        for name, call in calls[:_MAX_ON_DISK]:
            row = name.hex()
            kept = 0 if call.obstacle is not None else self._disk_bytes(row, call.program)
            if kept:
                self._found.append((row, _disk_row(call, kept)))
