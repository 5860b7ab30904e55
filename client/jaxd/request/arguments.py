"""Encodes the arguments of a call as skeleton, blob and buffers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jaxd.interop.jax_runtime import (
    PRNGKeys,
    encode_jax,
    encode_jax_array,
    is_mutable_in_jax,
    loaded_jax,
)
from jaxd.request.function_snapshot import TOLD_APART
from jaxd.results.reader import STANDS_FOR
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ArgumentError, PackingError
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_protocol.messages.data_locations import DataLocation
from jaxd_protocol.pytree import TreeEncoder, dump_literal, is_literal
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.pytree.literals import plain_number

if TYPE_CHECKING:
    from jaxd.interop.handle_ranges import HandleRange, HandleRanges
    from jaxd.interop.lazy_array import ArrayLike, LazyArray
    from jaxd.interop.remote_array import RemoteArray
    from jaxd_protocol.pickling.pack.functions import Packed


def encode_arguments(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    statics: StaticArgs,
    known_objects: dict[Any, Any],
    fetcher: object = None,
    *,
    gathers: bool = False,
) -> ArgumentEncoder:
    """Encodes the arguments of a call; the result has their skeleton, blob and buffers.

    Arrays on the server, of this `fetcher`, do not move; those of others are fetched first. Those
    of jax that are spread over several devices of this process are refused, or sent as a whole
    where `gathers` says so.

    Classes and callables that are met on the way are entered in `known_objects`, by name and by
    content id, so that results can come back as their instances, and with them. Large contiguous
    arrays are not copied: the buffers are views of them.

    What jax cannot trace becomes part of the structure, unless `statics` is strict.

    Raises:
        ArgumentError: when a value is of no use to jax.
        ValueError: as jax, when it is a masked array, or a static position is none.
        TracerError: when a value is a tracer.
        PackingError: when an object among them cannot travel.
    """
    encoder = ArgumentEncoder(known_objects, fetcher, statics.strict, gathers=gathers)
    encoder.call(args, kwargs, statics)
    return encoder


class ArgumentEncoder(TreeEncoder):
    """Encodes numpy and jax arrays, arrays of this package and, with jax, every registered pytree.

    Anything else is pickled.

    Attributes:
        sources: the arrays of jax whose data is in a buffer, by leaf.
        leaf_headers: of each array whose data is in a buffer its bytes in the skeleton, by leaf.
        gathers: whether an array that is spread over several devices is sent as a whole.
    """

    types: ClassVar[dict[type, Callable[[Any, Any], None]]] = dict(TreeEncoder.types)

    def __init__(
        self,
        known_objects: dict[Any, Any],
        fetcher: object = None,
        strict: bool = False,
        *,
        gathers: bool = False,
    ) -> None:
        super().__init__()
        self.gathers = gathers
        self._handle_ranges: HandleRanges | None = None
        self.sources: dict[int, Any] = {}
        self.leaf_headers: dict[int, bytes] = {}
        self._known_objects = known_objects
        self._fetcher = fetcher
        self._strict = strict

    @property
    def values(self) -> list[HandleRange]:
        """The arrays on the server."""
        return [] if self._handle_ranges is None else self._handle_ranges.ranges

    @property
    def data_locations(self) -> list[DataLocation]:
        """Where the data lies that is on the server."""
        return [handle_range.row for handle_range in self.values]

    def _add_handles(self, leaf: int, arrays: Sequence[RemoteArray]) -> None:
        if self._handle_ranges is None:
            from jaxd.interop.handle_ranges import HandleRanges  # many processes have none

            self._handle_ranges = HandleRanges()
        self._handle_ranges.add(leaf, arrays)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], statics: StaticArgs) -> None:
        """Appends the arguments, the static ones as part of the structure."""
        self._skeleton += (b"T", COUNT.pack(2), b"T", COUNT.pack(len(args)))
        positions = statics.at(len(args)) if statics.positions else ()
        for position, value in enumerate(args):
            self._argument(value, position in positions)
        self._skeleton += (b"D", COUNT.pack(len(kwargs)))
        for name, value in kwargs.items():
            self._skeleton.append(dump_literal(name))
            self._argument(value, name in statics.names)

    def _argument(self, value: Any, static: bool) -> None:
        if not static:
            is_tree = _remote_kinds and type(value) in _CONTAINERS
            if not is_tree or not self._result_tree(value):
                self.node(value)
        elif is_literal(value):
            self.static(value)
        else:
            from jaxd.request.packing_cache import pack_cached

            what = f"a static argument of type {type(value).__name__}"
            self._packed_static(value, pack_cached(value, what))

    def _packed_static(self, value: Any, data: Packed) -> None:
        self._register_classes(value, data)
        self._skeleton += (b"Q", COUNT.pack(len(data)), data)

    def other(self, value: Any) -> None:
        """Appends an array, a named tuple, an object's leaves, or a pickle of what else this is."""
        numpy: Any = sys.modules.get("numpy")
        # `None` also while another thread is still importing it: then no value is one yet
        array_like: Any = getattr(sys.modules.get("jaxd.interop.lazy_array"), "ArrayLike", None)
        if isinstance(value, str | bytes):  # of a class of its own, such as numpy's
            self._object(value)
        elif (
            numpy is not None
            and isinstance(value, (numpy.ndarray, numpy.generic))
            and not _is_registered(type(value))
        ):
            self.types[numpy.ndarray] = ArgumentEncoder.ndarray  # found at once from now on
            check_not_masked(value)
            self.ndarray(numpy.asarray(value))
        elif array_like is not None and isinstance(value, array_like):
            self._own_array(value)
        elif type(value) is PRNGKeys:
            import numpy as np

            self.key(value.impl, np.asarray(value.data))
        elif encode_jax(self, value, is_gathered=self.gathers):
            self._note_source(value)
            from jaxd.interop.jax_registry import array_class  # many processes have no such array

            if type(value) is array_class():
                self.types[type(value)] = _jax_array  # found at once from now on
        elif _is_plain_named_tuple(type(value)):
            self._named_tuple(value)
        elif not self._flattened_object(value):
            self._leaf(value)

    def jax_array(self, value: Any) -> None:
        """Appends an array of jax's own class, which holds neither tracers nor keys."""
        encode_jax_array(self, value, is_gathered=self.gathers)
        self._note_source(value)

    def _note_source(self, value: Any) -> None:
        """An array of jax was appended, whose data may be in the last buffer."""
        if self.buffer_leaves and self.buffer_leaves[-1] == self.count - 1:
            self.sources[self.count - 1] = value

    def _own_array(self, value: ArrayLike) -> None:
        from jaxd.interop.remote_array import RemoteArray  # many processes have none

        if isinstance(value, RemoteArray):
            self.types[type(value)] = ArgumentEncoder.remote  # found at once from now on
            _remote_kinds.add(type(value))
            self.remote(value)
        else:
            lazy: LazyArray = value  # type: ignore[assignment]  # there is no other class of them
            self.raw_array(*lazy.raw)

    def large(self, data: memoryview) -> None:
        """Puts the bytes of an array beside the message; its spec was appended just before."""
        self.leaf_headers[self.count] = self._skeleton[-1]
        super().large(data)

    def remote(self, array: RemoteArray) -> None:
        """Appends an array on the server, without its data if it is the server of this call."""
        origin, leaf = array.origin, array.leaf
        if origin.fetcher is self._fetcher:
            self._add_handles(self.count, (array,))
            self.spec(leaf)
            return
        from jaxd.interop.remote_array import RemoteArray

        here = array.on_server_of(self._fetcher)
        if leaf.is_jax and not isinstance(here, RemoteArray):  # perhaps of numpy, as it was fetched
            import numpy

            self.ndarray(numpy.asarray(here), leaf.weak, True)
        else:
            self.node(here)

    def _consecutive_results(self, leaves: list[Any]) -> bool:
        """Appends arrays that follow one another as a call returned them; whether they do.

        The state of a loop is hundreds: one by one they would cost most of a step.
        """
        if not leaves or type(leaves[0]) not in _remote_kinds:
            return False
        origin, first, stop = leaves[0].origin, leaves[0].number, leaves[0].number + len(leaves)
        follow = origin.fetcher is self._fetcher
        if follow and not origin.begins_with(first, leaves):
            from jaxd.interop.handle_ranges import are_consecutive

            follow = set(map(type, leaves)) <= _remote_kinds and are_consecutive(leaves)
        if follow:
            self._add_handles(self.count, leaves)
            self.specs_of(origin.leaves, first, stop)
        return follow

    def class_name(self, cls: type) -> bytes:
        """The bytes for a class; for one that stands for a class of the server's, that one's."""
        name = vars(cls).get(STANDS_FOR)
        return super().class_name(cls) if name is None else dump_literal(name)

    def _result_tree(self, value: Any) -> bool:
        """Appends a tree that holds mostly what calls returned, in order; whether it is one.

        The state of a loop comes back like this in each step. What stands in the skeleton for it is
        made once.
        """
        tree = _ResultTree()
        key = tree.key(self._fetcher) if tree.add(value) else None
        if key is None:
            return False
        known = _result_trees.get(key)
        if known is None or not all(map(is_, known[0], tree.specs)):
            pieces = _StructureEncoder(self._known_objects, self._fetcher).pieces(value)
            known = _result_trees[key] = tree.specs, pieces
        _, (first, *others) = known
        self._results(first, tree.runs[0])
        for other, piece, arrays in zip(tree.others, others, tree.runs[1:], strict=True):
            self.node(other)
            self._results(piece, arrays)
        return True

    def _results(self, piece: bytes, arrays: list[RemoteArray]) -> None:
        """Appends a part of a skeleton, and the arrays on the server that it describes."""
        self._skeleton.append(piece)
        if arrays:
            self._add_handles(self.count, arrays)
            self.count += len(arrays)

    def non_literal_keys(self, value: dict[Any, Any]) -> None:
        """A dict with keys of other types is pickled as a whole."""
        self._pickled(value)

    def _flattened_object(self, value: Any) -> bool:
        """Appends an object's pytree template and its leaves, where jax is imported."""
        if loaded_jax() is None:
            return False
        from jaxd.request.templates import flatten_object

        found = flatten_object(value)
        if found is None:
            return False
        template, leaves = found
        self._register_classes(value, template.packed)
        self._skeleton.append(template.head)
        if not self._consecutive_results(leaves):
            for leaf in leaves:
                self.node(leaf)
        return True

    def undeclared(self, value: Any) -> None:
        """Appends a literal that jax cannot trace, as an implicit static argument."""
        if not self._strict:
            self._skeleton.append(_UNNAMED_OBJECT)
        self.static(value)

    def _leaf(self, value: Any) -> None:
        number = plain_number(value)
        if number is None:
            self._object(value)
        else:
            self.node(number)

    def _object(self, value: Any) -> None:
        """Appends an object without data: to the structure, or as a leaf where only jax knows."""
        check_not_array_like(value)
        if type(value) is object and not _has_name(value):
            raise ArgumentError(
                "an argument is a bare object(), which jax cannot trace. It cannot be declared in "
                "static_argnames either, as it differs from others only by its identity: pass text "
                "or a member of an enum."
            )
        if self._strict or not is_plain_object(value):
            self._pickled(value)
        elif is_literal(value):
            self.undeclared(value)
        else:
            from jaxd.request.packing_cache import pack_cached

            data = pack_cached(value, f"an argument of type {type(value).__name__}")
            if len(data) <= _MAX_STATIC_BYTES:
                self._skeleton += (b"X", dump_literal(name_of(value)))
                self._packed_static(value, data)
            else:  # in one piece: nothing of it may be left out where a call is recorded
                self._register_classes(value, data)
                self._skeleton += (b"P", COUNT.pack(0))
                self.beside(memoryview(data))

    def _pickled(self, value: Any) -> None:
        from jaxd_protocol.pickling.pack.arguments import pack_out_of_band

        if self._strict and is_code(value):
            raise ArgumentError(
                f"an argument is a {type(value).__name__}, which jax cannot trace. Declare it in "
                "static_argnames, or make it part of the function with functools.partial."
            )
        data, buffers = pack_out_of_band(value, f"an argument of type {type(value).__name__}")
        self._register_classes(value, data)
        self._skeleton += (b"P", COUNT.pack(len(buffers)))
        self.beside(memoryview(data), *buffers)

    def _register_classes(self, value: Any, data: Packed) -> None:
        cls = type(value)
        self._known_objects[cls.__module__, cls.__qualname__] = cls
        self._known_objects.update(data.classes)
        self._known_objects.update(data.objects)
        self._known_objects.update(data.installed)
        if data.told_apart:
            self._known_objects.setdefault(TOLD_APART, []).extend(data.told_apart)


def _jax_array(encoder: ArgumentEncoder, value: Any) -> None:
    encoder.jax_array(value)


class _ResultTree:
    """A tree of plain containers, taken apart: arrays on the server, and others between them.

    Attributes:
        runs: the arrays on the server before the first other, between that and the second, ….
        others: what is neither a container nor such an array.
        specs: of the batch of each run; see `key`.
    """

    __slots__ = ("_nodes", "_surplus", "others", "runs", "specs")

    def __init__(self) -> None:
        self._nodes: list[Any] = []  # the structure from the top
        self._surplus = _MOST_OTHERS_AHEAD  # of arrays on the server over others
        self.runs: list[list[Any]] = [[]]
        self.others: list[Any] = []
        self.specs: list[Any] = []

    def add(self, value: Any) -> bool:
        """Appends a tree; whether it may still be one that holds mostly arrays on the server."""
        kind = type(value)
        if kind in _remote_kinds:
            self._nodes.append(_ONE)
            self._surplus += 1
            self.runs[-1].append(value)
            return True
        if value is None:
            self._nodes.append(None)
            return True
        if not _is_structure(value):
            self._nodes.append(_OTHER)
            self._surplus -= 1
            self.others.append(value)
            self.runs.append([])
            return self._surplus >= 0
        is_dict = kind is dict
        self._nodes += (kind, tuple(value) if is_dict else len(value))
        return self._add_all(value.values() if is_dict else value)

    def _add_all(self, children: Collection[Any]) -> bool:
        kinds = set(map(type, children))
        if len(kinds) == 1 and kinds <= _remote_kinds:
            self._nodes.append(_ALL)
            self._surplus += len(children)
            self.runs[-1] += children
            return True
        return all(map(self.add, children))

    def key(self, fetcher: object) -> tuple[Any, ...] | None:
        """Equal for trees whose skeletons are, while their `specs` are the same objects.

        None where arrays do not follow one another as calls returned them, or are not on the server
        of this fetcher, or where there is more of anything else.
        """
        from jaxd.interop.handle_ranges import are_consecutive

        if sum(map(len, self.runs)) <= len(self.others):
            return None
        key = list(self._nodes)
        for run in filter(None, self.runs):
            origin = run[0].origin
            if origin.fetcher is not fetcher or not are_consecutive(run):
                return None
            self.specs.append(origin.leaves)
            key += (id(origin.leaves), run[0].number, len(run))
        return tuple(key)


class _StructureEncoder(ArgumentEncoder):
    """Encodes a tree without what is neither a container nor an array on the server."""

    def pieces(self, value: Any) -> tuple[bytes, ...]:
        """The skeleton, in the pieces between those."""
        self._pieces: list[bytes] = []
        self.node(value)
        return (*self._pieces, self.skeleton)

    def node(self, value: Any) -> None:
        if type(value) in _remote_kinds or _is_structure(value):
            super().node(value)
        else:
            self._pieces.append(self.skeleton)
            self._skeleton.clear()


_ONE, _ALL, _OTHER = object(), object(), object()
"""In the nodes of a tree: an array on the server, only such in a container, and anything else."""

_MOST_OTHERS_AHEAD: Final = 8
"""So many more others than arrays on the server, and the rest of a tree is not looked at."""

_remote_kinds: Final[set[type]] = set()
"""The types of arrays on the server; empty until this process has passed one."""

_CONTAINERS: Final = frozenset({dict, list, tuple})

_MAX_RESULT_TREES: Final = 1 << 8
_result_trees: Final = BoundedDict[Any, tuple[Sequence[Any], tuple[bytes, ...]]](_MAX_RESULT_TREES)
"""By structure, and the identity of what describes the arrays in it, the pieces of a skeleton."""


def _is_structure(value: Any) -> bool:
    """Whether a value is part of the structure of a `_ResultTree`."""
    kind = type(value)
    if kind is dict:
        return {str}.issuperset(map(type, value))
    return kind in _CONTAINERS or value is None or _is_plain_named_tuple(kind)


def _is_plain_named_tuple(cls: type) -> bool:
    """Whether values of a class are appended as a named tuple."""
    return (
        issubclass(cls, tuple)
        and hasattr(cls, "_fields")
        and _is_importable(cls)
        and not _is_registered(cls)
    )


_UNNAMED_OBJECT: Final = b"X" + dump_literal("")

_MAX_STATIC_BYTES: Final = 1 << 16
"""What is larger travels beside the message and not in the skeleton, which is kept and hashed."""


def _is_registered(cls: type) -> bool:
    """Whether a class of arrays or named tuples is registered with jax of this process."""
    if cls.__module__ == "numpy" or loaded_jax() is None:
        return False
    from jaxd_protocol.jax_objects.structures import is_registered  # few calls have such

    return is_registered(cls)


def _is_importable(cls: type) -> bool:
    """Whether the server can import this class: local ones travel by value."""
    from jaxd_protocol.packages.installed import is_local_module

    return not is_local_module(cls.__module__) and "<" not in cls.__qualname__


ArgumentEncoder.types.update(dict.fromkeys((str, bytes), ArgumentEncoder.undeclared))


_CODE_TYPES: Final = (
    *(type, FunctionType, BuiltinFunctionType, ModuleType),
    *(MethodType, BoundWrapper),
)


def is_plain_object(value: Any) -> bool:
    """Whether a value is surely a leaf to jax, here and on the server.

    Without jax in this process only the server knows which classes of packages jax takes apart.
    """
    jax = loaded_jax()
    if jax is not None:
        return bool(jax.tree_util.all_leaves((value,)))
    if isinstance(value, (*_CODE_TYPES, Enum, str, bytes)) or is_literal(value):
        return True
    from jaxd_protocol.packages.installed import is_local_module

    cls = type(value)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return False  # a node to jax, without being registered
    return cls.__module__ != "builtins" and is_local_module(cls.__module__)


def is_code(value: Any) -> bool:
    """Whether this is a function or the like, and no callable node of a tree, such as a layer."""
    if isinstance(value, type):
        return True
    jax = loaded_jax()
    return callable(value) and (jax is None or bool(jax.tree_util.all_leaves((value,))))


def check_not_array_like(value: Any) -> None:
    """Returns when a leaf that is neither an array nor a number does not behave like one.

    Raises:
        ValueError: as jax, when it is a masked array, or has `__jax_array__`.
        ArgumentError: when it is an array of another library.
        PackingError: when jax takes it, and changes it in place.
    """
    if isinstance(value, _CODE_TYPES):
        return
    cls = type(value)
    if is_mutable_in_jax(cls):
        raise PackingError(
            f"an argument is a {cls.__module__}.{cls.__qualname__}, which a call changes in place, "
            "in the process that calls. Pass the array in it and assign the one that the function "
            "returns, or run the function here with JAXD_INLINE=1."
        )
    if hasattr(cls, "__jax_array__"):
        raise ValueError(
            "Triggering __jax_array__() during abstractification is no longer supported. To avoid "
            "this error, either explicitly convert your object using jax.numpy.array(), or "
            "register your object as a pytree."
        )
    if hasattr(cls, "__array__") or hasattr(value, "dtype"):
        raise ArgumentError(
            f"an argument is a {cls.__module__}.{cls.__qualname__}, which jax cannot interpret as "
            "an abstract array. Convert it with numpy.asarray, or declare it in static_argnames."
        )


def check_not_masked(array: Any) -> None:
    """Returns when a numpy array is not masked.

    Raises:
        ValueError: as jax.
    """
    masked: Any = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)
    if masked is not None and isinstance(array, masked):
        raise ValueError(
            "numpy masked arrays are not supported as direct inputs to JAX functions. Use "
            "arr.filled() to convert the value to a standard numpy array."
        )


def name_of(value: Any) -> str:
    """What people call it, the same in each call; empty for what is its own best name."""
    if is_literal(value):
        return ""
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    own = getattr(value, "__qualname__", None) if isinstance(value, _CODE_TYPES) else None
    return own if isinstance(own, str) else f"an object of {type(value).__qualname__}"


def _has_name(value: object) -> bool:
    """Whether the other end can know a bare `object()`: few calls have one."""
    from jaxd_protocol.packages.bare_objects import names_of_bare_object

    return any(names_of_bare_object(value))
