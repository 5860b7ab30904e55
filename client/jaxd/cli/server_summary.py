"""A server in lines of text: what stands above its tables, and all that is known of one row.

Also how times, counts and names are written there and in the tables, and what the last minute was.
"""

from __future__ import annotations

import dataclasses
import textwrap
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from jaxd.api.watcher import FunctionDetail
from jaxd.cli.query import OUTCOME_WORDS, owner
from jaxd_protocol.base.terminal import ago, counted, duration, printable, size, truncate
from jaxd_protocol.messages.server_view import (
    LATENCY_BOUNDS_S,
    FunctionRow,
    ServerView,
    WorkerRow,
)

Row = Any
"""A row of a table of `ServerView`."""

Spans = list[tuple[str, str]]
"""A line: texts, each with its tone, which is empty, `strong`, `good`, `bad` or `warn`."""

TREND_LENGTH: Final = 60
"""Steps that are remembered, of a second each."""

GAP: Final = 2
"""Columns of the terminal between two texts of a line."""

_RATE_LENGTH: Final = 5
_LONGEST_BAR: Final = 40
_LEAST_ADDRESS: Final = 16
_LEAST_TREND: Final = 12
_LONGEST_LINE: Final = 10_000
_BARS: Final = "▁▂▃▄▅▆▇█"


class Followed(Protocol):
    """A server as a `jaxd.Watch` follows it."""

    view: ServerView
    problem: str

    def next(self, timeout_s: float | None = None, /) -> ServerView | None:
        """The next view; None when there is none in time, or after `close`."""

    def close(self) -> None:
        """Has `next` return."""


class Watched(Followed, Protocol):
    """A server, and what a `jaxd.Watch` can ask and do there."""

    def detail(self, function: str, /) -> FunctionDetail:
        """A function looked at closely."""

    def text(self, function: str, program: str, stage: Any, /) -> str:
        """The jaxpr or the HLO of a program."""

    def cancel(self, call: str, /) -> bool:
        """Cancels a call; whether it could be."""

    def clear(self, function: str, /) -> int:
        """Drops the programs of a function; how many there were."""

    def forget(self, name: str, /) -> bool:
        """Removes the values under a name; whether it was there."""

    def release(self, what: str, /) -> int:
        """Releases functions from quarantine; how many."""


def act(server: Watched, action: str, what: str) -> str:
    """Does it; what became of it, in a sentence.

    Args:
        server: where.
        action: ``cancel``, ``clear``, ``forget`` or ``release``.
        what: the call, the key of the function, the name of values, or what is in quarantine.

    Raises:
        JaxdError: when it cannot be done.
    """
    return _SAID[action](getattr(server, action)(what), what)


_SAID: Final[Mapping[str, Callable[[int, str], str]]] = {
    "cancel": lambda done, _: "Cancelled." if done else _TOO_LATE,
    "clear": lambda done, _: f"Cleared: {counted(done, 'program')} dropped.",
    "forget": lambda done, name: f"Released {name}." if done else f"Nothing of yours is {name}.",
    "release": lambda done, _: f"Released {done:,} from quarantine.",
}
"""What became of an action, from what its method has returned."""

_TOO_LATE: Final = "It is over, or cannot be cancelled any more."


class Seen:
    """What is known beside the view: the server's time, and what the last minute was like.

    Attributes:
        now: the server's time.
        rates: calls a second in each step, oldest first.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.rates: deque[float] = deque(maxlen=TREND_LENGTH)
        self._calls: tuple[float, float] | None = None
        self._hits: dict[str, int] = {}
        self._steps = 0
        self._trends: dict[str, deque[tuple[int, int]]] = {}

    def add(self, view: ServerView) -> None:
        """Takes up what has changed since the last step; steps are a second or so apart."""
        calls = float(view.counters.get("calls", 0))
        if self._calls is not None and self.now > self._calls[0]:
            self.rates.append(max(0.0, calls - self._calls[1]) / (self.now - self._calls[0]))
        self._calls = (self.now, calls)
        self._steps += 1
        hits = {key: row.hits for key, row in view.functions.items()}
        for key, count in hits.items() if self._steps > 1 else ():
            if (more := count - self._hits.get(key, 0)) > 0:
                trend = self._trends.setdefault(key, deque(maxlen=TREND_LENGTH))
                trend.append((self._steps, more))
        self._hits = hits

    @property
    def rate(self) -> float | None:
        """Calls a second, over the last few steps; None before there are two."""
        last = list(self.rates)[-_RATE_LENGTH:]
        return sum(last) / len(last) if last else None

    def trend(self, key: str, length: int) -> list[int]:
        """Calls of a function in the last minute, in so many equal parts of it, oldest first."""
        parts = [0] * length
        for step, count in self._trends.get(key, ()):
            place = length - 1 - (self._steps - step) * length // TREND_LENGTH
            if place >= 0:
                parts[place] += count
        return parts


# text -------------------------------------------------------------------------------------------


def sparkline(values: Iterable[float], width: int) -> str:
    """``▁▂▇`` of the last values, scaled to the largest of them."""
    shown = list(values)[-width:]
    scale = (len(_BARS) - 1) / (max(shown, default=0.0) or 1.0)
    return "".join(_BARS[round(value * scale)] for value in shown)


def cells(text: str) -> int:
    """The columns of a terminal that a text takes."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` columns, cut with ``…`` or filled with spaces."""
    if cells(text) > width:
        text = _cut(text, width - 1) + "…"
    fill = " " * (width - cells(text))
    return fill + text if right else text + fill


def _cut(text: str, width: int) -> str:
    """As much of its beginning as has room."""
    taken = 0
    for place, character in enumerate(text):
        taken += _cells_of(character)
        if taken > width:
            return text[:place]
    return text


def short_time(seconds: float) -> str:
    """``12 µs``, ``3.4 ms``, ``0.25 s``, ``3 min``."""
    if seconds >= 0.1:
        return duration(seconds)
    return f"{seconds * 1e3:.2g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def count(number: int) -> str:
    """``12,345``, ``1.23M``: seven letters at most."""
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:.4g}M"


def clock(at: float) -> str:
    """``14:03:59`` of a time, in the hours of this machine."""
    return time.strftime("%H:%M:%S", time.localtime(at)) if at else ""


def since(at: float, now: float) -> str:
    """How long it is since then; empty for never."""
    seconds = now - at
    return "" if not at else duration(seconds) if seconds >= 1 else "0 s"


def long_ago(at: float, now: float) -> str:
    """``3 min ago``; empty for never."""
    seconds = now - at
    return "" if not at else ago(seconds) if seconds >= 1 else "just now"


def median(latency: Sequence[int]) -> float:
    """The upper bound of the class that the middle one of all calls is in; 0 without calls."""
    left = (sum(latency) + 1) // 2
    bounds: tuple[float, ...] = (*LATENCY_BOUNDS_S, float("inf"))
    for bound, count in zip(bounds, latency, strict=False):
        left -= count
        if count and left <= 0:
            return bound
    return 0.0


def median_text(latency: Sequence[int]) -> str:
    """``≤2.6 ms``; empty without calls."""
    bound, longest = median(latency), LATENCY_BOUNDS_S[-1]
    if bound > longest:
        return f">{duration(longest)}"
    return f"≤{short_time(bound)}" if bound else ""


def short_name(function: str) -> str:
    """The name of a function without those that it is local to."""
    return function.rpartition("<locals>.")[2]


def build_word(row: Row) -> str:
    """What became of a build: ``waiting``, ``building``, ``compiled``, ``loaded``, ``failed``."""
    if row.verdict == "building":
        return "building" if row.started else "waiting"
    word: str = OUTCOME_WORDS.get(row.verdict, row.verdict)
    return word


# above the panes --------------------------------------------------------------------------------

_WORST_FIRST: Final = ("broken", "stuck", "draining", "starting", "busy", "resting", "ready")
_STATE_TONES: Final = {"ready": "good", "stuck": "bad", "broken": "bad"}

_STATES: Final = {
    "starting": (
        "The worker{whose} starts: calls wait until it is ready. What it does: jaxd logs -f",
        "warn",
    ),
    "busy": ("The worker{whose} has not answered for {silent}: it is at work, and calls wait.", ""),
    "stuck": (
        (
            "The worker{whose} hangs: no answer for {silent}. What it runs is under Calls. To "
            "replace it, and lose the arrays on it: jaxd restart --force"
        ),
        "bad",
    ),
    "resting": ("The worker{whose} has given the device back. The next call starts one.", ""),
    "draining": (
        "The worker{whose} finishes the calls that run, and takes no others. Then: jaxd start",
        "warn",
    ),
    "broken": (
        (
            "No worker{whose} starts: {why}. Repair that, and the server tries again by itself. "
            "Checks: jaxd doctor"
        ),
        "bad",
    ),
}

_RESTARTED: Final = (
    "The worker{whose} is another one than at first. Why: worker_exited under Events"
)


def worker_word(worker: WorkerRow) -> str:
    """``ready``, ``hanging``, ``ready, restarted 2 times``."""
    word = "hanging" if worker.state == "stuck" else worker.state
    if not worker.restarts:
        return word
    return f"{word}, restarted {'once' if worker.restarts == 1 else f'{worker.restarts} times'}"


def notices(view: ServerView, now: float) -> list[Spans]:
    """What somebody should know of the workers, with the next step."""
    lines: list[Spans] = []
    for worker in view.workers.values():
        text, tone = _STATES.get(worker.state) or (_RESTARTED if worker.restarts else "", "")
        whose = f" of {owner(worker.principal)}" if worker.principal else ""
        silent = since(worker.answered, now) or "some time"
        why = worker.why.rstrip(". ") or "see jaxd logs"
        if text:
            lines.append([(text.format(whose=whose, silent=silent, why=why), tone)])
    if view.server.quarantined:
        lines.append([(_quarantine_text(view.server.quarantined), "warn")])
    return lines


def _quarantine_text(count: int) -> str:
    what = counted(count, "function")
    return f"{what} refused for ending workers. Which: jaxd functions --quarantined"


def head(view: ServerView, seen: Seen, width: int, problem: str = "") -> list[Spans]:
    """The lines above the panes.

    Args:
        view: what is known.
        seen: the time, and the rates.
        width: of the terminal.
        problem: why nothing newer is known; empty when all is well.
    """
    lines = [_first_line(view, seen, width, is_away=bool(problem)), _device_line(view, width)]
    if problem:
        return [*lines, [(truncate(problem, 500), "bad")]]
    return [*lines, *notices(view, seen.now)]


def _first_line(view: ServerView, seen: Seen, width: int, *, is_away: bool) -> Spans:
    """Server, state, uptime, seconds saved, calls per second."""
    rank = dict(zip(_WORST_FIRST, range(len(_WORST_FIRST)), strict=True))
    workers = view.workers.values()
    worst = min(workers, key=lambda one: rank.get(one.state, 0), default=WorkerRow())
    state = "gone" if is_away else worker_word(worst)
    tone = "bad" if is_away else _STATE_TONES.get(worst.state, "warn")
    spans: Spans = [
        (state, tone),
        (f"up {since(view.server.since, seen.now) or '0 s'}", ""),
        (f"saved {duration(float(view.counters.get('saved_s', 0.0)))}", "strong"),
        (_rate_text(view, seen), ""),
    ]
    room = max(_LEAST_ADDRESS, width - _length(spans) - (_LEAST_TREND if seen.rates else 0))
    address = view.server.address.partition("#")[0]
    spans.insert(0, (_end_of(address, room), "strong"))
    left = width - _length(spans)
    if left >= _LEAST_TREND - GAP:
        spans.append((sparkline(seen.rates, left), "good"))
    return _spaced(spans)


def _length(spans: Spans) -> int:
    return sum(cells(text) + GAP for text, _ in spans)


def _spaced(spans: Spans) -> Spans:
    return [(text + " " * GAP, tone) for text, tone in spans[:-1]] + spans[-1:]


def _end_of(address: str, room: int) -> str:
    """Its end, which tells servers apart."""
    return address if len(address) <= room else f"…{address[1 - room :]}"


def _rate_text(view: ServerView, seen: Seen) -> str:
    if seen.rate is None:
        return f"{int(view.counters.get('calls', 0)):,} calls"
    return f"{seen.rate:,.0f} calls/s" if seen.rate >= 10 else f"{seen.rate:.2g} calls/s"


def _device_line(view: ServerView, width: int) -> Spans:
    """A bar for each device; where they have no room, one for all, and the fullest."""
    devices = [(one.name, one.in_use, one.limit) for one in view.devices.values()]
    if not devices:
        return [("no device yet", "")]
    room = (width + GAP) // len(devices) - GAP
    if room >= 26 or len(devices) == 1:
        return _spaced([(_device_text(*each, room), "") for each in devices])
    fullest = max(devices, key=lambda each: each[1] / (each[2] or 1))
    worst = f"fullest: {fullest[0]} {size(fullest[1])}"
    total = (
        f"{len(devices)} devices",
        sum(each[1] for each in devices),
        sum(each[2] for each in devices),
    )
    return _spaced([(_device_text(*total, width - cells(worst) - GAP), ""), (worst, "")])


def _device_text(name: str, in_use: int, limit: int, room: int) -> str:
    """``cuda:0 ███░░░ 12 GB of 80 GB``."""
    if not limit:
        return f"{name} {size(in_use)} in use"
    text = f"{size(in_use)} of {size(limit)}"
    length = max(4, min(_LONGEST_BAR, room - cells(name) - len(text) - 2))
    full = min(length, round(in_use / limit * length))
    return f"{name} {'█' * full}{'░' * (length - full)} {text}"


# one row ----------------------------------------------------------------------------------------

_TIMES: Final = frozenset(
    ("since", "phase_since", "behind_since", "queued", "started", "finished", "at", "answered")
)


def row_lines(row: Row, now: float) -> list[str]:
    """All that is known of a row, a field a line."""
    return [
        f"{field.name.removesuffix('_s').replace('_', ' '):<14} {_field_text(field.name, row, now)}"
        for field in dataclasses.fields(row)
    ]


def _field_text(name: str, row: Row, now: float) -> str:
    value = getattr(row, name)
    if name in _TIMES:
        return f"{clock(value)} ({long_ago(value, now)})" if value else "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    shown = {"_s": duration, "bytes": size}
    make = next((make for end, make in shown.items() if name.endswith(end)), str)
    return make(value) or "-"


def function_lines(key: str, view: ServerView, seen: Seen) -> list[str]:
    """A function: its figures, calls by time, programs, and its last builds with the reasons."""
    row: FunctionRow = view.functions[key]
    calls = f"{sum(row.latency):,} calls"
    times = (duration(seconds) for seconds in (row.saved_s, row.built_s, row.run_s))
    last = long_ago(row.last_use, seen.now) or "never"
    counts = f"{row.hits:,} calls found it in memory, {row.compiled:,} programs were compiled"
    return [
        f"{row.name}  {row.where}  key {key}",
        "saved {}, built in {}, ran for {}, last use {}".format(*times, last),
        f"{counts}, {row.loaded:,} loaded",
        f"last minute {sparkline(seen.trend(key, TREND_LENGTH), TREND_LENGTH)}",
        "",
        f"Time in the server: {calls}, median {median_text(row.latency) or '-'}",
        *_latency_lines(row.latency),
        "",
        "Programs",
        *(_program_lines(key, view, seen.now) or ["  none is known"]),
        "",
        "Builds, the last one first, and why",
        *(_build_lines(key, view) or ["  none is among the last ones; 2 shows earlier ones"]),
    ]


def _latency_lines(latency: Sequence[int]) -> Iterator[str]:
    """A bar for each class between the first and the last that has calls."""
    filled = [place for place, count in enumerate(latency) if count]
    last = len(LATENCY_BOUNDS_S) - 1
    for place in range(filled[0], filled[-1] + 1) if filled else ():
        label = (
            f"{'over' if place > last else 'to'} {short_time(LATENCY_BOUNDS_S[min(place, last)])}"
        )
        length = max(bool(latency[place]), round(latency[place] / max(latency) * _LONGEST_BAR))
        yield f"  {label:>12} {'█' * length:<{_LONGEST_BAR}} {latency[place]:,}"


def programs_of(key: str, view: ServerView) -> list[str]:
    """The names of the programs of a function, those in memory first, by their calls."""
    bare = key.rpartition("/")[2]
    found = [(name, one) for name, one in view.programs.items() if one.function in (key, bare)]
    found.sort(key=lambda each: (each[1].state != "memory", -each[1].calls, each[0]))
    return [name for name, _ in found]


def _program_lines(key: str, view: ServerView, now: float) -> list[str]:
    lines = []
    for one in map(view.programs.__getitem__, programs_of(key, view)):
        host, device, disk = map(size, (one.host_bytes, one.device_bytes, one.disk_bytes))
        build, load, saved = map(duration, (one.build_s, one.load_s, one.saved_s))
        last = long_ago(one.last_use, now) or "never"
        lines += [
            f"  {one.arguments or '(no arguments)'}: in {one.state}",
            f"    {one.calls:,} calls, saved {saved}, last use {last}",
            f"    {host} on the host, {device} on the device, {disk} on disk",
            f"    built in {build}, loaded in {load}",
        ]
    return lines


def _build_lines(key: str, view: ServerView) -> list[str]:
    bare = key.rpartition("/")[2]
    lines = []
    for one in sorted(view.builds.values(), key=lambda one: -one.queued):
        if one.key in (key, bare):
            took = f" in {duration(one.finished - one.started)}" if one.finished else ""
            behind = f", waited for {one.behind}" if one.behind else ""
            why = one.reason or "no reason is known yet"
            lines += [f"  {clock(one.queued)} {build_word(one)}{took}{behind}: {why}"]
            lines += [f"    {one.arguments}"] if one.arguments else []
    return lines


def detail_text(detail: FunctionDetail) -> str:
    """What the server says of a function when it is asked: history, advice, memory and cost."""
    lines = ["Why its programs were made, the last one first"]
    for made in detail.history:
        lines += _history_lines(made)
    lines += ["", "What would make it compile less"]
    lines += [f"  {one}" for one in detail.advice or ["nothing that is known of"]]
    lines += ["", "Memory and cost, as XLA says"]
    for program in detail.programs:
        lines += [f"  {program.arguments or '(no arguments)'}"]
        lines += _figure_lines(program.memory, size)
        lines += _figure_lines(program.cost, "{:,.4g}".format)
    lines += [] if detail.programs else ["  no program is in memory"]
    return "\n".join(lines)


def _figure_lines(figures: Mapping[str, float], shown: Callable[[float], str]) -> list[str]:
    """Those that are not zero, without what is said of each operand."""
    return [
        f"    {name.removesuffix('_in_bytes').replace('_', ' '):<24} {shown(figure)}"
        for name, figure in figures.items()
        if figure and not name.endswith("{}")
    ]


def _history_lines(made: Mapping[str, Any]) -> list[str]:
    took = duration(float(made.get("seconds", 0.0)))
    texts = [str(one.get("text", "")) for one in made.get("differences", ())]
    head = f"  {clock(float(made.get('time', 0.0)))} {made.get('verdict', '')} in {took}"
    return [f"{head}: {made.get('reason', '')}", *(f"    {text}" for text in texts)]


def wrapped(line: str, width: int) -> list[str]:
    """A line as lines of the screen; the further ones begin a little further to the right."""
    line = printable(line, _LONGEST_LINE)
    if len(line) <= width or width < 20:
        return [line]
    begin = " " * (2 + min(len(line) - len(line.lstrip()), width // 2))
    return textwrap.wrap(line, width, subsequent_indent=begin)


def function_of(pane: str, key: str, row: Row, view: ServerView) -> str:
    """The key of the function that a row is about; empty when there is none, or it is not known."""
    if pane == "functions":
        return key
    name, bare = getattr(row, "function", ""), getattr(row, "key", "")
    for known, one in view.functions.items():
        if (bare and known.rpartition("/")[2] == bare) or (not bare and name and one.name == name):
            return known
    return ""
