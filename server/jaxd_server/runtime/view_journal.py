"""The rows of a view of the server, in the order in which they have changed.

Whoever has seen all until some change asks for what came after: nothing is kept for each watcher,
and one that is slow gets the last state of each row, however often that has changed meanwhile.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from jaxd_protocol.messages.server_view import EventRow, read_row, row_dict
from jaxd_server.runtime.log_events import EVENTS
from jaxd_server.runtime.logs import recent_events
from jaxd_server.runtime.system_memory import resident_bytes

Place = tuple[str, str]
"""A table, and the name of a row in it; the second is empty for the row of the server."""

Sees = Callable[[str, str, Any], bool]
"""Whether somebody may see a row: its table, its name and the row."""

ROWS_AT_ONCE: Final = 400
"""To write so many as JSON takes a millisecond or two."""

HEARTBEAT_S: Final = 10.0
"""That a worker has answered is news only so often."""

_MEMORY_STEP: Final = 1 << 20
_MAX_REMOVED: Final = 20_000


class News(NamedTuple):
    """What has changed.

    Attributes:
        change: a merge patch of what `ServerView.to_dict` makes; or with `is_whole` such a thing.
        sequence: of the last change in it.
        source: what `sequence` counts the changes of.
        is_whole: whether it replaces all that was known.
        has_more: whether there are further changes.
    """

    change: dict[str, Any]
    sequence: int
    source: str
    is_whole: bool
    has_more: bool

    def to_message(self) -> dict[str, Any]:
        """For JSON."""
        what = "view" if self.is_whole else "change"
        change = {**self.change, "sequence": self.sequence}
        return {what: change, "source": self.source, "more": self.has_more}


class Journal:
    """Rows by table and name, each with the number of its last change. Thread-safe.

    Args:
        max_removed: how many removed rows are remembered; with one more, all readers begin anew.
        keeps_removed: whether what they were is remembered, for readers who may not see all.

    Attributes:
        sequence: the number of the last change.
        source: what it counts the changes of.
        changed_at: when that was.
    """

    def __init__(self, max_removed: int = _MAX_REMOVED, *, keeps_removed: bool = True) -> None:
        self.sequence = 0
        self.source = os.urandom(8).hex()
        self.changed_at = time.time()
        self._max_removed = max_removed
        self._keeps_removed = keeps_removed
        self._rows: OrderedDict[Place, tuple[int, Any]] = OrderedDict()  # the last change is last
        self._tables: dict[str, dict[str, None]] = {}  # the names of rows that there are
        self._removed: dict[Place, Any] = {}  # what they were
        self._lock = threading.Lock()  # guards all of these

    def put(self, table: str, name: str, row: Any) -> bool:
        """Sets a row, or removes it for None; whether that is a change."""
        place = table, name
        with self._lock:
            before = self._rows.get(place)
            if (None if before is None else before[1]) == row:
                return False
            self.sequence += 1
            self.changed_at = time.time()
            self._rows[place] = self.sequence, row
            self._rows.move_to_end(place)
            if row is None:
                self._remove(place, before)
            else:
                self._removed.pop(place, None)
                self._tables.setdefault(table, {})[name] = None
            return True

    def _remove(self, place: Place, before: tuple[int, Any] | None) -> None:
        table, name = place
        self._tables[table].pop(name, None)
        self._removed[place] = before[1] if before and self._keeps_removed else None
        if len(self._removed) > self._max_removed:
            for gone in self._removed:
                del self._rows[gone]
            self._removed.clear()
            self.source = os.urandom(8).hex()

    def replace(self, table: str, rows: Mapping[str, Any]) -> None:
        """Sets all rows of a table; others are removed."""
        for name in self.names(table):
            if name not in rows:
                self.put(table, name, None)
        for name, row in rows.items():
            self.put(table, name, row)

    def names(self, table: str) -> list[str]:
        """The names of the rows of a table, the oldest first."""
        with self._lock:
            return list(self._tables.get(table, ()))

    def get(self, table: str, name: str) -> Any:
        """A row; None when there is none."""
        found = self._rows.get((table, name))
        return None if found is None else found[1]

    def trim(self, table: str, most: int, may_go: Callable[[Any], bool] = lambda row: True) -> None:
        """Removes the oldest rows of a table of more than `most`, of those that may go."""
        names = self.names(table)
        over = len(names) - most
        for name in names:
            if over <= 0:
                return
            if may_go(self.get(table, name)):
                self.put(table, name, None)
                over -= 1

    def news(
        self,
        since: int,
        source: str,
        most: int | None = None,
        sees: Sees = lambda table, name, row: True,
    ) -> News:
        """What has changed.

        Args:
            since: the `sequence` of the news before; 0: there were none.
            source: their `source`.
            most: of how many rows; None: of all.
            sees: leaves out what it does not allow.
        """
        with self._lock:
            is_whole = source != self.source or not since
            taken, has_more = self._after(0 if is_whole else since, most)
            now, source = self.sequence, self.source
        change: dict[str, Any] = {}
        for (table, name), (_, row) in taken:
            shown = self._removed.get((table, name)) if row is None else row
            if (row is None and is_whole) or not sees(table, name, shown):
                continue
            if name:
                change.setdefault(table, {})[name] = row
            else:
                change[table] = row
        if change or is_whole:
            change["at"] = self.changed_at
        last = taken[-1][1][0] if has_more else now
        return News(change, last, source, is_whole, has_more)

    def _after(self, since: int, most: int | None) -> tuple[list[_Entry], bool]:
        """The first rows that have changed after that, and whether there are more.

        What is new is at the end, and found from there; a reader that begins has most before it,
        and is served from the other end. The lock is held.
        """
        found: list[_Entry] = []
        for entry in reversed(self._rows.items()):
            if entry[1][0] <= since:
                break
            found.append(entry)
            if most is not None and len(found) > 2 * most:
                later = (entry for entry in self._rows.items() if entry[1][0] > since)
                return list(islice(later, most)), True
        return found[::-1][:most], most is not None and len(found) > most


_Entry = tuple[Place, tuple[int, Any]]


def take_events(journal: Journal, epoch: int, last: int) -> int:
    """Adds the events of the log that came after that number; the number of the last one.

    Args:
        journal: of this process.
        epoch: that of the worker; 0 of the host.
        last: what this returned before.
    """
    for event in recent_events.after(last):
        named = {n: str(event.fields.get(n) or "") for n in ("function", "call", "principal")}
        level, at = EVENTS[event.name].level, round(event.at, 3)
        row = row_dict(EventRow(at, event.name, level, **named, text=event.text))
        # texts may be of functions
        journal.put("events", f"{epoch}.{event.number}", row_dict(read_row(EventRow(), row)))
        last = event.number
    return last


def resident_steps(pid: int) -> int:
    """The resident bytes of a process in whole MiB: less is no news."""
    return resident_bytes(pid) // _MEMORY_STEP * _MEMORY_STEP
