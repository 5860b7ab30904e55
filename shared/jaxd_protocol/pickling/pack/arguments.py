"""Arguments to bytes: data, with the code in it by its content.

A static argument or a tree's structure may hold functions and classes. Each of them is packed
separately, after a walk of its own, and named by its content id, so that on the server it is the
same object in each call and from every client: structures stay equal, and nothing is traced again.
"""

from __future__ import annotations

import pickle
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import JaxdError, PackingError
from jaxd_protocol.fingerprint import (
    Guards,
    WalkResult,
    content_guards,
    content_id,
    current_packing,
    id_in_scope,
    next_moment,
    one_moment,
    walk_for_packing,
)
from jaxd_protocol.fingerprint.data_model import ReachedObjects
from jaxd_protocol.fingerprint.function_wrapper import BoundWrapper, FunctionWrapper
from jaxd_protocol.fingerprint.guards import all_changes_are_seen
from jaxd_protocol.fingerprint.values.reflection import subclasses_of
from jaxd_protocol.jax_objects.names import kind_of
from jaxd_protocol.jax_objects.registrations import is_own_primitive
from jaxd_protocol.packages.bare_objects import object_of_name, own_constant_name
from jaxd_protocol.packages.importable import find_object, importable_name
from jaxd_protocol.packages.installed import OWN_PACKAGES, is_local_module
from jaxd_protocol.pickling.pack.classes import class_name, is_pythons_own
from jaxd_protocol.pickling.pack.function_parts import is_local_function
from jaxd_protocol.pickling.pack.functions import Packed, dump, pack_function
from jaxd_protocol.pickling.pack.modules import reduce_archived
from jaxd_protocol.pickling.pack.pickler import PickleBox, Pickler
from jaxd_protocol.pickling.unpack.content_table import ClassId
from jaxd_protocol.pickling.unpack.unpickler import intern_callable, intern_class

_MAX_CACHED: Final = 1024
_MAX_REFUSED: Final = 256
_MAX_ATTEMPTS: Final = 3

_CODE_TYPES: Final = frozenset({types.FunctionType, types.MethodType, partial})
_JITTED_KINDS: Final = frozenset({"jit", "custom_jvp", "custom_vjp", "custom_vmap"})


def pack(value: Any, what: str) -> Packed:
    """One argument as bytes.

    Args:
        value: any object.
        what: its name in an error, such as ``an argument of type Config``.

    Raises:
        PackingError: when it reaches an object that cannot be sent, which the message names.
    """
    return _pack(value, what, None)


def pack_out_of_band(value: Any, what: str) -> tuple[Packed, list[memoryview]]:
    """As `pack`, with the memory of contiguous arrays beside the bytes instead of copied."""
    buffers: list[memoryview] = []
    return _pack(value, what, buffers), buffers


def _collect(buffers: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    try:
        buffers.append(buffer.raw())
    except BufferError:  # not contiguous: the pickle carries a copy
        return True
    return False


def _pack(value: Any, what: str, buffers: list[memoryview] | None) -> Packed:
    collect = None if buffers is None else partial(_collect, buffers)
    for _ in range(_MAX_ATTEMPTS):
        with suppress(_ContentChanged), one_moment():
            pickler = _ArgumentPickler(ReachedObjects(archives=current_packing().archives), collect)
            packed = dump(pickler, value, value, what)
            packed.told_apart = tuple(pickler.told_apart)
            pickler.compare_unwatched()
            return packed
        next_moment()
        if buffers:
            buffers.clear()
    raise PackingError(
        f"{what} cannot travel to the server: a class or function in it is changed all the time "
        "while it is packed. Let that end before the call."
    ) from _ContentChanged()


class _ContentChanged(JaxdError):
    """A class or callable no longer matches its content id.

    The server would use it under that id for all clients.
    """


def _is_named(reduced: Any) -> bool:
    """Whether an object is written by a name, which leads to one object at the other end."""
    return type(reduced) is tuple and reduced[0] in (find_object, object_of_name)


def _is_one_object(value: Any) -> bool:
    """Whether it is the same object at the other end, whatever brings it; or none of a user's."""
    if isinstance(value, type | Enum | types.ModuleType | PickleBox) or is_own_primitive(value):
        return True
    return own_constant_name(value) is not None


class _ArgumentPickler(Pickler):
    """Writes data; code in it by its content.

    Attributes:
        told_apart: as in `Packed`.
    """

    def __init__(
        self, reach: ReachedObjects, collect: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(reach, collect)
        self._makers: dict[int, Any] = {}  # by id, which each keeps while it is here
        self._unwatched: dict[bytes, tuple[Any, Packed]] = {}
        self._arrived: dict[bytes, Any] = {}  # by content id
        self.told_apart: list[Any] = []

    def reducer_override(self, value: Any) -> Any:
        """As that of a function's pickler, except for code."""
        reduced = self._reduced(value)
        if type(value) is object and not _is_named(reduced):
            raise PackingError(
                "an argument holds a bare object(), which differs from others only by its "
                "identity, and on the server it would be another one. Use a member of an enum."
            )
        if type(reduced) is tuple:
            if not (_is_named(reduced) or _is_one_object(value)):
                self.told_apart.append(value)
            makers = [each for each in (reduced[0], *reduced[5:]) if not isinstance(each, type)]
            self._makers.update((id(each), each) for each in makers)
        if id(value) not in self._makers:
            self._note_installed(value, reduced)
        return reduced

    def _note_installed(self, value: Any, reduced: Any) -> None:
        if _is_named(reduced):
            name: tuple[str, str] = reduced[1]
        elif type(reduced) is str:
            name = getattr(value, "__module__", None) or "builtins", reduced
        elif reduced is NotImplemented and isinstance(value, type):
            name = value.__module__, value.__qualname__
        else:
            return
        if name[0].partition(".")[0] not in OWN_PACKAGES:
            self.installed[name] = value

    def _reduced(self, value: Any) -> Any:
        archived = reduce_archived(self, value)
        if archived is not NotImplemented:
            return archived
        if isinstance(value, FunctionWrapper | BoundWrapper):  # its name may lead to another object
            return self._interned(value)
        if is_own_primitive(value) or own_constant_name(value) is not None:
            return self._interned(value)  # one object at the other end, as classes are
        if type(value) in _CODE_TYPES or kind_of(value) in _JITTED_KINDS:
            is_local = type(value) is types.FunctionType and is_local_function(value)
            name = None if is_local else importable_name(value)
            return self._interned(value) if name is None else self.by_name(value, name)
        return super().reducer_override(value)

    def reduce_type(self, cls: type) -> Any:
        """For a class."""
        if class_name(cls) is not None or is_pythons_own(cls):
            if "subclasses" in current_packing().readers:
                _refuse_subclasses(cls)
            return super().reduce_type(cls)
        content, data = self._by_content(cls)
        name = ClassId(content, cls.__qualname__, cls.__module__)
        self.classes[name] = cls
        return intern_class, (tuple(name), data)

    def reduce_module(self, module: types.ModuleType) -> Any:
        """For a module."""
        local = is_local_module(module.__name__)
        return self._interned(module) if local else super().reduce_module(module)

    def _interned(self, value: Any) -> Any:
        self.last = value
        content, data = self._by_content(value)
        self.objects[content] = value
        return intern_callable, (content, data)

    def _by_content(self, value: Any) -> tuple[bytes, bytes]:
        """The content id of a callable or class, and its bytes.

        Without any where it is a class that came with what was written before: it is there then.
        """
        with _refused_parts(value):
            content = content_id(value)
            if isinstance(value, type) and self._arrived.get(content) is value:
                return content, b""
            packed = self._packed_once(content, value)
        for (module, name), cls in packed.classes.items():
            self.classes[ClassId(content_id(cls), name, module)] = cls
        self._arrived.update(packed.objects)
        return content, bytes(packed)

    def _packed_once(self, content: bytes, value: Any) -> Packed:
        """A callable or class, packed once for each content."""
        found = _packed_callables.use(content)
        if found is not None:
            return found
        name = _name_of(value)
        walked = walk_for_packing(value, name)
        found = pack_function(value, repr(name), walked.reach)
        if not all_changes_are_seen(walked.reach):
            self._unwatched[content] = value, found
            return found
        if not walked.guards.hold():
            next_moment()
            walked = walk_for_packing(value, name)
        return _kept(content, found, walked, name)

    def compare_unwatched(self) -> None:
        """Looks at what has changes that no guard sees once more, after all of it is packed.

        Raises:
            _ContentChanged: when something has another content than it had before it was packed.
        """
        if self._unwatched:
            next_moment()
        for content, (value, found) in self._unwatched.items():
            name = _name_of(value)
            _kept(content, found, walk_for_packing(value, name), name)


def _refuse_subclasses(cls: type) -> None:
    """For a class of a library's as an argument of a function that reads subclasses.

    Raises:
        PackingError: when classes of the user's own are derived from it.
    """
    own = [each for each in subclasses_of(cls) if is_local_module(each.__module__)]
    if own and cls is not object:
        raise PackingError(
            f"the function reads which classes were derived from others, and {cls.__name__} has "
            f"{own[0].__qualname__}, which the server's does not have. Pass the subclasses."
        )


class Refusal(NamedTuple):
    """That something cannot travel: as long as its guards hold, and for a while.

    Attributes:
        kept: so that nothing else gets the ids by which it is known.
        mark: of what it was packed for.
        guards: of a walk over it; None where that has failed.
        reason: why.
        until_s: `time.monotonic()` of its end.
    """

    kept: Any
    mark: bytes
    guards: Guards | None
    reason: str
    until_s: float

    @staticmethod
    def of(kept: Any, guards: Guards | None, error: PackingError, started_s: float) -> Refusal:
        """That of an error, which has ended what was started then."""
        until_s = remembered_until(started_s)
        return Refusal(kept, current_packing().mark, guards, str(error), until_s)

    def check(self) -> None:
        """Returns when it has ended.

        Raises:
            PackingError: when it holds.
        """
        is_recent = self.mark == current_packing().mark and monotonic() < self.until_s
        if is_recent and (self.guards is None or self.guards.hold()):
            raise PackingError(self.reason)


def depends_on_the_value(error: BaseException) -> bool:
    """Whether packing it again fails again: not with less on the stack, or a moment later."""
    while isinstance(error, PackingError) and error.__cause__ is not None:
        error = error.__cause__
    return isinstance(error, _LASTING) and error.__context__ is None


def remembered_until(started_s: float) -> float:
    """When to find out again what was begun to be found out then."""
    now_s = monotonic()
    return now_s + _REFUSED_FOR * (now_s - started_s)


_REFUSED_FOR: Final = 20
"""That an object cannot travel holds for so many times as long as it took to find out: what decides
about that beside the object, such as the names of modules, nothing watches."""

_LASTING: Final = (PackingError, TypeError, pickle.PicklingError)
_refused: Final = BoundedDict[int, Refusal](_MAX_REFUSED)


@contextmanager
def _refused_parts(value: Any) -> Iterator[None]:
    """Around the packing of a callable or class, which stands in many arguments.

    Raises:
        PackingError: at once where that has failed a moment ago, and when it fails.
    """
    known = _refused.get(id(value))
    if known is not None and known.kept is value:
        known.check()
    started_s = monotonic()
    try:
        yield
    except PackingError as error:
        if depends_on_the_value(error):
            _refused[id(value)] = Refusal.of(value, content_guards(value), error, started_s)
        raise


_packed_callables: Final = BoundedDict[bytes, Packed](_MAX_CACHED)


def _name_of(value: Any) -> str:
    name: str | None = getattr(value, "__qualname__", None)
    return name or type(value).__qualname__


def _kept(content: bytes, packed: Packed, walked: WalkResult, name: str) -> Packed:
    """What was packed, kept for its content, which it still has."""
    fingerprint = walked.fingerprint
    keeps_id = not walked.guards.complete or fingerprint.unshared
    found_id = id_in_scope(fingerprint.digest, current_packing().scope)
    if not keeps_id and found_id != content:
        raise _ContentChanged(f"{name} was changed while it was packed.")
    _packed_callables[content] = packed
    return packed
