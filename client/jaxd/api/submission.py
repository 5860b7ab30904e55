"""Submitted calls, and what runs in this process when the server cannot answer one."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from jaxd.connection.call_future import CallFuture, complete
from jaxd.dispatch import async_call
from jaxd.interop.jax_runtime import map_leaves
from jaxd_protocol.base.process import start_thread
from jaxd_protocol.errors import Busy

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.request.call_request import CallRequest, CallSettings
    from jaxd.tracing.fallback import LocalRun
    from jaxd_protocol.jit.options import Config


_MAP_WINDOW = 32
"""Calls that `map` has in flight at most, on each server."""

_AT_HAND: Final = frozenset({list, tuple, range})
"""Iterables that have their next item at once."""


class Binding(Protocol):
    """The function that is called."""

    @property
    def settings(self) -> CallSettings:
        """How its calls are made."""

    def encode(
        self,
        caller: Caller,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> CallRequest:
        """A call, ready to be sent."""


class StartedCall(Protocol):
    """A call that was started: a future, or what the thread that started it waits for."""

    def result(self) -> Any:
        """Waits for the result; raises the failure of the call."""

    def cancel(self) -> object:
        """Cancels it: nobody waits for the result any more."""


class Submission(NamedTuple):
    """How one call is submitted.

    Attributes:
        binding: the function.
        local_run: the run that follows a failure; None: the failure is final.
        caller: makes the call.
        config: the configuration of the thread that makes it.
        is_awaited: whether that thread waits, so that the arguments stay what they are, while
            another one submits.
    """

    binding: Binding
    local_run: Callable[[Caller, BaseException, CallRequest | None], LocalRun | None]
    caller: Caller
    config: Config
    is_awaited: bool = False

    def start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, ahead: bool = False
    ) -> StartedCall:
        """The call, as a future, or where it is sent `ahead` as what this thread waits for later.

        Raises:
            BaseException, JaxdError: when the call cannot be made, here or there.
        """
        binding, caller, call = self.binding, self.caller, None
        try:
            call = binding.encode(caller, self.config, args, kwargs)
            recovery = self._recovery(call, args, kwargs)
            server = caller.route(call.spec, call.values, evenly=ahead)
            # of several servers each has to have its calls at once
            is_ahead = ahead and recovery is None and caller.breadth == 1
            sent = async_call.SentCall.of(server, call) if is_ahead else None
            if sent is not None:
                return sent
            future = caller.submitted(call, async_call.submit(server, call))
            return future if recovery is None else recovery.recovered(future)
        except Exception as error:
            local = self.local_run(caller, error, call)
            if local is None:
                raise
        call = None  # it has views of the arguments
        from jaxd.tracing.inline import completed_future

        if self.is_awaited:  # in another thread, whose settings are not those of the call
            return completed_future(lambda: local.under(self.config, args, kwargs))
        return completed_future(lambda: local(args, kwargs))

    def _recovery(
        self, call: CallRequest, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Recovery | None:
        """What follows a failure; None where calls like this one were answered before."""
        served, kind = call.spec.snapshot.served, call.kind
        chosen = self.binding.settings.fallback or self.caller.session.settings.fallback
        if kind in served or chosen == "error" or not (chosen or "jax" in sys.modules):
            return None
        held = (args, kwargs) if self.is_awaited else map_leaves(_unchanging, (args, kwargs))
        return Recovery(self, call.without_data(), *held)


class Recovery(NamedTuple):
    """What follows the failure of a submitted call.

    Attributes:
        submission: how it was submitted.
        call: the request, without its data.
        args, kwargs: what it was called with, which nobody overwrites.
    """

    submission: Submission
    call: CallRequest
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def recovered(self, future: Future[Any]) -> Future[Any]:
        """The future of the call, whose result may be made in this process.

        Args:
            future: that of the call on the server.
        """
        outer: CallFuture[Any] = CallFuture(future.cancel)
        add = getattr(future, "add_inline_callback", future.add_done_callback)
        add(lambda done: self._settle(done, outer))
        return outer

    def _settle(self, done: Future[Any], outer: Future[Any]) -> None:
        """In the thread that reads: it must not wait."""
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self.call.spec.snapshot.served[self.call.kind] = None
            complete(outer, done.result)
            return
        submission = self.submission
        local = submission.local_run(submission.caller, error, self.call)
        if local is None or outer.done():
            complete(outer, done.result)
            return
        run = partial(local.under, submission.config, self.args, self.kwargs)
        work = (outer, run)
        try:
            start_thread(
                threading.Thread(target=complete, args=work, name="jaxd-local", daemon=True)
            )
        except Busy as none_left:
            with suppress(InvalidStateError):
                outer.set_exception(none_left)


def _unchanging(leaf: Any) -> Any:
    """The leaf, or a copy of an array that its owner may overwrite."""
    flags = getattr(leaf, "flags", None)
    return leaf.copy() if getattr(flags, "writeable", False) else leaf


def results_in_order(
    start: Callable[..., StartedCall],
    iterables: tuple[Iterable[Any], ...],
    breadth: Callable[[], int],
) -> Iterator[Any]:
    """Results for each item (or each tuple of items), in order, with many calls in flight.

    Args:
        start: starts a call.
        iterables: each has one of its arguments.
        breadth: gives the number of servers that the calls may run on.
    """
    flying: deque[StartedCall] = deque()
    # other iterables may take their time for the next item, or wait for a result
    may_block = not all(type(each) in _AT_HAND for each in iterables)
    try:
        for items in zip(*iterables, strict=False):
            if not len(flying) % _MAP_WINDOW and len(flying) >= _MAP_WINDOW * breadth():
                # several at a time: to change threads for each costs more than the calls
                yield from _results(flying, left=len(flying) // 2)
            call = start(*items)
            flying.append(call)
            if may_block and isinstance(call, async_call.SentCall):
                call.push()
        yield from _results(flying, left=0)
    finally:
        for call in flying:
            call.cancel()


def _results(flying: deque[StartedCall], left: int) -> Iterator[Any]:
    """The results of the first calls, until so many are left."""
    while len(flying) > left:
        yield flying.popleft().result()
