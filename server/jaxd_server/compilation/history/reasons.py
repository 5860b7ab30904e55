"""Why a call finds no executable: the nearest thing that was built, and what differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from jaxd_protocol.explain.argument_differences import argument_differences
from jaxd_protocol.explain.argument_shapes import Argument
from jaxd_protocol.explain.key_differences import (
    Difference,
    option_differences,
    part_differences,
    similarity,
    summarize,
)
from jaxd_protocol.messages.function_manifest import FunctionDescriptor
from jaxd_server.compilation.history.build_history import (
    BuildEntry,
    KeyHistory,
    Records,
)

_MAX_COMPARED: Final = 64
_ALIKE_SAME_NAME: Final = 0.2
_ALIKE_OTHER_NAME: Final = 0.6
_MAX_DIFFERENCES: Final = 50

_FIRST: Final = "first call of this function on this server"
_UNSHARED: Final = (
    "it reaches something that has no content to compare, so every process compiles its own"
)
_DOUBTED: Final = (
    "the server could not confirm the key of its client, so that client has programs of its own"
)
_DROPPED: Final = "it was compiled before, and is gone: cleared, or dropped to make room for others"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something has to be built.

    Attributes:
        nearest: what it was compared with; None when nothing is like it.
        built: the program of `nearest` with the most similar arguments; None when there was no
            question of arguments.
        differences: what differs; empty when it was built before and is gone.
    """

    nearest: KeyHistory | None = None
    built: BuildEntry | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def text(self) -> str:
        """One line."""
        return summarize(self.differences) or (_FIRST if self.nearest is None else _DROPPED)


def reason_for(
    records: Records,
    key: bytes,
    description: FunctionDescriptor,
    arguments: Mapping[str, Argument] | None,
) -> Reason:
    """Compares a call with what was built so far.

    Args:
        records: what was built; does not hold the call itself yet.
        key: of the call.
        description: what is behind the key.
        arguments: of the call; None compares functions only.
    """
    nearest = records.get(key)
    found: tuple[Difference, ...] = ()
    if nearest is None:
        nearest, found = _nearest_version(records, description)
    if nearest is None:
        return Reason()
    if nearest.key != key and not found:
        found = (_whole("doubted", _DOUBTED),)
    built = None
    if arguments is not None:
        built, more = _nearest_arguments(nearest, arguments)
        found += more
    return Reason(nearest, built, found[:_MAX_DIFFERENCES])


def versions_of(records: Records, description: FunctionDescriptor) -> list[KeyHistory]:
    """The records of functions with that name, the last one first."""
    name = description.short_name
    latest = reversed(records.values())
    same = (record for record in latest if record.description.short_name == name)
    return list(islice(same, _MAX_COMPARED))


def key_differences(
    before: FunctionDescriptor, after: FunctionDescriptor
) -> tuple[Difference, ...]:
    """What differs between two functions with their options."""
    options = option_differences(before.options, after.options)
    if not (before.shared and after.shared):
        return (_whole("unshared", _UNSHARED), *options)
    if before.fingerprint and before.fingerprint == after.fingerprint:
        return options
    return part_differences(before.parts, after.parts) + options


def _whole(kind: str, text: str) -> Difference:
    """A difference that is no single part's."""
    return Difference(kind, "", "changed", "", "", "", text)


def _nearest_version(
    records: Records, description: FunctionDescriptor
) -> tuple[KeyHistory | None, tuple[Difference, ...]]:
    """The last one of those that differ least, and how."""
    candidates = [
        record
        for record in versions_of(records, description)
        if _is_like(record.description, description)
    ] or _renamed(records, description)
    compared = [(record, key_differences(record.description, description)) for record in candidates]
    return min(compared, key=lambda pair: len(pair[1]), default=(None, ()))


def _is_like(one: FunctionDescriptor, other: FunctionDescriptor) -> bool:
    """Whether two functions of one name are versions of each other, and no namesakes."""
    if one.fingerprint and one.fingerprint == other.fingerprint:
        return True
    if not one.parts or not other.parts:
        return other.short_name != "<lambda>"  # nothing distinguishes one from another
    same_file = _file(one) == _file(other) != "" and other.short_name != "<lambda>"
    return same_file or similarity(one.parts, other.parts) >= _ALIKE_SAME_NAME


def _file(description: FunctionDescriptor) -> str:
    """Where the function itself stands."""
    return description.where.rpartition(":")[0]


def _renamed(records: Records, description: FunctionDescriptor) -> list[KeyHistory]:
    """The one record that has most in common, whatever its name, if that is much."""
    recent = islice(reversed(records.values()), _MAX_COMPARED)
    shares = [(similarity(each.description.parts, description.parts), each) for each in recent]
    share, record = max(shares, key=lambda pair: pair[0], default=(0.0, None))
    return [record] if record is not None and share >= _ALIKE_OTHER_NAME else []


def _nearest_arguments(
    record: KeyHistory, arguments: Mapping[str, Argument]
) -> tuple[BuildEntry, tuple[Difference, ...]]:
    compared = [
        (built, argument_differences(built.arguments, arguments))
        for built in reversed(record.built)
    ]
    return min(compared, key=lambda pair: len(pair[1]))
