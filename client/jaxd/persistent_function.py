"""The function that users see: a call like any other, that runs on a server."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, SupportsIndex, TypeVar

from jaxd.caller import Caller
from jaxd.class_methods import LOSES_CLASS, refuse_lost_class
from jaxd.encoded import Encoded
from jaxd.forking import forget_after_fork
from jaxd.identities import Identities
from jaxd.nnx_methods import with_nnx_objects
from jaxd.option_values import Ship
from jaxd.persistent_method import PersistentMethod
from jaxd.results import ResultsAs
from jaxd.transformable import Transformable
from jaxd_protocol.calls import Options
from jaxd_protocol.errors import TracerError
from jaxd_protocol.nested import PlainInside

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.nnx_calls import NnxCalls

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
class PersistentFunction(Transformable[P], PlainInside, Generic[P, R]):
    """A function that runs on a server which keeps it compiled. Made by `persistent_call`.

    Thread-safe. Inside of another persistent function it is the function under `jax.jit`.
    """

    # jax.grad(f) and functools.wraps copy what is in f.__dict__: nothing of ours may be there
    __slots__ = (
        "_derived",
        "_find_caller",
        "_identities",
        "_inline",
        "_manner",
        "_options",
        "jit_options",
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
        callbacks: tuple[Callable[..., Any], ...] = (),
        base: Callable[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.__wrapped__ = function
        self._options = options
        self.jit_options = options.of_jit()
        self._find_caller = find_caller
        self._manner = manner
        self._identities = Identities(base or function, options, ignored, ship, callbacks)
        self._derived = {}
        self.nnx_calls: NnxCalls | None = None
        self._inline: Callable[..., Any] | None = None
        self.after_fork()
        forget_after_fork(self)

    def after_fork(self) -> None:
        """In the child of a fork: a thread of the parent may have been looking at it."""
        self._identities.after_fork()

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Found on an instance, the instance is the first argument of all that it does."""
        return self if instance is None else PersistentMethod(self, instance)

    def __copy__(self) -> PersistentFunction[P, R]:
        """As of any function: itself."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PersistentFunction[P, R]:
        """As of any function: itself."""
        return self

    def __reduce__(self) -> Any:
        """On the way to a server it is the function itself."""
        from jaxd_protocol.jit.nested import nested  # few functions hold another persistent one

        return nested, (self.__wrapped__, self.jit_options)

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
        if LOSES_CLASS:
            refuse_lost_class(self, args)
        caller = self._find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        call = self._encode(caller, self._current_config(), args, kwargs, results="remote")
        return caller.call(call)  # type: ignore[no-any-return]

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Starts a call and returns its future; arguments may be overwritten then.

        Waits while as many calls are in flight as the server takes from one client.
        """
        if LOSES_CLASS:
            refuse_lost_class(self, args)
        caller = self._find_caller()
        if caller is None:
            from jaxd.inline import finished

            return finished(lambda: self._call_inline(*args, **kwargs))
        return self._submit(caller, self._current_config(), args, kwargs)

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits a call; the event loop runs on meanwhile.

        Arguments may be overwritten when it has returned.
        """
        if LOSES_CLASS:
            refuse_lost_class(self, args)
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

    def on(self, device: SupportsIndex | None) -> PersistentFunction[P, R]:
        """The same function, whose calls run on that device of the server.

        Args:
            device: its index among `jaxd.devices()`, or one of these; None: that on which the
                server runs the calls of this process. A function that names devices itself, as with
                a mesh, runs on those.

        Raises:
            ConfigurationError: when it is no index; from a call, when there is no such device.
        """
        from jaxd.remote_devices import device_index
        from jaxd_protocol.transformations import untransformed

        options = self._options._replace(device=device_index(device))
        kin: Any = self._kin(self.__wrapped__, options, untransformed(self.__wrapped__))
        return kin  # type: ignore[no-any-return]

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

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    def _call_inline(self, *args: Any, **kwargs: Any) -> Any:
        if self._inline is None:
            from jaxd.inline import inline_function

            self._inline = inline_function(
                self.__wrapped__, self._options, self._manner.config, self._manner.results
            )
        return self._inline(*args, **kwargs)

    def _submit(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Future[R]:
        return caller.submit(self._encode(caller, config, args, kwargs))

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
        if caller.accepts != "code" and caller.takes_programs_only(timeout_s):
            from jaxd.exporting import exported_call  # imports jax, and few servers ask for it

            made = exported_call(caller, spec, self.__wrapped__, self._manner.config, args, kwargs)
            return caller.encode(*made, {}, timeout_s, results or manner, strict)
        call = caller.encode(spec, args, kwargs, timeout_s, results or manner, strict)
        return self._settled(caller, call, config)
