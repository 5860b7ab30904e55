"""The stages of a persistent function's compilation, with and without jax in this process."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jaxd.dispatch.compiled_call import LoweredCall
from jaxd.dispatch.warm import known_keys
from jaxd.interop.jax_runtime import import_jax, loaded_jax
from jaxd_protocol.errors import NoServer

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller, CallerLookup
    from jaxd.request.call_request import CallRequest, CallSettings
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.tracing.fallback import LocalRun
    from jaxd.tracing.inline import InlineFunction
    from jaxd.tracing.jax_stages import StagedFunction
    from jaxd_protocol.jit.options import Options

T = TypeVar("T")
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class Binding(Protocol):
    """A function and how it is called: a `FunctionBinding`."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function."""

    @property
    def options(self) -> Options:
        """How it is compiled."""

    @property
    def find_caller(self) -> CallerLookup:
        """Gives what calls its server."""

    @property
    def settings(self) -> CallSettings:
        """How its calls are made."""

    def encode_specs(self, caller: Caller, args: Args, kwargs: Kwargs) -> CallRequest:
        """A call with specs of arguments, without data."""

    def inspected_spec(self) -> FunctionSpec:
        """The function as it is now, for a question about it and not for a call."""


class Staging:
    """The stages of one function.

    Args:
        binding: the function.
        inline: gives what runs it where there is no server.
        local_run: gives the run in this process that follows an error, or None.
        bound: how many of its first arguments are bound: 1 for a method, whose instance is no
            argument to jax.
    """

    def __init__(
        self,
        binding: Binding,
        inline: Callable[[], InlineFunction],
        local_run: Callable[[Caller, BaseException, CallRequest | None], LocalRun | None],
        bound: int,
    ) -> None:
        self._binding, self._inline, self._bound = binding, inline, bound
        self._local_run = local_run

    def lower(self, args: Args, kwargs: Kwargs) -> Any:
        """See `PersistentFunction.lower`."""

        def there(caller: Caller) -> Any:
            if loaded_jax() is not None:
                return self._trace(caller, args, kwargs).lower()
            from jaxd.api.stages import Lowered

            return Lowered(self._lowered_call(caller, args, kwargs))

        return self._ask(args, kwargs, there, lambda here, a, k: here.lower(*a, **k))

    def trace(self, args: Args, kwargs: Kwargs) -> Any:
        """See `PersistentFunction.trace`."""
        return self._ask(
            args,
            kwargs,
            lambda caller: self._trace(caller, args, kwargs),
            lambda here, a, k: here.trace(*a, **k),
        )

    def eval_shape(self, args: Args, kwargs: Kwargs) -> Any:
        """See `PersistentFunction.eval_shape`."""

        def there(caller: Caller) -> Any:
            if loaded_jax() is not None:
                function, given, named = self._staged(caller, args, kwargs)
                return function.local.eval_shape(*given, **named)
            from jaxd.api.stages import Lowered

            return Lowered(self._lowered_call(caller, args, kwargs)).out_info

        return self._ask(args, kwargs, there, lambda here, a, k: here.eval_shape(*a, **k))

    def jaxpr(self, args: Args, kwargs: Kwargs) -> str:
        """See `PersistentFunction.jaxpr`."""
        return self._ask(
            args,
            kwargs,
            lambda caller: str(self._lowered_call(caller, args, kwargs).ask("jaxpr")["text"]),
            lambda here, a, k: str(here.trace(*a, **k).jaxpr),
        )

    def _ask(
        self,
        args: Args,
        kwargs: Kwargs,
        there: Callable[[Caller], T],
        here: Callable[[InlineFunction, Args, Kwargs], T],
    ) -> T:
        """What the server answers, or where there is none or it cannot, jax of this process."""
        caller = self._binding.find_caller()
        if caller is None:
            return here(self._inline(), args, kwargs)
        try:
            return there(caller)
        except Exception as error:
            local = self._local_run(caller, error, None)
            if local is None:
                raise
        return local.ask(args, kwargs, here)

    def program_count(self) -> int:
        """How many programs of the function there are, for whatever arguments."""
        caller = self._binding.find_caller()
        if caller is None:
            return self._inline().cache_size()
        keys = {key.hex() for key in known_keys(self._binding.inspected_spec())}
        rows = caller.session.ask("functions")["functions"]
        return sum(row["key"] in keys for row in rows)

    def _trace(self, caller: Caller, args: Args, kwargs: Kwargs) -> Any:
        function, args, kwargs = self._staged(caller, args, kwargs)
        from jaxd.tracing.jax_stages import ServerTraced

        return ServerTraced(function.local.trace(*args, **kwargs), function)

    def _lowered_call(self, caller: Caller, args: Args, kwargs: Kwargs) -> LoweredCall:
        call = self._binding.encode_specs(caller, args, kwargs)
        return LoweredCall(caller, call, self._binding.settings, args, kwargs, self._bound)

    def _staged(
        self, caller: Caller, args: Args, kwargs: Kwargs
    ) -> tuple[StagedFunction, Args, Kwargs]:
        """The function for the stages of jax, and its arguments as these take them."""
        import_jax(
            NoServer,
            "the stages of jax are traced in this process, which has no jax. Run: pip install "
            "'jaxd[server]', or use f.jaxpr(…), f.lower(…) and f.eval_shape(…), which need none.",
        )
        from jaxd.tracing.inline import InlineFunction
        from jaxd.tracing.jax_stages import StagedFunction, with_jax_specs

        binding = self._binding
        call = self._lowered_call(caller, args, kwargs)
        function, options = binding.function, binding.options._replace(device=None)
        for instance in args[: self._bound]:
            function = MethodType(function, instance)
            options = options._replace(
                static_argnums=_of_method(options.static_argnums),
                donate_argnums=_of_method(options.donate_argnums),
            )
        config, version = binding.settings.config, call.call.spec.key
        local = InlineFunction(function, options, config, version=version)

        def platform() -> str:
            caller.requires_export()  # which connects
            return caller.session.platform

        staged = StagedFunction(local, call, platform, self._local_run)
        return staged, *with_jax_specs(args[self._bound :], kwargs, local.statics)


def _of_method(numbers: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Positions of arguments, when the first argument is the instance of a method."""
    return None if numbers is None else tuple(n - (n > 0) for n in numbers if n != 0)
