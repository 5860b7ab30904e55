"""Traces and lowers a function in this process: instead of a server, or once more beside it.

Of a second trace the caller sees nothing: what the function prints, warns of and logs meanwhile is
dropped, in the thread that traces and in no other.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, NamedTuple, TextIO

from jaxd.interop.jax_runtime import PRNGKeys, to_jax_keys
from jaxd.interop.lazy_array import ArrayLike, LazyArray
from jaxd.interop.remote_array import RemoteArray
from jaxd.request.array_specs import zeros_of
from jaxd.request.function_snapshot import FunctionSpec
from jaxd.results.exceptions import hide_own_frames
from jaxd.tracing.inline import local_jax_settings
from jaxd_protocol.base.process import PerProcess
from jaxd_protocol.errors import ArgumentError, JaxdError
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper, jit_options_of
from jaxd_protocol.jit.nested import call_jitted
from jaxd_protocol.jit.nnx_updates import refusing_lost_updates
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Options
from jaxd_protocol.jit.settings import LOCAL
from jaxd_protocol.jit.static_args import StaticArgs, map_arguments
from jaxd_protocol.jit.static_leaves import unwrapping_arguments, wrap_untraceable_arguments
from jaxd_protocol.jit.transforms import apply_transformations, untransformed
from jaxd_protocol.pytree.leaves import dtype_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def without_data(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], statics: StaticArgs
) -> Arguments:
    """The arguments of a call with zeros in place of the data that is traced."""
    _register_parts()
    return map_arguments((args, kwargs), statics, _emptied)


def _register_parts() -> None:
    """Has jax know the parts of nnx objects, where there may be any."""
    if "flax.nnx" in sys.modules:
        from jaxd_protocol.jit.nnx_objects import register_parts

        with suppress(ValueError):  # they are registered already
            register_parts()


def _emptied(value: Any) -> Any:
    """The tree, dicts in their order, which jax would sort."""
    import jax

    kind: Any = type(value)
    if kind is dict or kind is OrderedDict:
        return kind((key, _emptied(child)) for key, child in value.items())
    if kind is list or kind is tuple:
        return kind(map(_emptied, value))
    if jax.tree_util.all_leaves((value,)):
        return _empty_leaf(value)
    return jax.tree.map(_empty_leaf, value)


def _empty_leaf(leaf: Any) -> Any:
    """What jax traces as it does the leaf, without holding the data of an array."""
    import jax
    import numpy as np

    if isinstance(leaf, PRNGKeys):
        return to_jax_keys(np.zeros_like(leaf.data), leaf.impl)
    if isinstance(leaf, RemoteArray) and leaf.leaf.tag == "K":
        return to_jax_keys(np.zeros(leaf.leaf.shape, dtype_of(leaf.leaf.dtype)), leaf.leaf.impl)
    if isinstance(leaf, LazyArray):
        return np.zeros(leaf.shape, dtype_of(str(leaf.dtype)))
    if isinstance(leaf, jax.Array | np.ndarray | ArrayLike):
        with suppress(JaxdError):  # of a dtype that jax has not
            return zeros_of(leaf)
    return leaf


class LoweredHere(NamedTuple):
    """What jax of this process has made of a function.

    Attributes:
        lowered: jax's own.
        jitted: the function under `jax.jit`, which was traced.
        options: those of the function.
    """

    lowered: Any
    jitted: Any
    options: Options


def jitted_here(spec: FunctionSpec) -> Any:
    """The function under `jax.jit`, for arguments in which `wrap_untraceable_arguments` was."""
    import jax

    _register_parts()
    options = Options.from_bytes(spec.options)
    plain = untransformed(spec.snapshot.function)
    function = apply_transformations(plain, options.transformations)
    if not spec.statics.strict:  # else nnx objects are trees, as to `jax.jit`
        function = refusing_lost_updates(function)
    opened = unwrapping_arguments(function, spec.statics)
    return jax.jit(opened, **options.jit_arguments())


def run_jitted(jitted: Any, statics: StaticArgs, arguments: Arguments) -> Any:
    """The result of a function that `lower_here` has put under `jax.jit`; jax compiles it.

    Raises:
        Exception: what the function raises where jax traces it again, and jax's own errors.
    """
    args, kwargs = arguments
    with suppress(ArgumentError):  # then jax decides
        args, kwargs = wrap_untraceable_arguments(args, kwargs, statics)
    with _calls_inside():
        return jitted(*args, **kwargs)


def lower_here(
    spec: FunctionSpec, arguments: Arguments, platform: str | None = None
) -> LoweredHere:
    """Traces and lowers a function in this process, as a server does it with its code.

    Persistent functions that it calls are a part of it, once `keep_calls_inside` was called.

    Args:
        spec: the function.
        arguments: of the call.
        platform: what it is lowered for; None: what this process computes on.

    Raises:
        Exception: what the function raises, and jax's own errors.
    """
    options = Options.from_bytes(spec.options)
    jitted = jitted_here(spec)
    config = {**CONFIG_DEFAULTS, **dict.fromkeys(LOCAL, False), **dict(options.config)}
    with _calls_inside(), local_jax_settings(tuple(config.items())):
        args, kwargs = arguments
        with suppress(ArgumentError):  # then jax decides
            args, kwargs = wrap_untraceable_arguments(args, kwargs, spec.statics)
        platforms = None if platform is None else (platform,)
        lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=platforms)
    return LoweredHere(lowered, jitted, options)


def lower_again(
    spec: FunctionSpec, arguments: Arguments, platform: str | None
) -> tuple[Any, Options]:
    """What jax of this process makes of a function now, and the options that it has.

    Nothing that jax has traced before is used, and nothing of the trace is seen.

    Args:
        spec: the function.
        arguments: see `without_data`.
        platform: what it is lowered for; None: what this process computes on.

    Returns:
        jax's own `Lowered`, and the options.

    Raises:
        Exception: what the function raises, and jax's own errors.
    """
    with _tracing_again(), _apart_from_earlier_traces():
        found = lower_here(spec, arguments, platform)
    return found.lowered, found.options


_serials: Final = count()


def _apart_from_earlier_traces() -> AbstractContextManager[Any]:
    """Within it, jax finds nothing that it has traced for functions that this one calls."""
    context = _trace_context()
    return nullcontext() if context is None else context(f"jaxd {next(_serials)}")


@functools.cache
def _trace_context() -> Callable[[str], AbstractContextManager[Any]] | None:
    import jax

    make: Any = getattr(jax, "make_user_context", None)
    return None if make is None else make()


class _WhileInside:
    """Something that is done while threads are within it, and then undone. Thread-safe.

    Args:
        name: of it.
        do: does it.
        undo: undoes it.

    Attributes:
        is_here: whether this thread is within it.
        running: how many are.
        lock: held while that changes.
    """

    def __init__(self, name: str, do: Callable[[], object], undo: Callable[[], object]) -> None:
        self.is_here: ContextVar[bool] = ContextVar(name, default=False)
        self.running = 0
        self._do, self._undo = do, undo
        self.lock = PerProcess(threading.Lock)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Within it this thread is one of them."""
        with self.lock():
            if not self.running:
                self._do()
            self.running += 1
        token = self.is_here.set(True)
        try:
            yield
        finally:
            self.is_here.reset(token)
            with self.lock():
                self.running -= 1
                if not self.running:
                    self._undo()


# nothing of it is seen ---------------------------------------------------------------------------


class _Stream:
    """A standard stream, on which nothing is heard of threads that trace a second time."""

    def __init__(self, below: TextIO) -> None:
        self._below = below

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def write(self, text: str) -> int:
        return len(text) if _tracing_again.is_here.get() else self._below.write(text)

    def flush(self) -> None:
        if not _tracing_again.is_here.get():
            self._below.flush()


class _MatchSecondTraces:
    """In the place of a regular expression: matches in threads that trace a second time."""

    def match(self, _: str) -> bool:
        return _tracing_again.is_here.get()


_IGNORED: Final[Any] = ("ignore", _MatchSecondTraces(), Warning, None, 0)


def _mute() -> None:
    for name in ("stdout", "stderr"):
        setattr(sys, name, _Stream(getattr(sys, name)))
    warnings.filters.insert(0, _IGNORED)  # type: ignore[attr-defined]
    _mute_loggers()


def _unmute() -> None:
    for name in ("stdout", "stderr"):
        found = getattr(sys, name)
        if isinstance(found, _Stream):  # else somebody has put another one there meanwhile
            setattr(sys, name, found._below)  # noqa: SLF001  defined above
    with suppress(ValueError):  # somebody has restored filters of before
        warnings.filters.remove(_IGNORED)  # type: ignore[attr-defined]


@functools.cache
def _mute_loggers() -> None:
    """From now on, and for good: threads that do not trace a second time notice nothing."""
    plain = logging.Logger.callHandlers

    def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
        if not _tracing_again.is_here.get():
            plain(logger, record)

    logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]


_tracing_again: Final = _WhileInside("traces a second time", _mute, _unmute)


# calls of others stay in a trace ------------------------------------------------------------------

_calls: Final[dict[type[FunctionWrapper], tuple[Any, Any]]] = {}
"""By class what makes calls of persistent functions, and what does while one is traced here.

At other times their class is as it was: no call takes longer for it.
"""


def _put_calls(which: int) -> None:
    for wrapper, calls in _calls.items():
        wrapper.__call__ = calls[which]  # type: ignore[method-assign]


def keep_calls_inside(wrapper: type[FunctionWrapper]) -> None:
    """Has functions of that class that another one calls in `lower_here` stay in that trace.

    As on the server: see `jaxd_protocol.jit.nested`.
    """
    with _calls_inside.lock():
        if wrapper not in _calls:
            _calls[wrapper] = wrapper.__call__, _staying_inside(wrapper.__call__)
            _put_calls(int(_calls_inside.running > 0))


def _staying_inside(plain: Any) -> Any:
    @functools.wraps(plain)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _calls_inside.is_here.get():
            return call_jitted(self.__wrapped__, jit_options_of(self) or (), args, kwargs)
        try:
            return plain(self, *args, **kwargs)
        except BaseException as error:
            hide_own_frames(error)  # this one is there as well
            raise

    return call


_calls_inside: Final = _WhileInside(
    "keeps calls inside", functools.partial(_put_calls, 1), functools.partial(_put_calls, 0)
)
