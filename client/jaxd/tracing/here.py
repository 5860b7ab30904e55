"""The warm program comes to the caller: with `place="here"`, or where `place="auto"` decides so.

The server answers the first calls of each key and signature. Once this process has waited for it as
long as it takes to load a program, the next call takes the program, and runs in this process, as
those of `jax.jit` do; or while a large one loads in a thread, the server goes on answering. Key,
guards and signature are those of any call: a program belongs to one snapshot of its function, and
goes with it.

A program is machine code in a pickle: `refusal` says from whom one is taken. See docs/place.md.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.dispatch.caller import Caller
from jaxd.dispatch.local_runs import default_platform
from jaxd.interop.jax_registry import array_class
from jaxd.interop.jax_runtime import current_config, import_jax, is_staged, loaded_jax
from jaxd.interop.local_programs import (
    UNKNOWN,
    FastCalls,
    JitCalls,
    Jitted,
    LoadedPrograms,
    LocalProgram,
    Taken,
    calls_here,
)
from jaxd.interop.remote_array import RemoteArray, give_up
from jaxd.request.array_specs import describe_call
from jaxd.request.function_snapshot import ELSEWHERE, is_admitted
from jaxd.request.known_calls import LEARN_AFTER, learn_calls
from jaxd.request.packing_cache import guard_content
from jaxd.tracing.fallback import fetched
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import machine_id, reset_after_fork, start_thread
from jaxd_protocol.errors import ArgumentError, JaxdError, PackingError, PlaceRefused
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, dynamic
from jaxd_protocol.jit.static_leaves import wrap_untraceable_arguments
from jaxd_protocol.packages.installed import is_local_module

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import Settings
    from jaxd.dispatch.session import Session
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSpec, SnapshotCache
    from jaxd.tracing.own_misses import OwnMiss, OwnMisses
    from jaxd_protocol.fingerprint import Guards
    from jaxd_protocol.jit.options import Config

SMALL_BYTES: Final = 256 << 10
"""A program with no more bytes is loaded by the call that takes it, in some 10 ms."""

LOAD_S: Final = 0.005
"""What it takes to load a small program and to dispatch the first call to it.

One that is called a few times, as most of a test suite, is not worth it: the server, which has it
loaded, answers in 0.2 ms.
"""

_ANY_SIZE: Final = 1 << 40
_MOST_ASKED: Final = 3
_MOST_RESETS: Final = 16
_MAX_PROGRAMS: Final = 256
_MAX_REASON: Final = 300
_NO_JAX: Final = "place='here' needs jax in this process. Run: pip install 'jaxd[server]'"
_UNFIT: Final = "but arrays on another device, or of 64 bits where jax has none, go to the server"
_FOR_NOW: Final = "server for now: here, once calls have waited as long as loading a program takes"
_UNKNOWN: Final = "here: traced in this process, unless the server has its program"
_PLAIN_STATICS: Final = frozenset({bool, int, str, type(None)})
_NUMBERS: Final[frozenset[type]] = frozenset({bool, int, float, complex})
_CONTAINERS: Final[frozenset[type]] = frozenset({dict, list, tuple, type(None)})
_AT_EXIT_S: Final = 10.0

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

# who may -----------------------------------------------------------------------------------------


def refusal(session: Session, connection: ClientConnection) -> str | None:
    """Why no program is taken over a connection; None where that may be.

    Only from a server that runs as this very user on this machine, as the system says, with this
    process's jax on the same kind of device.
    """
    if connection.owner is None:
        return (
            f"the server is reached at {connection.address}, and a program is code: one is taken "
            "only over a Unix socket, of a process of this user"
        )
    if connection.owner != os.getuid():
        return f"user {connection.owner} runs the server, and this process user {os.getuid()}"
    if connection.welcome.get("machine") != machine_id():
        return "the server runs on another machine, or in another container"
    theirs, ours = connection.welcome["peer"].versions, versions()
    for name, version in ours.items():
        if theirs.get(name) != version:
            return f"the server has {name} {theirs.get(name)}, and this process {version}"
    platform = default_platform(session.platform)
    if session.has_device and platform != session.platform:
        return f"the server computes on {session.platform}, and jax of this process on {platform}"
    return None


def versions() -> dict[str, str]:
    """Those of jax in this process, which has imported it."""
    return {"jax": loaded_jax().__version__, "jaxlib": sys.modules["jaxlib"].__version__}


# programs that were taken ------------------------------------------------------------------------


class LocalCalls:
    """What runs the calls of one snapshot of a function, under one configuration. Thread-safe.

    Args:
        spec: the function.

    Attributes:
        found: by the skeleton of a call, what answers it here, or why nothing does.
        asked: how often the server was asked about each skeleton.
        waited_s: seconds that calls with each skeleton have waited for the server, but for the
            first, which may have been built.
        unfit: the skeletons of calls that had a program here, which did not take their arrays.
        answered: the skeletons of calls for which the server had a program when it was asked.
        pending: by skeleton, what was traced here and is not settled; see `OwnMiss`.
        jitted: what answers calls whose arguments cannot be described; None: there were none.
        alone: by skeleton, why what was traced here is for this process alone.
        ungiven: by skeleton, why the server gave no program that it could have.
        is_due: whether any calls have a program here, or the next one may take it.
    """

    is_due = False

    def __init__(self, spec: FunctionSpec) -> None:
        self.found = BoundedDict[bytes, Taken | Jitted | str](_MAX_PROGRAMS)
        self.answered = BoundedDict[bytes, None](_MAX_PROGRAMS)
        self.pending = BoundedDict[bytes, "OwnMiss"](_MAX_PROGRAMS)
        self.jitted: Jitted | None = None
        self.alone = BoundedDict[bytes, str](_MAX_PROGRAMS)
        self.ungiven = BoundedDict[bytes, str](_MAX_PROGRAMS)
        self.asked = BoundedDict[bytes, int](_MAX_PROGRAMS)
        self.waited_s = BoundedDict[bytes, float](_MAX_PROGRAMS)
        self.unfit = BoundedDict[bytes, None](_MAX_PROGRAMS)
        self._name = spec.snapshot.name
        self._statics = spec.statics
        self._has_statics = bool(spec.statics)
        # a pinned function is found by the skeleton of the call, which is made first
        self._is_pinned = spec.snapshot.is_pinned
        self._dispatched = _Dispatched()
        self._resets = 0
        self._runs = 0

    def may_ask(self, skeleton: bytes) -> bool:
        """Whether to ask the server for the program of such calls: it has answered enough."""
        waited_s = self.waited_s.get(skeleton, -1.0)
        return waited_s >= LOAD_S and self.asked.get(skeleton, 0) < _MOST_ASKED

    def has_waited(self, skeleton: bytes, seconds: float) -> None:
        """The server has answered such a call."""
        before = self.waited_s.get(skeleton)
        self.waited_s[skeleton] = 0.0 if before is None else before + seconds
        self.is_due = self.is_due or self.may_ask(skeleton)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call of a kind that ran here before, else `ELSEWHERE`."""
        statics: Any = None
        if self._has_statics:
            statics = _plain_statics(self._statics, args, kwargs)
            args, kwargs = dynamic((args, kwargs), self._statics)
        dispatched = self._dispatched
        fast = dispatched.calls.get(statics)
        if fast is None:
            return ELSEWHERE
        kinds = dispatched.kinds
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) not in kinds and not dispatched.has(value):
                return ELSEWHERE
        for guards in dispatched.guards:
            if not guards.hold():
                return ELSEWHERE
        result = fast.call(*args, **kwargs) if kwargs else fast.call(*args)
        return ELSEWHERE if result is UNKNOWN else result

    def run_known(
        self,
        snapshots: SnapshotCache,
        spec: FunctionSpec,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """As `run`; after some of them, such calls go the short way, see `KnownCalls`.

        Args:
            snapshots: those of the function.
            spec: the function, as it is now.
            config: the configuration of the calling thread.
            args: the positional arguments.
            kwargs: those by name.
        """
        result = self.run(args, kwargs)
        if result is not ELSEWHERE:
            self._runs += 1
            if self._runs % LEARN_AFTER == 0:
                learn_calls(snapshots, spec, config)
        return result

    def is_missed(self, skeleton: bytes) -> bool:
        """Whether it is not known yet what answers such calls."""
        return skeleton not in self.found and skeleton not in self.answered

    def settle(self, skeleton: bytes) -> None:
        """Waits until it is known what such calls read of this process."""
        miss = self.pending.get(skeleton)
        if miss is not None:
            miss.is_settled.wait()
            self.pending.pop(skeleton, None)

    def run_found(
        self,
        found: Taken | Jitted,
        given: Arguments,
        jit_calls: JitCalls | None = None,
        *,
        is_first: bool = False,
    ) -> Any:
        """As `run_taken`, also of what jax itself compiles here.

        Args:
            found: what answers such calls.
            given: the arguments.
            jit_calls: see `run_taken`.
            is_first: whether the next call of this kind is to be looked at once more.
        """
        if isinstance(found, Taken) and not is_first:
            return self.run_taken(found, *given, jit_calls)
        (args, kwargs), _ = fetched(given)
        if isinstance(found, Jitted):
            result = found.call((args, kwargs))
        else:
            leaves = loaded_jax().tree.leaves(_dynamic_of(self._statics, args, kwargs))
            result = found.structure.unflatten(found.program(leaves))
        _give_up(given, self._name)
        return result

    def run_taken(
        self,
        taken: Taken,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        jit_calls: JitCalls | None,
    ) -> Any:
        """The result of a call that a program answers here; `ELSEWHERE` where it does not fit.

        Args:
            taken: the program.
            args: the positional arguments.
            kwargs: those by name.
            jit_calls: of a function whose calls are to be dispatched as under `jax.jit`.

        Raises:
            Exception: what jax raises.
        """
        given = args, kwargs
        (args, kwargs), _ = fetched(given)
        wrapped = _dynamic_of(self._statics, args, kwargs)
        leaves = loaded_jax().tree.leaves(wrapped)
        if not taken.program.fits(leaves):
            return ELSEWHERE
        if jit_calls is None:
            fast, dispatched = self._fast_calls(args, kwargs, wrapped), wrapped
        else:
            fast, dispatched = jit_calls.fast_calls(), (args, kwargs)
        if fast is None:
            result = taken.structure.unflatten(taken.program(leaves))
        else:
            result = fast.add(taken.program, taken.structure, leaves, *dispatched)
        _give_up(given, self._name)
        return result

    def _fast_calls(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], wrapped: Arguments
    ) -> FastCalls | None:
        """What dispatches such calls without Python; None where jax could take others for them."""
        statics = _plain_statics(self._statics, args, kwargs) if self._statics else None
        parts = None if self._is_pinned or statics is ELSEWHERE else _Parts.of(wrapped)
        dispatched = None if parts is None else self._dispatched_with(parts)
        if dispatched is None:
            return None
        fast = dispatched.calls.get(statics)
        if fast is None:
            try:
                fast = dispatched.calls.setdefault(statics, FastCalls(self._name))
            except Exception:  # noqa: BLE001  names that a newer jax does not have
                return None
        return fast

    def _dispatched_with(self, parts: _Parts) -> _Dispatched | None:
        """The calls that are dispatched with such parts; None where they cannot be.

        Where what is known of a class is another thing, jax forgets what it has: to jax the two may
        be equal.
        """
        if not parts.mixed <= self._dispatched.mixed:
            self._dispatched = _Dispatched(self._dispatched.mixed | parts.mixed)
        for _ in range(2):
            dispatched = self._dispatched
            takes = dispatched.takes(parts)
            if takes:
                return dispatched
            if takes is None or self._resets >= _MOST_RESETS:
                return None
            self._resets += 1
            self._dispatched = _Dispatched(dispatched.mixed)
        return None


class _Changed(Exception):
    """A function reads more of this process than was known; its next snapshot holds it."""


class StaticNode(NamedTuple):
    """What is static in an object that is a node of jax, at the top of an argument.

    Attributes:
        items: it, which counts by identity.
        guards: detect changes inside of it.
    """

    items: tuple[Any, ...]
    guards: Guards

    @classmethod
    def of(cls, value: Any) -> StaticNode | None:
        """That of an object; None where a change inside of it would not be noticed."""
        items = _static_items(value)
        guarded = guard_content(items, type(value).__qualname__)
        return None if guarded is None else cls(items, guarded.guards)

    def is_that_of(self, value: Any) -> bool:
        """Whether an object has the very same, and nothing in it has changed."""
        items = _static_items(value)
        if len(items) != len(self.items):
            return False
        for one, other in zip(items, self.items, strict=True):
            if one is not other:
                return False
        return self.guards.hold()


class _Dispatched:
    """Calls that jax dispatches, and what it does not tell apart in their arguments.

    Replaced whole when that is another: who has taken it finds calls and parts that belong
    together. Thread-safe.

    Args:
        mixed: as in `_Parts`, of all calls that it is to have.

    Attributes:
        calls: by what is static.
        kinds: of arguments that jax tells apart as we do.
        mixed: see above.
        nodes: what is static in objects of a class, at the top of an argument.
        guards: detect changes of the user's classes, at the top of arguments and inside.
    """

    def __init__(self, mixed: frozenset[type] = frozenset()) -> None:
        self.calls: dict[Any, FastCalls] = {}
        self.mixed = mixed
        self.kinds: frozenset[type] = _NUMBERS | {array_class()} | (_CONTAINERS - mixed)
        self.nodes: dict[type, StaticNode] = {}
        self.guards: list[Guards] = []
        self._classes: set[type] = set()

    def has(self, value: Any) -> bool:
        """Whether an argument is one of those that jax tells apart, or is as it was."""
        kind = type(value)
        node = self.nodes.get(kind)
        if node is not None:
            if not node.is_that_of(value):
                return False
        elif kind not in _CONTAINERS:
            return _is_native(value)
        return kind not in self.mixed or all(map(_is_told_apart, loaded_jax().tree.leaves(value)))

    def takes(self, parts: _Parts) -> bool | None:
        """Whether these are as those of its calls, to which what is new is added.

        None where a change inside of one would not be noticed.

        Args:
            parts: of the arguments of a call.
        """
        for value in parts.nodes:
            node = self.nodes.get(type(value))
            if node is None:
                made = StaticNode.of(value)
                if made is None:
                    return None
                node = self.nodes.setdefault(type(value), made)
            if not node.is_that_of(value):
                return False
        for each in parts.classes - self._classes:
            guarded = guard_content((each,), each.__qualname__)
            if guarded is None:
                return None
            self.guards.append(guarded.guards)
            self._classes.add(each)  # last: another thread relies on its guards
        return all(guards.hold() for guards in self.guards)


def _static_items(value: Any) -> tuple[Any, ...]:
    found = loaded_jax().tree_util.default_registry.flatten_one_level(value)
    about = None if found is None else found[1]
    return about if type(about) is tuple else (about,)


def _dynamic_of(statics: StaticArgs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """The arguments that are traced, with what jax cannot trace closed, as it is on the server."""
    with suppress(ArgumentError):  # the server has refused such a call
        args, kwargs = wrap_untraceable_arguments(args, kwargs, statics)
    return dynamic((args, kwargs), statics)


def _plain_statics(statics: StaticArgs, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What is static, where equality of types and values is equality; else `ELSEWHERE`."""
    positions = statics.at(len(args))
    given = [(i, type(args[i]), args[i]) for i in sorted(positions) if i < len(args)]
    named = [(n, type(kwargs[n]), kwargs[n]) for n in sorted(statics.names) if n in kwargs]
    found = (len(args), *given, *named)
    are_plain = all(kind in _PLAIN_STATICS for _, kind, _ in (*given, *named))
    return found if are_plain else ELSEWHERE


class _Parts(NamedTuple):
    """What jax's dispatch does not tell apart in the arguments of a call.

    Attributes:
        nodes: the arguments that a `StaticNode` has to tell apart.
        classes: the user's classes in all of them.
        mixed: the types of arguments with leaves in them that are no arrays of jax: what else is
            such a leaf in another call has to be looked at.
    """

    nodes: list[Any]
    classes: set[type]
    mixed: set[type]

    @classmethod
    def of(cls, arguments: Arguments) -> _Parts | None:
        """Those of a call; None where jax could take other calls for it.

        It sees a member of an enum of integers as an integer, 1 among static values as True, and a
        masked array as any array, while to jaxd they are others. So a number or an array of numpy
        is exactly of its type, and the trees around arrays have nothing static but text, except at
        their top.
        """
        args, kwargs = arguments
        parts = cls([], set(), set())
        for value in (*args, *kwargs.values()):
            if _is_told_apart(value):
                continue
            kind = type(value)
            leaves, structure = loaded_jax().tree.flatten(value)
            if any(type(leaf) is not array_class() for leaf in leaves):
                if not all(map(_is_told_apart, leaves)):
                    return None
                parts.mixed.add(kind)
            if kind not in _CONTAINERS:
                parts.nodes.append(value)
            tops = [structure] if kind in _CONTAINERS else structure.children()
            if not all(map(_is_plain, tops)):
                return None
            parts.classes.update(_local_classes(structure))
        return parts


def _is_told_apart(leaf: Any) -> bool:
    """Whether jax tells a leaf from all that jaxd tells from it."""
    kind = type(leaf)
    return kind is array_class() or kind in _NUMBERS or _is_native(leaf)


def _is_native(value: Any) -> bool:
    """Whether it is an array of numpy whose bytes are in the order for which jax takes any."""
    return type(value) is sys.modules["numpy"].ndarray and value.dtype.isnative


def _is_plain(structure: Any) -> bool:
    node = structure.node_data()
    if node is None:
        return True
    return _is_text(node[1]) and all(map(_is_plain, structure.children()))


def _local_classes(structure: Any) -> Iterator[type]:
    """The user's classes among the nodes of a tree, and in what belongs to these."""
    node = structure.node_data()
    if node is None:
        return
    for each in (node[0], *_types_in(node[1])):
        if each not in _CONTAINERS and is_local_module(each.__module__):
            yield each
    for child in structure.children():
        yield from _local_classes(child)


def _types_in(about: Any) -> Iterator[type]:
    if isinstance(about, type):
        yield about
    elif type(about) in (tuple, list):
        for each in about:
            yield from _types_in(each)


def _is_text(about: Any) -> bool:
    """Whether what belongs to a node of a tree is equal to others by content alone."""
    if type(about) in (tuple, list):
        return all(map(_is_text, about))
    return about is None or type(about) is str or isinstance(about, type)


def _give_up(given: Arguments, name: str) -> None:
    """Marks the arrays on the server whose copies here were donated to a call."""
    leaves = loaded_jax().tree.leaves(given)
    give_up(
        (
            each
            for each in leaves
            if type(each) is not array_class() and isinstance(each, RemoteArray)
        ),
        name,
    )


# the caller --------------------------------------------------------------------------------------


class HereCaller(Caller):
    """Makes calls, and runs those in this process whose programs it was given.

    Args:
        settings: as of any caller.
        other: the caller whose session is used, where there is one already.

    Raises:
        PlaceRefused: with `place="here"`, where this process has no jax.
    """

    runs_here = True

    def __init__(self, settings: Settings, other: Caller | None = None) -> None:
        super().__init__(settings, other)
        self._programs = LoadedPrograms()
        self._lock = threading.Lock()  # guards _loading
        self._loading: set[tuple[int, bytes]] = set()
        reset_after_fork(self)
        self._misses: OwnMisses | None = None
        if settings.place == "here":
            import_jax(PlaceRefused, _NO_JAX)
            self._begin_tracing()

    def _begin_tracing(self) -> OwnMisses:
        from jaxd.tracing.own_misses import OwnMisses  # with auto, the server traces nearly all

        self._misses = OwnMisses(self, self._loaded, _note_alone)
        _tracing.add(self)
        return self._misses

    def _misses_of(self, spec: FunctionSpec) -> OwnMisses | None:
        """What traces the misses of a function here; None: the server does.

        With `place="auto"` that is so under settings of libraries that a server does not have, for
        functions that are called as under `jax.jit`: their options are those of `jax.jit`.
        """
        if self.settings.place == "here":
            return self._misses
        if not (spec.snapshot.settings and spec.snapshot.is_pinned):
            return None
        with self._lock:
            return self._misses or self._begin_tracing()

    def after_fork(self) -> None:
        """In the child of a fork: XLA's threads are not in it, so a program would never end."""
        self._lock = threading.Lock()
        self.runs_here = False

    def run(
        self,
        snapshots: SnapshotCache,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call whose program is here, else `ELSEWHERE`; sends nothing.

        Raises:
            Exception: what jax raises when it runs the program.
        """
        if snapshots.refusal is not None:
            return ELSEWHERE  # it cannot be walked, and is not walked again at each call
        try:
            spec = snapshots.spec(config)
        except Exception:  # noqa: BLE001  raised again where the call is encoded
            return ELSEWHERE
        local: LocalCalls | None = spec.local
        is_due = local is not None and local.is_due
        if not (spec.snapshot.is_pinned or is_due or self._misses_of(spec)):
            return ELSEWHERE
        result = ELSEWHERE
        if local is not None:
            result = local.run_known(snapshots, spec, config, args, kwargs)
        if result is ELSEWHERE:
            try:
                result = self._run_described(snapshots, spec, config, args, kwargs)
            except _Changed:
                return self.run(snapshots, config, args, kwargs)
        calls_here.count += result is not ELSEWHERE
        return result

    def _run_described(
        self,
        snapshots: SnapshotCache,
        spec: FunctionSpec,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result of a call that is found by its skeleton, for which no data is read."""
        try:
            skeleton, pickles = describe_call(spec.snapshot, args, kwargs, spec.statics)
        except PackingError:  # such as an array that is spread over devices of this process
            return self._run_jitted(spec, (args, kwargs))
        except Exception:  # noqa: BLE001  raised again where the call is encoded
            return ELSEWHERE
        is_new = not spec.snapshot.is_pinned or skeleton not in spec.snapshot.pinned
        own_misses = self._misses_of(spec)
        if not is_new or (spec.snapshot.is_pinned and own_misses):
            spec = snapshots.pinned_spec(spec, skeleton, config)
        local: LocalCalls | None = spec.local
        misses = own_misses if is_new and not pickles else None
        if misses is not None and (local is None or local.is_missed(skeleton)):
            if not is_admitted(spec.snapshot, skeleton):
                return ELSEWHERE  # raised again where the call is encoded
            return self._run_missed(misses, spec, skeleton, (args, kwargs))
        found = None if local is None or pickles else self._found(local, spec, skeleton)
        if local is None or found is None:
            return ELSEWHERE
        return local.run_found(found, (args, kwargs), snapshots.jit_calls)

    def _found(
        self, local: LocalCalls, spec: FunctionSpec, skeleton: bytes
    ) -> Taken | Jitted | None:
        """What answers calls with a skeleton here now; None where nothing does.

        Raises:
            _Changed: as `_check_unchanged`.
        """
        found = local.found.get(skeleton)
        if found is None and local.may_ask(skeleton):
            self._take(local, spec, skeleton, SMALL_BYTES)
            found = local.found.get(skeleton)
        if skeleton in local.pending:
            local.settle(skeleton)
            self._check_unchanged(spec)
        return None if isinstance(found, str) else found

    def _check_unchanged(self, spec: FunctionSpec) -> None:
        """To be called when the server has built something of a function.

        Raises:
            _Changed: when it reads more of this process than was known, which is another key.
        """
        if not (spec.snapshot.is_pinned or spec.snapshot.guards.hold()):
            raise _Changed

    def _run_jitted(self, spec: FunctionSpec, given: Arguments) -> Any:
        """The result of a call that jax answers here as if there were no server; else `ELSEWHERE`.

        Raises:
            Exception: as `_run_missed`.
        """
        misses = self._misses_of(spec)
        if misses is None or is_staged():
            return ELSEWHERE
        local = self._local_calls(spec)
        if local is None:
            return ELSEWHERE
        if local.jitted is None:
            local.jitted = misses.jitted(spec)
        return local.run_found(local.jitted, given)

    def _run_missed(
        self, misses: OwnMisses, spec: FunctionSpec, skeleton: bytes, given: Arguments
    ) -> Any:
        """The result of a call whose function is traced here; `ELSEWHERE` where a server answers.

        Raises:
            PlaceRefused: as `_may_take`.
            _Changed: as `_check_unchanged`.
            Exception: what the function raises while it is traced, and what jax raises.
        """
        if is_staged() or Options.from_bytes(spec.options).device:
            return ELSEWHERE
        connection = self.session.connection()
        local = self._local_calls(spec)
        if local is None or self.session.accepts != "code":
            return ELSEWHERE
        if refusal(self.session, connection):
            return ELSEWHERE
        is_fit = default_platform(self.session.platform) == self.session.platform
        if is_fit and misses.is_answered(connection, spec, skeleton):
            kept = self._kept(misses, local, spec, skeleton)
            if kept is None:
                return ELSEWHERE
            if isinstance(kept, Taken):
                return local.run_found(kept, given)
        return self._run_traced(misses, connection if is_fit else None, spec, skeleton, given)

    def _kept(
        self, misses: OwnMisses, local: LocalCalls, spec: FunctionSpec, skeleton: bytes
    ) -> Taken | str | None:
        """The program of calls that the server knows, or why it gives none; None: it answers them.

        Raises:
            _Changed: as `_check_unchanged`.
        """
        if self.session.has_device:
            local.answered[skeleton] = None
            return None
        reason = "it gives none"
        try:
            misses.warm(spec, skeleton)
            self._take(local, spec, skeleton, _ANY_SIZE)
        except Exception as error:  # noqa: BLE001  whatever it is, the function is traced here
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:_MAX_REASON]
        self._check_unchanged(spec)
        found = local.found.pop(skeleton, reason)
        if isinstance(found, Taken):
            local.found[skeleton] = found
            return found
        local.ungiven[skeleton] = found if isinstance(found, str) else reason
        return reason

    def _run_traced(
        self,
        misses: OwnMisses,
        connection: ClientConnection | None,
        spec: FunctionSpec,
        skeleton: bytes,
        given: Arguments,
    ) -> Any:
        """The result of a call whose function is traced here.

        Raises:
            Exception: what the function raises while it is traced, and what jax raises.
        """
        local: LocalCalls = spec.local
        arguments, _ = fetched(given)
        made = misses.answer(connection, spec, skeleton, arguments)
        local.is_due = True
        if isinstance(made, Jitted):
            local.found[skeleton] = made
            return local.run_found(made, given)
        found, local.pending[skeleton] = made
        local.found[skeleton] = found
        _wait_at_exit()
        try:
            return local.run_found(found, given, is_first=True)
        finally:
            misses.build_key(made[1])

    def call(self, call: CallRequest) -> Any:
        """As of any caller.

        Raises:
            PlaceRefused: with `place="here"`, where no program is taken from the server.
        """
        if not self.runs_here or loaded_jax() is None or self._stays(call):
            return super().call(call)
        local = self._local_calls(call.spec)
        if local is None:
            return super().call(call)
        skeleton = call.skeleton
        # before it is sent: meanwhile other threads may have a program come
        is_unfit = isinstance(local.found.get(skeleton), Taken)
        is_obscure = local.is_due and local.may_ask(skeleton) and skeleton not in local.asked
        began = time.perf_counter()
        result = super().call(call)
        local.has_waited(skeleton, time.perf_counter() - began)
        if is_unfit:
            local.unfit[skeleton] = None  # else it would have run here
        elif is_obscure and skeleton not in local.asked:
            local.found[skeleton] = "its arguments cannot be described without their data"
        return result

    def takes_programs(self) -> bool:
        """Whether the server's programs may run in this process.

        Raises:
            PlaceRefused: with `place="here"`, where they may not.
        """
        return self.runs_here and loaded_jax() is not None and self._may_take()

    def finish(self, seconds: float | None = _AT_EXIT_S) -> None:
        """Waits until the server has built the keys of what was traced here, so that it is kept."""
        if self._misses is not None:
            self._misses.wait(seconds)

    def warmed(self, call: CallRequest) -> None:
        """The server has the program of a call ready: loads it, however large."""
        if loaded_jax() is None or self._stays(call):
            return
        local = self._local_calls(call.spec)
        if local is not None and call.skeleton not in local.found:
            self._take(local, call.spec, call.skeleton, _ANY_SIZE)

    def placed(self, call: CallRequest | None) -> str:
        """Where such a call runs, and the rule that decided; see `Why.place`."""
        if not self.runs_here:
            return "server: this process was forked, and the threads of XLA are not in it"
        if loaded_jax() is None:
            return "server: this process has not imported jax"
        try:
            reason = refusal(self.session, self.session.connection())
        except JaxdError as error:
            reason = str(error)
        if reason is None and call is not None:
            reason = self._stays(call)
        if reason:
            return f"server: {reason}"
        if call is None or call.spec.local is None:
            return _FOR_NOW if self._misses is None else _UNKNOWN
        return self._placed_by(call.spec.local, call.skeleton)

    def _placed_by(self, local: LocalCalls, skeleton: bytes) -> str:
        found, ungiven = local.found.get(skeleton), local.ungiven.get(skeleton, "")
        if isinstance(found, str):
            return f"server: {found}"
        if ungiven:
            ungiven = f". The server gave none: {ungiven}"
        if isinstance(found, Jitted):
            return f"here: jax of this process has compiled it: {found.reason}{ungiven}"
        if found is None:
            is_missed = self._misses is not None and local.is_missed(skeleton)
            return _UNKNOWN if is_missed else _FOR_NOW
        unfit = f"; {_UNFIT}" if skeleton in local.unfit else ""
        alone = local.alone.get(skeleton, "")
        if alone:
            alone = f". It was traced here, and is for this process alone: {alone}"
        return f"here: its program is loaded in this process{unfit}{alone}{ungiven}"

    def _stays(self, call: CallRequest) -> str | None:
        """Why a call goes to the server by the options of its function; None where it need not."""
        if self.session.accepts == "exported":
            return "the server takes exported programs only"
        if call.results not in ("auto", "jax"):
            return f"results={call.results!r}"
        if call.timeout_s is not None:
            return "it has timeout_s, which a call of jax.jit cannot have"
        if Options.from_bytes(call.spec.options).config != current_config():
            return "its function has settings of jax of its own (config=)"
        return None

    def _local_calls(self, spec: FunctionSpec) -> LocalCalls | None:
        """What runs the calls of a function here; None where nothing does.

        Raises:
            PlaceRefused: as `_may_take`.
        """
        if spec.local is None and self._may_take():
            spec.local = LocalCalls(spec)
        local: LocalCalls | None = spec.local
        return local

    def _may_take(self) -> bool:
        """Whether programs are taken from the server as it is reached now.

        Raises:
            PlaceRefused: where they are not, and calls are to run here.
        """
        reason = refusal(self.session, self.session.connection())
        if reason is not None and self.settings.place == "here":
            raise PlaceRefused(
                f"place='here' is not possible: {reason}. Use place='auto', which has the server "
                "answer such calls, or leave the option out. docs/place.md has the rules."
            )
        return reason is None

    # taking programs ---------------------------------------------------------------------------

    def _take(self, local: LocalCalls, spec: FunctionSpec, skeleton: bytes, most: int) -> None:
        """Has a program answer such calls here, now or when it has loaded in a thread.

        Never raises: the server goes on answering.
        """
        try:
            local.is_due = True
            local.asked[skeleton] = local.asked.get(skeleton, 0) + 1
            found = self._taken(spec, skeleton, most)
        except JaxdError:
            return  # the connection was lost: the next call asks again
        if found is None:
            self._load_in_thread(local, spec, skeleton)
        elif found:
            local.found[skeleton] = found

    def _taken(self, spec: FunctionSpec, skeleton: bytes, most: int) -> Taken | str | None:
        """What answers such calls here, or why nothing does; None where it is too large.

        Empty where the server is to be asked again.

        Raises:
            JaxdError: when the server cannot be reached.
        """
        connection = self.session.connection()
        reason = refusal(self.session, connection)
        if reason is not None:
            return reason
        value, frame = connection.request("program", (spec.key, skeleton, most))
        try:
            report, form = json.loads(value[1]), value[2]
            if "refused" in report:
                return "" if report["again"] else str(report["refused"])
            if not frame.buffers:
                return None
            structure = structure_of_result(spec, form, report["order"])
            if structure is None:
                return "its result is no tree of arrays to jax"
            return Taken(self._loaded(report, bytes(frame.buffers[0])), structure)
        except Exception as error:  # noqa: BLE001  whatever jax raises, the server answers instead
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return f"its program cannot be loaded here ({text[:_MAX_REASON]})"

    def _loaded(self, report: Mapping[str, Any], data: bytes) -> LocalProgram:
        """The program that the server has reported."""
        shape = report["inputs"], report["outputs"], tuple(report["devices"])
        return self._programs.program(bytes.fromhex(report["id"]), data, *shape)

    def _load_in_thread(self, local: LocalCalls, spec: FunctionSpec, skeleton: bytes) -> None:
        name = id(local), skeleton

        def load() -> None:
            try:
                self._take(local, spec, skeleton, _ANY_SIZE)
            finally:
                with self._lock:
                    self._loading.discard(name)

        with self._lock:
            if name in self._loading:
                return
            self._loading.add(name)
        thread = threading.Thread(target=load, name="jaxd-load", daemon=True)
        _threads.add(thread)
        _wait_at_exit()
        start_thread(thread)


_tracing: Final[weakref.WeakSet[HereCaller]] = weakref.WeakSet()
"""Those that trace their misses."""


def _note_alone(miss: OwnMiss, reason: str) -> None:
    local: LocalCalls | None = miss.spec.local
    if reason and local is not None:
        local.alone[miss.skeleton] = reason


_threads: Final[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()


@functools.cache
def _wait_at_exit() -> None:
    """The process does not end while XLA loads something in a thread of it; see below."""
    atexit.register(wait_for_programs, _AT_EXIT_S)


def wait_for_programs(seconds: float | None = None) -> None:
    """Returns when all programs that load in threads of this process are loaded.

    And when the server has built the keys of what was traced in this process, or after so many
    seconds: else the next process would have to trace it as well.
    """
    for thread in list(_threads):
        thread.join()
    for caller in list(_tracing):
        caller.finish(seconds)


def structure_of_result(spec: FunctionSpec, form: bytes, order: list[int]) -> Any:
    """jax's structure of a result; None where its leaves are not what the program returns."""
    snapshot = spec.snapshot
    with snapshot.pickling_context():
        layout = snapshot.reader.layout(form)
        are_arrays = all(leaf.tag in "AK" for leaf in layout.leaves)
        if snapshot.reader.remote_object(form) or not are_arrays:
            return None
        slots = [_Slot(number) for number in order]
        leaves, structure = loaded_jax().tree.flatten(layout.build(slots))
    numbers = [leaf.number if type(leaf) is _Slot else None for leaf in leaves]
    return structure if numbers == sorted(order) else None


class _Slot:
    """Stands for one array of a result."""

    def __init__(self, number: int) -> None:
        self.number = number
