"""`PersistentFunction`: a function whose calls run on a server."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NamedTuple,
    ParamSpec,
    SupportsIndex,
    TypeVar,
    overload,
)

from jaxd.api.method import PersistentMethod, check_class_known
from jaxd.api.transforms import TransformMethods, frames_hidden, hide_frames
from jaxd.dispatch.caller import Caller, CallerLookup
from jaxd.interop.jax_runtime import current_config, is_checked
from jaxd.request.call_request import CallRequest, CallSettings
from jaxd.request.function_snapshot import ELSEWHERE, SnapshotCache
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import PackingError, TracerError
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.jit.options import Config, Options, overridden
from jaxd_protocol.messages.calls import FailureOrigin, set_origin

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.api.recording import CallProfile
    from jaxd.api.stages import Staging
    from jaxd.api.submission import StartedCall
    from jaxd.api.why import Why
    from jaxd.dispatch.warm import Warmed
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.request.nnx import NnxCall, NnxCalls
    from jaxd.tracing.fallback import Fallback, LocalRun
    from jaxd.tracing.from_store import StoreCalls
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

    def config(self) -> Config:
        """The configuration of this moment and thread, with the settings of the function.

        Raises:
            PackingError: when jax has a setting or a context here that cannot travel.
        """
        own = self.settings.config
        try:
            config = current_config()
        except PackingError as error:
            set_origin(error, FailureOrigin("packing"))
            raise
        return overridden(config, own) if own else config

    def run_here(
        self,
        caller: Caller | StoreCalls,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """The result, where this process has the program of such calls; else `ELSEWHERE`.

        Raises:
            Exception: what jax raises.
        """
        _, results, timeout_s, _, _ = self.settings
        if timeout_s is not None or results not in ("auto", "jax") or is_checked():
            return ELSEWHERE
        if self.settings.config and config != current_config():
            return ELSEWHERE  # a program runs under the settings of its thread
        return caller.run(self.snapshots, config, args, kwargs)

    def encode(
        self,
        caller: Caller,
        config: Config,
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
        if self.snapshots.refusal is not None:
            self.snapshots.refusal.check()
            self.snapshots.refusal = None
        spec = None
        try:
            spec = self.snapshots.spec(config)
            _, form, timeout_s, strict, fallback = self.settings
            if caller.session.accepts != "code" and caller.requires_export(timeout_s):
                # imports jax, and few servers ask for it
                from jaxd.tracing.export import exported_call

                given = self.settings.config, args, kwargs
                made = exported_call(caller, spec, self.function, *given)
                return caller.encode(*made, {}, timeout_s, results or form, strict, fallback)
            form = results or form
            call = caller.encode(spec, args, kwargs, timeout_s, form, strict, fallback)
            if spec.snapshot.is_pinned:
                call = self.with_pinned_spec(caller, call, config)
        except Exception as error:
            set_origin(error, FailureOrigin("walking" if spec is None else "packing"))
            raise
        if call.spec.snapshot.refused:
            call.check_not_refused()
        first, one = self.snapshots.is_first(call.kind), self.snapshots.on_one_device
        return call._replace(is_first=first, on_one_device=one) if first or one else call

    def encode_untraced(
        self, caller: Caller, config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRequest | None:
        """As `encode`; None where jax traces the calling code: the call is to be in its program."""
        if is_checked():
            return None
        try:
            return self.encode(caller, config, args, kwargs)
        except TracerError:
            return None

    def encode_specs(
        self, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallRequest:
        """A call with such arguments, or with specs of them, without data."""
        from jaxd.dispatch.warm import encode_warm_request

        config = self.config()
        spec = None
        try:
            spec = self.snapshots.spec(config)
            made = encode_warm_request(caller, spec, args, kwargs, self.settings.strict)
            call = self.with_pinned_spec(caller, made, config)
        except Exception as error:
            set_origin(error, FailureOrigin("walking" if spec is None else "packing"))
            raise
        call.check_not_refused()
        return call

    def inspected_spec(self) -> FunctionSpec:
        """The function as it is now, for a question about it and not for a call."""
        spec = self.snapshots.spec(self.config())
        spec.snapshot.is_fresh = False
        return spec

    def with_pinned_spec(self, caller: Caller, call: CallRequest, config: Config) -> CallRequest:
        """The call, of the function as calls with such arguments mean it."""
        settled = self.snapshots.pinned_spec(call.spec, call.skeleton, config)
        if settled is call.spec:
            return call
        caller.register(settled)
        return call._replace(spec=settled)


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

_MAX_DERIVED: Final = 64


class PersistentFunction(
    TransformMethods[
        "PersistentFunction[P, Any]",
        "PersistentFunction[P, tuple[R, Any]]",
        "PersistentFunction[P, R]",
    ],
    FunctionWrapper,
    Generic[P, R],
):
    """A function that runs on a server which keeps it compiled. Made by `persistent_call`.

    Thread-safe. Inside of another persistent function it is the function under `jax.jit`.
    """

    _is_jit = False
    """Whether its author wrote `jax.jit`; see `jaxd.tracing.fallback.Fallback`."""

    # jax.grad(f) and functools.wraps copy what is in f.__dict__: nothing of ours may be there
    __slots__ = (
        "_binding",
        "_derived",
        "_fallback",
        "_inline",
        "_jit_options",
        "_nnx",
        "_snapshots",
    )

    def __init__(self, binding: FunctionBinding) -> None:
        functools.update_wrapper(self, binding.function)
        self.__wrapped__ = binding.function
        self._jit_options = binding.options.of_jit()
        self._binding = binding
        self._snapshots = binding.snapshots
        self._derived: dict[tuple[bytes, str | None], PersistentFunction[..., Any]] = {}
        self._nnx: NnxCalls[PersistentFunction[..., Any]] | None = None
        self._inline: InlineFunction | None = None
        self._fallback: Fallback | None = None

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> PersistentFunction[P, R]: ...
    @overload
    def __get__(
        self: PersistentFunction[Concatenate[Any, Q], R],
        instance: object,
        owner: type | None = None,
    ) -> PersistentMethod[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Found on an instance, the instance is the first argument of all that it does."""
        return self if instance is None else PersistentMethod(self, instance)

    def __reduce__(self) -> Any:
        """On the way to a server it is the function itself."""
        from jaxd_protocol.jit.nested import nested  # few functions hold another persistent one

        return nested, (self.__wrapped__, self._jit_options)

    def __repr__(self) -> str:
        try:
            return f"<persistent {self.__wrapped__!r}>"
        except Exception:  # noqa: BLE001  of an object of the user's, whose repr may do anything
            return f"<persistent {object.__repr__(self.__wrapped__)}>"

    # calls -------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the function on the server and returns its result.

        Raises:
            BaseException: what the function raises, with the remote traceback as a note.
            JaxdError: when the call cannot be made; see `jaxd.errors`.
        """
        caller = call = None
        try:
            try:
                known = self._snapshots.known
                if known is not None and (result := known.run(args, kwargs)) is not ELSEWHERE:
                    return result  # type: ignore[no-any-return]
                if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
                    return nnx.finish(nnx.function(*nnx.sent_args, **nnx.sent_kwargs))  # type: ignore[no-any-return]
                binding = self._binding
                caller = binding.find_caller()
                if caller is None:
                    return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
                config = binding.config()
                if caller.runs_here:
                    result = binding.run_here(caller, config, args, kwargs)
                    if result is not ELSEWHERE:
                        return result  # type: ignore[no-any-return]
                call = binding.encode_untraced(caller, config, args, kwargs)
                if call is None:
                    return self._traced(caller, config, args, kwargs)  # type: ignore[no-any-return]
                return caller.call(call)  # type: ignore[no-any-return]
            except Exception as error:
                local = caller and self._local_run(caller, error, call, is_plain=True)
                if not local:
                    raise
            call = None  # it has views of the arguments, see `Fallback.after`
            return local(args, kwargs)  # type: ignore[no-any-return]
        except BaseException as error:
            hide_frames(error)
            raise

    @frames_hidden
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
        return self._attempt(  # type: ignore[no-any-return]
            caller,
            lambda: binding.encode(caller, binding.config(), args, kwargs, results="remote"),
            caller.call,
            lambda local: local(args, kwargs),
        )

    @frames_hidden
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Starts a call and returns its future; arguments may be overwritten then.

        Waits while as many calls are in flight as the server takes from one client.
        """
        return self._start(args, kwargs)  # type: ignore[return-value]

    @frames_hidden
    def _send(self, *args: Any) -> StartedCall:
        """Starts a call, whose result this thread takes later."""
        return self._start(args, {}, ahead=True)

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, ahead: bool = False
    ) -> StartedCall:
        check_class_known(self, args)
        if "flax.nnx" in sys.modules:
            # it ends at a time of its own, so one that changes something is an error
            nnx = self._nnx_call(args, kwargs, refuses=True)
            if nnx is not None:
                return nnx.function.submit(*nnx.sent_args, **nnx.sent_kwargs)
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            from jaxd.tracing.inline import completed_future

            return completed_future(lambda: self._call_inline(*args, **kwargs))
        from jaxd.api.submission import Submission  # imports concurrent.futures

        submission = Submission(binding, self._local_run, caller, binding.config())
        return submission.start(args, kwargs, ahead=ahead)

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

        from jaxd.api.submission import Submission

        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            return self._call_inline(*args, **kwargs)  # type: ignore[no-any-return]
        # Finding a server, packing and sending block: they have no place in the event loop. But
        # jax's settings are those of this thread.
        config = binding.config()
        run = copy_context().run  # context variables count as they are here
        submission = Submission(binding, self._local_run, caller, config, is_awaited=True)
        submit: Callable[[], Any] = functools.partial(submission.start, args, kwargs)
        future = await asyncio.get_running_loop().run_in_executor(None, run, submit)
        return await asyncio.wrap_future(future)

    def map(self, *iterables: Iterable[Any]) -> Iterator[R]:
        """Results for each item (or each tuple of items), in order, with many calls in flight.

        Takes from the iterables only as results are taken, so they may be endless.
        """
        from jaxd.api.submission import results_in_order  # imports concurrent.futures

        return results_in_order(self._send, iterables, self._breadth)

    def _breadth(self) -> int:
        """On how many servers its calls may run at the same time."""
        caller = self._binding.find_caller()
        return 1 if caller is None else caller.breadth

    # questions that make no call ------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """A digest of the function and of all that it reaches now, in hex digits.

        Raises:
            PackingError: when it reaches something that cannot travel.
        """
        return self._binding.inspected_spec().snapshot.fingerprint.hex()

    @frames_hidden
    def why(self, *args: P.args, **kwargs: P.kwargs) -> Why:
        """What this call would do, and why; runs, compiles and counts nothing.

        Without the arguments that the function needs, the answer is about all calls of it.

        Raises:
            NoServer: when there is no server to ask, as with `JAXD_INLINE=1`.
            JaxdError: when such a call could not be made; see `jaxd.errors`.
        """
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            return nnx.function.why(*nnx.sent_args, **nnx.sent_kwargs)
        from jaxd.api.why import Why, is_valid_call, running_server
        from jaxd.dispatch.warm import ask_why
        from jaxd_protocol.messages.function_manifest import parameter_names

        binding = self._binding
        caller = running_server(binding.find_caller())

        skeleton = call = None
        try:
            spec = binding.inspected_spec()
            if is_valid_call(binding.function, args, kwargs):
                call = caller.encode(spec, args, kwargs, None, "auto")
                skeleton = call.skeleton
                if skeleton in spec.snapshot.pinned:  # else the call pins it, and not the question
                    spec = binding.snapshots.pinned_spec(spec, skeleton, binding.config())
                call = call._replace(spec=spec)
                call.check_not_refused()
        except Exception as error:
            set_origin(error, FailureOrigin("packing"))
            local = self._local_run(caller, error, call)
            if local is None:
                raise
            return Why.of_local_run(local)
        parameters = parameter_names(binding.function)
        member = caller.route(spec, () if call is None else call.values)
        report = ask_why(member, spec, parameters, skeleton)
        _, results, timeout_s, _, _ = binding.settings
        asked = call and call._replace(results=results, timeout_s=timeout_s)
        return Why.from_report({**report, "place": caller.placed(asked)})

    @frames_hidden
    def profile(self, *args: P.args, **kwargs: P.kwargs) -> CallProfile:
        """Makes this call once, and says where its time goes, at both ends.

        What stays on the server is waited for. The call is as any other: it may compile, and it
        donates what it donates. Its result is `result` of what is returned. See docs/trace.md.

        Raises:
            BaseException, JaxdError: as a call.
        """
        from jaxd.api import put_get
        from jaxd.api.recording import profiled

        name = str(getattr(self, "__name__", "?"))
        made = functools.partial(self, *args, **kwargs)
        return profiled(made, name, self._binding.find_caller(), put_get.wait)

    @overload
    def warm(
        self, *args: Any, over: Mapping[str, Iterable[int]], **kwargs: Any
    ) -> list[Warmed]: ...
    @overload
    def warm(self, *args: Any, **kwargs: Any) -> Warmed: ...
    @frames_hidden
    def warm(
        self, *args: Any, over: Mapping[str, Iterable[int]] | None = None, **kwargs: Any
    ) -> Warmed | list[Warmed]:
        """Builds what a call with such arguments needs, or loads it; runs nothing.

        Anything with `shape` and `dtype` stands for an array, also inside of trees; numbers and
        static arguments are given as they are.

        With `over`, sizes for the names that stand in shapes, each combination is built, in this
        order; one that is ready is called without waiting for the next. A parameter of the function
        that is called `over` is given by position.

        Raises:
            BaseException: what the function raises while it is traced.
            JaxdError: when it cannot be built; see `jaxd.errors`.
        """
        if over is not None:
            from jaxd.request.array_specs import specs_over

            return [self.warm(*given, **named) for given, named in specs_over(args, kwargs, over)]
        check_class_known(self, args)
        if "flax.nnx" in sys.modules and (nnx := self._nnx_call(args, kwargs)) is not None:
            warmed: Warmed = nnx.function.warm(*nnx.sent_args, **nnx.sent_kwargs)
            return warmed
        binding = self._binding
        caller = binding.find_caller()
        if caller is None:
            own = self._store_calls()
            if own is None:
                return self._inlined().warm(args, kwargs)
            found = own[0].warm(binding.snapshots, own[1], args, kwargs)
            return found or self._fallbacks().run(lambda here: here.warm(args, kwargs), None)
        from jaxd.dispatch import warm

        return self._attempt(
            caller,
            lambda: binding.encode_specs(caller, args, kwargs),
            lambda call: warm.warm(caller, call),
            lambda local: local.warm(args, kwargs),
        )

    def _whole(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        check_class_known(self, args)
        return args

    def clear_cache(self) -> None:
        """As `clear`; with `JAXD_INLINE=1` what jax has in this process."""
        if self._binding.find_caller() is None:
            self._inlined().clear_cache()
            return
        self.clear()
        if self._fallback is not None:
            self._fallback.clear_cache()

    def _cache_size(self) -> int:
        """How many programs of the function there are, for whatever arguments; as jax's."""
        local = 0 if self._fallback is None else self._fallback.cache_size()
        return self._staging().program_count() + local

    def _staging(self, bound: int = 0) -> Staging:
        from jaxd.api.stages import Staging

        return Staging(self._binding, self._inlined, self._local_run, bound)

    def clear(self) -> int:
        """Has the server forget what it built of the function; returns how many programs.

        On disk as well. The next call builds again. Versions of the function that are no more,
        and those under jax settings that it was not called with here, stay.

        Raises:
            NoServer: when there is no server, as with `JAXD_INLINE=1`.
        """
        from jaxd.dispatch.warm import drop_programs

        dropped = drop_programs(self._binding.find_caller(), self._binding.inspected_spec())
        return dropped + (0 if self._nnx is None else self._nnx.clear())

    # functions that are made of it ---------------------------------------------------------------

    def on(
        self, device: SupportsIndex | None = None, *, member: str | None = None
    ) -> PersistentFunction[P, R]:
        """The same function, whose calls run on that device of the server.

        Args:
            device: its index among `jaxd.devices()`, or one of these; None: that on which the
                server runs the calls of this process. A function that names devices itself, as with
                a mesh, runs on those.
            member: the name of the member of a pool on which they run; None: the one that has the
                values of a call, else the first for the function.

        Raises:
            ConfigurationError: when it is no index; from a call, when there is no such device, or
                a member is named and the server is no pool.
            NoServer: from a call, when the pool has no such member, or it takes no calls.
        """
        from jaxd.dispatch.server_reports import device_index
        from jaxd_protocol.jit.transforms import untransformed

        options = self._binding.options._replace(device=device_index(device))
        base = untransformed(self.__wrapped__)
        kin: Any = self._derive(self.__wrapped__, options, base, member=member)
        return kin  # type: ignore[no-any-return]

    def _transformed(
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

    def _value_at(self, primals: tuple[Any, ...], kwargs: Mapping[str, Any], *instance: Any) -> Any:
        """The value at primals, on an instance where one is given; no argument is donated."""
        from jaxd.api.transforms import arguments_at
        from jaxd_protocol.jit.transforms import untransformed

        function, options = self.__wrapped__, self._binding.options
        on_instance = bool(instance)
        args, named = arguments_at(function, options, primals, kwargs, on_instance=on_instance)
        kin: PersistentFunction[..., Any] = self
        if self._binding.options.donates:
            options = options._replace(donate_argnums=None, donate_argnames=None)
            kin = self._derive(function, options, untransformed(function))
        return kin(*instance, *args, **named)

    def _remade(self, function: Callable[..., Any]) -> PersistentFunction[..., Any]:
        """Another function with the options of this one, on its server."""
        binding = self._binding
        return PersistentFunction(binding.with_function(function, binding.options, function))

    @property
    def _is_derived(self) -> bool:
        """Whether it is another function behind transformations."""
        return bool(self._binding.options.transformations)

    def _derive(
        self,
        function: Callable[..., Any],
        options: Options,
        base: Callable[..., Any],
        *,
        member: str | None = None,
    ) -> PersistentFunction[..., Any]:
        """One that is called as this one is, on a member if one is named; always the same one."""
        key = (options.to_bytes(), member)
        found = self._derived.get(key)
        if found is None:
            if len(self._derived) >= _MAX_DERIVED:
                self._derived.clear()
            binding = self._binding.with_function(function, options, base)
            if member is not None:
                from jaxd.pool.caller import MemberLookup  # few processes use a pool

                find_caller = MemberLookup(binding.find_caller, member)
                binding = binding._replace(find_caller=find_caller)
            made: PersistentFunction[..., Any] = PersistentFunction(binding)
            found = self._derived.setdefault(key, made)
        return found

    # other ways to make a call -------------------------------------------------------------------

    def _call_inline(self, *args: Any, **kwargs: Any) -> Any:
        own = self._store_calls()
        if own is None:
            return self._inlined()(*args, **kwargs)
        result = self._binding.run_here(*own, args, kwargs)
        if result is not ELSEWHERE:
            return result
        # the function as it is now, as with programs of the store
        return self._fallbacks().run(lambda here: here(*args, **kwargs), None)

    def _store_calls(self) -> tuple[StoreCalls, Config] | None:
        """What runs its calls with programs of a store, and the configuration of this moment.

        None where there is a server, or no store, or where jax has a setting that no key can have.
        """
        store = self._binding.find_caller.store
        if store is None:
            return None
        from jaxd.tracing.from_store import store_calls

        try:
            return store_calls(store), self._binding.config()
        except PackingError:
            return None

    def _inlined(self) -> InlineFunction:
        """The function as `jax.jit` in this process."""
        if self._inline is None:
            from jaxd.tracing.inline import InlineFunction

            function, options, _, settings, _ = self._binding
            self._inline = InlineFunction(function, options, settings.config, settings.results)
        return self._inline

    def _local_run(
        self,
        caller: Caller,
        error: BaseException,
        call: CallRequest | None,
        *,
        is_plain: bool = False,
    ) -> LocalRun | None:
        """The run in this process that follows a failed call; see `Fallback.after`."""
        return self._fallbacks().after(caller, error, call, is_plain=is_plain)

    def _fallbacks(self) -> Fallback:
        """Its runs under `jax.jit` in this process, each version of it by itself."""
        if self._fallback is None:
            from jaxd.tracing.fallback import Fallback  # few calls fail

            function, options, _, settings, snapshots = self._binding
            is_jit = self._is_jit
            self._fallback = Fallback(function, options, settings, snapshots, is_jit=is_jit)
        return self._fallback

    def _attempt(
        self,
        caller: Caller,
        encode: Callable[[], CallRequest],
        send: Callable[[CallRequest], T],
        here: Callable[[LocalRun], T],
    ) -> T:
        """What is sent and answered, or where the server cannot answer it, made in this process."""
        call = None
        try:
            call = encode()
            return send(call)
        except Exception as error:
            local = self._local_run(caller, error, call)
            if local is None:
                raise
        call = None  # as in a plain call
        return here(local)

    def _traced(
        self,
        caller: Caller,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        instead: Callable[[], Any] | None = None,
    ) -> Any:
        """A call with tracers among its arguments, as part of the program that jax traces."""
        from jaxd.tracing.traced_call import call_traced

        binding = self._binding
        try:
            spec = binding.snapshots.spec(config)
        except Exception as error:
            set_origin(error, FailureOrigin("walking"))
            raise
        return call_traced(
            caller,
            spec,
            binding.settings,
            args,
            kwargs,
            lambda call: binding.with_pinned_spec(caller, call, config),
            instead,
        )

    def _nnx_call(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, refuses: bool = False
    ) -> NnxCall[PersistentFunction[..., Any]] | None:
        """The call that is made where flax nnx objects are passed; None when there are none."""
        if self._is_derived:
            return None  # its changes are part of its result
        if self._binding.options.static == "jax":
            return None  # to `jax.jit` they are trees, and the caller's stay as they are
        if self._nnx is None:
            from jaxd.request.nnx import NnxCalls
            from jaxd_protocol.jit.static_args import infer_static_args

            statics = infer_static_args(self.__wrapped__, self._binding.options)
            # by two threads: once in vain
            self._nnx = NnxCalls(self.__wrapped__, statics, gives_up=self._binding.options.donates)
        return self._nnx.prepared(self._remade, args, kwargs, refuses=refuses)
