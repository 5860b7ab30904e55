"""Snapshots of functions: fingerprint and code at one moment, and which snapshot a call uses.

A function's globals change while a process runs, so there is one after the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from math import inf
from time import monotonic
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol

from jaxd.interop.jax_runtime import jax_changes, loaded_jax
from jaxd.results.local_objects import LocalObjects
from jaxd.results.reader import ResultForm, ResultReader
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import reset_after_fork
from jaxd_protocol.errors import (
    CompileAdvice,
    PackingError,
    SkewWarning,
    TracedReadWarning,
    UnsharedWarning,
)
from jaxd_protocol.jit.options import Config, Options, Ship, function_key
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args
from jaxd_protocol.messages.calls import FailureOrigin, set_origin
from jaxd_protocol.packages.distributions import Package, changed_since_first_seen, describe_change
from jaxd_protocol.pytree.references import function_mark

if TYPE_CHECKING:
    from jaxd.interop.local_programs import JitCalls
    from jaxd.request.process_answers import NamedTexts
    from jaxd_protocol.fingerprint import Fingerprint, WalkResult
    from jaxd_protocol.fingerprint.data_model import CallbackCandidates, Reader
    from jaxd_protocol.fingerprint.local_archives import LocalArchives
    from jaxd_protocol.messages.recorded_reads import ProcessRead


WARN_AFTER: Final = 16
"""So often may one function be made persistent: a loop does it more often, a test suite less."""

TOLD_APART: Final = "told apart"
"""The key of objects, among what was met in arguments, that code only tells apart by identity."""

_COMPARED_BY_IDENTITY: Final = frozenset({FunctionType, MethodType, partial})
_LITERALS: Final = frozenset({bool, bytes, complex, float, int, str, type, ModuleType, type(None)})

_MAX_PLACES: Final = 1000

_CodePlace = tuple[str, int, bytes]


class RedecorationCounter:
    """Counts how often equal functions from one place were taken apart; safe from any thread."""

    def __init__(self) -> None:
        self._counts = BoundedDict[_CodePlace, int](_MAX_PLACES)
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been counting."""
        self._lock = threading.Lock()  # guards _counts

    def record(self, function: Callable[..., Any], key: bytes) -> None:
        """Counts one, and warns, once for each place, when there were many.

        Those that differ in what they close over are different functions, and not counted
        together: the server advises about them.

        Args:
            function: what was made persistent.
            key: what it means.
        """
        code = getattr(function, "__code__", None)
        if code is None:
            return
        place = (code.co_filename, code.co_firstlineno, key)
        with self._lock:
            count = self._counts[place] = self._counts.get(place, 0) + 1
        if count == WARN_AFTER:
            from jaxd_protocol.packages.installed import warn_user

            warn_user(_advice(code), CompileAdvice)


def _advice(code: Any) -> str:
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return (
        f"{code.co_name} ({file}:{code.co_firstlineno}) was made persistent {WARN_AFTER} times "
        "and is the same each time. Nothing is compiled again, but each time it is taken apart "
        "again. Use persistent_call once, where the function is defined at the level of its "
        "module, and call what it returns."
    )


redecorations: Final = RedecorationCounter()


_POLL_INTERVAL_S: Final = 1.0


class PackageChanges:
    """Counts the changes of installed packages. Thread-safe.

    Attributes:
        count: how many times packages were found changed so far.
        next_poll_s: `time.monotonic()` of the next check: a second after the last one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.next_poll_s = 0.0
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()  # guards count and next_poll_s

    def poll(self) -> None:
        """Checks for changes, and warns of each.

        Raises:
            SkewWarning: where the user's filters turn it into an error.
        """
        with self._lock:
            self.next_poll_s = time.monotonic() + _POLL_INTERVAL_S
            changes = changed_since_first_seen()
            self.count += len(changes)
        if changes:
            _warn_of_changes(changes)


def _warn_of_changes(changes: Iterable[tuple[Package, Package | None]]) -> None:
    """Warns, in the line that called, of packages that were changed on disk.

    This process goes on with what was there before.

    Args:
        changes: what `jaxd_protocol.packages.distributions.changed_since_first_seen` returned.

    Raises:
        SkewWarning: where the user's filters turn it into an error.
    """
    from jaxd_protocol.packages.installed import warn_user

    for old, new in changes:
        text = (
            f"{describe_change(old, new)} while this process runs what was there before. Functions "
            "are built again with what is there now; restart this process to have the same in it."
        )
        warn_user(text, SkewWarning)


package_changes: Final = PackageChanges()
"""Those that this process has seen."""


_BY_VALUE: Final = nullcontext()
_MAX_KNOWN: Final = 1024


ELSEWHERE: Final = object()
"""In place of a result: this process has no program for such a call, and the server answers it."""


class FunctionSpec:
    """A function with options and configuration, named on the wire by its key.

    Attributes:
        key: sixteen bytes.
        snapshot: the function.
        options: packed `Options`.
        donates: whether arguments are given up to calls.
        statics: which arguments are static.
        local: what runs its calls in this process, see `jaxd.tracing.here`; None: nothing does.
    """

    __slots__ = ("__weakref__", "donates", "key", "local", "options", "snapshot", "statics")

    def __init__(
        self, snapshot: FunctionSnapshot, options: Options, statics: StaticArgs | None = None
    ) -> None:
        self.snapshot = snapshot
        self.statics = snapshot.statics if statics is None else statics
        self.options = options.to_bytes()
        self.donates = options.donates
        self.local: Any = None
        self.key = function_key(snapshot.fingerprint, options)


class FunctionSnapshot:
    """A snapshot of a function: its fingerprint, guards, and packed code.

    Attributes:
        function: what it is a snapshot of.
        name: what people call it.
        manifest: its fingerprint, and what that is made of.
        specs: one for each configuration that it was called under.
        admitted: signatures at whose first calls jax was as a server has it.
        pinned: by signature, the snapshot that stands for such calls.
        forms: by key and arguments, the forms of results that were requested.
        installed: which state of the installed packages it was made with; see `package_changes`.
        is_fresh: whether only the call for which it was made has used it.
        guards: detect changes since then, as far as they are complete.
        is_pinned: whether calls with a known signature go on to use the snapshot of the first one.
        reader: rebuilds its results, as instances of the classes that it reaches.
        statics: its static arguments.
        archives: the packages that travel as files; None when code travels by value.
        callbacks: what `callbacks=` lists.
        takes_arguments: whether a call can have its own arguments called back.
        learned: what the function is known to read of this process.
        refused: calls that a server has refused and that run here, by `CallRequest.kind`: why.
        served: submitted calls that a server has answered, likewise.
        settings: those of libraries on jax that a server does not have, see `LibrarySettings`.

    Raises:
        PackingError: when it reaches something that can be neither in a key nor carried.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        ignored: tuple[str, ...] = (),
        ship: Ship = "value",
        callbacks: tuple[Callable[..., Any], ...] = (),
        installed: int = 0,
    ) -> None:
        from jaxd_protocol.fingerprint import CallbackList, walk  # only a first call needs them
        from jaxd_protocol.messages.function_manifest import FunctionManifest

        self.callbacks = callbacks
        self.installed = installed
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__
        self.statics: StaticArgs = infer_static_args(function, options)
        self.specs: dict[Any, FunctionSpec] = {}
        self.admitted = BoundedDict[bytes, None](_MAX_KNOWN)
        self.pinned = BoundedDict[bytes, FunctionSnapshot](_MAX_KNOWN)
        self.forms = BoundedDict[bytes, ResultForm](_MAX_KNOWN)
        self.refused = BoundedDict[bytes, str](_MAX_KNOWN)
        self.served = BoundedDict[bytes, None](_MAX_KNOWN)
        self.function = function
        self.archives: LocalArchives | None = None
        if ship == "source":
            from jaxd_protocol.fingerprint.local_archives import LocalArchives

            self.archives = LocalArchives()
        listed = CallbackList(callbacks) if callbacks else None
        self._walk_result = walk(
            function, self.name, ignore=ignored, archives=self.archives, listed=listed
        )
        self.guards = self._walk_result.guards
        self.is_pinned = not self.guards.complete
        self._readers = _readers_of_classes(self._walk_result)
        self._scope = self._walk_result.reach.scope(self.walk_fingerprint.digest)
        self._packed: bytes | None = None
        self.is_fresh = True
        self.after_fork()
        self.takes_arguments = self.targets.takes_arguments and not options.transformations
        entries = () if listed is None else listed.entries
        self.settings = _library_settings()
        found = self._walk_result.fingerprint
        self.manifest = FunctionManifest.of(found, ignored, entries).with_settings(self.settings)
        self.learned: tuple[ProcessRead, ...] = ()
        self.reader = ResultReader({}, _local_objects(self.name, self._walk_result))
        if self.archives is not None:
            self.archives.close()
            self.reader.learn(self.archives.objects())

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been packing."""
        self._packing = threading.Lock()  # guards _packed

    @property
    def fingerprint(self) -> bytes:
        """Sixteen bytes that stand for the function, with what it reads of this process."""
        return self.manifest.recorded_fingerprint

    def learn_objects(self, met: dict[Any, Any]) -> None:
        """Takes what was met when arguments were packed: results may have it in them.

        Raises:
            PackingError: when the function reaches one of these objects itself, and only identity
                tells it from others: on the server these would be two.
        """
        told_apart = met.pop(TOLD_APART, ())
        two = [each for each in told_apart if self._tells_apart(each)]
        two = two or [each for each in _held_twice(told_apart) if self._may_tell_apart(each)]
        if not two and any("." in each for each in self.manifest.ignored):
            own = [each for name, each in met.items() if type(name) is bytes]
            two = [each for each in own if self._is_read_in_part(each)]
        if two:
            kind = type(two[0]).__qualname__
            what = getattr(two[0], "__qualname__", f"an object of type {kind}")
            raise PackingError(
                f"an argument of {self.name} holds {what}, which another argument or the function "
                "itself also has, or compares others with: it may ask which one it is, and on the "
                "server these would be two. Compare a name or a member of an enum instead, or let "
                "the function have it in one way only. A constant that is a global of a module of "
                "yours may be compared, where its class has no __eq__ and nothing but text and "
                "numbers is in it, of which none is in ignore=."
            )
        if met:
            self.reader.learn(met)

    def _tells_apart(self, value: Any) -> bool:
        """Whether code of the function may find out that an argument is an object of its own."""
        from jaxd_protocol.packages import bare_objects  # few arguments have objects

        kind = type(value)
        if bare_objects.is_told_by_identity(kind) and id(value) in self._reached:
            return True
        if not self._compared:
            return False
        parts = (value, value.__self__) if kind is MethodType else (value,)
        found = [self._compared[id(each)] for each in parts if id(each) in self._compared]
        is_alone = kind in _COMPARED_BY_IDENTITY or bare_objects.is_compared_by_identity(kind)
        return any(found) or (bool(found) and is_alone)

    def _may_tell_apart(self, value: Any) -> bool:
        """Whether code of the function may ask whether two arguments hold one object."""
        from jaxd_protocol.packages import bare_objects  # few arguments have objects

        asks = "identities" in self._walk_result.reach.readers
        is_alone = asks and bare_objects.is_compared_by_identity(type(value))
        return is_alone or bare_objects.is_plain_constant(value)

    def _is_read_in_part(self, value: Any) -> bool:
        """Whether an object that it reaches has attributes that do not count in its key.

        They count in the name of a constant, which is another one when they change.
        """
        from jaxd_protocol.packages.bare_objects import own_name  # few functions ignore anything

        if id(value) not in self._reached:
            return False
        names = {each.rpartition(".")[2] for each in self.manifest.ignored if "." in each}
        return not names.isdisjoint(getattr(value, "__dict__", ())) and own_name(value) is not None

    @cached_property
    def _compared(self) -> dict[int, bool]:
        """By `id`, what code that it reaches compares with other objects, and whether by `is`."""
        from jaxd_protocol.fingerprint.access_paths import compared_with  # few arguments are code

        found: dict[int, bool] = {}
        for value, by_identity in compared_with(self._walk_result.reach.functions):
            if type(value) not in _LITERALS:
                found[id(value)] = found.get(id(value), False) or by_identity
        return found

    @cached_property
    def _reached(self) -> frozenset[int]:
        """By `id`, all objects that count whole."""
        reach = self._walk_result.reach
        met = (*reach.numbered, *reach.objects)
        return frozenset(id(each) for each in met if reach.part_of(each) is None)

    def admit(self, skeleton: bytes) -> None:
        """Lets calls with a signature be answered by programs that others have as well.

        For the first call with it, which is when `jax.jit` traces; later ones get what that got.

        Raises:
            PackingError: when code of the user's stands in jax itself, this thread is in a context
                of a library, or settings of libraries have changed since this was made: see
                `JaxChanges`, `LibraryContexts` and `LibrarySettings`.
        """
        try:
            jax_changes.check(self.guards.looked_up)
            if loaded_jax() is not None:
                self._check_libraries()
        except PackingError as error:
            set_origin(error, FailureOrigin("packing"))
            raise
        self.admitted[skeleton] = None

    def pinned_for_good(self) -> dict[bytes, FunctionSnapshot]:
        """Those that calls go on to use when the function has changed.

        Not those of which it has turned out that they read more of this process than they hold.
        """
        return {
            skeleton: snapshot
            for skeleton, snapshot in self.pinned.items()
            if snapshot.manifest.reads or not snapshot.learned
        }

    @cached_property
    def named_texts(self) -> NamedTexts:
        """What the packed function names; see `jaxd.request.process_answers`."""
        from jaxd.request.process_answers import NamedTexts  # few functions read their process

        reach = self._walk_result.reach
        late = (each.code for each in reach.sources.values())
        return NamedTexts(self.code, (*reach.functions, *late))

    def learn(self, reads: tuple[ProcessRead, ...]) -> None:
        """Takes note of what the function reads of its process: the next call is made with that."""
        if {*reads} - {each.read for each in self.manifest.reads}:
            self.learned = reads
            self._outdate()

    def _check_libraries(self) -> None:
        from jaxd.interop.library_state import library_contexts  # not without jax

        library_contexts.check()
        if self.settings != _library_settings():
            self._outdate()
            raise PackingError("settings of libraries have changed since the last call.")

    def _outdate(self) -> None:
        """Has the next call look at the function again."""
        self.guards.answer(lambda: None, True)  # which never holds

    def record(self, reads: tuple[ProcessRead, ...]) -> None:
        """Counts what this process has now of what the function reads, and guards it.

        Raises:
            PackingError: when the function does not name one of them.
        """
        from jaxd.request.process_answers import confirmed, file_stamp_of

        self.learned = reads
        for read in reads:
            if read.kind == "variable":
                self.guards.variable(read.name, os.environ.get(read.name))
                continue
            of_file, of_rest = partial(file_stamp_of, read.name), self.named_texts.answer
            ask = of_file if read.kind == "file" else partial(of_rest, read)
            self.guards.answer(ask, ask())
        self.manifest = self.manifest._replace(reads=confirmed(self, reads))

    @property
    def is_repeatable(self) -> bool:
        """Whether what it reads while it is traced is the same the next time."""
        return not self.walk_fingerprint.notes

    def let_go(self) -> None:
        """Nobody has the function any more: its arrays go with the last call that needs them.

        What leads from here back to here would keep them until Python looks for cycles.
        """
        self.specs.clear()
        self.pinned.clear()

    @property
    def walk_fingerprint(self) -> Fingerprint:
        """The fingerprint as the walk computed it."""
        return self._walk_result.fingerprint

    @property
    def code(self) -> bytes:
        """The packed function. Only a server that does not know it requests this.

        Raises:
            PackingError: when something that it reaches cannot travel, or a server would trace it
                under other settings of libraries.
        """
        if self.settings:
            name, content = self.settings[0]
            raise PackingError(
                f"{name} is {content} in this process, and on a server it is as libraries have it "
                "at first: only what was traced here may answer. Set it within the function, or "
                "have it traced here with place='here'."
            )
        with self._packing:
            if self._packed is None:
                from jaxd_protocol.pickling.pack.functions import pack_function

                what = f"function {self.name!r}"
                with self.pickling_context():
                    self._packed = pack_function(self.function, what, self._walk_result.reach)
            return self._packed

    @property
    def targets(self) -> CallbackCandidates:
        """What a server may have called back, beside what `callbacks=` lists."""
        return self._walk_result.reach.targets

    @property
    def calls_back(self) -> bool:
        """Whether a server may have anything called back."""
        found = self.targets
        own = found.objects or found.codes or found.parameters or self.callbacks
        return bool(own) or self.reader.reaches_libraries()

    def pickling_context(self) -> AbstractContextManager[None]:
        """Around the packing of its arguments and the reading of its results."""
        if self.archives is None and not self._readers and not self._scope:
            return _BY_VALUE
        from jaxd_protocol.fingerprint import PackedFor, packing_for

        return packing_for(PackedFor(self.archives, self._readers, self._scope))

    def warn(self) -> None:
        """Warns of what no key can hold and what is not shared; for a function's first snapshot.

        The warnings point to the code of the user's that calls.
        """
        if not (self.walk_fingerprint.unshared or self.walk_fingerprint.notes):
            return
        from jaxd_protocol.packages.installed import warn_user

        for found in self.walk_fingerprint.unshared:
            ignored = found.path.rpartition(" → ")[2]
            text = (
                f"{found.path} is a {found.type_name}, which has no content that could be in a "
                f"key ({found.reason}): every process compiles this function again. Make it "
                "inside of the function or pass what it yields as an argument; or leave it out "
                f"of the key with persistent_call(ignore={ignored!r}), and tell "
                "versions apart with extra_key=."
            )
            warn_user(text, UnsharedWarning)
        for note in self.walk_fingerprint.notes:
            text = (
                f"{note.path} reads {note.what} while it is traced ({note.where}): the program "
                "keeps the value of that moment, for every client. Pass it as an argument."
            )
            warn_user(text, TracedReadWarning)


def _held_twice(objects: Sequence[Any]) -> list[Any]:
    counts = Counter(map(id, objects))
    return [each for each in objects if counts[id(each)] > 1]


def _library_settings() -> tuple[tuple[str, str], ...]:
    if loaded_jax() is None:
        return ()
    from jaxd.interop.library_state import library_settings  # not without jax

    return library_settings.changed()


def is_admitted(snapshot: FunctionSnapshot, skeleton: bytes) -> bool:
    """Whether `FunctionSnapshot.admit` lets calls with a signature be answered, now or before."""
    if skeleton not in snapshot.admitted:
        try:
            snapshot.admit(skeleton)
        except PackingError:
            return False
    return True


def _readers_of_classes(walked: WalkResult) -> frozenset[Reader]:
    from jaxd_protocol.fingerprint.data_model import OF_NO_CODE  # has been imported for the walk

    if not walked.reach.readers - OF_NO_CODE:
        return frozenset()
    from jaxd_protocol.fingerprint.values.reflection import of_classes

    return of_classes(walked.reach.readers)


def _local_objects(name: str, walked: WalkResult) -> LocalObjects:
    """What a function reaches, as its results name it."""
    found = walked.fingerprint
    mark = b"" if found.unshared else function_mark(found.digest)
    reach = walked.reach
    return LocalObjects(name, mark, reach.numbered, found.packages, reach.objects, reach.installed)


class RunsCalls(Protocol):
    """Runs calls whose program is loaded; `jaxd.request.known_calls.KnownCalls`."""

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call; `ELSEWHERE` where it goes the long way."""


class SnapshotCache:
    """The current snapshot of one function, renewed when the function changes. Thread-safe.

    Before each call the guards of the last one are checked, which takes microseconds; when they do
    not hold, the function is walked again. What is pinned (large arrays, containers that the
    function itself writes to) is read when a call has a new signature, as `jax.jit` does it.

    Args:
        function: the function.
        options: how it is to be compiled.
        ignored: what not to count in its key.
        ship: how its code travels.
        callbacks: what a server may have called back, beside what the function gives itself.

    Attributes:
        refusal: why all calls of the function run here; None: they do not.
        walk_s: seconds that the last walk took.
        jit_calls: what dispatches its calls that run in this process as `jax.jit` does, and has all
            that it reads pinned; None where each call looks whether it is as it was.
        known: runs calls whose program is loaded, as long as the function is as it was; None: each
            call goes the long way.
        refuses_unrepeatable: whether a function that reads while it is traced what is not the same
            the next time, such as a clock, is not walked to be sent.
        on_one_device: whether a server is to refuse calls that compute on several devices.
        kinds: the hashes of the kinds of calls that there were, see `CallRequest.kind`; None: they
            are not told apart.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        ignored: tuple[str, ...],
        ship: Ship = "value",
        callbacks: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.refusal: FunctionRefusal | None = None
        self.walk_s = 0.0
        self.jit_calls: JitCalls | None = None
        self.known: RunsCalls | None = None
        self.refuses_unrepeatable = self.on_one_device = False
        self.kinds: set[int] | None = None
        self._function = function
        self._options = options
        self._rules = (ignored, ship, callbacks)
        self._current: FunctionSnapshot | None = None
        self._reads = BoundedDict[bytes, tuple["ProcessRead", ...]](_MAX_KNOWN)
        self._has_warned = self._is_counted = False
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have held the lock."""
        if self._current is not None:
            self._current.after_fork()
        self.known = None
        self._lock = threading.Lock()  # guards _current, known and _has_warned

    def __del__(self) -> None:
        if self._current is not None:
            self._current.let_go()

    def of(self, function: Callable[..., Any], options: Options) -> SnapshotCache:
        """Those of another function, of which the same is ignored, sent and called back."""
        made = SnapshotCache(function, options, *self._rules)
        made.refuses_unrepeatable = self.refuses_unrepeatable
        made.on_one_device = self.on_one_device
        return made

    def clear(self) -> None:
        """Forgets what calls were pinned to: the function counts as it is now."""
        with self._lock:
            self._current = self.known = self.refusal = None
            if self.kinds is not None:
                self.kinds.clear()

    def is_first(self, kind: bytes) -> bool:
        """Counts a call; whether it is the first of its kind, where kinds are told apart."""
        if self.kinds is None or (number := hash(kind)) in self.kinds:
            return False
        self.kinds.add(number)
        return True

    def forget(self, kind: bytes) -> None:
        """A call has failed: the next one of its kind is the first again."""
        if self.kinds is not None:
            self.kinds.discard(hash(kind))

    def know(self, spec: FunctionSpec, known: RunsCalls) -> None:
        """Has calls run by what knows a function, unless the function is another one by now."""
        with self._lock:
            if self._current is spec.snapshot:
                self.known = known

    def spec(self, config: Config) -> FunctionSpec:
        """The function as it is now, under a configuration.

        Raises:
            PackingError: when it reaches something that can be neither in a key nor carried.
        """
        if monotonic() >= package_changes.next_poll_s:
            package_changes.poll()
        current = self._current
        installed = package_changes.count
        if current is None or current.installed != installed or not current.guards.hold():
            current = self._refresh(installed)
        found = current.specs.get(config)
        return found if found is not None else self._make_spec(current, config)

    def latest(self) -> FunctionSnapshot:
        """The function as it is now.

        Raises:
            PackingError: as `spec`.
        """
        current = self._current
        return (
            current
            if current is not None and current.guards.hold()
            else self._refresh(package_changes.count)
        )

    def pinned_spec(self, spec: FunctionSpec, skeleton: bytes, config: Config) -> FunctionSpec:
        """The function as a call with these argument bytes means it: as it was at the first one.

        Args:
            spec: what `spec` returned for this call.
            skeleton: the structure of its arguments.
            config: the configuration of this call.
        """
        if not spec.snapshot.is_pinned:
            return spec
        snapshot = spec.snapshot.pinned.get(skeleton)
        if snapshot is None:
            snapshot = self._pin(spec.snapshot, skeleton)
        return snapshot.specs.get(config) or self._make_spec(snapshot, config)

    def _refresh(self, installed: int) -> FunctionSnapshot:
        with self._lock:
            current = self._current
            if current is None or current.installed != installed or not current.guards.hold():
                self.known = None
                current = self._current = self._take_snapshot(current, installed)
            warned, self._has_warned = self._has_warned, True
        if not warned:
            current.warn()  # runs code of the user's: not under the lock
        return current

    def _take_snapshot(self, before: FunctionSnapshot | None, installed: int) -> FunctionSnapshot:
        begun_s = monotonic()
        try:
            found = FunctionSnapshot(self._function, self._options, *self._rules, installed)
        finally:
            self.walk_s = monotonic() - begun_s
        if before is not None and before.learned:
            self._reads[before.manifest.fingerprint] = before.learned
        if self.refuses_unrepeatable and not found.is_repeatable:
            note = found.walk_fingerprint.notes[0]
            raise PackingError(
                f"{note.path} reads {note.what} while it is traced ({note.where}), which each "
                "process has another one of, and from a server all would get that of the first. "
                "Pass it as an argument."
            )
        reads = self._reads.get(found.manifest.fingerprint)
        if reads:
            found.record(reads)
        is_pinned_for_good = self.jit_calls is not None
        found.is_pinned |= is_pinned_for_good
        if before is not None and before.fingerprint == found.fingerprint:
            found.pinned.update(before.pinned)
            found.refused.update(before.refused)
        elif before is not None and is_pinned_for_good and before.installed == installed:
            found.pinned.update(before.pinned_for_good())
        return found

    def _pin(self, snapshot: FunctionSnapshot, skeleton: bytes) -> FunctionSnapshot:
        """The snapshot for the first call with a signature."""
        with self._lock:
            found = snapshot
            is_as_it_was = snapshot.is_fresh or snapshot.guards.complete
            if not is_as_it_was or snapshot.settings != _library_settings():
                fresh = self._take_snapshot(snapshot, snapshot.installed)
                if fresh.fingerprint != snapshot.fingerprint:
                    found = fresh
            snapshot.is_fresh = False
            return snapshot.pinned.setdefault(skeleton, found)

    def _make_spec(self, snapshot: FunctionSnapshot, config: Config) -> FunctionSpec:
        options = self._options._replace(config=config)
        spec = snapshot.specs.setdefault(config, FunctionSpec(snapshot, options))
        if not self._is_counted:
            self._is_counted = True
            redecorations.record(self._function, spec.key)
        return spec


# what a server has refused ---------------------------------------------------------------------

_WALK_AGAIN_S: Final = 1.0
_WALK_AGAIN: Final = 20
"""A function that cannot be walked is walked again after this time, or so many times as long as the
walk took: what it reaches may change."""


class Refused(Exception):
    """A call is like one that was refused, and is not sent. Its caller runs it in this process.

    Attributes:
        reason: why that one was refused.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FunctionRefusal:
    """Why all calls of a function run in this process: mostly, it could not be walked.

    Args:
        reason: why.
        walk_s: seconds that it took to find out, after some of which that is tried again; None:
            it is not.
    """

    def __init__(self, reason: str, walk_s: float | None = None) -> None:
        self._reason = reason
        self._until = inf
        if walk_s is not None:
            self._until = monotonic() + max(_WALK_AGAIN_S, _WALK_AGAIN * walk_s)

    def check(self) -> None:
        """Returns when the function may be walked again.

        Raises:
            Refused: when that is not tried, or was a moment ago.
        """
        if monotonic() < self._until:
            raise Refused(self._reason)
