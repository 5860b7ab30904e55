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
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jaxd.dispatch.caller import Caller
from jaxd.dispatch.local_runs import default_platform
from jaxd.interop.jax_registry import array_class
from jaxd.interop.jax_runtime import current_config, import_jax, loaded_jax
from jaxd.interop.local_programs import UNKNOWN, FastCalls, JitCalls, LocalProgram, calls_here
from jaxd.interop.remote_array import RemoteArray, give_up
from jaxd.request.array_specs import encode_specs
from jaxd.request.function_snapshot import ELSEWHERE
from jaxd.request.packing_cache import guard_content
from jaxd.tracing.fallback import fetched
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.base.process import machine_id, reset_after_fork, start_thread
from jaxd_protocol.errors import ArgumentError, JaxdError, PlaceRefused
from jaxd_protocol.jax_objects.program_bytes import load_compiled
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, dynamic
from jaxd_protocol.jit.static_leaves import wrap_untraceable_arguments

if TYPE_CHECKING:
    from jaxd.connection.connection import ClientConnection
    from jaxd.connection.settings import Settings
    from jaxd.dispatch.session import Session
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSpec, SnapshotCache
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
_PLAIN_STATICS: Final = frozenset({bool, int, str, type(None)})
_NUMBERS: Final = frozenset({bool, int, float, complex})

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
    if platform != session.platform:
        return f"the server computes on {session.platform}, and jax of this process on {platform}"
    return None


def versions() -> dict[str, str]:
    """Those of jax in this process, which has imported it."""
    return {"jax": loaded_jax().__version__, "jaxlib": sys.modules["jaxlib"].__version__}


# programs that were taken ------------------------------------------------------------------------


class Taken(NamedTuple):
    """A program that answers calls with one skeleton in this process.

    Attributes:
        program: the program.
        structure: jax's structure of its result.
    """

    program: LocalProgram
    structure: Any


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
        is_due: whether any calls have a program here, or the next one may take it.
    """

    is_due = False

    def __init__(self, spec: FunctionSpec) -> None:
        self.found = BoundedDict[bytes, Taken | str](_MAX_PROGRAMS)
        self.asked = BoundedDict[bytes, int](_MAX_PROGRAMS)
        self.waited_s = BoundedDict[bytes, float](_MAX_PROGRAMS)
        self.unfit = BoundedDict[bytes, None](_MAX_PROGRAMS)
        self._name = spec.snapshot.name
        self._statics = spec.statics
        # a pinned function is found by the skeleton of the call, which is made first
        self._is_pinned = spec.snapshot.is_pinned
        self._fast: dict[Any, FastCalls] = {}  # by what is static
        self._kinds: frozenset[type] = frozenset()  # of arguments that jax tells apart as we do
        self._nodes: dict[type, StaticNode] = {}  # of arguments that are told apart by these
        self._resets = 0

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
        if self._statics:
            statics = _plain_statics(self._statics, args, kwargs)
            args, kwargs = dynamic((args, kwargs), self._statics)
        fast = self._fast.get(statics)
        if fast is None:
            return ELSEWHERE
        kinds, nodes = self._kinds, self._nodes
        for value in (*args, *kwargs.values()) if kwargs else args:
            if type(value) not in kinds:
                node = nodes.get(type(value))
                if node is None or not node.is_that_of(value):
                    return ELSEWHERE
        result = fast.call(*args, **kwargs)
        return ELSEWHERE if result is UNKNOWN else result

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
        found = None if self._is_pinned or statics is ELSEWHERE else _kinds_of(wrapped)
        if found is None:
            return None
        kinds, nodes = found
        for value in nodes:
            if not self._knows_node(value):
                return None
        fast = self._fast.get(statics)
        if fast is None:
            try:
                fast = self._fast.setdefault(statics, FastCalls(self._name))
            except Exception:  # noqa: BLE001  names that a newer jax does not have
                return None
        self._kinds |= kinds
        return fast

    def _knows_node(self, value: Any) -> bool:
        """Whether what is static in an object at the top of an argument is that of such calls.

        Where it was another one, jax forgets what it has: to jax the two may be equal.
        """
        known = self._nodes.get(type(value))
        if known is not None and known.is_that_of(value):
            return True
        node = None if self._resets >= _MOST_RESETS else StaticNode.of(value)
        if node is None:
            return False
        if known is not None:
            self._resets += 1
            self._fast, self._nodes = {}, {}
        self._nodes[type(value)] = node
        return True


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


def _kinds_of(arguments: Arguments) -> tuple[frozenset[type], list[Any]] | None:
    """The types of arguments, and those arguments that a `StaticNode` has to tell apart.

    None where jax could take other calls for such a call: it sees a member of an enum of integers
    as an integer, and 1 among static values as True, while to jaxd they are others. So a number is
    an argument by itself, of exactly its type, and the trees around arrays have nothing static but
    text, except at their top.
    """
    args, kwargs = arguments
    kinds, nodes = set(), []
    arrays = {array_class(), sys.modules["numpy"].ndarray}
    for value in (*args, *kwargs.values()):
        kind = type(value)
        if kind in arrays or kind in _NUMBERS:
            kinds.add(kind)
            continue
        leaves, structure = loaded_jax().tree.flatten(value)
        if not arrays.issuperset(map(type, leaves)):
            return None
        if _is_plain(structure):
            kinds.add(kind)
        elif all(map(_is_plain, structure.children())):
            nodes.append(value)
        else:
            return None
    return frozenset(kinds), nodes


def _is_plain(structure: Any) -> bool:
    node = structure.node_data()
    if node is None:
        return True
    return _is_text(node[1]) and all(map(_is_plain, structure.children()))


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
        self._programs: weakref.WeakValueDictionary[bytes, LocalProgram] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.Lock()  # guards _programs and _loading
        self._loading: set[tuple[int, bytes]] = set()
        reset_after_fork(self)
        if settings.place == "here":
            import_jax(PlaceRefused, _NO_JAX)

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
        try:
            spec = snapshots.spec(config)
        except Exception:  # noqa: BLE001  raised again where the call is encoded
            return ELSEWHERE
        local: LocalCalls | None = spec.local
        if not (spec.snapshot.is_pinned or (local is not None and local.is_due)):
            return ELSEWHERE
        result = ELSEWHERE if local is None else local.run(args, kwargs)
        if result is ELSEWHERE:
            result = self._run_described(snapshots, spec, config, args, kwargs)
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
            with spec.snapshot.pickling_context():
                skeleton, pickles = encode_specs(args, kwargs, spec.statics, {})
        except Exception:  # noqa: BLE001  raised again where the call is encoded
            return ELSEWHERE
        if spec.snapshot.is_pinned and skeleton in spec.snapshot.pinned:
            spec = snapshots.pinned_spec(spec, skeleton, config)
        local: LocalCalls | None = spec.local
        if local is None or pickles:
            return ELSEWHERE
        taken = local.found.get(skeleton)
        if taken is None and local.may_ask(skeleton):
            self._take(local, spec, skeleton, SMALL_BYTES)
            taken = local.found.get(skeleton)
        if not isinstance(taken, Taken):
            return ELSEWHERE
        return local.run_taken(taken, args, kwargs, snapshots.jit_calls)

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
        local: LocalCalls | None = None if call is None else call.spec.local
        found = None if local is None or call is None else local.found.get(call.skeleton)
        if isinstance(found, str):
            return f"server: {found}"
        if local is None or call is None or found is None:
            return "server for now: here, once calls have waited as long as loading a program takes"
        unfit = f"; {_UNFIT}" if call.skeleton in local.unfit else ""
        return f"here: its program is loaded in this process{unfit}"

    def _stays(self, call: CallRequest) -> str | None:
        """Why a call goes to the server by the options of its function; None where it need not."""
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
            structure = _structure_of(spec, form, report["order"])
            if structure is None:
                return "its result is no tree of arrays to jax"
            return Taken(self._loaded(report, bytes(frame.buffers[0])), structure)
        except Exception as error:  # noqa: BLE001  whatever jax raises, the server answers instead
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            return f"its program cannot be loaded here ({text[:_MAX_REASON]})"

    def _loaded(self, report: Mapping[str, Any], data: bytes) -> LocalProgram:
        """The program; several functions may share one."""
        name = bytes.fromhex(report["id"])
        with self._lock:
            known = self._programs.get(name)
        if known is not None:
            return known
        shape = report["inputs"], report["outputs"], tuple(report["devices"])
        program = LocalProgram(load_compiled(data, *shape), name)
        with self._lock:
            return self._programs.setdefault(name, program)

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


_threads: Final[weakref.WeakSet[threading.Thread]] = weakref.WeakSet()


@functools.cache
def _wait_at_exit() -> None:
    """The process does not end while XLA loads something in a thread of it."""
    atexit.register(wait_for_programs)


def wait_for_programs() -> None:
    """Returns when all programs that load in threads of this process are loaded."""
    for thread in list(_threads):
        thread.join()


def _structure_of(spec: FunctionSpec, form: bytes, order: list[int]) -> Any:
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
