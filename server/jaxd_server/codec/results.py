"""How the results of an executable are sent: their structure is known, only the data is new.

And which results stay on the server, and which are sent to the client.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, Final, NamedTuple

import jax
import numpy as np

from jaxd_protocol.errors import ResultError, ValueDeleted
from jaxd_protocol.jax_objects.arrays import is_key_array, key_data
from jaxd_protocol.jax_objects.data_values import find_kind
from jaxd_protocol.messages.data_locations import (
    KEEP_ALL,
    ResultPolicy,
    pack_leaf_spans,
    shape_hash,
    spans_of,
)
from jaxd_protocol.pickling.unpack.object_tokens import keep_lookup
from jaxd_protocol.pytree import BlobLayout, Layout, Leaf, parse_skeleton
from jaxd_protocol.pytree.data_values import load_parts
from jaxd_protocol.pytree.decoder import parameter_default
from jaxd_protocol.pytree.leaves import dtype_of
from jaxd_protocol.pytree.references import Reference, load_reference, replace_tokens
from jaxd_server.codec.object_references import object_numbers
from jaxd_server.codec.result_encoder import LeafSlot, ResultEncoder

_MOST_RUNS: Final = 256


@dataclass(frozen=True, slots=True)
class ResultLayout:
    """The structure that all results of one executable have, for the wire.

    Attributes:
        skeleton: see `jaxd_protocol.pytree.decoder`.
        order: for each leaf on the wire, its number among the arrays that the executable returns.
        layout: of the skeleton.
        keys: whether there are PRNG keys among the leaves.
        is_lasting: whether it means the same to the clients of a later process.
        inputs: which arguments each leaf on the wire may be computed from, as bits of a number in
            hexadecimal, with how many leaves in a row have the same; empty: that is not known.
    """

    skeleton: bytes
    order: tuple[int, ...]
    layout: Layout = field(compare=False, repr=False)
    keys: bool
    is_lasting: bool = True
    inputs: tuple[tuple[str, int], ...] = field(default=(), repr=False)
    is_in_order: bool = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_in_order", self.order == tuple(range(len(self.order))))

    def by_leaf(self, results: Sequence[Any]) -> list[Any]:
        """The arrays that the executable returned, as the leaves on the wire follow one another."""
        return list(results if self.is_in_order else map(results.__getitem__, self.order))

    @property
    def hash(self) -> bytes:
        """By which a client names the layout that it expects."""
        return _hash_of(self.skeleton)

    @classmethod
    def of(
        cls,
        skeleton: bytes,
        order: Sequence[int],
        inputs: Sequence[tuple[str, int]] = (),
        *,
        is_lasting: bool = True,
    ) -> ResultLayout:
        """The form with that skeleton.

        Raises:
            ProtocolError: when it is no skeleton.
        """
        layout, _ = _parsed(skeleton)
        keys = any(leaf.tag == "K" for leaf in layout.leaves)
        return cls(skeleton, tuple(order), layout, keys, is_lasting, tuple(inputs))


_hash_of: Final = lru_cache(maxsize=1024)(shape_hash)


def result_layout(
    leaves: Sequence[Any], structure: Any, inputs: Sequence[int] | None = None
) -> ResultLayout:
    """Walks the structure of a result once.

    Args:
        leaves: the arrays, or what stands for them: things with shape, dtype and `weak_type`.
        structure: jax's tree structure.
        inputs: which arguments each of the leaves may be computed from, as bits; None: not known.

    Raises:
        ResultError: when a node of it cannot travel.
    """
    slots = [LeafSlot(index, leaf) for index, leaf in enumerate(leaves)]
    encoder = ResultEncoder(leaves)
    try:
        encoder.node(jax.tree.unflatten(structure, slots))
    except RecursionError as error:
        raise ResultError(
            "the function returned something that is nested too deeply, or holds itself. Return "
            "dicts, lists and tuples of arrays from the function."
        ) from error
    order, runs = encoder.order, []
    if inputs is not None:
        runs = [(f"{each:x}", len([*row])) for each, row in groupby(inputs[i] for i in order)]
    known = runs if len(runs) <= _MOST_RUNS else ()
    return ResultLayout.of(encoder.skeleton, order, known, is_lasting=not encoder.has_tokens)


class _References:
    """Collects the references of a skeleton, and makes no objects."""

    def __init__(self) -> None:
        self.found: list[Reference] = []

    def getter(
        self, reference: Reference, holders: tuple[type, ...], field: str
    ) -> Callable[[], Any]:
        self.found.append(reference)
        return lambda: None

    def instance(self, cls: type, state: dict[Any, Any], *, is_own: bool) -> Any:
        return None

    def unflattener(self, cls: type) -> Callable[[Any, list[Any]], Any]:
        return lambda aux, children: None

    def structure(self, tree: Any) -> Any:
        return None


def _parsed(skeleton: bytes) -> tuple[Layout, list[Reference]]:
    """The layout of a result, which no result can be built from, and the references in it."""
    references = _References()
    return parse_skeleton(skeleton, lambda *_: object, None, references), references.found


_ROW: Final = 16
_PAD: Final = [bytes(n) for n in range(_ROW)]


def pack_result(
    leaves: Sequence[Any],
    form: ResultLayout,
    home: Sequence[int] | None = None,
    placement: BlobLayout | None = None,
) -> tuple[bytes, list[memoryview], tuple[int, ...]]:
    """Blob and buffers of a result; waits until the device is done.

    Args:
        leaves: the arrays that an executable returned.
        form: that of the executable.
        home: numbers of the leaves that are sent to the client; by default all.
        placement: where they lie then.

    Returns:
        Blob and buffers, and the numbers of those that a later call was given meanwhile: they are
        not in there.

    Raises:
        Exception: what jax raises when the computation failed.
    """
    wanted = range(len(form.order)) if home is None else home
    read = _host_array if form.keys else np.asarray
    order = form.order
    try:
        data = {number: read(leaves[order[number]]) for number in wanted}
    except RuntimeError:  # one of them was given to a call, or the computation failed
        data = {number: _numpy_view(leaves[order[number]], read) for number in wanted}
    gone = tuple(number for number, found in data.items() if found is None)
    if gone:
        there = [n for n in wanted if n not in gone]
        absent = sorted(set(range(len(form.order))) - set(there))
        placement = form.layout.without(spans_of(absent))
    return *_packed(data, placement or form.layout.whole), gone


def _packed(data: Mapping[int, Any], placement: BlobLayout) -> tuple[bytes, list[memoryview]]:
    blob: list[bytes] = []
    buffers: list[memoryview] = []
    end = 0
    for number, found in data.items():
        place = placement.places[number]
        if place.buffer >= 0:
            buffers.append(_flat(found))
        elif place.offset >= 0:
            small = found.tobytes()
            blob += (_PAD[place.offset - end], small)
            end = place.offset + len(small)
    return b"".join(blob), buffers


def wait_for(arrays: Iterable[Any]) -> bool:
    """Waits until arrays are computed, all of which one program returns at the same moment.

    Returns:
        Whether it has; when later calls were given all of them, there is nothing to wait for here.

    Raises:
        Exception: what jax raises when the computation failed.
    """
    for array in arrays:
        try:
            if not array.is_deleted():  # cheaper than the exception: a loop takes most of them
                array.block_until_ready()
                return True
        except AttributeError:
            continue  # what stands for no derivative
        except RuntimeError:
            if not array.is_deleted():
                raise
    return False


def host_data(array: Any) -> memoryview:
    """The bytes of an array in C order; waits until it is computed.

    Raises:
        ValueDeleted: when it was given to a call meanwhile.
    """
    data = _numpy_view(array, _host_array)
    if data is None:
        raise ValueDeleted("an array on the server was donated to a call while it was fetched.")
    return _flat(data)


def _host_array(array: Any) -> Any:
    """numpy's view of an array, perhaps of PRNG keys."""
    return key_data(array) if is_key_array(array) else np.asarray(array)


def _numpy_view(array: Any, read: Callable[[Any], Any]) -> Any:
    """What `read` returns for an array; None when it was given to a call."""
    try:
        return read(array)
    except RuntimeError:
        if not array.is_deleted():
            raise
        return None


def _flat(data: Any) -> memoryview:
    flat: memoryview = np.ascontiguousarray(data).reshape(-1).view("u1").data
    return flat


class RetainedLeaves(NamedTuple):
    """The leaves of a result that stay on the server.

    Attributes:
        present: a byte for each leaf, 1 for those that stay; empty when none does.
        ends: the bytes of those that stay and come before each leaf, and of all.
        home: numbers of the leaves that are sent with the reply.
        away: numbers of the others.
        packed_away: these, packed.
        placement: where the data of those lies that are sent.
    """

    present: bytes
    ends: tuple[int, ...]
    home: tuple[int, ...]
    away: tuple[int, ...]
    packed_away: bytes
    placement: BlobLayout

    @property
    def nbytes(self) -> int:
        """Of all that stay."""
        return self.ends[-1]

    def arrays(self, results: list[Any]) -> list[Any]:
        """Those that stay, of all by leaf; None in place of the others."""
        if self.present.find(0) < 0:
            return results
        return [one if stays else None for one, stays in zip(results, self.present, strict=True)]


def retained_leaves(layout: Layout, stay: ResultPolicy, taken: Sequence[Leaf]) -> RetainedLeaves:
    """What stays of a result.

    A leaf that looks like one of the arrays that the call took is most likely what became of that
    array: the state of a loop. It is not sent, however small, unless the client requests it; but a
    result that is small as a whole is.

    Args:
        layout: of the result.
        stay: the policy of the client.
        taken: what the arrays look like that the call was given; with `KEEP_ALL`, those that lay
            on the server.
    """
    sizes = [(number, leaf.nbytes) for number, leaf in enumerate(layout.leaves)]
    everything = stay.above == KEEP_ALL
    is_small = not everything and sum(size for _, size in sizes) <= stay.above
    states = Counter(() if is_small else taken)
    away = []
    for number, size in sizes:
        leaf = layout.leaves[number]
        if states[leaf]:
            states[leaf] -= 1
            away.append(number)
        elif size > (stay.home if everything else stay.above):
            away.append(number)
    gone = set(away)
    present = bytes([everything or number in gone for number, _ in sizes])
    ends = (0, *accumulate(size * stays for (_, size), stays in zip(sizes, present, strict=True)))
    home = tuple(number for number, _ in sizes if number not in gone)
    spans = spans_of(away)
    placement, packed = layout.without(spans), pack_leaf_spans(spans)
    return RetainedLeaves(
        present if any(present) else b"", ends, home, tuple(away), packed, placement
    )


def rebind_form(form: ResultLayout) -> ResultLayout:
    """The same form with tokens of this process.

    Raises:
        ProtocolError: when its skeleton is none.
    """
    if b"R" not in form.skeleton:
        return form
    _, references = _parsed(form.skeleton)
    skeleton = replace_tokens(form.skeleton, references, _token_of)
    return replace(form, skeleton=skeleton)


def _token_of(reference: Reference) -> bytes:
    name = (reference.kind, repr(reference.detail))
    if reference.kind == "m":  # a detail with a token in it, which is another one each time
        owner, member = reference.detail
        name = ("m", repr((_token_of(load_reference(owner)), member)))
    return keep_lookup(name, lambda: _find(reference))


def _find(reference: Reference) -> Any:
    """The object here; LookupError, ImportError or AttributeError when there is none."""
    kind, detail = reference.kind, reference.detail
    if kind in "ke" and not detail[2]:
        cls = _imported(*detail[:2])
        return cls[detail[3]] if kind == "e" else cls
    if kind not in _FINDERS:
        raise LookupError(f"a {reference.about} that only the process had that made it")
    return _FINDERS[kind](*detail)


def _imported(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def _made(name: str, parts: tuple[Any, ...]) -> Any:
    kind = find_kind(name)
    if kind is None:
        raise LookupError(f"a {name}")
    return kind.make(*load_parts(parts, lambda part: _find(load_reference(part))))


_FINDERS: Final[Mapping[str, Callable[..., Any]]] = {
    "i": _imported,
    "d": dtype_of,
    "v": _made,
    "m": lambda owner, name: getattr(_find(load_reference(owner)), name),
    "p": lambda module, name, field: parameter_default(_imported(module, name), field, None),
    "n": object_numbers.at,
}
"""By the kind of a reference, what finds its object from the items of its detail."""
