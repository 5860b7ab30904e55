"""What a function means: a walk over all that it reaches, and the digest of that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, NamedTuple

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.canonical_bytes import digest as short_digest
from jaxd_protocol.fingerprint.data_model import Archives, Reader
from jaxd_protocol.fingerprint.data_model import CallbackList as CallbackList
from jaxd_protocol.fingerprint.data_model import Fingerprint as Fingerprint
from jaxd_protocol.fingerprint.data_model import ListedCallback as ListedCallback
from jaxd_protocol.fingerprint.data_model import Part as Part
from jaxd_protocol.fingerprint.guards import Guards as Guards
from jaxd_protocol.fingerprint.guards import all_changes_are_seen
from jaxd_protocol.fingerprint.process_view import LocalProcess, ProcessView
from jaxd_protocol.fingerprint.walk import Handlers, SharedFindings, Walk
from jaxd_protocol.fingerprint.walk import WalkResult as WalkResult

_LOCAL_PROCESS = LocalProcess()

_MAX_CONTENT_IDS = 4096
_MAX_CLASSES = 2048


class _Content(NamedTuple):
    value: Any
    guards: Guards
    is_watched: bool  # whether the guards see all that may change in it
    content: bytes


_content_ids = BoundedDict[tuple[int, bytes], _Content](_MAX_CONTENT_IDS)
_RECURSION_LIMIT = 10_000


_known_classes: Final = BoundedDict[int, WalkResult](_MAX_CLASSES)
"""Walks over classes of this process, each good as long as its guards hold."""


def _findings_of(view: ProcessView) -> SharedFindings:
    return SharedFindings(_known_classes if view is _LOCAL_PROCESS else None)


class _Moment:
    """What walks have found that are made one after the other, as if all were made at once.

    Attributes:
        contents: the keys in `_content_ids` of what was looked at.
    """

    def __init__(self) -> None:
        self.contents: set[tuple[int, bytes]] = set()
        self._views: dict[int, tuple[ProcessView, SharedFindings]] = {}

    def seen_from(self, view: ProcessView) -> SharedFindings:
        """What was found, as seen from a process."""
        found = self._views.get(id(view))
        if found is None:
            found = self._views[id(view)] = view, _findings_of(view)
        return found[1]

    def forget(self) -> None:
        """Something has changed."""
        self.contents.clear()
        self._views.clear()


_moment: ContextVar[_Moment | None] = ContextVar("jaxd_moment", default=None)


@contextmanager
def one_moment() -> Iterator[None]:
    """Around walks that are to see everything as it is at one moment, such as those of a packing.

    A class is taken apart once for all of them. What is changed within is seen where somebody looks
    at guards afterwards and calls `next_moment`.
    """
    if _moment.get() is not None:
        yield
        return
    token = _moment.set(_Moment())
    try:
        yield
    finally:
        _moment.reset(token)


def next_moment() -> None:
    """Has walks within `one_moment` see everything as it is now."""
    current = _moment.get()
    if current is not None:
        current.forget()


class _DeepRecursion:
    """Lets Python code nest deeply while any thread is within.

    Classes that refer to classes are walked on top of each other; frames of Python code take no
    room on the stack of the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards both
        self._inside = 0
        self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._before, _RECURSION_LIMIT))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setrecursionlimit(self._before)

    def limit_outside(self) -> int:
        """The recursion limit, as it is when no thread is within."""
        with self._lock:
            return self._before if self._inside else sys.getrecursionlimit()


_deep_recursion = _DeepRecursion()


def recursion_limit() -> int:
    """The recursion limit of this process, also while a thread walks over a function."""
    return _deep_recursion.limit_outside()


def walk(
    value: Any,
    name: str,
    process_view: ProcessView | None = None,
    ignore: Collection[str] = (),
    archives: Archives | None = None,
    listed: CallbackList | None = None,
    readers: AbstractSet[Reader] = frozenset(),
    instead: Callable[[Walk, Any], bool] | None = None,
) -> WalkResult:
    """Walks over everything that a function, class or object reaches.

    Args:
        value: where to begin.
        name: what to call it in messages.
        process_view: what is known of modules; by default that of this process.
        ignore: what not to count, as code would write it: ``CONFIG['stream']``.
        archives: the user's packages that count as files; by default all counts by value.
        listed: what `callbacks=` lists.
        readers: what is read of all that is reached, beside what its own code reads.
        instead: asked about each object that is no plain value; True when it has appended it.

    Raises:
        PackingError: when it reads something that can be neither in a key nor carried.
    """
    from jaxd_protocol.fingerprint.dispatch import HANDLERS  # when the first walk begins

    view, moment = process_view or _LOCAL_PROCESS, _moment.get()
    handlers = HANDLERS if instead is None else _asking_first(HANDLERS, instead)
    try:
        with _deep_recursion:
            while True:
                known = 0 if listed is None else len(listed.counted)
                one = Walk(handlers, view, ignore, archives, listed)
                if not ignore and archives is None and listed is None:
                    one.shared = _findings_of(view) if moment is None else moment.seen_from(view)
                one.reach.readers.update(readers)
                found = one.run(value, name)
                if listed is None or len(listed.counted) == known:
                    return found
    except RecursionError as error:
        raise PackingError(f"{name} reaches objects that are nested too deeply.") from error


def _asking_first(handlers: Handlers, instead: Callable[[Walk, Any], bool]) -> Handlers:
    def emit(walk: Walk, value: Any) -> None:
        if walk.is_inner or not instead(walk, value):
            handlers.object(walk, value)

    return handlers._replace(object=emit)


def content_id(value: Any) -> bytes:
    """The digest of one class or callable: sixteen bytes that are equal in every process.

    Kept as long as nothing that it reaches has changed; for one moment only where that cannot be
    seen. Within `packing_for` it is that for a
    function whose packages count as files, or whose code reads more of a class.
    """
    used = current_packing()
    key = id(value), used.mark
    known = _content_ids.get(key)
    if known is not None and known.value is value and _is_still(key, known):
        return _noted(key, known.content)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    walked = walk_for_packing(value, name)
    found = id_in_scope(walked.fingerprint.digest, used.scope)
    is_watched = all_changes_are_seen(walked.reach)
    _content_ids[key] = _Content(value, walked.guards, is_watched, found)
    return _noted(key, found)


def content_guards(value: Any) -> Guards | None:
    """Those of the walk for its content id; None where there was none, or it has failed."""
    known = _content_ids.get((id(value), current_packing().mark))
    return known.guards if known is not None and known.value is value else None


def _is_still(key: tuple[int, bytes], known: _Content) -> bool:
    moment = _moment.get()
    is_noted = moment is not None and key in moment.contents
    return is_noted or (known.is_watched and known.guards.hold())


def _noted(key: tuple[int, bytes], content: bytes) -> bytes:
    moment = _moment.get()
    if moment is not None:
        moment.contents.add(key)
    return content


def id_in_scope(content: bytes, scope: bytes) -> bytes:
    """The content id of what has such a digest; another one for each scope that is not empty."""
    return short_digest(content + scope) if scope else content


class PackedFor(NamedTuple):
    """The function whose arguments, code or result are processed.

    Attributes:
        archives: those of its packages that count as files.
        readers: what its code reads of classes, beside what counts in any case.
        scope: its fingerprint, if its classes and callables are its own: what it reaches by two
            ways is then one object on a server, too, also if one of the ways is a class that
            another function has sent before. Else empty: they are shared by content.
    """

    archives: Archives | None = None
    readers: frozenset[Reader] = frozenset()
    scope: bytes = b""

    @property
    def mark(self) -> bytes:
        """Differs where content ids may differ."""
        content = b"" if self.archives is None else self.archives.archive.content
        return b" ".join((content, self.scope, *(each.encode() for each in sorted(self.readers))))


_NOTHING: Final = PackedFor()
_current: ContextVar[PackedFor] = ContextVar("jaxd_packed_for", default=_NOTHING)


def current_packing() -> PackedFor:
    """What is packed for which function."""
    return _current.get()


def walk_for_packing(
    value: Any, name: str, instead: Callable[[Walk, Any], bool] | None = None
) -> WalkResult:
    """A walk over a part of what is packed, as its content id is made; see `walk`.

    Within `one_moment` each object is walked over once.
    """
    used, moment = _current.get(), _moment.get()
    make = partial(walk, value, name, archives=used.archives, readers=used.readers, instead=instead)
    if moment is None or instead is not None or used.archives is not None:
        return make()
    known = moment.seen_from(_LOCAL_PROCESS).parts
    kept = known.get((id(value), used.readers))
    found = make() if kept is None else kept[1]
    if not found.fingerprint.unshared:  # else it is another one each time
        known[id(value), used.readers] = value, found
    return found


@contextmanager
def packing_for(used: PackedFor) -> Iterator[None]:
    """Around the packing of arguments and code, and the reading of results."""
    token = _current.set(used)
    try:
        yield
    finally:
        _current.reset(token)
