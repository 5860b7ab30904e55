"""The private names of jax around programs that were loaded, and that run in this process.

`FastCalls` is jax's own dispatch, written in C++: where it knows the types, shapes and settings of
a call, no Python runs between the call and the program, as under `jax.jit`. Where a name has moved
in a newer jax there is none, and such calls go by way of Python.

Verified on jax 0.10.2 and 0.11.2 by tests/client/interop/test_local_programs.py.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from jaxd.interop.jax_runtime import loaded_jax
from jaxd_protocol.base.process import PerProcess, reset_after_fork
from jaxd_protocol.jax_objects.program_bytes import load_compiled
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs
from jaxd_protocol.network.local_server import cache_root

UNKNOWN: Final = object()
"""What `FastCalls` return for a call of a kind that was not added."""


class LocalProgram:
    """A compiled program: flat arrays in, flat arrays out.

    Args:
        compiled: what jax has loaded, a `jax.stages.Compiled` of flat lists.

    Attributes:
        compiled: the same.
        id: sixteen bytes that equal programs have in common.
    """

    def __init__(self, compiled: Any, id: bytes) -> None:  # noqa: A002
        self.compiled = compiled
        self.id = id
        self._taken = [(tuple(each.shape), each.dtype) for each in compiled.args_info[0]]

    def __call__(self, leaves: Sequence[Any]) -> list[Any]:
        """Runs it; jax may return before the device is done."""
        made: list[Any] = self.compiled(*leaves)
        return made

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Whether it takes such leaves, as they are and where they lie.

        An array of 64 bits is none of 32 to jax, and one that was put on another device stays; so
        does all where jax's default is another device.
        """
        jax = loaded_jax()
        first = jax.devices()[0]
        is_first = jax.config.jax_default_device in (None, first, first.platform)
        if len(leaves) != len(self._taken) or not is_first:
            return False
        here, canonical = {first}, jax.dtypes.canonicalize_dtype
        for leaf, (shape, dtype) in zip(leaves, self._taken, strict=True):
            found = getattr(leaf, "dtype", None)
            if found is None:
                continue  # a number, which is as wide as jax's settings say
            if not isinstance(leaf, jax.Array):
                if getattr(leaf, "mask", None) is not None:
                    return False  # a masked array, which jax refuses where it sees that it is one
                found = canonical(found)
            elif leaf.committed and leaf.devices() != here:
                return False
            if found != dtype or tuple(leaf.shape) != shape:
                return False
        return True


class LoadedPrograms:
    """The programs that this process has loaded; several functions may share one. Thread-safe."""

    def __init__(self) -> None:
        self._lock = PerProcess(threading.Lock)  # guards _known
        self._known: weakref.WeakValueDictionary[bytes, LocalProgram]
        self._known = weakref.WeakValueDictionary()

    def program(self, id: bytes, data: bytes, *shape: Any) -> LocalProgram:  # noqa: A002
        """The program of that id, loaded from its bytes where it is not known.

        Args:
            id: see `LocalProgram`.
            data: from whom this process takes code.
            shape: the further arguments of `load_compiled`.

        Raises:
            Exception: as `load_compiled`.
        """
        with self._lock():
            known = self._known.get(id)
        if known is not None:
            return known
        made = LocalProgram(load_compiled(data, *shape), id)
        with self._lock():
            return self._known.setdefault(id, made)


class Taken(NamedTuple):
    """A program that answers calls with one skeleton in this process.

    Attributes:
        program: the program.
        structure: jax's structure of its result.
    """

    program: LocalProgram
    structure: Any


class Jitted(NamedTuple):
    """A function that jax of this process compiles and runs, where no server can compile it.

    Attributes:
        call: the function under `jax.jit`, of the positional arguments and those by name.
        reason: why no server can.
    """

    call: Callable[[tuple[tuple[Any, ...], dict[str, Any]]], Any]
    reason: str


class FastCalls:
    """Calls of one function that jax dispatches by itself, each kind to its program.

    A kind is what jax compiles for: structure, shapes, dtypes, weak types, where arrays lie, and
    the settings of the thread. Thread-safe.

    Args:
        name: of the function.
        statics: its static arguments, which jax tells apart by `==`; else there are none.
        function: what runs instead under `jax.disable_jit()`; None: such a call is unknown.

    Raises:
        Exception: when this version of jax has no such thing.
    """

    def __init__(
        self,
        name: str,
        statics: StaticArgs = NO_STATIC_ARGS,
        function: Callable[..., Any] | None = None,
    ) -> None:
        pjit = sys.modules["jax._src.pjit"]
        pxla = sys.modules["jax._src.interpreters.pxla"]
        self._added = threading.local()  # what the call that runs now is to be added with
        miss = _miss(self._added, pjit._get_fastpath_data)  # noqa: SLF001
        self.call: Callable[..., Any] = sys.modules["jaxlib._jax"].pjit(
            name,
            _new_unknown() if function is None else function,
            miss,
            sorted(statics.positions),
            sorted(statics.names),
            pxla.JitGlobalCppCacheKeys(),
            sys.modules["jax._src.tree_util"].dispatch_registry,
            pxla.cc_shard_arg,
        )
        if function is not None:  # what `jax_debug_nans` looks through for the operation at fault
            self.call._fun = function  # noqa: SLF001

    def add(
        self,
        program: LocalProgram,
        structure: Any,
        leaves: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Makes a call, and dispatches all of its kind to its program from now on.

        Args:
            program: answers it.
            structure: that of its result.
            leaves: what the program is given.
            args: the positional arguments.
            kwargs: those by name.
        """
        self._added.value = program, structure, leaves
        try:
            return self.call(*args, **kwargs)
        finally:
            self._added.value = None


def _miss(added: threading.local, fast_path_of: Callable[..., Any]) -> Callable[..., Any]:
    """What jax's dispatch calls for a kind that it does not know.

    It refers to nothing that has that dispatch, so that a function which nobody has any more lets
    go of its arrays at once, as under `jax.jit`, and not when Python looks for cycles.
    """

    def miss(*_: Any, **__: Any) -> tuple[Any, Any, bool]:
        """The result, what jax needs to make such calls by itself, and whether to forget it."""
        given = getattr(added, "value", None)
        if given is None:
            return UNKNOWN, None, True
        program, structure, leaves = given
        made = program(leaves)
        executable = program.compiled._executable  # noqa: SLF001
        fast_path = fast_path_of(executable, structure, leaves, made, (), (), None, [])
        return structure.unflatten(made), fast_path, fast_path is None

    return miss


class JitCalls:
    """The calls of a function that are dispatched as under `jax.jit`, to programs of a server.

    Static values are told apart by `==`, and nothing looks whether the function is as it was: its
    snapshots are pinned, see `SnapshotCache`. Thread-safe.

    Args:
        function: the function.
        statics: its static arguments.

    Attributes:
        call: makes a call of a kind that was added; `UNKNOWN` for any other.
    """

    def __init__(self, function: Callable[..., Any], statics: StaticArgs) -> None:
        self._function = function
        self._statics = statics
        self._calls: FastCalls | None = None
        self._is_possible = True
        self._lock = threading.Lock()  # guards _calls, and the setting of call
        self.call: Callable[..., Any] = _unknown
        reset_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: XLA's threads are not in it, so a program would never end."""
        self._lock = threading.Lock()
        self._is_possible = False
        self.clear()

    def clear(self) -> None:
        """Forgets what was added."""
        with self._lock:
            self._calls, self.call = None, _unknown

    def fast_calls(self) -> FastCalls | None:
        """What calls are added to; None where this version of jax has no such thing."""
        with self._lock:
            if self._calls is None and self._is_possible:
                name = getattr(self._function, "__name__", "function")
                try:
                    self._calls = FastCalls(name, self._statics, self._function)
                except Exception:  # noqa: BLE001  names that a newer jax does not have
                    self._is_possible = False
                else:
                    self.call = self._calls.call
            return self._calls


def _unknown(*_: Any, **__: Any) -> Any:
    return UNKNOWN


def _new_unknown() -> Callable[..., Any]:
    """Another function each time: jax may keep what it knows of calls by the function."""
    return lambda *_, **__: UNKNOWN


class CallsHere:
    """Calls that ran in this process, with programs of a server.

    Attributes:
        count: how many.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


calls_here: Final = CallsHere()
"""Of this process."""


# jax's own cache on disk --------------------------------------------------------------------------


def eager_folder() -> str | None:
    """Where jax of a program that is not changed keeps what it compiles itself; None: nowhere."""
    root = cache_root()
    return None if root is None else os.path.join(root, "eager")


class _ThisThread(threading.local):
    compiles_anew = False


_this_thread: Final = _ThisThread()


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Within it, what this thread compiles is not taken from there, and not kept there.

    XLA cannot write a program that it has read, and a program may ask for that. Where it has chosen
    a cache itself, it has that of plain jax.
    """
    before = _this_thread.compiles_anew
    if loaded_jax().config.jax_compilation_cache_dir == eager_folder():
        _have_jax_ask_each_thread()
        _this_thread.compiles_anew = True
    try:
        yield
    finally:
        _this_thread.compiles_anew = before


def _have_jax_ask_each_thread() -> None:
    cache: Any = sys.modules.get("jax._src.compilation_cache")
    is_used = getattr(cache, "is_cache_used", _is_cache_used)
    if is_used is not _is_cache_used:
        _is_used_in_jax.append(is_used)
        cache.is_cache_used = _is_cache_used


def _is_cache_used(backend: Any) -> bool:
    return not _this_thread.compiles_anew and bool(_is_used_in_jax[-1](backend))


_is_used_in_jax: Final[list[Callable[[Any], bool]]] = []
"""jax's own function of that name, once it was exchanged."""
