"""The function that users see: a call like any other, that runs on a server."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

from jaxd.caller import Caller
from jaxd.encoded import Encoded
from jaxd.forking import forget_after_fork
from jaxd.identities import Identities
from jaxd.jax_side import current_config
from jaxd.nnx_methods import with_nnx_objects
from jaxd.option_values import Ship
from jaxd.results import ResultsAs
from jaxd.transformable import Transformable
from jaxd_protocol.calls import Options
from jaxd_protocol.errors import TracerError
from jaxd_protocol.nested import PlainInside

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.identity import Spec
    from jaxd.nnx_calls import NnxCalls
    from jaxd.warming import Warmed
    from jaxd.why import Why

__all__ = ["Manner", "PersistentFunction"]

P = ParamSpec("P")
R = TypeVar("R")

_MAP_WINDOW = 32
"""Calls that `map` has in flight at most."""

_MAP_REFILL = _MAP_WINDOW // 2
"""When so few are left it sends several: to change threads for each costs more than the calls."""


class Manner(NamedTuple):
    """How the calls of a function are made, beside what is part of its key.

    Attributes:
        config: jax settings that win over those of the process.
        results: in which form results are wanted.
        timeout_s: seconds until a caller gives up, or None.
        strict: whether packages that differ on the server are an error.
    """

    config: Mapping[str, Any] = {}
    results: ResultsAs = "auto"
    timeout_s: float | None = None
    strict: bool = False


@with_nnx_objects
class PersistentFunction(Transformable, PlainInside, Generic[P, R]):
    """A function that runs on a server which keeps it compiled. Made by `persistent_call`.

    Thread-safe. Inside of another persistent function it is the plain function.
    """

    # jax.grad(f) and functools.wraps copy what is in f.__dict__: nothing of ours may be there
    __slots__ = (
        "_derived",
        "_find_caller",
        "_identities",
        "_inline",
        "_manner",
        "_options",
        "nnx_calls",
    )

    def __init__(
        self,
        function: Callable[P, R],
        options: Options,
        find_caller: Callable[[], Caller | None],
        manner: Manner,
        ignored: tuple[str, ...] = (),
        ship: Ship = "value",
        base: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._options = options
        self._find_caller = find_caller
        self._manner = manner
        self._identities = Identities(base or function, options, ignored, ship)
        self._derived = {}
        self.nnx_calls: NnxCalls | None = None
        self._inline: Callable[..., Any] | None = None
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been looking at it."""
        self._identities.after_fork()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the server and returns its result.

        Raises:
            BaseException: what the function raises, with the remote traceback as a note.
            JaxdError: when the call cannot be made; see `jaxd.errors`.
        """
        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        config = self._current_config()
        try:
            call = self._encode(caller, config, args, kwargs)
        except TracerError:  # jax traces whoever calls, and the call is to be in its program
            call = None
        if call is None:
            return self._traced(caller, config, args, kwargs)  # type: ignore[no-any-return]
        return caller.call(call)  # type: ignore[no-any-return]

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As a call, with all of the result left on the server, however small.

        Raises:
            BaseException, JaxdError: as a call.
        """
        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        config = self._current_config()
        call = self._encode(caller, config, args, kwargs, results="remote")
        return caller.call(call)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Starts a call and returns its future; arguments may be overwritten then.

        Waits while as many calls are in flight as the server takes from one client.
        """
        caller = self._find_caller()
        if caller is None:
            from jaxd.inline import finished

            return finished(lambda: self._call_inline(*args, **kwargs))
        return self._submit(caller, self._current_config(), args, kwargs)

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits a call; the event loop runs on meanwhile.

        Arguments may be overwritten when it has returned.
        """
        import asyncio
        from contextvars import copy_context

        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        # Finding a server, packing and sending block: they have no place in the event loop. But
        # jax's settings are those of this thread.
        config = self._current_config()
        submit = copy_context().run  # context variables count as they are here
        loop = asyncio.get_running_loop()
        future = await loop.run_in_executor(
            None, submit, self._submit, caller, config, args, kwargs
        )
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
        """The hex name of what the function means, as it is now.

        Raises:
            PackingError: when it reaches something that cannot travel.
        """
        return self._spec(self._current_config()).identity.fingerprint.hex()

    def why(self, *args: P.args, **kwargs: P.kwargs) -> Why:
        """What this call would do, and why; runs, compiles and counts nothing.

        Without the arguments that the function needs, the answer is about all calls of it.

        Raises:
            NoServer: when there is no server to ask, as with `JAXD_INLINE=1`.
            JaxdError: when such a call could not be made; see `jaxd.errors`.
        """
        from jaxd.why import asked_server, explain, is_call

        caller = asked_server(self._find_caller())
        config = self._current_config()
        spec = self._spec(config)
        skeleton = None
        if is_call(self.__wrapped__, args, kwargs):
            skeleton = caller.encode(spec, args, kwargs, None, "auto").skeleton
            if skeleton in spec.identity.pinned:  # else the call will pin it, and not the question
                spec = self._identities.settle(spec, skeleton, config)
        return explain(caller, spec, self.__wrapped__, skeleton)

    def warm(self, *args: Any, **kwargs: Any) -> Warmed:
        """Builds what a call with such arguments needs, or loads it; runs nothing.

        Anything with `shape` and `dtype` stands for an array, also inside of trees; numbers and
        static arguments are given as they are.

        Raises:
            BaseException: what the function raises while it is traced.
            JaxdError: when it cannot be built; see `jaxd.errors`.
        """
        from jaxd.warming import encode_warming, warm

        caller = self._find_caller()
        if caller is None:
            return self._warm_inline(args, kwargs)
        config = self._current_config()
        spec = self._identities.spec(config)
        call = encode_warming(caller, spec, args, kwargs, self._manner.strict)
        return warm(caller, self._settled(caller, call, config))

    def clear(self) -> int:
        """Has the server forget what it built of the function; returns how many programs.

        On disk as well. The next call builds anew. Versions of the function that are no more,
        and those under jax settings that it was not called with here, stay.

        Raises:
            NoServer: when there is no server, as with `JAXD_INLINE=1`.
        """
        from jaxd.warming import forget

        return forget(self._find_caller(), self._spec(self._current_config()))

    def remade(self, function: Callable[..., Any]) -> PersistentFunction[..., Any]:
        """Another function with the options of this one, on its server."""
        how = self._find_caller, self._manner, *self._identities.ways
        return PersistentFunction(function, self._options, *how)

    @property
    def is_derived(self) -> bool:
        """Whether it is another function behind transformations."""
        return bool(self._options.transformations)

    @property
    def donates(self) -> bool:
        """Whether arguments are given up to calls."""
        return bool(self._options.donate_argnums or self._options.donate_argnames)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As for any function: found on an instance, the instance is the first argument."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    def _call_inline(self, *args: Any, **kwargs: Any) -> Any:
        if self._inline is None:
            from jaxd.inline import inline_function

            self._inline = inline_function(
                self.__wrapped__, self._options, self._manner.config, self._manner.results
            )
        return self._inline(*args, **kwargs)

    def _warm_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Warmed:
        from jaxd.inline import warm_inline

        return warm_inline(self.__wrapped__, self._options, self._manner.config, args, kwargs)

    def _submit(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[R]:
        return caller.submit(self._encode(caller, config, args, kwargs))

    def _current_config(self) -> Mapping[str, Any]:
        """The configuration of this moment and thread, with what the function says of it."""
        config = current_config()
        return {**config, **self._manner.config} if self._manner.config else config

    def _spec(self, config: Mapping[str, Any]) -> Spec:
        """The function as it is now, under a configuration; for who does not call it."""
        spec = self._identities.spec(config)
        spec.identity.is_fresh = False
        return spec

    def _encode(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: ResultsAs | None = None,
    ) -> Encoded:
        spec = self._identities.spec(config)
        _, manner, timeout_s, strict = self._manner
        call = caller.encode(spec, args, kwargs, timeout_s, results or manner, strict)
        return self._settled(caller, call, config)

    def _settled(self, caller: Caller, call: Encoded, config: Mapping[str, Any]) -> Encoded:
        """The call, of the function as calls with such arguments mean it."""
        settled = self._identities.settle(call.spec, call.skeleton, config)
        if settled is call.spec:
            return call
        caller.remember(settled)
        return call._replace(spec=settled)
