"""The log of recent builds, each with the reason why it was made."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.explain.key_differences import dependency_difference
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.compiling.builds import Build, current_build
from jaxd_server.compilation.compiling.executable import Executable
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.disk_cache.records import CallRecord
from jaxd_server.compilation.executable_source import BuildResult
from jaxd_server.compilation.functions.function import Function
from jaxd_server.compilation.history.advice import Advice, advice_for
from jaxd_server.compilation.history.build_history import (
    BuildEntry,
    BuildHistory,
    KnownFunctions,
    Verdict,
)
from jaxd_server.compilation.history.reasons import Reason, reason_for, versions_of
from jaxd_server.runtime.events import Emit
from jaxd_server.runtime.logs import log_event

MAX_RESTORED: Final = 500
"""Programs of earlier processes that are remembered, for reasons only."""

_MAX_ADVICE: Final = 1000
"""Pieces of advice that are remembered, so that none is given twice."""

LONG_BUILD_S: Final = 2.0
"""The caller is told why a program was built when it took this long."""


@dataclass(frozen=True, slots=True)
class BuildLogEntry:
    """One program that was made, and why.

    Attributes:
        at: when, as `time.time()`.
        function: whose program it is.
        key: names function, options and configuration.
        verdict: how it was obtained.
        seconds: how long that took.
        reason: why.
        was_compiled: whether XLA had to work for it, or only the builder.
        principal: for whom it was made; only it may see what it was compared with.
    """

    at: float
    function: str
    key: bytes
    verdict: Verdict
    seconds: float
    reason: Reason
    was_compiled: bool = True
    principal: str = ""

    @property
    def text(self) -> str:
        """The reason as one line."""
        if self.verdict == "load":
            return "kept on disk by an earlier worker"
        note = "" if self.was_compiled else " (another function had compiled the same program)"
        return self.reason.text + note

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        nearest = self.reason.nearest
        return {
            "time": round(self.at, 3),
            "function": self.function,
            "key": self.key.hex(),
            "verdict": self.verdict,
            "seconds": round(self.seconds, 3),
            "reason": self.text,
            "nearest": None if nearest is None else nearest.key.hex(),
            "differences": [each.to_dict() for each in self.reason.differences],
        }


@dataclass(slots=True, eq=False)
class BuildRecord:
    """A build that was asked for, as it goes on. Written by the thread that makes it.

    Attributes:
        number: counts up from 1.
        function: the name of the function.
        key: names function, options and configuration.
        parameters: names of the function's parameters.
        skeleton: of the call.
        principal: for whom.
        build: its turn; None once it is over, and outside of `Builds`.
        queued: when it was asked for, as `time.time()`.
        started: when the work began; 0 while it waits for its turn.
        finished: when it was over; 0 before that.
        verdict: ``building``, then ``compile``, ``load`` or ``failed``.
        reason: why it was made; or what kind of error ended it.
        behind: the function that it waited for; empty when for none.
        builder: the process that makes it; 0: this one.
    """

    number: int
    function: str
    key: bytes
    parameters: tuple[str, ...]
    skeleton: bytes
    principal: str
    build: Build | None
    queued: float = field(default_factory=time.time)
    started: float = 0.0
    finished: float = 0.0
    verdict: str = "building"
    reason: str = ""
    behind: str = ""
    builder: int = 0
    _queued_at: float = field(default_factory=time.monotonic)

    def look(self) -> None:
        """Reads how far the build has come."""
        build = self.build
        if build is None:
            return
        self.behind, self.builder = build.waited_for, build.builder
        if build.begun is not None and not self.started:
            self.started = self.queued + max(0.0, build.begun - self._queued_at)

    def end(self, verdict: str, reason: str) -> None:
        """It is over; what it has made is not held."""
        self.look()
        self.build = None
        self.started = self.started or self.queued
        self.finished, self.reason = time.time(), reason
        self.verdict = verdict  # last: who sees it sees the others


class BuildLog:
    """The most recent builds with their reasons; safe from any thread.

    Args:
        program_cache: what earlier processes have left; None where nothing is kept.
        limit: how many to keep.

    Attributes:
        known_functions: which principal may see what; by default each may see everything.
        records: the last builds that were asked for, those under way among them.
    """

    def __init__(self, program_cache: ProgramCache | None = None, limit: int = 200) -> None:
        self.known_functions = KnownFunctions()
        self.records: deque[BuildRecord] = deque(maxlen=limit)
        self._numbers = itertools.count(1)
        self._build_history = BuildHistory()
        self._program_cache = program_cache
        self._is_restored = program_cache is None
        self._started = time.time()
        self._loads: dict[bytes, weakref.ref[Executable]] = {}  # by the names on disk
        self._recent: deque[BuildLogEntry] = deque(maxlen=limit)
        self._advised = BoundedDict[tuple[str, str, str], None](_MAX_ADVICE)
        self._reading = threading.Lock()  # held by the one thread that reads the records
        self._restoring = threading.Lock()  # guards _is_restored and _loads; never held for long
        self._lock = threading.Lock()  # guards _recent and _advised; held while a reason is found

    def recent(self, count: int, principal: str = "") -> list[BuildLogEntry]:
        """The last builds that a principal may see, the latest first."""
        sees_all = self.known_functions.is_owner(principal)
        found = [one for one in list(self._recent) if sees_all or one.principal == principal]
        return found[: -count - 1 : -1] if count > 0 else []

    @property
    def build_history(self) -> BuildHistory:
        """What was built, here and by earlier processes; reads their records at the first use."""
        if not self._is_restored:
            with self._reading:
                if not self._is_restored:
                    found = self._read()
                    with self._restoring:
                        self._restore(found)
                        self._is_restored = True
        return self._build_history

    def _read(self) -> list[tuple[bytes, CallRecord, Function]]:
        """The last calls that earlier processes have kept, oldest first, by name."""
        assert self._program_cache is not None
        # those of this process are added when they are made
        calls = self._program_cache.calls().items()
        before = [item for item in calls if item[1].created < self._started]
        last = sorted(before, key=lambda item: item[1].created)[-MAX_RESTORED:]
        functions = {
            key: self._program_cache.function(key) for key in {call.key for _, call in last}
        }
        return [
            (name, call, function)
            for name, call in last
            if (function := functions[call.key]) is not None
        ]

    def _restore(self, found: list[tuple[bytes, CallRecord, Function]]) -> None:
        for name, call, function in found:
            built = BuildEntry(
                call.skeleton,
                call.parameters,
                call.trace_s + call.compile_s,
                call.created,
                self._loads.get(name),
                name,
                call.obstacle,
            )
            self._build_history.add(call.key, describe(function), built)
            self.known_functions.record(call.principal, call.key)

    def begin(self, function: Function, skeleton: bytes, principal: str) -> BuildRecord:
        """Records a build that this thread is about to make."""
        name, key = function.name, function.key
        number, build = next(self._numbers), current_build()
        record = BuildRecord(number, name, key, function.parameters, skeleton, principal, build)
        self.records.append(record)
        return record

    def made(self, function: Function, skeleton: bytes, made: BuildResult, emit: Emit) -> str:
        """Records an executable, and sends its caller the reason and advice; returns the reason."""
        if made.verdict == "load":
            return self._loaded(function, made)
        try:
            decision, advice = self._note(function, skeleton, made)
        except Exception:  # noqa: BLE001  a program must not be lost over its explanation
            log_event("unexplained_build", function=function.name)
            return ""
        if decision.seconds >= LONG_BUILD_S:
            content = {"seconds": decision.seconds, "reason": decision.text}
            emit("built", {"function": function.name, **content})
        for one in advice:
            emit("warning", {"category": "advice", **one._asdict()})
        return decision.text

    def _loaded(self, function: Function, made: BuildResult) -> str:
        """Records a load without a reason, for which files would have to be read."""
        with self._restoring:
            if len(self._loads) > MAX_RESTORED:
                self._loads = {name: one for name, one in self._loads.items() if one() is not None}
            self._loads[made.name] = weakref.ref(made.executable)
            if self._is_restored:
                self._build_history.attach(function.key, made.name, made.executable)
        return self._log(function, made, Reason(), time.time()).text

    def _log(
        self, function: Function, made: BuildResult, reason: Reason, now: float
    ) -> BuildLogEntry:
        entry = BuildLogEntry(
            now,
            function.name,
            function.key,
            made.verdict,
            made.executable.costs.paid_s,
            reason,
            made.was_compiled,
            made.executable.principal,
        )
        self._recent.append(entry)
        return entry

    def _note(
        self, function: Function, skeleton: bytes, made: BuildResult
    ) -> tuple[BuildLogEntry, list[Advice]]:
        described = describe(function)
        now, seconds = time.time(), made.executable.costs.paid_s
        built = BuildEntry(
            skeleton,
            described.parameters,
            seconds,
            now,
            weakref.ref(made.executable),
            made.name,
            made.obstacle,
        )
        build_history, principal = self.build_history, made.executable.principal
        visibility = self.known_functions.visibility(principal)
        with self._lock:
            seen = build_history.records(visibility)
            reason = reason_for(seen, function.key, described, built.arguments)
            if made.changed and not reason.differences:
                found = tuple(dependency_difference(*change) for change in made.changed)
                reason = replace(reason, differences=found)
            record = build_history.add(function.key, described, built)
            decision = self._log(function, made, reason, now)
        self.known_functions.record(principal, function.key)
        advice = advice_for(record, versions_of(build_history.records(visibility), described))
        with self._lock:
            new = [one for one in advice if one[:3] not in self._advised]
            for one in new:
                self._advised[one[:3]] = None
        return decision, new


def describe(function: Function) -> FunctionDescriptor:
    """What is known of a function that the server has."""
    manifest = function.described.manifest
    return FunctionDescriptor(
        function.name,
        function.described.fingerprint,
        function.options,
        manifest.all_parts if manifest else (),
        function.parameters,
        manifest.shared if manifest else True,
    )
