"""What a function has read of the process of its client while it was unpacked and traced.

The fingerprint of a walk finds a function; what was read then decides which of its programs fits.
A server asks its client for each such value, and keeps a digest of it and not the value itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.pytree.literals import dump_literal

_DIGEST_SIZE: Final = 16
_LABELS: Final = {
    "variable": "environment {}",
    "arguments": "sys.argv",
    "folder": "the current folder",
    "file": "file {}",
    "logger": "the level of logger {}",
    "recursion": "the recursion limit",
    "locale": "the locale ({})",
}


class ProcessRead(NamedTuple):
    """One thing that can be read of a process.

    Attributes:
        kind: `variable` (of the environment), `arguments`, `folder`, `file`, `logger` (its
            effective level), `recursion` or `locale`.
        name: of the variable, file or logger, or the call of the module `locale`; else empty.
    """

    kind: str
    name: str

    @property
    def label(self) -> str:
        """What people call it."""
        return _LABELS[self.kind].format(self.name)


KINDS: Final = frozenset(_LABELS)

STANDARD_VARIABLES: Final = frozenset(
    [
        *("COLUMNS", "LINES", "TZ"),
        *("LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"),
        *("LNAME", "LOGNAME", "USER", "USERNAME"),
        *("TEMP", "TMP", "TMPDIR"),
    ]
)
"""Variables that Python's own modules read for whoever uses them; there are no secrets in them."""


class RecordedRead(NamedTuple):
    """One thing that was read.

    Attributes:
        kind, name: as of a `ProcessRead`.
        digest: of what was found, see `read_digest`.
    """

    kind: str
    name: str
    digest: bytes

    @property
    def read(self) -> ProcessRead:
        """What was read."""
        return ProcessRead(self.kind, self.name)

    @property
    def part(self) -> Part:
        """The part of a key that it is."""
        return Part("process", self.read.label, self.digest[:8])


def read_digest(fingerprint: bytes, value: Any) -> bytes:
    """Sixteen bytes for what was found, which nobody can compare with those of another function.

    Args:
        fingerprint: of the walk over the function that reads it.
        value: a literal, see `jaxd_protocol.pytree.literals`.
    """
    return blake2b(dump_literal(value), digest_size=_DIGEST_SIZE, key=fingerprint).digest()


def recorded(fingerprint: bytes, values: Mapping[ProcessRead, Any]) -> tuple[RecordedRead, ...]:
    """What was found, in order of kinds and names."""
    return tuple(
        RecordedRead(*read, read_digest(fingerprint, values[read])) for read in sorted(values)
    )


def recorded_fingerprint(fingerprint: bytes, reads: Iterable[RecordedRead]) -> bytes:
    """Sixteen bytes for a function together with what it has read.

    Args:
        fingerprint: of the walk; returned as it is where nothing was read.
        reads: in any order.
    """
    rows = tuple(map(tuple, sorted(reads)))
    if not rows:
        return fingerprint
    return blake2b(dump_literal((fingerprint, rows)), digest_size=_DIGEST_SIZE).digest()


def to_reads(message: Any) -> tuple[ProcessRead, ...]:
    """The names that a message or a record on disk holds.

    Raises:
        ProtocolError: when it holds something else.
    """
    try:
        reads = tuple(ProcessRead(*each) for each in message)
    except TypeError as error:
        raise ProtocolError("a list of reads cannot be read.") from error
    if not all(read.kind in KINDS and type(read.name) is str for read in reads):
        raise ProtocolError("a list of reads has other kinds, or names that are no text.")
    return reads


def to_recorded_reads(message: Any) -> tuple[RecordedRead, ...]:
    """The reads with their digests that a message or a record on disk holds.

    Raises:
        ProtocolError: when it holds something else.
    """
    try:
        reads = tuple(RecordedRead(*each) for each in message)
    except TypeError as error:
        raise ProtocolError("what a function has read cannot be read.") from error
    to_reads(each.read for each in reads)
    if not all(type(read.digest) is bytes for read in reads):
        raise ProtocolError("what a function has read has digests that are no bytes.")
    return reads
