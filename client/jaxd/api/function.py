"""`PersistentFunction`: a function whose calls run on a server."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, ParamSpec, SupportsIndex, TypeVar

from jaxd.api.method import PersistentMethod
from jaxd.api.transforms import TransformMethods
from jaxd.dispatch.caller import Caller, CallerLookup
from jaxd.interop.jax_runtime import current_config
from jaxd.request.call_request import CallRequest, CallSettings
from jaxd.request.function_snapshot import SnapshotCache
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import ArgumentError, TracerError
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.jit.options import Options

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.api.nnx import NnxCall, NnxCalls
    from jaxd.api.stages import Lowered
    from jaxd.api.why import Why
    from jaxd.dispatch.warm import Warmed
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.tracing.inline import InlineFunction


class FunctionBinding(NamedTuple):
    """A function and how it is called.

    Attributes:
        function: the function, which runs in this process where there is no server.
        options: how it is compiled.
        find_caller: gives what calls its server, from the first call on; None: it runs here.
        settings: how its calls are made.
        snapshots: what it means, as it is now.
    """

    function: Callable[..., Any]
    options: Options
    find_caller: CallerLookup
    settings: CallSettings
    snapshots: SnapshotCache

    def with_function(
        self, function: Callable[..., Any], options: Options, base: Callable[..., Any]
    ) -> FunctionBinding:
        """Another function that is called as this one is.

        Args:
            function: the function.
            options: how it is compiled.
            base: what it is made of by the transformations in its options, else itself.
        """
        snapshots = self.snapshots.of(base, options)
        return self._replace(function=function, options=options, snapshots=snapshots)

    def config(self) -> Mapping[str, Any]:
        """The configuration of this moment and thread, with the settings of the function."""
        config = current_config()
        return {**config, **self.settings.config} if self.settings.config else config

    def encode(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        results: ResultsAs | None = None,
    ) -> CallRequest:
        """A call under a configuration, ready to be sent.

        Args:
            caller: what is to make the call.
            config: what `config` returned in the thread that calls.
            args: positional arguments.
            kwargs: keyword arguments.
            results: the form of its result, instead of the one in the settings.

        Raises:
            ArgumentError, TracerError, PackingError: when an argument cannot travel.
        """
        spec = self.snapshots.spec(config)
        _, form, timeout_s, strict = self.settings
        if caller.session.accepts != "code" and caller.requires_export(timeout_s):
            from jaxd.tracing.export import exported_call  # imports jax, and few servers ask for it

            made = exported_call(caller, spec, self.function, self.settings.config, args, kwargs)
            return caller.encode(*made, {}, timeout_s, results or form, strict)
        call = caller.encode(spec, args, kwargs, timeout_s, results or form, strict)
        return (
            call if spec.snapshot.guards.complete else self.with_pinned_spec(caller, call, config)
        )

    def encode_specs(
        self, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRequest:
        """A call with such arguments, or with specs of them, without data."""
        from jaxd.dispatch.warm import encode_warm_request

        config = self.config()
        spec = self.snapshots.spec(config)
        call = encode_warm_request(caller, spec, args, kwargs, self.settings.strict)
        return self.with_pinned_spec(caller, call, config)

    def inspected_spec(self) -> FunctionSpec:
        """The function as it is now, for a question about it and not for a call."""
        spec = self.snapshots.spec(self.config())
        spec.snapshot.is_fresh = False
        return spec

    def with_pinned_spec(
        self, caller: Caller, call: CallRequest, config: Mapping[str, Any]
    ) -> CallRequest:
        """The call, of the function as calls with such arguments mean it."""
        settled = self.snapshots.pinned_spec(call.spec, call.skeleton, config)
        if settled is call.spec:
            return call
        caller.register(settled)
        return call._replace(spec=settled)


P = ParamSpec("P")
R = TypeVar("R")

_MAX_DERIVED: Final = 64

_MAP_WINDOW = 32
"""Calls that `map` has in flight at most."""

_MAP_REFILL = _MAP_WINDOW // 2
"""When so few are left it sends several: to change threads for each costs more than the calls."""


class PersistentFunction(
    TransformMethods["PersistentFunction[..., Any]"], FunctionWrapper, Generic[P, R]
):
    """A function that runs on a server which keeps it compiled. Made by `persistent_call`.

    Thread-safe. Inside of another persistent function it is the function under `jax.jit`.
    """

    # jax.grad(f) and functools.wraps copy what is in f.__dict__: nothing of ours may be there
    __slots__ = ("_binding", "_derived", "_inline", "_nnx", "jit_options")

    def __init__(self, binding: FunctionBinding) -> None:
        functools.update_wrapper(self, binding.function)
        self.__wrapped__ = binding.function
        self.jit_options = binding.options.of_jit()
        self._binding = binding
        self._derived: dict[bytes, PersistentFunction[..., Any]] = {}
        self._nnx: NnxCalls[PersistentFunction[..., Any]] | None = None
        self._inline: InlineFunction | None = None

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

    def __repr__(self) -> str:
        return f"<persistent {self.__wrapped__!r}>"

    # calls -------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the server and returns its result.

        Raises:
            BaseException: what the function raises, with the remote traceback as a note.
            JaxdError: when the call cannot be made; see `jaxd.errors`.
        """
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            return nnx.finish(nnx.function(*nnx.sent_args, **nnx.sent_kwargs))  # type: ignore[no-any-return]
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        config = binding.config()
        try:
            call = binding.encode(caller, config, args, kwargs)
        except TracerError:  # jax traces the calling code, and the call is to be in its program
            call = None
        if call is None:
            return self._traced(caller, config, args, kwargs)  # type: ignore[no-any-return]
        return caller.call(call)  # type: ignore[no-any-return]

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """As a call, with all of the result left on the server, however small.

        Raises:
            BaseException, JaxdError: as a call.
        """
        check_class_known(self, args)
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            return nnx.finish(nnx.function.remote(*nnx.sent_args, **nnx.sent_kwargs))  # type: ignore[no-any-return]
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        return caller.call(  # type: ignore[no-any-return]
            binding.encode(caller, binding.config(), args, kwargs, results="remote")
        )

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Starts a call and returns its future; arguments may be overwritten then.

        Waits while as many calls are in flight as the server takes from one client.
        """
        check_class_known(self, args)
        if "flax.nnx" in sys.modules:
            # it ends at a time of its own, so one that changes something is an error
            nnx = self._nnx_call(args, kwargs, refuses=True)
            if nnx is not None:
                return nnx.function.submit(*nnx.sent_args, **nnx.sent_kwargs)  # type: ignore[no-any-return]
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            from jaxd.tracing.inline import completed_future

            return completed_future(lambda: self._call_inline(*args, **kwargs))
        from jaxd.dispatch import async_call  # imports concurrent.futures

        return async_call.submit(caller, binding.encode(caller, binding.config(), args, kwargs))

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Awaits a call; the event loop runs on meanwhile.

        Arguments may be overwritten when it has returned.
        """
        check_class_known(self, args)
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            reply = await nnx.function.call_async(*nnx.sent_args, **nnx.sent_kwargs)
            return nnx.finish(reply)  # type: ignore[no-any-return]
        import asyncio
        from contextvars import copy_context

        from jaxd.dispatch import async_call

        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        # Finding a server, packing and sending block: they have no place in the event loop. But
        # jax's settings are those of this thread.
        config = binding.config()

        def submit() -> Future[R]:
            return async_call.submit(caller, binding.encode(caller, config, args, kwargs))

        run = copy_context().run  # context variables count as they are here
        future = await asyncio.get_running_loop().run_in_executor(None, run, submit)
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

    # questions that make no call ------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """The hex name of what the function means, as it is now.

        Raises:
            PackingError: when it reaches something that cannot travel.
        """
        return self._binding.inspected_spec().snapshot.fingerprint.hex()

    def why(self, *args: P.args, **kwargs: P.kwargs) -> Why:
        """What this call would do, and why; runs, compiles and counts nothing.

        Without the arguments that the function needs, the answer is about all calls of it.

        Raises:
            NoServer: when there is no server to ask, as with `JAXD_INLINE=1`.
            JaxdError: when such a call could not be made; see `jaxd.errors`.
        """
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            return nnx.function.why(*nnx.sent_args, **nnx.sent_kwargs)  # type: ignore[no-any-return]
        from jaxd.api.why import Why, is_valid_call, running_server
        from jaxd.dispatch.warm import ask_why
        from jaxd_protocol.messages.function_manifest import parameter_names

        binding = self._binding
        caller = running_server(binding.find_caller())
        spec = binding.inspected_spec()
        skeleton = None
        if is_valid_call(binding.function, args, kwargs):
            skeleton = caller.encode(spec, args, kwargs, None, "auto").skeleton
            if skeleton in spec.snapshot.pinned:  # else the call will pin it, and not the question
                spec = binding.snapshots.pinned_spec(spec, skeleton, binding.config())
        parameters = parameter_names(binding.function)
        return Why.from_report(ask_why(caller, spec, parameters, skeleton))

    def warm(self, *args: Any, **kwargs: Any) -> Warmed:
        """Builds what a call with such arguments needs, or loads it; runs nothing.

        Anything with `shape` and `dtype` stands for an array, also inside of trees; numbers and
        static arguments are given as they are.

        Raises:
            BaseException: what the function raises while it is traced.
            JaxdError: when it cannot be built; see `jaxd.errors`.
        """
        check_class_known(self, args)
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            return nnx.function.warm(*nnx.sent_args, **nnx.sent_kwargs)  # type: ignore[no-any-return]
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            return self._inlined().warm(args, kwargs)
        from jaxd.dispatch import warm

        return warm.warm(caller, binding.encode_specs(caller, args, kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for such arguments, to look at, as that of `jax.jit(f).lower(...)`.

        Specs stand for arrays as in `warm`. With `JAXD_INLINE=1` it is jax's own.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        check_class_known(self, args)
        caller = self._binding.find_caller()
        if caller is None:
            return self._inlined().lower(*args, **kwargs)  # type: ignore[no-any-return]
        from jaxd.api.stages import Lowered, ask_stage

        call = self._binding.encode_specs(caller, args, kwargs)
        return Lowered(call.spec.snapshot.name, functools.partial(ask_stage, caller, call))

    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """The text of what jax traces for such arguments, as `jax.make_jaxpr` prints it.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        check_class_known(self, args)
        caller = self._binding.find_caller()
        if caller is None:
            return str(self._inlined().trace(*args, **kwargs).jaxpr)
        from jaxd.api.stages import ask_stage

        call = self._binding.encode_specs(caller, args, kwargs)
        return str(ask_stage(caller, call, "jaxpr")["text"])

    def clear(self) -> int:
        """Has the server forget what it built of the function; returns how many programs.

        On disk as well. The next call builds anew. Versions of the function that are no more,
        and those under jax settings that it was not called with here, stay.

        Raises:
            NoServer: when there is no server, as with `JAXD_INLINE=1`.
        """
        from jaxd.dispatch.warm import drop_programs

        dropped = drop_programs(self._binding.find_caller(), self._binding.inspected_spec())
        return dropped + (0 if self._nnx is None else self._nnx.clear())

    # functions that are made of it ---------------------------------------------------------------

    def on(self, device: SupportsIndex | None) -> PersistentFunction[P, R]:
        """The same function, whose calls run on that device of the server.

        Args:
            device: its index among `jaxd.devices()`, or one of these; None: that on which the
                server runs the calls of this process. A function that names devices itself, as with
                a mesh, runs on those.

        Raises:
            ConfigurationError: when it is no index; from a call, when there is no such device.
        """
        from jaxd.dispatch.devices import device_index
        from jaxd_protocol.jit.transforms import untransformed

        options = self._binding.options._replace(device=device_index(device))
        kin: Any = self._derive(self.__wrapped__, options, untransformed(self.__wrapped__))
        return kin  # type: ignore[no-any-return]

    def transformed(
        self, name: str, *, on_instance: bool = False, **given: Any
    ) -> PersistentFunction[..., Any]:
        """The function behind one more transformation.

        Args:
            name: the transformation.
            on_instance: whether it is that of the method which the function is on an instance;
                the instance is the first argument all the same.
            **given: options of the transformation.
        """
        from jaxd.api.transforms import derive

        if not on_instance:
            check_class_known(self, ())
        options = self._binding.options
        return self._derive(
            *derive(self.__wrapped__, options, name, given, on_instance=on_instance)
        )

    def remade(self, function: Callable[..., Any]) -> PersistentFunction[..., Any]:
        """Another function with the options of this one, on its server."""
        binding = self._binding
        return PersistentFunction(binding.with_function(function, binding.options, function))

    @property
    def is_derived(self) -> bool:
        """Whether it is another function behind transformations."""
        return bool(self._binding.options.transformations)

    @property
    def donates(self) -> bool:
        """Whether arguments are given up to calls."""
        options = self._binding.options
        return bool(options.donate_argnums or options.donate_argnames)

    def _derive(
        self, function: Callable[..., Any], options: Options, base: Callable[..., Any]
    ) -> PersistentFunction[..., Any]:
        """One that is called as this one is; always the same one."""
        key = options.to_bytes()
        found = self._derived.get(key)
        if found is None:
            if len(self._derived) >= _MAX_DERIVED:
                self._derived.clear()
            binding = self._binding.with_function(function, options, base)
            made: PersistentFunction[..., Any] = PersistentFunction(binding)
            found = self._derived.setdefault(key, made)
        return found

    # other ways to make a call -------------------------------------------------------------------

    def _call_inline(self, *args: Any, **kwargs: Any) -> Any:
        return self._inlined()(*args, **kwargs)

    def _inlined(self) -> InlineFunction:
        """The function as `jax.jit` in this process."""
        if self._inline is None:
            from jaxd.tracing.inline import InlineFunction

            function, options, _, settings, _ = self._binding
            self._inline = InlineFunction(function, options, settings.config, settings.results)
        return self._inline

    def _traced(
        self,
        caller: Caller,
        config: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call with tracers among its arguments, as part of the program that jax traces."""
        from jaxd.tracing.traced_call import call_traced

        binding = self._binding
        return call_traced(
            caller,
            binding.snapshots.spec(config),
            binding.settings,
            args,
            kwargs,
            lambda call: binding.with_pinned_spec(caller, call, config),
        )

    def _nnx_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, refuses: bool = False
    ) -> NnxCall[PersistentFunction[..., Any]] | None:
        """The call that is made where flax nnx objects are passed; None when there are none."""
        if self.is_derived:
            return None  # its changes are part of its result
        if self._nnx is None:
            from jaxd.api.nnx import NnxCalls
            from jaxd_protocol.jit.static_args import infer_static_args

            statics = infer_static_args(self.__wrapped__, self._binding.options)
            # by two threads: once in vain
            self._nnx = NnxCalls(self.__wrapped__, statics, gives_up=self.donates)
        return self._nnx.prepared(self.remade, args, kwargs, refuses=refuses)


_CLASS_IS_LOST: Final = sys.version_info >= (3, 13)


def check_class_known(function: Any, args: tuple[Any, ...]) -> None:
    """Returns when a method of a persistent function has its class, if it is a class method.

    Args:
        function: a persistent function.
        args: the arguments of that method.

    Raises:
        ArgumentError: when the class is missing.
    """
    if not _CLASS_IS_LOST:
        return
    if not (args and isinstance(args[0], type)) and _is_class_method(function):
        name = function.__qualname__
        raise ArgumentError(
            f"{name} is a class method, and from Python 3.13 on nothing but a call of it says on "
            "which class it was found. Put what you ask for into a static method that takes what "
            f"it needs, or bind it yourself: vars({name.rpartition('.')[0]})["
            f"{name.rpartition('.')[2]!r}].__func__.__get__(cls)"
        )


def _is_class_method(function: Any) -> bool:
    """Whether its class has it as one; False for classes that are local to a function."""
    *path, name = str(getattr(function, "__qualname__", "?")).split(".")
    found: Any = sys.modules.get(str(getattr(function, "__module__", "?")))
    for part in (*path, name):
        found = getattr(found, "__dict__", {}).get(part)
    return isinstance(found, classmethod) and found.__func__ is function
