"""Counters of the whole worker, and of each principal that may only see its own.

And what was saved and spent by principal and function, which outlives the worker.
"""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from typing import Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.messages.report import Use
from jaxd_protocol.messages.server_view import LATENCY_BOUNDS_S
from jaxd_protocol.wire import BulkChannel
from jaxd_server.runtime.logs import locked_folder, log_event, replace_file


@dataclass(slots=True)
class Counts:
    """The counts of one principal, or of all; see `jaxd.Statistics`."""

    calls: int = 0
    traces: int = 0
    lowers: int = 0
    compiles: int = 0
    executable_hits: int = 0
    executable_loads: int = 0
    programs_shared: int = 0
    xla_cache_hits: int = 0
    failed_calls: int = 0
    cancelled_calls: int = 0
    late_calls: int = 0
    fallback_calls: int = 0
    fallback_functions: int = 0
    verified_programs: int = 0
    stale_programs: int = 0
    incomparable_programs: int = 0
    waited_s: float = 0.0
    run_s: float = 0.0
    trace_s: float = 0.0
    compile_s: float = 0.0
    load_s: float = 0.0
    saved_s: float = 0.0


@dataclass(slots=True)
class SessionUse:
    """What one client process has had of the server.

    Attributes:
        calls: calls that were answered with a result.
        compiled: executables that were traced and compiled for one of them.
        loaded: executables that were loaded from disk for one of them.
        found: executables that were there when it used them first.
        saved_s: seconds of tracing and compiling that `loaded` and `found` have spared it.
    """

    calls: int = 0
    compiled: int = 0
    loaded: int = 0
    found: int = 0
    saved_s: float = 0.0

    def to_report(self) -> dict[str, float]:
        """The counts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


_MAX_FUNCTIONS: Final = 20_000


@dataclass(slots=True, eq=False)
class FunctionUse:
    """What was counted of one function with options.

    Attributes:
        key: names function, options and configuration; empty of a program that was never called.
        name: of the function.
        where: file and line; empty when unknown.
        parameters: names of its parameters.
        hits: calls that a ready executable answered.
        run_s: seconds that these took.
        latency: these by their seconds: a count for each of `LATENCY_BOUNDS_S`, and one more.
        last_use: `time.monotonic()` of the last one.
        compiled: executables that were traced and compiled.
        loaded: executables that were loaded from disk.
        built_s: seconds that `compiled` took.
        saved_s: seconds that client processes were spared.
    """

    key: bytes = b""
    name: str = ""
    where: str = ""
    parameters: tuple[str, ...] = ()
    hits: int = 0
    run_s: float = 0.0
    latency: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    last_use: float = 0.0
    compiled: int = 0
    loaded: int = 0
    built_s: float = 0.0
    saved_s: float = 0.0


class Counters:
    """Counts what the worker did since it started; safe from any thread.

    Attributes:
        functions: what is counted of those that were called last, by key.
    """

    def __init__(self) -> None:
        self.functions = BoundedDict[bytes, FunctionUse](_MAX_FUNCTIONS)
        self._counts = Counts()
        self._own: dict[str, Counts] = {}
        self._lock = threading.Lock()  # guards all counts
        self._behalf = threading.local()
        self._started = time.monotonic()
        self._last_activity = self._started

    def of(self, principal: str) -> Counts:
        """The counts of one principal, since the first call of this for it."""
        with self._lock:
            return self._own.setdefault(principal, Counts())

    def forget(self, principal: str) -> None:
        """Drops the counts of a principal, whose next holder may be another person."""
        with self._lock:
            self._own.pop(principal, None)

    def function(
        self, key: bytes, name: str, where: str, parameters: tuple[str, ...]
    ) -> FunctionUse:
        """What is counted of a function, since the first call of this for it."""
        with self._lock:
            found = self.functions.use(key)
            if found is None:
                found = self.functions[key] = FunctionUse(key, name, where, parameters)
            return found

    @contextmanager
    def on_behalf_of(self, own: Counts | None) -> Iterator[None]:
        """Counts of this thread during the block count for a principal as well."""
        before = getattr(self._behalf, "own", None)
        self._behalf.own = own
        try:
            yield
        finally:
            self._behalf.own = before

    def add(self, own: Counts | None = None, /, **amounts: float) -> None:
        """Adds to the named counters.

        Args:
            own: further counts; None: those of `on_behalf_of`, if any.
            amounts: by the names of the counters.
        """
        own = own or getattr(self._behalf, "own", None)
        with self._lock:
            self._last_activity = time.monotonic()
            for counts in (self._counts,) if own is None else (self._counts, own):
                for name, amount in amounts.items():
                    setattr(counts, name, getattr(counts, name) + amount)

    def hit(
        self,
        run_s: float = 0.0,
        own: Counts | None = None,
        use: SessionUse | None = None,
        function: FunctionUse | None = None,
        seconds: float = 0.0,
    ) -> None:
        """Counts one call that a ready executable answered: all that the warm path counts.

        Args:
            run_s: seconds that it ran.
            own: the counts of its principal, if there are any.
            use: of its session.
            function: what is counted of its function.
            seconds: that it was in the server.
        """
        with self._lock:
            self._last_activity = now = time.monotonic()
            self._counts.calls += 1
            self._counts.executable_hits += 1
            self._counts.run_s += run_s
            if use is not None:
                use.calls += 1
            if own is not None:
                own.calls += 1
                own.executable_hits += 1
                own.run_s += run_s
            if function is not None:
                function.hits += 1
                function.run_s += seconds
                function.last_use = now
                function.latency[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1

    @property
    def idle_s(self) -> float:
        """Seconds since anything was counted."""
        return time.monotonic() - self._last_activity

    @property
    def has_answered(self) -> bool:
        """Whether a call was answered."""
        return self._counts.calls > 0

    def snapshot(self, own: Counts | None = None) -> dict[str, float]:
        """All counters by name, of one principal or of all, with `uptime_s` in seconds."""
        counts = self._counts if own is None else own
        with self._lock:
            found = {name: getattr(counts, name) for name in Counts.__slots__}
        return {**found, "uptime_s": round(time.monotonic() - self._started, 3)}


_USE_FILE: Final = "use.json"
_USE_FORMAT: Final = 2
_MAX_USES: Final = 5000
_DAMAGED: Final = (ValueError, TypeError, AttributeError, LookupError)


class UsedFunction(NamedTuple):
    """What a count is about.

    Attributes:
        principal: whose use it was.
        function: the function's name.
        file: where it stands; empty when that is not known. Functions of different files may have
            one name.
    """

    principal: str
    function: str
    file: str = ""


class UsesSince(NamedTuple):
    """Counts of use.

    Attributes:
        since: when counting began, as `time.time()`.
        uses: by principal, function and file.
    """

    since: float
    uses: dict[UsedFunction, Use]


class UseTable:
    """What each principal was spared and what was built for it, by function. Thread-safe.

    Several workers may have the same folder: each adds to the file there what it has counted.

    Args:
        folder: where the counts outlive this process; made when it is needed. None: nowhere.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._started = self._since = time.time()
        self._here: dict[UsedFunction, Use] = {}
        self._new: dict[UsedFunction, Use] = {}
        self._revoked: set[str] = set()
        self._lock = threading.Lock()  # guards _here, _new and _revoked
        self._writing = threading.Lock()  # held by the thread that reads and writes the file

    @property
    def is_kept(self) -> bool:
        """Whether the counts outlive this process."""
        return self._folder is not None

    def add(self, principal: str, function: str, use: Use, file: str = "") -> None:
        """Adds to what there is."""
        name = UsedFunction(principal, function, file)
        with self._lock:
            for uses in (self._here, self._new):
                uses[name] = uses.get(name, Use()) + use

    def forget(self, principal: str) -> None:
        """Drops the counts of a principal, whose next holder may be another person."""
        with self._lock:
            self._here = {one: use for one, use in self._here.items() if one.principal != principal}
            self._new = {one: use for one, use in self._new.items() if one.principal != principal}
            self._revoked.add(principal)
        self.flush()

    def of(self, principal: str) -> UsesSince:
        """The counts of a principal in this process alone.

        Before it, the same name may have been another person's.
        """
        with self._lock:
            own = {one: use for one, use in self._here.items() if one.principal == principal}
        return UsesSince(self._started, own)

    def flush(self) -> None:
        """Adds what is new to the file."""
        if self._new or self._revoked:
            self.all()

    def all(self) -> UsesSince:
        """What the file has, once what is new was added; without one, what was counted here.

        Not for a thread that others wait for.
        """
        with self._writing:
            with self._lock:
                if self._folder is None:
                    return UsesSince(self._started, dict(self._here))
                new, revoked = self._new, self._revoked
                self._new, self._revoked = {}, set()
            try:
                return self._kept(self._folder, new, revoked)
            except OSError as error:
                log_event("use_not_kept", reason=str(error))
                self._folder = None
        return self.all()

    def _kept(self, folder: str, new: dict[UsedFunction, Use], revoked: set[str]) -> UsesSince:
        """What the file has once this was added; other processes do the same one by one."""
        os.makedirs(folder, 0o700, exist_ok=True)
        path = f"{folder}/{_USE_FILE}"
        with locked_folder(folder):
            self._since, found = _read_uses(path, self._since)
            found = {name: use for name, use in found.items() if name.principal not in revoked}
            for name, use in new.items():
                found[name] = found.get(name, Use()) + use
            if new or revoked:
                replace_file(path, _uses_text(self._since, found))
            return UsesSince(self._since, found)


def _read_uses(path: str, now: float) -> UsesSince:
    """What a file has; nothing where there is none, or none that can be read."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if content["format"] != _USE_FORMAT:
            return UsesSince(now, {})
        rows = {
            UsedFunction(*map(str, name)): Use(int(a), int(b), int(c), float(d), float(e))
            for *name, a, b, c, d, e in content["rows"]
        }
        return UsesSince(float(content["since"]), rows)
    except (FileNotFoundError, *_DAMAGED):
        return UsesSince(now, {})


def _uses_text(since: float, uses: Mapping[UsedFunction, Use]) -> str:
    ordered = sorted(uses.items(), key=lambda item: -item[1].saved_s - item[1].built_s)
    rows = [(*name, *astuple(use)) for name, use in ordered[:_MAX_USES]]
    return json.dumps({"format": _USE_FORMAT, "since": since, "rows": rows})


_REVOKED: Final = "-"
"""Stands for all revoked principals; no principal has this name."""


class Traffic:
    """Adds up what each channel counts for itself. Thread-safe."""

    def __init__(self) -> None:
        self._open: dict[BulkChannel, str] = {}
        self._received: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._lock = threading.Lock()  # guards all of the above

    def add(self, channel: BulkChannel, principal: str = "") -> None:
        """Begins to count a connection of a principal."""
        with self._lock:
            self._open[channel] = principal

    def remove(self, channel: BulkChannel) -> None:
        """Ends a connection; its bytes still count."""
        with self._lock:
            principal = self._open.pop(channel)
            self._received[principal] += channel.reader.bytes_received
            self._sent[principal] += channel.writer.bytes_sent

    def send_held(self) -> None:
        """Has each connection send the replies that wait for the next one."""
        with self._lock:
            channels = list(self._open)
        for channel in channels:
            with suppress(EOFError):
                channel.writer.send_held()

    def forget(self, principal: str) -> None:
        """Resets the counts of a principal; in the sum of all principals they still count.

        The rest of its connections, which are about to end, counts in that sum only.
        """
        with self._lock:
            for channel in [one for one, whose in self._open.items() if whose == principal]:
                self._open[channel] = _REVOKED
            for counted in (self._received, self._sent):
                counted[_REVOKED] += counted.pop(principal, 0)

    def totals(self, principal: str | None = None) -> dict[str, int]:
        """`bytes_received` and `bytes_sent` since the worker started, of one or of all."""
        with self._lock:
            received, sent = self._received.copy(), self._sent.copy()
            for channel, whose in self._open.items():
                received[whose] += channel.reader.bytes_received
                sent[whose] += channel.writer.bytes_sent
        if principal is None:
            return {"bytes_received": received.total(), "bytes_sent": sent.total()}
        return {"bytes_received": received[principal], "bytes_sent": sent[principal]}
