"""Recipes: the data to build a program again without the process that called it.

    recipe   (name, key, options, manifest, calls, parameters)     calls: ((skeleton, sizes), …)
    buffers  for each recipe its packed function, and for each of its calls the pickles

`sizes` are those of all the buffers that warming the call takes: for each `P` leaf of the skeleton
its pickle, then the buffers beside it. Of the latter only the sizes are kept, and zeros are sent in
their place: to build a program, shapes are enough.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.messages.recorded_reads import ProcessRead
from jaxd_protocol.pytree.decoder import SkeletonReader
from jaxd_protocol.pytree.leaves import BlobLayout, Leaf


class RecordedCall(NamedTuple):
    """The signature of a call.

    Attributes:
        skeleton: the structure of its arguments.
        sizes: of the buffers that warming it takes.
        pickles: those of these buffers that are pickles, in order.
    """

    skeleton: bytes
    sizes: tuple[int, ...] = ()
    pickles: tuple[bytes, ...] = ()

    @classmethod
    def of(
        cls, skeleton: bytes, placement: BlobLayout, buffers: Sequence[memoryview]
    ) -> RecordedCall:
        """The signature of a call that was made with these buffers."""
        found: list[memoryview] = []
        for leaf, place in zip(placement.leaves, placement.places, strict=True):
            if leaf.tag == "P":
                found += buffers[place.buffer : place.buffer + 1 + leaf.buffers]
        return cls.of_specification(skeleton, placement.leaves, found)

    @classmethod
    def of_specification(
        cls, skeleton: bytes, leaves: Sequence[Leaf], buffers: Sequence[memoryview]
    ) -> RecordedCall:
        """The signature of a call to warm up, with the buffers of pickled leaves and no others."""
        beside = [leaf.buffers for leaf in leaves if leaf.tag == "P"]
        starts = accumulate((1 + count for count in beside), initial=0)
        pickles = [bytes(buffers[start]) for start, _ in zip(starts, beside, strict=False)]
        return cls(skeleton, tuple(map(len, buffers)), tuple(pickles))

    def buffers(self) -> list[memoryview]:
        """The buffers that warming it takes.

        Raises:
            ProtocolError: when pickles and sizes do not fit the skeleton.
        """
        pickles = iter(self.pickles)
        return [
            memoryview(next(pickles) if is_pickle else bytes(size))
            for size, is_pickle in self.check()
        ]

    def check(self) -> list[tuple[int, bool]]:
        """Size of each buffer, and whether it is a pickle.

        Raises:
            ProtocolError: when pickles and sizes do not fit the skeleton.
        """
        kinds = [
            is_pickle
            for beside in _buffers_of_pickles(self.skeleton)
            for is_pickle in (True, *[False] * beside)
        ]
        plan = list(zip(self.sizes, kinds, strict=False))
        pickled = [size for size, is_pickle in plan if is_pickle]
        fits = len(plan) == len(self.sizes) == len(kinds) and min(self.sizes, default=0) >= 0
        if not fits or pickled != list(map(len, self.pickles)):
            raise ProtocolError(_MISMATCH)
        return plan


class Recipe(NamedTuple):
    """A function with the calls that it is to be built for.

    Attributes:
        name: its name for people.
        key: its name on the wire.
        options: packed `Options`.
        manifest: as `FunctionManifest.to_message` returned it.
        code: the packed function.
        calls: what to build.
        parameters: see `function_manifest.parameter_names`; without them it is unknown, before it
            is built, whether a program for the same arguments exists.
    """

    name: str
    key: bytes
    options: bytes
    manifest: tuple[Any, ...]
    code: bytes
    calls: tuple[RecordedCall, ...]
    parameters: tuple[str, ...] = ()


class Offered(NamedTuple):
    """A program that answers calls of one kind in the process that is offered it.

    Attributes:
        id: sixteen bytes that equal programs have in common.
        program: the program.
        form: the skeleton of the result.
        order: for each of its leaves, its number among what the program returns.
        is_built: whether it was built for this process; else it was there.
    """

    id: bytes
    program: Serialized
    form: bytes
    order: tuple[int, ...]
    is_built: bool


class NotOffered(NamedTuple):
    """Why there is no program for such calls.

    Attributes:
        reason: in words.
        reads: what the function reads of its process, where its key does not count all of that: it
            has one with that for the next question.
    """

    reason: str
    reads: tuple[ProcessRead, ...] = ()


def dump_recipes(recipes: Iterable[Recipe]) -> tuple[tuple[Any, ...], list[memoryview]]:
    """Recipes for the wire: plain values, and buffers."""
    messages = []
    buffers: list[memoryview] = []
    for recipe in recipes:
        calls = tuple((call.skeleton, call.sizes) for call in recipe.calls)
        messages.append((*recipe[:4], calls, recipe.parameters))
        buffers.append(memoryview(recipe.code))
        buffers += [memoryview(pickle) for call in recipe.calls for pickle in call.pickles]
    return tuple(messages), buffers


def load_recipes(messages: Sequence[Any], buffers: Sequence[memoryview]) -> list[Recipe]:
    """Reads what `dump_recipes` wrote.

    Raises:
        ProtocolError: when it is something else.
    """
    left = iter(buffers)
    try:
        found = [_recipe(message, left) for message in messages]
    except (TypeError, ValueError, StopIteration) as error:
        raise ProtocolError("the recipe of a program cannot be read.") from error
    if next(left, None) is not None:
        raise ProtocolError("recipes came with more data than they have.")
    return found


def _recipe(message: Any, buffers: Iterator[memoryview]) -> Recipe:
    name, key, options, manifest, calls, parameters = message
    code = bytes(next(buffers))
    read = tuple([_call(skeleton, sizes, buffers) for skeleton, sizes in calls])
    kinds = (type(name), type(key), type(options), type(manifest), *map(type, parameters))
    if kinds != (str, bytes, bytes, tuple, *[str] * len(parameters)):
        raise TypeError("a recipe has other types")
    return Recipe(name, key, options, manifest, code, read, tuple(parameters))


def _call(skeleton: Any, sizes: Any, buffers: Iterator[memoryview]) -> RecordedCall:
    if type(skeleton) is not bytes or not all(type(size) is int for size in sizes):
        raise TypeError("a recorded call has other types")
    pickles = tuple([bytes(next(buffers)) for _ in _buffers_of_pickles(skeleton)])
    call = RecordedCall(skeleton, tuple(sizes), pickles)
    call.check()
    return call


def _buffers_of_pickles(skeleton: bytes) -> list[int]:
    """For each pickle of a call how many buffers are beside it; unpickles none."""
    if b"P" not in skeleton:
        return []
    reader = SkeletonReader(skeleton, lambda *_: object, lambda _: None)
    try:
        reader.node()
    except (struct.error, LookupError, RecursionError, ValueError) as error:
        raise ProtocolError(_MISMATCH) from error
    return [leaf.buffers for leaf in reader.leaves if leaf.tag == "P"]


_MISMATCH = "the data of a recorded call does not fit its skeleton."
