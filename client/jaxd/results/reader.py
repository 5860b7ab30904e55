"""Decodes replies into results."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from itertools import chain
from math import isfinite
from types import CodeType
from typing import Any, Final, Literal, NamedTuple

from jaxd.interop.jax_runtime import (
    ArrayLibrary,
    array_library,
    native_array,
    require_jax,
    to_jax_arrays,
)
from jaxd.results.local_objects import KnownObjects, LocalObjects, texts_in
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ProtocolError, ResultError
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.data_locations import KEEP_ALL, ResultPolicy, unpack_leaf_spans
from jaxd_protocol.pytree import BlobLayout, Layout, Leaf, parse_skeleton
from jaxd_protocol.pytree.leaves import dtype_of, leaf_data, numpy_leaf
from jaxd_protocol.pytree.references import Reference, replace_tokens

ResultsAs = Literal["auto", "numpy", "jax", "remote"]
_MAX_LAYOUTS = 1024
_MAX_TEXTS: Final = 1 << 16

STANDS_FOR: Final = "_jaxd_stands_for"
"""Attribute of a class that stands for one of the server's: that one's module and name."""

NOTHING_STAYS: Final = (b"",)
"""In a reply, where the numbers of the leaves stand whose data is not in it."""


def unreadable_reply_error() -> ProtocolError:
    """The error for a malformed reply."""
    return ProtocolError(
        "the server's reply to a call cannot be read. Install the same jaxd on both sides."
    )


def check_reply(reply: Any) -> tuple[Any, ...]:
    """A reply to a call: whether it has failed, and with what or what the result looks like.

    Raises:
        ProtocolError: when it is something else.
    """
    if type(reply) is tuple and len(reply) >= 2:
        kind = type(reply[1])
        if kind is tuple if reply[0] == FAILED else kind is bytes or kind is str:
            return reply
    raise unreadable_reply_error()


def run_seconds(reply: tuple[Any, ...]) -> float:
    """How long a call ran, as its reply says; 0.0: it does not."""
    told = reply[6] if len(reply) > 6 else 0.0
    return told if type(told) is float and isfinite(told) else 0.0


class ReceivedTexts:
    """The texts that servers have sent as data. Thread-safe.

    Code of the user's may keep one where a function reaches it. That function names nothing by
    it: else a server could choose what this process tells it of itself.
    """

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def take_note(self, value: Any, own: Callable[[], Collection[str]] = tuple) -> None:
        """Adds the texts in a plain value, and their parts between slashes.

        Args:
            value: what a server has sent.
            own: those that stand in code of the user's. They are no server's.
        """
        texts = set(texts_in(value))
        for text in texts.difference(own()) if texts else ():
            if len(self._hashes) <= _MAX_TEXTS:
                self._hashes.update(map(hash, parts_of_path(text)))

    def __contains__(self, text: str) -> bool:
        """Whether a server may have sent it; there is no end to what one can send."""
        return len(self._hashes) > _MAX_TEXTS or hash(text) in self._hashes


def parts_of_path(text: str) -> set[str]:
    """A text, and what stands between its slashes."""
    return {text, *re.split(r"[/\\]", text)}


received_texts: Final = ReceivedTexts()
"""Those of this process."""


class InlineLeaves(NamedTuple):
    """The leaves of a result whose data came with the reply.

    Attributes:
        blob, buffers: see `jaxd_protocol.pytree`.
        remote_numbers: numbers of the leaves that are not in them, as ranges.
    """

    blob: bytes
    buffers: Sequence[memoryview]
    remote_numbers: tuple[range, ...]

    @classmethod
    def of(cls, reply: tuple[Any, ...], buffers: Sequence[memoryview]) -> InlineLeaves:
        """That of a reply to a call with a result policy.

        Raises:
            ProtocolError: when it is no such reply.
        """
        try:
            blob, away = reply[2], unpack_leaf_spans(reply[4])
        except (IndexError, TypeError) as error:
            raise unreadable_reply_error() from error
        if type(blob) is not bytes:
            raise unreadable_reply_error()
        return cls(blob, buffers, away)

    def check(self, leaves: int) -> None:
        """Raises `ProtocolError` unless it is a part of a result of so many leaves."""
        if self.remote_numbers and self.remote_numbers[-1].stop > leaves:
            raise ProtocolError("a reply says that leaves stay where none are.")


class ResultForm(NamedTuple):
    """What is known of the result of a call before it is made.

    Attributes:
        skeleton: its structure.
        calls_python: whether the program that makes it calls Python.
        inputs: for each of its arrays on the wire the arguments that it may be computed from, as
            bits of a number; empty: that is not known.
    """

    skeleton: bytes
    calls_python: bool
    inputs: tuple[int, ...]


class ResultReader:
    """Rebuilds results as trees of this process's own classes.

    One for each function: two functions may know different classes by the same name.

    Args:
        known_objects: classes and callables that were met when something was packed.
        own: what the function reaches.
    """

    def __init__(self, known_objects: KnownObjects, own: LocalObjects | None = None) -> None:
        self._local_objects = own or LocalObjects()
        self._layouts = BoundedDict[bytes, tuple[Layout, str | None]](_MAX_LAYOUTS)
        self._local_objects.learn(known_objects)

    def learn(self, known_objects: KnownObjects) -> None:
        """Adds the classes and callables that were met when arguments of a call were packed."""
        if self._local_objects.learn(known_objects):
            self._layouts.clear()  # they may hold another class of this name

    def read(
        self, skeleton: bytes, blob: bytes, buffers: Sequence[memoryview], results: ResultsAs
    ) -> Any:
        """The result of a call, all of which is in the reply.

        Raises:
            ResultError: when it holds an object of a class that this process does not have.
            ArgumentError: when it holds a dtype that needs a package which is not installed.
            ProtocolError: when it cannot be read.
        """
        layout = self.layout(skeleton)
        return layout.build(_read(layout.whole, blob, buffers, results))

    def read_part(
        self,
        skeleton: bytes,
        home: InlineLeaves | None,
        stay: ResultPolicy,
        results: ResultsAs,
        remote: Callable[[Sequence[Leaf], Sequence[int]], list[Any]],
    ) -> Any:
        """The result of a call, some of which stays on the server.

        Args:
            skeleton: what it looks like.
            home: what is in the reply; None when there is none so far, and everything stays.
            stay: what stays.
            results: the form of the rest.
            remote: makes what stands for those of the leaves that stay: all leaves, and their
                numbers.

        Raises:
            JaxdError: as `read`.
        """
        layout = self.layout(skeleton)
        if stay.above == KEEP_ALL:
            return layout.build(remote(layout.leaves, range(len(layout.leaves))))
        assert home is not None
        home.check(len(layout.leaves))
        leaves = _read(layout.without(home.remote_numbers), home.blob, home.buffers, results)
        if home.remote_numbers:
            numbers = tuple(chain.from_iterable(home.remote_numbers))
            for number, array in zip(numbers, remote(layout.leaves, numbers), strict=True):
                leaves[number] = array
        return layout.build(leaves)

    def layout(self, skeleton: bytes) -> Layout:
        """How to read results that look like this.

        Raises:
            JaxdError: as `read`.
        """
        return self._found(skeleton)[0]

    def remote_object(self, skeleton: bytes) -> str | None:
        """What exists only on the server in results that look like this; None when nothing does.

        Raises:
            JaxdError: as `read`.
        """
        return self._found(skeleton)[1]

    def _found(self, skeleton: bytes) -> tuple[Layout, str | None]:
        found = self._layouts.get(skeleton)
        if found is None:
            found = self._layouts[skeleton] = self._parsed(skeleton)
        return found

    def _parsed(self, skeleton: bytes) -> tuple[Layout, str | None]:
        met = _Met(self._local_objects)
        note = partial(received_texts.take_note, own=self._local_objects.texts)
        layout = parse_skeleton(skeleton, self._find_class, None, met, take_note=note)
        return layout, next(iter(met.remote), None)

    def are_alike(self, skeleton: bytes, other: bytes) -> bool:
        """Whether two skeletons are the same but for the tokens of two workers.

        Raises:
            JaxdError: as `read`.
        """
        if len(skeleton) != len(other):
            return False
        return self._without_tokens(skeleton) == self._without_tokens(other)

    def _without_tokens(self, skeleton: bytes) -> bytes:
        met = _Met(self._local_objects)
        parse_skeleton(skeleton, self._find_class, None, met)
        return replace_tokens(skeleton, met.references, lambda each: bytes(len(each.token)))

    def exception_type(self, module: str, name: str, content: bytes) -> type | None:
        """An exception of the user's own, by its content id; None when none is reached."""
        return self._local_objects.class_of(module, name, content)

    def find_code(self, mark: bytes) -> Sequence[CodeType]:
        """Code that the function reaches; see `code_mark`."""
        return self._local_objects.find_code(mark)

    def reaches(self, module: str) -> bool:
        """See `LocalObjects.reaches`."""
        return self._local_objects.reaches(module)

    def reaches_libraries(self) -> bool:
        """See `LocalObjects.reaches_libraries`."""
        return self._local_objects.reaches_libraries()

    def attributes(self, skeleton: bytes, blob: bytes) -> dict[str, Any]:
        """The attributes of an exception of the user's own: plain values, and arrays.

        Raises:
            JaxdError: when they are anything else.
        """
        layout = parse_skeleton(skeleton, _refuse_class)
        found = layout.build(_read(layout.whole, blob, (), "auto"))
        if type(found) is not dict:
            raise ProtocolError("the attributes of an exception are none.")
        received_texts.take_note(found, self._local_objects.texts)
        return {name: value for name, value in found.items() if not str(name).startswith("__")}

    def _find_class(
        self,
        module: str,
        name: str,
        fields: tuple[str, ...] | None,
        content: bytes = b"",
        places: tuple[Any, ...] = (),
    ) -> type:
        found = self._local_objects.class_of(module, name, content, places)
        if fields is not None:
            fits = found is not None and issubclass(found, tuple)
            fits = fits and getattr(found, "_fields", None) == fields
            return found if found and fits else _stand_in_tuple(module, name, fields)
        if found is not None:
            return found
        raise ResultError(
            f"the result holds a {module}.{name}, which a server may not make here: this process "
            "has not imported its class, its package is none that the function uses, or it is no "
            "named tuple, dataclass or node of jax that only holds data. Import the class and use "
            "it in the function, or return dicts, lists and tuples."
        )


class _Met:
    """The references that one parse meets, found among local objects.

    Attributes:
        references: these.
        remote: what exists only on the server, for people.
    """

    def __init__(self, own: LocalObjects) -> None:
        self.references: list[Reference] = []
        self.remote: list[str] = []
        self._own = own

    def getter(self, reference: Reference, holders: tuple[type, ...] = (), field: str = "") -> Any:
        """As `LocalObjects.getter`."""
        self.references.append(reference)
        return self._own.getter(reference, holders, field, self.remote)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def _refuse_class(module: str, name: str, *_: Any) -> type:
    raise ProtocolError(f"the server names a class where only data is: {module}.{name}.")


def specs_in(skeleton: bytes) -> Sequence[Leaf]:
    """Shapes and dtypes in the skeleton of a flat tuple of arrays.

    Raises:
        ProtocolError: when it is anything else.
    """
    return parse_skeleton(skeleton, _refuse_class).leaves


@lru_cache(maxsize=256)
def _stand_in_tuple(module: str, name: str, fields: tuple[str, ...]) -> type:
    """A named tuple like the one that the server has and this process has not.

    As an argument it becomes the server's again, by the name in it (`ArgumentEncoder.class_name`):
    the state of an optimizer does so in each step.
    """
    short = name.rpartition(".")[2]
    made: type = namedtuple(short, fields)  # type: ignore[misc]  # noqa: PYI024  known only here
    setattr(made, STANDS_FOR, (module, name))
    return made


def _read(
    placement: BlobLayout, blob: bytes, buffers: Sequence[memoryview], results: ResultsAs
) -> list[Any]:
    placement.check(blob, buffers)
    kind = _library_for(results)
    if kind == "numpy":
        return _read_numpy(placement, blob, buffers)
    if kind == "jax":
        return _read_jax(placement, blob, buffers)
    leaves, places = placement.leaves, placement.places
    found: list[Any] = [None] * len(leaves)
    for number in placement.here:
        found[number] = _read_leaf(leaves[number], leaf_data(places[number], blob, buffers), kind)
    return found


def _read_jax(placement: BlobLayout, blob: bytes, buffers: Sequence[memoryview]) -> list[Any]:
    """As jax's arrays; in one go, as there may be hundreds."""
    leaves, places = placement.leaves, placement.places
    found: list[Any] = [None] * len(leaves)
    numbers = [number for number in placement.here if leaves[number].tag == "A"]
    data = [(leaves[number], places[number]) for number in numbers]
    try:
        arrays = to_jax_arrays(
            [(numpy_leaf(leaf, place, blob, buffers), leaf.weak) for leaf, place in data]
        )
    except ValueError as error:  # a shape that numpy does not have
        raise _unreadable_array(error) from error
    for number, array in zip(numbers, arrays, strict=True):
        found[number] = array
    for number in placement.here:
        if leaves[number].tag != "A":
            part = leaf_data(places[number], blob, buffers)
            found[number] = _read_leaf(leaves[number], part, "jax")
    return found


def _read_numpy(placement: BlobLayout, blob: bytes, buffers: Sequence[memoryview]) -> list[Any]:
    """As numpy's arrays, each with data of its own; in one go, as there may be hundreds."""
    from numpy import ndarray

    leaves, places = placement.leaves, placement.places
    found: list[Any] = [None] * len(leaves)
    try:
        for number in placement.here:
            leaf, place = leaves[number], places[number]
            if place.buffer >= 0:
                data = buffers[place.buffer]
            else:  # a copy: the blob is read-only, and shared by all that is in it
                end = place.offset + place.size
                data = memoryview(bytearray(blob[place.offset : end]))
            if leaf.tag == "A":
                found[number] = ndarray(leaf.shape, dtype_of(leaf.dtype), data)
            else:
                found[number] = _read_leaf(leaf, data, "numpy")
    except ValueError as error:  # a shape that numpy does not have
        raise _unreadable_array(error) from error
    return found


def _library_for(results: ResultsAs) -> ArrayLibrary:
    """The library of the arrays to make."""
    if results == "jax":
        require_jax()
        return "jax"
    return "numpy" if results == "numpy" else array_library()


def _read_leaf(leaf: Leaf, data: memoryview, kind: ArrayLibrary) -> Any:
    try:
        return native_array(leaf, data, kind)
    except (TypeError, ValueError) as error:  # keys of a kind or shape that jax does not have
        raise _unreadable_array(error) from error


def _unreadable_array(error: Exception) -> ProtocolError:
    return ProtocolError(f"a result holds an array that cannot be made here: {error}.")
