"""The view of a server in its host: what its workers show of themselves, and what the host knows.

One collection serves all who watch. A worker that hangs, rests or is replaced takes nothing away:
its state, its recorded calls, its last builds and events are the host's. The code of a worker may
be hostile, so each of its rows is read as those of a stranger.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from jaxd_protocol.base.terminal import printable
from jaxd_protocol.messages.server_view import (
    LEAST_S,
    MAX_LARGEST,
    MAX_NUMBER,
    MAX_ROWS,
    MOST_S,
    TABLES,
    CallRow,
    ServerRow,
    WorkerRow,
    read_count,
    read_row,
    row_dict,
)
from jaxd_server.processes.supervision.supervisor import Supervisor
from jaxd_server.processes.supervision.untrusted_report import is_number
from jaxd_server.processes.supervision.worker_process import ANSWER_TIMEOUT_S, WorkerProcess
from jaxd_server.runtime.logs import MAX_EVENTS, log_event
from jaxd_server.runtime.view_journal import (
    HEARTBEAT_S,
    ROWS_AT_ONCE,
    Journal,
    News,
    Place,
    resident_steps,
    take_events,
)

_USUAL_S: Final = 0.5
_MAX_BUILDS: Final = 200
_MAX_BYTES: Final = 32 << 20
"""Of the rows of one worker."""

_MAX_ALL_BYTES: Final = 56 << 20
"""Of the rows of all workers: one answer of the control socket has to hold them."""

_MAX_TABLE: Final = MAX_ROWS - 1000
"""Rows of all workers in one table; those of the host are beside them."""

_ROW_BYTES: Final = 500
_ITEM_BYTES: Final = 60
_MAX_OF_PIECE: Final = 2 * ROWS_AT_ONCE
_MAX_PIECES: Final = 100
_MAX_READ_BYTES: Final = 16 << 20
"""What is read of one worker in one collection."""

_MAX_STALLS: Final = 2
"""After so many pieces without progress a worker has no more to show, whatever it says."""

_MAX_NAME: Final = 300
_MAX_COUNTERS: Final = 200
_READ_S: Final = 1.0
"""So long may one worker say something new: others have to be read as well."""

_CATCH_UP_S: Final = 2.0
"""Whoever asks the host gives up after five seconds, and the host has more to answer."""

_OF_WORKERS: Final = frozenset(TABLES) - {"workers"}
_OUTLIVING: Final = frozenset({"builds", "events"})
"""The tables whose rows stay when the worker that has made them has ended; the host has rows there
as well, and so has each worker: the name of a row begins with the number of its worker."""

_OF_LARGEST: Final = frozenset({"largest", "largest_nbytes"})

Supervised = tuple[str, Supervisor]
"""A principal, empty where all share a worker, and who keeps its worker."""


def period_of(request: Mapping[str, Any]) -> float:
    """The seconds between two changes that somebody asks for, within the limits."""
    every_s = request.get("every_s")
    return min(MOST_S, max(LEAST_S, every_s)) if is_number(every_s) else _USUAL_S


@dataclass(slots=True, eq=False)
class Room:
    """What the rows of all workers take.

    Attributes:
        nbytes: of all of them, roughly.
        rows: how many there are in each table.
    """

    nbytes: int = 0
    rows: Counter[str] = field(default_factory=Counter)

    def take(self, table: str, rows: int, nbytes: int) -> None:
        """Adds rows and bytes; negative ones are given back."""
        self.rows[table] += rows
        self.nbytes += nbytes


@dataclass(slots=True, eq=False)
class WorkerRows:
    """The rows of one worker in the journal of its host.

    Attributes:
        worker: whose they are.
        principal: the only one that it serves; empty: all.
        journal: of the host.
        room: what the rows of all workers take.
        counters: its counts, by name.
        sequence: of the last change that was read.
        source: what that counts the changes of.
        places: its rows, and what each takes, roughly in bytes.
        nbytes: of all of them.
        stale: of these, what was not there again since all began anew.
        answered: when it has last answered, as `time.time()`.
        is_behind: whether it has more to show than could be read the last time.
        stalls: how many pieces in a row have brought its sequence no further.
        taken: bytes of the rows that this collection has read.
    """

    worker: WorkerProcess
    principal: str
    journal: Journal
    room: Room = field(default_factory=Room)
    counters: dict[str, float] = field(default_factory=dict)
    sequence: int = 0
    source: str = ""
    places: dict[Place, int] = field(default_factory=dict)
    nbytes: int = 0
    stale: set[Place] = field(default_factory=set)
    answered: float = 0.0
    is_behind: bool = False
    stalls: int = 0
    taken: int = 0

    async def read(self) -> bool:
        """Reads what is new, as far as it is not too much; whether the worker has answered."""
        until = time.monotonic() + _READ_S
        self.is_behind, self.taken, self.stalls = True, 0, 0
        for _ in range(_MAX_PIECES):
            if not self.is_behind or self.taken > _MAX_READ_BYTES or time.monotonic() > until:
                break
            seen = await self.worker.see(self.sequence, self.source, ANSWER_TIMEOUT_S)
            if seen is None:
                self.is_behind = False
                return False
            self.answered = time.time()
            self.is_behind = self._take(seen)
        return True

    def _take(self, seen: Mapping[str, Any]) -> bool:
        """Takes one piece; whether there are more."""
        if isinstance(seen.get("view"), dict):
            self.stale = set(self.places)
        content = seen.get("view") or seen.get("change")
        if not isinstance(content, dict):
            return False
        for table in _OF_WORKERS & content.keys():
            rows = content[table].items() if isinstance(content[table], dict) else ()
            for name, row in islice(rows, _MAX_OF_PIECE):
                self._put(table, str(name), row)
        self._count(content.get("counters"))
        self._follow(content.get("sequence"), seen.get("source"))
        has_more = seen.get("more") is True and self.stalls < _MAX_STALLS
        if not has_more:
            for place in self.stale:
                self._remove(place)
            self.stale = set()
        return has_more

    def _follow(self, sequence: Any, source: Any) -> None:
        """Notes how far it has been read, and whether that is further than before."""
        number = sequence if type(sequence) is int else 0
        name = source[:_MAX_NAME] if type(source) is str else ""
        is_further = number > self.sequence and self.source in ("", name)
        self.stalls = 0 if is_further else self.stalls + 1
        self.sequence, self.source = number, name

    def _put(self, table: str, name: str, content: Any) -> None:
        if table in _OUTLIVING and not name.startswith(f"{self.worker.epoch}."):
            return None
        prefix = f"{self.principal}/" if self.principal else ""
        place = table, prefix + printable(name, _MAX_NAME)
        if content is None:
            return self._remove(place)
        with suppress(AttributeError, TypeError, ValueError):
            row = row_dict(read_row(TABLES[table](), content))
            if self.principal and "principal" in row:
                row["principal"] = self.principal
            for field_name in _OF_LARGEST & row.keys():
                row[field_name] = row[field_name][:MAX_LARGEST]
            self._hold(place, row)
        return None

    def _hold(self, place: Place, row: dict[str, Any]) -> None:
        """Takes a row in, if there is room: a hostile worker could fill the memory of its host."""
        lists = (value for value in row.values() if isinstance(value, list))
        size = len(json.dumps([place[1], row]))  # as it is sent
        nbytes = _ROW_BYTES + size + _ITEM_BYTES * sum(map(len, lists))
        self.taken += nbytes
        more = nbytes - self.places.get(place, 0)
        rows = 0 if place in self.places else 1
        is_short = self.room.nbytes + more > _MAX_ALL_BYTES or self.nbytes + more > _MAX_BYTES
        if is_short or self.room.rows[place[0]] + rows > _MAX_TABLE:
            return
        self.places[place] = nbytes
        self.nbytes += more
        self.room.take(place[0], rows, more)
        self.stale.discard(place)
        self.journal.put(*place, row)

    def _count(self, counts: Any) -> None:
        for given, count in counts.items() if isinstance(counts, dict) else ():
            name = printable(given, _MAX_NAME)
            if count is None:
                self.counters.pop(name, None)
            elif name in self.counters or len(self.counters) < _MAX_COUNTERS:
                with suppress(TypeError):
                    self.counters[name] = read_count(count)

    def _remove(self, place: Place) -> None:
        if place in self.places:
            self._release(place)
            self.journal.put(*place, None)

    def _release(self, place: Place) -> None:
        nbytes = self.places.pop(place)
        self.nbytes -= nbytes
        self.room.take(place[0], -1, -nbytes)

    def show_recorded(self, offset: float) -> None:
        """Adds the calls that its flight recorder has, of a worker that does not answer."""
        known = {
            self.journal.get(*place)["function"] for place in self.places if place[0] == "calls"
        }
        for entry in self.worker.recorder.entries():
            if entry.function not in known:
                since = round(offset + entry.started, 3)
                who = self.principal or entry.principal
                row = CallRow(entry.function, who, "running", since, since)
                self._put("calls", f"recorded {since}", row_dict(row))

    def forget_recorded(self) -> None:
        """It answers: it says itself what it runs."""
        for place in [one for one in self.places if "recorded " in one[1] and one[0] == "calls"]:
            self._remove(place)

    def end(self) -> None:
        """The worker is no more; what it has done stays."""
        for table, name in list(self.places):
            row = self.journal.get(table, name)
            if table not in _OUTLIVING:
                self._remove((table, name))
                continue
            self._release((table, name))
            if row and row.get("verdict") == "building":
                over = {"verdict": "failed", "finished": time.time(), "reason": "its worker ended"}
                self.journal.put(table, name, {**row, **over})


class ServerViews:
    """What there is to see of a server, for all who watch. Belongs to the event loop's thread.

    Args:
        supervised: who keeps the workers.
        describe: the row of the host, but for what its workers know.
        failed: rows of the status of principals whose workers cannot be started.

    Attributes:
        journal: the rows.
        when_ended: called with the last rows of each worker that has ended, before these are gone.
    """

    def __init__(
        self,
        supervised: Callable[[], Sequence[Supervised]],
        describe: Callable[[], ServerRow],
        failed: Callable[[], Sequence[Mapping[str, Any]]] = tuple,
    ) -> None:
        self.journal = Journal(keeps_removed=False)
        self.when_ended: list[Callable[[WorkerRows], None]] = []
        self._supervised = supervised
        self._describe = describe
        self._failed = failed
        self._offset = time.time() - time.monotonic()
        self._rows: dict[WorkerProcess, WorkerRows] = {}
        self._room = Room()
        self._last_event = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._periods: list[float] = []
        self._changed = asyncio.Event()
        self._announced = 0
        self._has_failed = False

    async def refresh(self) -> None:
        """Collects what there is now; callers that come meanwhile share one collection."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _catch_up(self) -> None:
        """Collects all that there is; a worker with very much to show is read in pieces."""
        until = asyncio.get_running_loop().time() + _CATCH_UP_S
        await self.refresh()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                while any(one.is_behind for one in self._rows.values()):
                    await self.refresh()

    async def whole(self) -> dict[str, Any]:
        """All that there is now, as `ServerView.from_dict` reads it."""
        await self._catch_up()
        news = self.journal.news(0, "")
        return {**news.change, "sequence": news.sequence}

    async def watch(self, every_s: float) -> AsyncGenerator[News, None]:
        """All that there is, and then what has changed, whenever that is asked for.

        Args:
            every_s: seconds from one to the next at least.
        """
        self._periods.append(every_s)
        try:
            await self._catch_up()
            self._collect()
            news = self.journal.news(0, "")
            while True:
                yield news
                await asyncio.sleep(every_s)
                while self.journal.sequence == news.sequence:
                    await self._changed.wait()
                news = self.journal.news(news.sequence, news.source)
        finally:
            self._periods.remove(every_s)

    def _collect(self) -> None:
        if self._collecting is None or self._collecting.done():
            self._collecting = asyncio.create_task(self._collect_on())

    async def _collect_on(self) -> None:
        """Collects as long as somebody watches, as often as the most impatient one wants."""
        while self._periods:
            try:
                await self.refresh()
            except Exception:  # noqa: BLE001  the next time may do better, and others watch
                if not self._has_failed:
                    self._has_failed = True
                    log_event("view_not_collected")
            if self.journal.sequence != self._announced:
                self._announced = self.journal.sequence
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(min(self._periods, default=LEAST_S))

    async def _refresh(self) -> None:
        supervised = list(self._supervised())
        present = {one.worker for _, one in supervised}
        self._forget_ended(present)  # the next worker may have rows of the same names
        shown = await asyncio.gather(*(self._see(*each) for each in supervised))
        workers = dict(row for rows in shown for row in rows)
        self._forget_ended(present)
        for row in self._failed():
            who = str(row["principal"])
            failed = WorkerRow(state="broken", principal=who, why=_line(str(row.get("why", ""))))
            workers[f"{who}/0"] = row_dict(read_row(WorkerRow(), row_dict(failed)))
        self.journal.replace("workers", workers)
        counts: Counter[str] = Counter()
        for rows in self._rows.values():
            counts.update(rows.counters)
        self.journal.replace("counters", {name: _bounded(total) for name, total in counts.items()})
        self.journal.put("server", "", row_dict(self._describe()))
        self._take_events()
        self.journal.trim("builds", _MAX_BUILDS, lambda row: row["verdict"] != "building")

    def _forget_ended(self, present: set[WorkerProcess | None]) -> None:
        for worker in [one for one in self._rows if one not in present or one.exited.is_set()]:
            rows = self._rows.pop(worker)
            for call in self.when_ended:
                call(rows)
            rows.end()

    async def _see(self, principal: str, one: Supervisor) -> list[tuple[str, dict[str, Any]]]:
        """Reads what a worker shows; its row, and those of workers that drain beside it."""
        worker, prefix = one.worker, f"{principal}/" if principal else ""
        if worker is None:
            state = "broken" if one.broken else "starting"
            row = WorkerRow(0, 0, state, principal, why=_line(one.broken))
            return [(f"{prefix}0", row_dict(row))]
        rows = self._rows.get(worker)
        if rows is None:
            rows = WorkerRows(worker, principal, self.journal, self._room)
            self._rows[worker] = rows
        is_up = worker.was_ready and not worker.exited.is_set()
        is_fresh = is_up and await rows.read()
        state = one.shown_state(worker, is_fresh=is_fresh)
        if is_fresh:
            rows.forget_recorded()
        elif is_up:
            rows.show_recorded(self._offset)
        shown = [(worker, state), *((each, "draining") for each in one.draining())]
        return [
            (f"{prefix}{each.epoch}", self._worker_row(f"{prefix}{each.epoch}", each, what, one))
            for each, what in shown
        ]

    def _worker_row(
        self, name: str, worker: WorkerProcess, state: str, one: Supervisor
    ) -> dict[str, Any]:
        """Its row; when it has answered is news only now and then, or with something else."""
        known, rows = self.journal.get("workers", name), self._rows.get(worker)
        is_there = not worker.exited.is_set()
        answered = rows.answered if rows else time.time() - worker.silent_s
        row = WorkerRow(
            worker.epoch,
            worker.pid if is_there else 0,
            state,
            worker.principal or "",
            round(answered, 3),
            max(0, worker.epoch - 1),
            resident_steps(worker.pid) if is_there else 0,
            _line(one.broken),
        )
        found = row_dict(row)
        if known is not None and state == "ready":
            before = {**found, "answered": known["answered"]}
            if known == before and answered - known["answered"] < HEARTBEAT_S:
                return before
        return found

    def _take_events(self) -> None:
        self._last_event = take_events(self.journal, 0, self._last_event)
        names = self.journal.names("events")
        if len(names) > MAX_EVENTS:
            names.sort(key=lambda name: self.journal.get("events", name)["at"])
            for name in names[:-MAX_EVENTS]:
                self.journal.put("events", name, None)


def _bounded(count: float) -> float:
    """A sum over workers, which could be greater than what any reader takes."""
    return max(1 - MAX_NUMBER, min(MAX_NUMBER - 1, count))


def _line(text: str) -> str:
    return printable(" ".join(text.split()), 1000)
