"""The history of what this worker has built: for each key its content, and the arguments.

Written after a build, read by `why` and its like; a warm call does not touch it.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.explain.argument_shapes import Argument, argument_shapes
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_protocol.network.accounts import UNNAMED
from jaxd_server.compilation.compiling.executable import Executable

Visibility = Callable[[bytes], bool]
"""Whether a principal may be shown what is recorded of a key."""

_MAX_KEYS: Final = 10_000
"""For each principal, those that it has called last."""

_ROOT: Final = "uid:0"


class KnownFunctions:
    """The functions that each principal has called. Thread-safe.

    Args:
        is_owner: whether the server belongs to a principal, which may then see everything.
    """

    def __init__(self, is_owner: Callable[[str], bool] = lambda principal: True) -> None:
        self.is_owner = is_owner
        self._known: dict[str, BoundedDict[bytes, None]] = {}  # each step on it is atomic

    def record(self, principal: str, key: bytes) -> None:
        """A principal has called a function."""
        if not self.is_owner(principal):
            self._known.setdefault(principal, BoundedDict(_MAX_KEYS))[key] = None

    def visibility(self, principal: str) -> Visibility:
        """What a principal may be shown."""
        if self.is_owner(principal):
            return lambda key: True
        return lambda key: key in self._known.get(principal, ())

    def forget(self, principal: str) -> None:
        """Forgets what was recorded for a principal: the next one of that name is another."""
        self._known.pop(principal, None)


def belongs_to(uid: int) -> Callable[[str], bool]:
    """Whether a server of that user belongs to a principal.

    It belongs to the user itself, to root, and to the holder of the unnamed token, which is the
    user's own; without authentication, to everyone.
    """
    owners = {f"uid:{uid}", _ROOT, UNNAMED, ""}
    return lambda principal: principal in owners or principal.startswith("anonymous@")


Verdict = Literal["hit", "load", "compile"]
"""What a call finds: a ready executable, one on disk, or none."""

_PART_BYTES: Final = 150
_MAX_FORMS: Final = 256
_MAX_FORM_BYTES: Final = 1 << 17
_LEAF_BYTES: Final = 200

_forms: Final = BoundedDict[tuple[int, int, tuple[str, ...]], dict[str, Argument]](_MAX_FORMS)
"""What arguments look like, by hash and length of their skeleton, which may be large itself.

All entries of a key are read for each further program of it.
"""


@dataclass(frozen=True, slots=True)
class BuildEntry:
    """One program that was made.

    Attributes:
        skeleton: the arguments of the call that it was made for.
        parameters: names of the function's parameters.
        seconds: how long it took.
        at: when, as `time.time()`.
        executable: the program, as long as the server keeps it; None when another process made it.
        name: what it is kept by on disk; empty when it is not.
        obstacle: why it cannot be kept there.
    """

    skeleton: bytes
    parameters: tuple[str, ...]
    seconds: float
    at: float
    executable: weakref.ref[Executable] | None = None
    name: bytes = b""
    obstacle: str | None = None

    @property
    def arguments(self) -> dict[str, Argument]:
        """What the arguments look like."""
        key = hash(self.skeleton), len(self.skeleton), self.parameters
        found = _forms.get(key)
        if found is None:
            found = argument_shapes(self.skeleton, self.parameters)
            leaves = (leaf for each in found.values() for _, leaf in each.form.leaves())
            if sum(_LEAF_BYTES + len(leaf.identity) for leaf in leaves) <= _MAX_FORM_BYTES:
                _forms[key] = found
        return found

    @property
    def warm(self) -> Executable | None:
        """The program, if the server still has it."""
        return None if self.executable is None else self.executable()


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """What was built under one key.

    Attributes:
        key: names function, options and configuration.
        description: what is behind it.
        built: the programs, oldest first; at least one.
    """

    key: bytes
    description: FunctionDescriptor
    built: tuple[BuildEntry, ...]

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        skeletons = sum(len(built.skeleton) + 200 for built in self.built)
        return skeletons + _PART_BYTES * len(self.description.parts)


Records = dict[bytes, KeyHistory]
"""By key."""


class BuildHistory:
    """The keys for which something was built last; safe from any thread.

    Args:
        limit: how many keys to keep.
        limit_per_key: how many programs to keep of each.
        limit_bytes: about how much memory all of it may take.
    """

    def __init__(
        self, limit: int = 1000, limit_per_key: int = 64, limit_bytes: int = 64 << 20
    ) -> None:
        self._limit = limit
        self._limit_per_key = limit_per_key
        self._limit_bytes = limit_bytes
        self._records: OrderedDict[bytes, KeyHistory] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()  # guards _records and _nbytes

    def find(self, key: bytes) -> KeyHistory | None:
        """What is known of a key."""
        return self._records.get(key)

    def records(self, visibility: Visibility = lambda key: True) -> Records:
        """The records that may be seen, the one that was written last at the end."""
        with self._lock:
            records = self._records.copy()
        return {key: record for key, record in records.items() if visibility(key)}

    def add(self, key: bytes, description: FunctionDescriptor, built: BuildEntry) -> KeyHistory:
        """Enters a program and returns the record of its key."""
        with self._lock:
            known = self._records.pop(key, None)
            if known is None:
                record = KeyHistory(key, self._with_shared_parts(description), (built,))
            else:
                self._nbytes -= known.nbytes
                record = replace(known, built=(*known.built, built)[-self._limit_per_key :])
            self._records[key] = record
            self._nbytes += record.nbytes
            while len(self._records) > 1 and (
                len(self._records) > self._limit or self._nbytes > self._limit_bytes
            ):
                self._nbytes -= self._records.popitem(last=False)[1].nbytes
        return record

    def attach(self, key: bytes, name: bytes, executable: Executable) -> None:
        """Notes that a program that was made before is in memory again."""
        with self._lock:
            record = self._records.get(key)
            if record is not None:
                here = weakref.ref(executable)
                built = tuple(
                    replace(one, executable=here) if one.name == name else one
                    for one in record.built
                )
                self._records[key] = replace(record, built=built)

    def _with_shared_parts(self, description: FunctionDescriptor) -> FunctionDescriptor:
        """The same, in the memory of the last record with that name: most parts never change."""
        for record in reversed(self._records.values()):
            if record.description.name == description.name:
                known = {part: part for part in record.description.parts}
                return description._replace(parts=tuple(known.get(p, p) for p in description.parts))
        return description
