"""The function that users see: a call like any other, that runs on a server."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from jaxd.caller import Caller
from jaxd.forking import forget_after_fork
from jaxd.jax_side import current_config
from jaxd.results import ResultsAs
from jaxd_protocol.calls import Options, normal_config
from jaxd_protocol.nested import plain

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.identity import Identity, Spec

__all__ = ["PersistentFunction"]

P = ParamSpec("P")
R = TypeVar("R")

_MAP_WINDOW = 32
"""Calls that `map` has in flight at most."""

_MAP_REFILL = _MAP_WINDOW // 2
"""It sends new ones when so few are left: several at once, because changing between this thread
and the one that reads, call by call, costs more than the calls."""


class PersistentFunction(Generic[P, R]):
    """A function that runs on a server which keeps it compiled. Made by `persistent_call`.

    Thread-safe. Inside of another persistent function it is the plain function.
    """

    def __init__(
        self,
        function: Callable[P, R],
        options: Options,
        find_caller: Callable[[], Caller | None],
        config: Mapping[str, Any],
        results: ResultsAs,
        timeout_s: float | None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._options = options
        self._find_caller = find_caller
        self._config = dict(config)
        self._results: ResultsAs = results
        self._timeout_s = timeout_s
        self._identity: Identity | None = None
        self._specs: dict[Any, Spec] = {}
        self._inline: Callable[..., Any] | None = None
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been packing."""
        self._lock = threading.Lock()  # guards packing

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the server and returns its result.

        Raises:
            BaseException: what the function raises, with the remote traceback as a note.
            JaxdError: when the call cannot be made; see `jaxd.errors`.
        """
        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        spec = self._spec(self._current_config())
        call = caller.encode(spec, args, kwargs, self._timeout_s, self._results)
        return caller.call(call)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Starts a call and returns its future; arguments may be overwritten then.

        Waits while as many calls are in flight as the server takes from one client.
        """
        caller = self._find_caller()
        if caller is None:
            return _finished(lambda: self._call_inline(*args, **kwargs))
        return self._submit(caller, self._current_config(), args, kwargs)

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits a call; the event loop runs on meanwhile.

        Arguments may be overwritten when it has returned.
        """
        import asyncio

        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        # Finding a server, packing and sending block: they have no place in the event loop. But
        # jax's settings are those of this thread.
        config = self._current_config()
        loop = asyncio.get_running_loop()
        future = await loop.run_in_executor(None, self._submit, caller, config, args, kwargs)
        return await asyncio.wrap_future(future)

    def map(self, *iterables: Iterable[Any]) -> Iterator[R]:
        """Results for each item (or each tuple of items), in order, with many calls in flight.

        Takes from the iterables only as results are taken, so they may be endless.
        """
        flying: deque[Future[R]] = deque()
        refilling = _MAP_WINDOW
        try:
            for items in zip(*iterables, strict=False):
                while len(flying) >= _MAP_WINDOW or refilling < len(flying):
                    refilling = _MAP_REFILL
                    yield flying.popleft().result()
                refilling = _MAP_WINDOW
                flying.append(self.submit(*items))  # type: ignore[call-arg]
            while flying:
                yield flying.popleft().result()
        finally:
            for future in flying:
                future.cancel()

    @property
    def fingerprint(self) -> str:
        """The hex name of everything that the function's packed code holds.

        Raises:
            PackingError: when it reaches something that cannot travel.
        """
        return self._spec(self._current_config()).identity.fingerprint.hex()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As for any function: found on an instance, the instance is the first argument."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    def __reduce__(self) -> Any:
        """On the way to a server it is the function itself."""
        return plain, (self.__wrapped__,)

    def _call_inline(self, *args: Any, **kwargs: Any) -> Any:
        if self._inline is None:
            from jaxd.inline import inline_function

            self._inline = inline_function(
                self.__wrapped__, self._options, self._config, self._results
            )
        return self._inline(*args, **kwargs)

    def _submit(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[R]:
        spec = self._spec(config)
        return caller.submit(caller.encode(spec, args, kwargs, self._timeout_s, self._results))

    def _current_config(self) -> Mapping[str, Any]:
        """The configuration of this moment and thread, with what the function says of it."""
        config = current_config()
        return {**config, **self._config} if self._config else config

    def _spec(self, config: Mapping[str, Any]) -> Spec:
        """The function under a configuration."""
        name = tuple(config.values())
        spec = self._specs.get(name)
        return spec if spec is not None else self._make_spec(name, config)

    def _make_spec(self, name: Any, config: Mapping[str, Any]) -> Spec:
        from jaxd.identity import Identity, Spec  # imports cloudpickle

        with self._lock:
            if self._identity is None:
                self._identity = Identity(self.__wrapped__, self._options)
            options = self._options._replace(config=normal_config(config))
            return self._specs.setdefault(name, Spec(self._identity, options))


def _finished(call: Callable[[], R]) -> Future[R]:
    from concurrent.futures import Future

    future: Future[R] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        future.set_exception(error)
    return future
