"""A decoded skeleton: which leaves a tree has, where their data lies, and how to rebuild it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.pytree.decoder import (
    Build,
    FindClass,
    ObjectResolver,
    OutlineLeaves,
    SkeletonReader,
    Unflatten,
    Unpickle,
)
from jaxd_protocol.pytree.leaves import BlobLayout, Leaf, lay_out_leaves

_MAX_LAYOUTS: Final = 64


class Layout:
    """A decoded skeleton.

    Attributes:
        leaves: in the order in which the tree is walked.
        whole: where their data lies when all of it is in the message.
    """

    __slots__ = ("_alike", "_build", "_placements", "leaves", "whole")

    def __init__(self, leaves: Sequence[Leaf], build: Build) -> None:
        self.leaves = tuple(leaves)
        self.whole = lay_out_leaves(self.leaves)
        self._placements = BoundedDict[tuple[range, ...], BlobLayout](_MAX_LAYOUTS)
        self._alike = BoundedDict[tuple[int, ...], Sequence[Leaf]](_MAX_LAYOUTS)
        self._build = build

    def without(self, absent: tuple[range, ...]) -> BlobLayout:
        """Where the data of the other leaves lies when that of some is not in the message.

        Args:
            absent: the numbers of those, as ranges.
        """
        if not absent:
            return self.whole
        found = self._placements.get(absent)
        if found is None:
            most = len(self.leaves)  # what is said of others is not looked at
            spans = (range(one.start, min(one.stop, most)) for one in absent)
            numbers = frozenset(chain.from_iterable(spans))
            found = self._placements[absent] = lay_out_leaves(self.leaves, numbers)
        return found

    def has(self, first: int, leaves: Sequence[Leaf], start: int, count: int) -> bool:
        """Whether its leaves from `first` on are these from `start` on.

        That is remembered, so that what comes again is not compared again.

        Args:
            first: the number of a leaf.
            leaves: those of another layout, which must not change.
            start: the number of one of these.
            count: how many to compare.
        """
        key = first, id(leaves), start, count
        if self._alike.get(key) is leaves:
            return True
        same = self.leaves[first : first + count] == tuple(leaves[start : start + count])
        if same:
            self._alike[key] = leaves  # which keeps its id from being another's
        return same

    def build(self, leaves: Sequence[Any]) -> Any:
        """The tree with these values in place of its leaves.

        Raises:
            ProtocolError: when they are not as many.
        """
        if len(leaves) != len(self.leaves):
            raise ProtocolError("a tree has another number of leaves than its skeleton.")
        return self._build(iter(leaves))

    def outline(self, leaves: Sequence[Any]) -> Any:
        """As `build`, for values that are no data: objects become lists of their leaves."""
        return self._build(OutlineLeaves(leaves))


def parse_skeleton(
    skeleton: bytes,
    find_class: FindClass,
    unpickle: Unpickle | None = None,
    own: ObjectResolver | None = None,
    open_template: Callable[[bytes], Unflatten] = lambda _: list,
    close: Callable[[Any], Any] = lambda value: value,
    take_note: Callable[[Any], None] = lambda value: None,
) -> Layout:
    """Reads a skeleton.

    Args:
        skeleton: what a `TreeEncoder` wrote.
        find_class: given module, qualified name, for a named tuple its fields (else None), and
            the content id and the numbers where there are any: the class.
        unpickle: reads pickled static values; None refuses them.
        own: finds what references stand for, and makes registered nodes; None refuses both.
        open_template: reads an object without its leaves; returns a function of the leaves.
        close: wraps what jax cannot trace, so that jax takes it for a part of the structure.
        take_note: is given each key of a dict and each static value.

    Raises:
        ProtocolError: when it is not a skeleton.
    """
    reader = SkeletonReader(skeleton, find_class, unpickle, own, open_template, close, take_note)
    return _parsed(reader, reader.node)


def parse_leaves(skeleton: bytes, count: int) -> Layout:
    """Reads the skeleton of a list of so many arrays and numbers, and of nothing else.

    Raises:
        ProtocolError: when it is another one.
    """
    reader = SkeletonReader(skeleton, _no_class)

    def leaves() -> Build:
        reader.at = 1
        if skeleton[:1] != b"L" or reader.count() != count:
            raise _no_leaves()
        builds = []
        for _ in range(count):
            if chr(skeleton[reader.at]) not in _LEAF_TAGS:
                raise _no_leaves()
            builds.append(reader.node())
        return lambda values: [build(values) for build in builds]

    return _parsed(reader, leaves)


_LEAF_TAGS: Final = "AKFIBCZ"
"""The tags of leaves that hold data; `Z` is one whose data need not be sent."""


def _no_leaves() -> ProtocolError:
    return ProtocolError(
        "the server sent something else than the list of arrays that the program returns. "
        "Install the same jaxd on both sides, and use a server that you trust."
    )


def _no_class(*_: Any) -> type:
    raise _no_leaves()


def _parsed(reader: SkeletonReader, read: Callable[[], Build]) -> Layout:
    if type(reader.data) is not bytes:
        raise ProtocolError("a tree's skeleton is no bytes.")
    try:
        build = read()
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ProtocolError("a tree's skeleton cannot be read.") from error
    if reader.at != len(reader.data):
        raise ProtocolError("a tree's skeleton has bytes behind its end.")
    return Layout(reader.leaves, build)
