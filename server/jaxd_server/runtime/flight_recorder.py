"""A flight recorder: the running calls of a worker, readable by its host after a hang or crash.

It is a file in memory that both have mapped. It records only calls that may run Python code of a
client, and calls that are repeated after a worker died. A warm call writes nothing.
"""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.shared_memory import available, create_private, create_sealed, map_file

_SLOTS: Final = 256
_ROW: Final = struct.Struct("<BBd16s16sB63sH150s")
_OWNERS_BYTES: Final = 4096
_OWNERS: Final = struct.Struct("<I")
_BYTES: Final = _OWNERS_BYTES + _SLOTS * _ROW.size
_RUNNING, _REPEATED, _ENDED = 1, 2, 4
_NOTHING: Final = bytes(16)


class FlightEntry(NamedTuple):
    """One call of a worker.

    Attributes:
        function: the name of its function.
        ids: the fingerprint of the function, once it is known, and its key.
        principal: whose call it is.
        started: `time.monotonic()`, which is the same in all processes of a machine.
        is_repeated: whether it was running when an earlier worker died.
        is_alone: whether no other call has run at the same time.
    """

    function: str
    ids: tuple[bytes, ...]
    principal: str
    started: float
    is_repeated: bool
    is_alone: bool

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started


class FlightRecorder:
    """The running calls of one worker, and the owners of its values. Thread-safe.

    Args:
        descriptor: of the file that `create` has made; owned by this object.

    Attributes:
        descriptor: the same, which the worker inherits.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = map_file(descriptor, _BYTES, writable=True)
        self.descriptor = descriptor
        self._free = list(range(_SLOTS))
        self._owners: frozenset[str] = frozenset()
        self._lock = threading.Lock()  # guards these two, and changes of a row

    @classmethod
    def create(cls) -> FlightRecorder:
        """A recorder for a worker that is about to start.

        Raises:
            OSError: when there is no memory for it, or the process may open no more files.
        """
        descriptor = create_sealed(_BYTES) if available() else create_private(_BYTES)
        try:
            return cls(descriptor)
        except OSError:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Closes the file; the memory stays mapped."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    # the worker's side ------------------------------------------------------------------------

    def begin(self, key: bytes, principal: str, *, is_repeated: bool, is_alone: bool) -> int:
        """Records a call; returns its row, or -1 when none is free.

        Args:
            key: of the function.
            principal: whose call it is.
            is_repeated: see `FlightEntry`.
            is_alone: see `FlightEntry`.
        """
        with self._lock:
            if not self._free:
                return -1
            place = self._free.pop()
        who, state = principal.encode()[:63], _RUNNING | (_REPEATED if is_repeated else 0)
        row = (0, is_alone, time.monotonic(), key[:16], _NOTHING, len(who), who, 0, b"")
        _ROW.pack_into(self._memory, self._at(place), *row)
        self._memory[self._at(place)] = state  # last, so that no half-written row is read
        return place

    def identify(self, place: int, fingerprint: bytes, function: str) -> None:
        """Adds the fingerprint and name of the function of a call."""
        if place < 0:
            return
        name, at = function.encode("utf-8", "replace")[:150], self._at(place)
        with self._lock:
            state, alone, started, key, _, length, who, _, _ = _ROW.unpack_from(self._memory, at)
            row = (alone, started, key, fingerprint[:16], length, who, len(name), name)
            _ROW.pack_into(self._memory, at, state, *row)

    def clear_alone(self, place: int) -> None:
        """Records that another call runs at the same time."""
        if place >= 0:
            with self._lock:
                self._memory[self._at(place) + 1] = 0

    def end(self, place: int) -> None:
        """Removes a call; one that ran alone is among the `survived` until others need its row."""
        if place < 0:
            return
        at = self._at(place)
        with self._lock:
            was_alone = bool(self._memory[at + 1])
            self._memory[at] = _ENDED if was_alone else 0
            self._free.insert(0 if was_alone else len(self._free), place)

    def own(self, principals: Iterable[str]) -> None:
        """Records the principals that may have values without a copy elsewhere."""
        with self._lock:
            now = frozenset(principals)
            if now == self._owners:
                return
            self._owners = now
            data = json.dumps(sorted(now)).encode()
            if len(data) > _OWNERS_BYTES - _OWNERS.size:
                data = b'["many"]'
            self._memory[_OWNERS.size : _OWNERS.size + len(data)] = data
            _OWNERS.pack_into(self._memory, 0, len(data))

    # the host's side --------------------------------------------------------------------------

    def entries(self) -> list[FlightEntry]:
        """The calls that are running, or were when the worker ended; the oldest first."""
        found = []
        for row in self._rows(_RUNNING):
            state, alone, started, key, fingerprint, length, who, named, name = row
            ids = (key,) if fingerprint == _NOTHING else (fingerprint, key)
            text = name[:named].decode("utf-8", "replace") or "(unknown function)"
            is_repeated = bool(state & _REPEATED)
            principal = who[:length].decode("utf-8", "replace")
            found.append(FlightEntry(text, ids, principal, started, is_repeated, bool(alone)))
        return sorted(found, key=lambda entry: entry.started)

    def survived(self) -> frozenset[bytes]:
        """Keys and fingerprints of functions that ran alone, and did not end the worker."""
        return frozenset(id_ for row in self._rows(_ENDED) for id_ in row[3:5])

    def _rows(self, state: int) -> Iterator[tuple[Any, ...]]:
        rows = (_ROW.unpack_from(self._memory, self._at(place)) for place in range(_SLOTS))
        return (row for row in rows if row[0] & state)

    def owners(self) -> frozenset[str]:
        """The principals that may have values without a copy elsewhere."""
        (length,) = _OWNERS.unpack_from(self._memory, 0)
        if not length:
            return frozenset()
        try:
            return frozenset(json.loads(bytes(self._memory[4 : 4 + length])))
        except (ValueError, TypeError, RecursionError):  # half written, or hostile
            return frozenset({"unknown"})

    def _at(self, place: int) -> int:
        return _OWNERS_BYTES + place * _ROW.size
