"""The stages of a persistent function's compilation, with and without jax in this process.

In a process without jax they are named as those of `jax.stages`, and have what can be had without
jax's objects. The server keeps nothing for these: each is derived again from the key, so they
outlive it.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jaxd.dispatch.compiled_call import Dialect, LoweredCall, MemoryAnalysis
from jaxd.dispatch.warm import known_keys
from jaxd.interop.jax_runtime import import_jax, loaded_jax
from jaxd_protocol.errors import ConfigurationError, NoServer

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller, CallerLookup
    from jaxd.request.call_request import CallRequest, CallSettings
    from jaxd.request.function_snapshot import FunctionSpec
    from jaxd.tracing.fallback import LocalRun
    from jaxd.tracing.inline import InlineFunction
    from jaxd.tracing.jax_stages import StagedFunction
    from jaxd_protocol.jit.options import Options
    from jaxd_protocol.pytree import Leaf

T = TypeVar("T")
Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OutInfo:
    """What an array of a result will be.

    Attributes:
        shape: dimensions.
        dtype: name of the dtype.
        weak_type: whether the dtype gives way to others in promotion.
    """

    shape: tuple[int, ...]
    dtype: str
    weak_type: bool = False

    @classmethod
    def of(cls, leaf: Leaf) -> OutInfo:
        """That of a leaf on the wire; of random keys the name of their generator is the dtype."""
        if leaf.tag == "K":
            return cls(leaf.shape[:-1], f"key<{leaf.impl}>")
        return cls(leaf.shape, leaf.dtype, leaf.weak)


class Lowered:
    """A function that was lowered for arguments of certain shapes, as `jax.stages.Lowered`.

    Made by `f.lower(...)` in a process without jax.
    """

    def __init__(self, call: LoweredCall) -> None:
        self._call = call
        self._found = call.ask("lowered")

    def as_text(self, dialect: Dialect | None = None, *, debug_info: bool = False) -> str:
        """The program before XLA has seen it.

        Args:
            dialect: `"stablehlo"`, which is the default, or `"hlo"`.
            debug_info: whether each operation has its place in the source.

        Raises:
            ConfigurationError: for another dialect.
        """
        if dialect not in (None, "stablehlo", "hlo"):
            raise ConfigurationError(
                f"dialect={dialect!r} is not known. Use 'stablehlo' or 'hlo', or leave it out."
            )
        if dialect in (None, "stablehlo") and not debug_info:
            return str(self._found["text"])
        return str(self._call.ask("lowered", dialect or "stablehlo", debug_info)["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What XLA thinks that it costs, by name, such as `flops`; None where it does not say."""
        return _copy(self._found["cost"])

    @property
    def out_info(self) -> Any:
        """What the function returns, with an `OutInfo` in place of each array."""
        snapshot = self._call.call.spec.snapshot
        with snapshot.pickling_context():
            layout = snapshot.reader.layout(binascii.unhexlify(self._found["result"]))
            return layout.build([OutInfo.of(leaf) for leaf in layout.leaves])

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Has the server compile it.

        Args:
            compiler_options: of XLA, beside those of the function.

        Raises:
            Exception: what jax raises.
        """
        return Compiled(self._call.compiled(compiler_options or {}), self.out_info)

    def __repr__(self) -> str:
        return f"<lowered {self._call.name}>"


class Compiled:
    """What XLA has made of a function, as `jax.stages.Compiled`. Made by `Lowered.compile`.

    Attributes:
        out_info: as that of `Lowered`.
    """

    def __init__(self, call: LoweredCall, out_info: Any) -> None:
        self._call = call
        self._report: Mapping[str, Any] | None = None
        self.out_info = out_info

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it on the server, for arguments without the static ones.

        Raises:
            TypeError: when they have other shapes or dtypes than it was compiled for.
            BaseException, JaxdError: as a call of the function.
        """
        return self._call.run(args, kwargs)

    def as_text(self) -> str:
        """The program as it runs."""
        return str(self._reported["text"])

    def cost_analysis(self) -> dict[str, float] | None:
        """What it costs, by name, such as `flops`; None where the backend does not say."""
        return _copy(self._reported["cost"])

    def memory_analysis(self) -> MemoryAnalysis | None:
        """What it takes of the device's memory; None where the backend does not say."""
        return MemoryAnalysis.of(self._reported["memory"])

    @property
    def _reported(self) -> Mapping[str, Any]:
        if self._report is None:
            self._report = self._call.ask("compiled")
        return self._report

    def __repr__(self) -> str:
        return f"<compiled {self._call.name}>"


def _copy(cost: Mapping[str, float] | None) -> dict[str, float] | None:
    return None if cost is None else dict(cost)


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
