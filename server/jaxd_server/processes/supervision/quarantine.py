"""Functions that end workers: how often, and which of them are in quarantine.

The host counts, because the memory of a worker ends with it. The functions in quarantine are kept
over a restart of the host, in one small file for each server in the cache folder. The file is read
only where no other user can have written it; one that is missing, damaged or of other versions
counts as empty.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ConfigurationError
from jaxd_server.cache.directory import make_trusted
from jaxd_server.cache.record_file import InvalidRecord, own_bytes
from jaxd_server.runtime.flight_recorder import FlightEntry
from jaxd_server.runtime.logs import log_event, replace_file
from jaxd_server.runtime.threads.executors import SerialExecutor

MAX_DEATHS: Final = 2
"""A function that has ended so many workers while nothing else ran is put in quarantine."""

_RECORD_TTL_S: Final = 3600.0
"""Older deaths are not counted, unless the function is in quarantine by then."""

_MAX_RECORDS: Final = 1000
_MIN_DIGITS: Final = 6


class QuarantineEntry(NamedTuple):
    """How often a function has ended workers; what the file keeps of the quarantined ones.

    Attributes:
        name: of the function, as people know it.
        ids: fingerprint and key; the key alone when a worker died before it knew more.
        deaths: how many workers it has ended while nothing else ran.
        how: the last of these ended.
        at: when that was, in seconds of `time.time()`.
    """

    name: str
    ids: tuple[bytes, ...]
    deaths: int = 0
    how: str = ""
    at: float = 0.0


@dataclass(slots=True)
class _Record:
    """What the host knows of one function.

    Attributes:
        entry: its deaths.
        epoch: of the last worker that ended while a call of it was being repeated.
        ran_s: for how long one had been running when a worker ended, at most.
        noted: when that was last.
        was_killed: whether a worker was killed from outside while nothing else ran.
    """

    entry: QuarantineEntry
    epoch: int = 0
    ran_s: float = 0.0
    noted: float = 0.0
    was_killed: bool = False

    @property
    def is_quarantined(self) -> bool:
        return self.entry.deaths >= MAX_DEATHS


class Quarantine:
    """Counts the crashes of the functions of one worker; for the thread of the host's event loop.

    Args:
        kept: keeps the functions in quarantine over a restart; None: in memory only.
        principal: whose worker it is; empty where all share one.
        folder: distinguishes this holder of the name from earlier ones.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        kept: QuarantineFile | None = None,
        principal: str = "",
        folder: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.principal = principal
        self._kept = kept or QuarantineFile(None, "")
        self._folder = folder
        self._clock = clock
        self._records = BoundedDict[bytes, _Record](_MAX_RECORDS)
        for entry in self._kept.of(principal, folder):
            self._records[entry.ids[0]] = _Record(entry)

    def _quarantined(self) -> list[_Record]:
        return [one for one in self._records.values() if one.is_quarantined]

    def _keep(self) -> None:
        self._kept.keep(self.principal, self._folder, [one.entry for one in self._quarantined()])

    def record_deaths(
        self,
        entries: Iterable[FlightEntry],
        epoch: int,
        how: str,
        *,
        from_outside: bool = False,
        survived: Collection[bytes] = (),
    ) -> None:
        """Records the calls that a worker was running when it died.

        Args:
            entries: the calls that were under way.
            epoch: of the worker.
            how: how it ended, such as `SIGSEGV`.
            from_outside: whether somebody else has killed it, as far as that can be known: that is
                no function's fault, unless one runs alone each time.
            survived: keys and fingerprints of functions that ran alone and did not end the worker:
                what killed it from outside is not their fault.
        """
        self._forget_old()
        guilty = [entry for entry in entries if entry.is_repeated or entry.is_alone]
        if from_outside:
            for record in self._records.values():
                record.was_killed = record.was_killed and not {*record.entry.ids} & {*survived}
            guilty = [entry for entry in guilty if entry.is_alone and self._was_killed(entry)]
        found = [self._note(entry, epoch, how) for entry in guilty]
        if any(found):
            self._keep()

    def _note(self, call: FlightEntry, epoch: int, how: str) -> bool:
        """Counts a death; returns whether the function is in quarantine because of it."""
        new = _Record(QuarantineEntry(call.function, call.ids))
        record = self._records.setdefault(call.ids[0], new)
        record.epoch, record.noted = epoch, self._clock()
        record.entry = record.entry._replace(how=how)
        record.ran_s = max(record.ran_s, call.seconds)
        if not call.is_alone:
            return False
        entry = record.entry._replace(deaths=record.entry.deaths + 1, at=record.noted)
        record.entry = entry
        log_event(
            "function_quarantined" if record.is_quarantined else "function_suspected",
            function=entry.name,
            fingerprint=entry.ids[0].hex(),
            workers_ended=entry.deaths,
            how=how,
        )
        return record.is_quarantined

    def _was_killed(self, call: FlightEntry) -> bool:
        """Whether it has run alone before when a worker was killed; it has from now on."""
        new = _Record(QuarantineEntry(call.function, call.ids))
        record = self._records.setdefault(call.ids[0], new)
        was_killed, record.was_killed = record.was_killed, True
        record.noted = self._clock()
        return was_killed

    def _forget_old(self) -> None:
        since = self._clock() - _RECORD_TTL_S
        for record in self._records.values():
            if not record.is_quarantined:  # it has ended one worker at most
                if record.entry.at < since:
                    record.entry = record.entry._replace(deaths=0)
                is_recent = record.noted >= since
                record.ran_s = record.ran_s if is_recent else 0.0
                record.was_killed = record.was_killed and is_recent

    def release(self, what: str) -> list[dict[str, Any]]:
        """Releases functions from quarantine; returns their rows.

        Args:
            what: a name, the first digits of a fingerprint, six of them at least, or `all`.
        """
        found = [
            one.entry
            for one in self._quarantined()
            if what in ("all", one.entry.name) or _has_prefix(one.entry.ids, what)
        ]
        for entry in found:
            del self._records[entry.ids[0]]
            log_event("function_released", function=entry.name, fingerprint=entry.ids[0].hex())
        if found:
            self._keep()
        return [self._row(entry) for entry in found]

    def rows(self) -> list[dict[str, Any]]:
        """The functions in quarantine, as rows for display."""
        return [self._row(one.entry) for one in self._quarantined()]

    def _row(self, entry: QuarantineEntry) -> dict[str, Any]:
        return {
            "name": entry.name,
            "fingerprint": entry.ids[0].hex(),
            "workers_ended": entry.deaths,
            "how": entry.how,
            "ago_s": round(max(0.0, self._clock() - entry.at), 3),
        }

    def for_worker(self) -> list[dict[str, Any]]:
        """The records for the next worker, as JSON values; see `CrashSuspects`."""
        return [
            {
                "name": record.entry.name,
                "ids": _hex(record.entry.ids),
                "deaths": record.entry.deaths,
                "how": record.entry.how,
                "epoch": record.epoch,
                "ran_s": record.ran_s,
                "quarantined": record.is_quarantined,
            }
            for record in self._records.values()
            if record.entry.deaths or record.epoch
        ]


def _hex(ids: Iterable[bytes]) -> list[str]:
    return [id_.hex() for id_ in ids]


def _has_prefix(ids: Iterable[bytes], digits: str) -> bool:
    return len(digits) >= _MIN_DIGITS and any(id_.startswith(digits.lower()) for id_ in _hex(ids))


_FOLDER: Final = "quarantine"
_FORMAT: Final = 1
_MAX_BYTES: Final = 4 << 20
_MAX_PER_WORKER: Final = 100
_MAX_ENTRIES: Final = 1000
_MAX_TEXT: Final = 200
_CLOSE_TIMEOUT_S: Final = 2.0
_ID_BYTES: Final = 16
_INVALID_FILE: Final = (
    *(InvalidRecord, OSError, ValueError, TypeError, KeyError),
    *(OverflowError, RecursionError),
)


class QuarantineFile:
    """The file of one server. For one thread; writes in the background.

    Args:
        root: the cache folder; None: all is kept in memory only.
        server: distinguishes this server from others of the folder, such as its address.
    """

    def __init__(self, root: str | None, server: str) -> None:
        self._root = root
        name = f"{socket.gethostname()} {server}".encode()
        self._name = hashlib.blake2b(name, digest_size=8).hexdigest() + ".json"
        self._versions = _versions()
        self._writer = SerialExecutor("jaxd-quarantine")
        self._found = self._read()

    def of(self, principal: str = "", folder: str = "") -> list[QuarantineEntry]:
        """The entries of a worker that is about to start."""
        found_in, entries = self._found.get(principal, (folder, []))
        self._found[principal] = folder, entries if found_in == folder else []
        return list(self._found[principal][1])

    def quarantines(self) -> list[Quarantine]:
        """The quarantines of all workers that have entries."""
        holders = [(name, folder) for name, (folder, found) in self._found.items() if found]
        return [Quarantine(self, *holder) for holder in holders]

    def keep(self, principal: str, folder: str, entries: Sequence[QuarantineEntry]) -> None:
        """Replaces the entries of a worker, soon also on disk.

        Ignored for an earlier holder of the name.
        """
        if self._found.get(principal, (None,))[0] != folder:
            return
        newest = sorted(entries, key=lambda one: one.at)[-_MAX_PER_WORKER:]
        self._found[principal] = folder, newest
        self._begin_to_write()

    def forget(self, principal: str) -> None:
        """Drops the entries of a principal, whose account was revoked."""
        if self._found.pop(principal, None) is not None:
            self._begin_to_write()

    def close(self) -> None:
        """Waits until all is written, two seconds at most."""
        self._writer.flush(_CLOSE_TIMEOUT_S)

    # on disk --------------------------------------------------------------------------------------

    def _read(self) -> dict[str, tuple[str, list[QuarantineEntry]]]:
        if self._root is None:
            return {}
        try:
            path = f"{make_trusted(self._root)}/{_FOLDER}/{self._name}"
            data = own_bytes(path, _MAX_BYTES)
            return _parsed(json.loads(data), self._versions)
        except FileNotFoundError:
            return {}
        except ConfigurationError:  # the worker logs that; it has no cache there either
            self._root = None
            return {}
        except _INVALID_FILE as error:
            log_event("quarantine_not_read", reason=_in_words(error))
            return {}

    def _begin_to_write(self) -> None:
        if self._root is not None:
            self._writer.put(partial(self._write, self._root, self._text()))

    def _write(self, root: str, text: str) -> None:
        try:
            folder = f"{make_trusted(root)}/{_FOLDER}"
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            replace_file(f"{folder}/{self._name}", text)
        except (OSError, ConfigurationError) as error:
            log_event("quarantine_not_kept", reason=_in_words(error))

    def _text(self) -> str:
        rows = [
            {"principal": name, "home": folder} | one._asdict() | {"ids": _hex(one.ids)}
            for name, (folder, found) in self._found.items()
            for one in found
        ]
        rows = sorted(rows, key=lambda row: row["at"])[-_MAX_ENTRIES:]
        return json.dumps({"format": _FORMAT, "versions": self._versions, "functions": rows})


def _versions() -> dict[str, str]:
    """The packages that a crash may depend on: with other versions, functions are called again."""
    found = {"python": platform.python_version()}
    for name in ("jax", "jaxlib"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _parsed(
    content: Mapping[str, Any], versions: Mapping[str, str]
) -> dict[str, tuple[str, list[QuarantineEntry]]]:
    """The entries of a file; none when other versions wrote it.

    Raises:
        ValueError, TypeError, KeyError: when its content is invalid.
    """
    if content["format"] != _FORMAT or content["versions"] != versions:
        return {}
    found: dict[str, tuple[str, list[QuarantineEntry]]] = {}
    for row in content["functions"][:_MAX_ENTRIES]:
        folder = _word(row["home"])
        _, entries = found.setdefault(_word(row["principal"]), (folder, []))
        entries.append(_entry(row))
    return found


def _entry(row: Mapping[str, Any]) -> QuarantineEntry:
    ids = tuple(bytes.fromhex(id_) for id_ in row["ids"])
    deaths, at = int(row["deaths"]), float(row["at"])
    if len(ids) not in (1, 2) or {len(id_) for id_ in ids} != {_ID_BYTES}:
        raise ValueError("a function has no fingerprint")
    if not (0 < deaths <= _MAX_ENTRIES and 0 < at < time.time() + 1e9):
        raise ValueError("a function has an invalid number or time of deaths")
    return QuarantineEntry(_word(row["name"]), ids, deaths, _word(row["how"]), at)


def _word(value: Any) -> str:
    if type(value) is not str or len(value) > _MAX_TEXT:
        raise ValueError("a name is no text, or too long")
    return value


def _in_words(error: BaseException) -> str:
    return str(error) or type(error).__name__
