"""The private names of jax around host callbacks: redirects them to the client of the call.

`jax.debug.callback` and `io_callback` come down to two primitives, each of which has the function
as a parameter. There it is exchanged for one that calls the client whose program runs. What
`pure_callback` and `jax.debug.print` call stays here.

Verified on jax 0.10.2 and 0.11.2 by tests/server/user_code/test_jax_callbacks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import jax
from jax._src import callback as jax_callback
from jax._src import debugging

from jaxd_protocol.errors import CallbackError
from jaxd_server.runtime.threads.cancellation import assigned
from jaxd_server.user_code.callback_targets import (
    CallbackTargets,
    is_made_by_library,
    runs_on_server,
)
from jaxd_server.user_code.mutation_guard import MutationGuard
from jaxd_server.user_code.output import output_to_sole_caller

CallBack = Callable[..., Any]
"""Calls a function in the process of a client, see `ClientProxy.call_back`."""

_current: list[CallBack | None] = []
"""That of the client whose program runs. In tests there may be several servers in one process."""

_callback_targets: ContextVar[CallbackTargets | None] = ContextVar("callback targets", default=None)
_callbacks_are_disabled: ContextVar[bool] = ContextVar("callbacks are disabled", default=False)


def redirecting_callbacks(callback_targets: CallbackTargets) -> AbstractContextManager[None]:
    """Within it, what is traced has its callbacks run in the process of its client."""
    return assigned(_callback_targets, callback_targets)


def callbacks_disabled() -> AbstractContextManager[None]:
    """Within it, what is run step by step calls no client: it has been called already."""
    return assigned(_callbacks_are_disabled, True)


@contextmanager
def calling_back(call_back: CallBack | None) -> Iterator[None]:
    """Within it, what programs call back is called so; None: their client cannot be called."""
    _current.append(call_back)
    try:
        yield
    finally:
        _current.remove(call_back)


def install_callback_redirection() -> None:
    """Exchanges what programs call back, from now on, within `redirecting_callbacks`."""
    for primitive, exchange in _EXCHANGES.items():
        if "bind" not in vars(primitive):
            primitive.bind = _Bind(primitive.bind, exchange)


class _Bind:
    """In the place of a primitive's `bind`."""

    def __init__(
        self, bind: Callable[..., Any], exchange: Callable[[CallbackTargets, Any], Any]
    ) -> None:
        self._bind = bind
        self._exchange = exchange

    def __call__(self, *args: Any, callback: Any, **params: Any) -> Any:
        if _callbacks_are_disabled.get():
            if self._exchange is _exchange_io:
                raise CallbackError("a value of the client's is not asked for twice.")
            if self._exchange is _exchange_debug:
                return []
        callback_targets = _callback_targets.get()
        if callback_targets is not None:
            callback = self._exchange(callback_targets, callback)
        return self._bind(*args, callback=callback, **params)


class RemoteCallback:
    """Calls a function of the client that runs the program.

    Args:
        callback_targets: finds out where it is there.
        function: what was given to jax.
        wants_result: whether its result is used.
    """

    def __init__(
        self, callback_targets: CallbackTargets, function: Any, *, wants_result: bool
    ) -> None:
        self._target, self._held = callback_targets.at(function)
        self._wants_result = wants_result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it in the process of the client whose program runs now; in a thread of XLA's.

        Raises:
            CallbackError: when no program runs, or its client cannot be called.
            Exception: what the function raises.
        """
        call_back = _current[-1] if _current else None
        if call_back is None:
            raise CallbackError(
                "jax.debug.callback or io_callback was called while a function was traced. Pass it "
                "values that are computed, so that it is called when the program runs."
            )
        return call_back(self._target, self._held, args, kwargs, wants_result=self._wants_result)


def _exchange_io(callback_targets: CallbackTargets, callback: Any) -> Any:
    function = callback.callback_func
    if isinstance(function, RemoteCallback) or _runs_here(callback_targets, function):
        return callback
    return type(callback)(
        RemoteCallback(callback_targets, function, wants_result=True), callback.in_tree
    )


def _runs_here(callback_targets: CallbackTargets, function: Any) -> bool:
    """Whether a callback runs here."""
    return runs_on_server(function) and not callback_targets.lists(function)


def _exchange_pure(_: CallbackTargets, callback: Any) -> Any:
    if isinstance(callback.callback_func, _LocalCallback):
        return callback
    return type(callback)(_LocalCallback(callback.callback_func), callback.in_tree)


@dataclass(unsafe_hash=True)
class _LocalCallback:
    """Calls a function here; its output belongs to the only call that can have caused it.

    Attributes:
        function: the function.
        guard: of what it captures, which is a copy here; None while it is being traced.

    Raises:
        LostUpdateError: when it changes what it captures.
    """

    function: Any
    guard: MutationGuard | None = field(default=None, compare=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with output_to_sole_caller():
            result = self.function(*args, **kwargs)
        if self.guard is not None:
            self.guard.check()
        return result


def watch_callbacks(jaxpr: Any, captured: MutationGuard, statics: MutationGuard) -> str | None:
    """From now on, what functions under `pure_callback` change here is an error.

    Args:
        jaxpr: of the program, whose trace is over. Parts of it may be of an earlier trace.
        captured: what the function reaches.
        statics: what it was given that jax does not trace.

    Returns:
        What they read that their client may change, in words; and what other functions hold that
        stay here, if it is the client's. None: nothing.
    """
    state = None
    for each in _called_functions(jaxpr, set()):
        if isinstance(each, _LocalCallback):
            if each.guard is None:
                each.guard = MutationGuard.of_callback(each.function, captured.ignored)
            state = state or each.guard.state((captured, statics))
        elif is_made_by_library(each):
            held = MutationGuard.of_callback(each, captured.ignored)
            state = state or held.words_shared_with(captured) or held.words_shared_with(statics)
    return state


def _called_functions(part: Any, seen: set[int]) -> Iterator[Any]:
    """The functions that a jaxpr, and the jaxprs inside of it, call back."""
    if isinstance(part, tuple | list):
        for each in part:
            yield from _called_functions(each, seen)
    elif hasattr(part, "eqns") and id(part) not in seen:  # a closed one has them as well
        seen.add(id(part))
        for equation in part.eqns:
            callback = equation.params.get("callback")
            if equation.primitive is debugging.debug_callback_p:
                function = getattr(callback, "function", None) or _closed_over(callback)["callback"]
            else:
                function = getattr(callback, "callback_func", None)
            if function is not None:
                yield function
            yield from _called_functions(tuple(equation.params.values()), seen)


def _closed_over(callback: Any) -> dict[str, Any]:
    """What jax itself closes over for `jax.debug.callback`."""
    cells = zip(callback.__code__.co_freevars, callback.__closure__, strict=True)
    return {name: cell.cell_contents for name, cell in cells}


def _exchange_debug(callback_targets: CallbackTargets, callback: Any) -> Any:
    """jax closes over function, structure and what is no array among the arguments."""
    if isinstance(callback, _Flat):
        return callback
    held = _closed_over(callback)
    function = held["callback"]
    if _runs_here(callback_targets, function):
        return callback
    remote = RemoteCallback(callback_targets, function, wants_result=False)
    return _Flat(remote, held["in_tree"], held["static_args"])


@dataclass(eq=False)
class _Flat:
    """Calls with the arguments of a tree, given those of its leaves that are arrays."""

    function: RemoteCallback
    structure: Any
    others: dict[int, Any]

    def __call__(self, *arrays: Any) -> tuple[()]:
        rest = iter(arrays)
        count = len(arrays) + len(self.others)
        leaves = [self.others[i] if i in self.others else next(rest) for i in range(count)]
        args, kwargs = jax.tree.unflatten(self.structure, leaves)
        self.function(*args, **kwargs)
        return ()


_EXCHANGES: Final[dict[Any, Callable[[CallbackTargets, Any], Any]]] = {
    jax_callback.io_callback_p: _exchange_io,
    jax_callback.pure_callback_p: _exchange_pure,
    debugging.debug_callback_p: _exchange_debug,
}
