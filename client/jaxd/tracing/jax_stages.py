"""jax's own stages of a persistent function: traced and lowered here, compiled and run there.

Imported only where jax is. Each object is of jax's own class, which answers all that is asked of
it. Two of its parts are exchanged: what compiles is a server, and what runs is a call of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import jax
import numpy as np

from jaxd.dispatch.compiled_call import LoweredCall, MemoryAnalysis
from jaxd.interop.jax_runtime import PRNGKeys, to_jax, to_jax_keys
from jaxd.interop.lazy_array import ArrayLike
from jaxd.interop.local_programs import compiled_anew
from jaxd.request.array_specs import is_spec
from jaxd.results.exceptions import hide_own_frames
from jaxd.tracing.inline import InlineFunction, lowering_name
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.static_args import NO_STATIC_ARGS, StaticArgs, map_arguments
from jaxd_protocol.jit.static_leaves import unwrapping_arguments, wrap_untraceable

if TYPE_CHECKING:
    from jaxd.dispatch.caller import Caller
    from jaxd.tracing.fallback import LocalRun

T = TypeVar("T")

_MAX_SHOWN: Final = 5


class StagedFunction(NamedTuple):
    """A function, as its stages need it.

    Attributes:
        local: traces it in this process.
        call: compiles and runs it.
        platform: what the server computes on; asked for when it is lowered.
        local_run: gives the run in this process that follows an error, or None.
    """

    local: InlineFunction
    call: LoweredCall
    platform: Callable[[], str]
    local_run: Callable[[Caller, BaseException, None], LocalRun | None]

    @property
    def is_strict(self) -> bool:
        """Whether what jax cannot trace is an error, and not static."""
        return self.call.call.spec.statics.strict

    def run(self, there: Callable[[], T], here: Callable[[], T]) -> T:
        """What the server answers, or where it cannot, what is compiled in this process.

        Raises:
            BaseException, JaxdError: as a call of the function.
        """
        try:
            return there()
        except BaseException as error:
            caller = self.call.caller
            local = self.local_run(caller, error, None) if isinstance(error, Exception) else None
            if local is None:
                hide_own_frames(error)
                raise
        return local.ask((), {}, lambda *_: here())


def with_jax_specs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], statics: StaticArgs
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with jax's own specs in place of all that stands for an array."""
    return map_arguments((args, kwargs), statics, partial(jax.tree.map, _jax_spec))


def _jax_spec(leaf: Any) -> Any:
    """The spec of an array that jax does not know by itself; anything else as it is."""
    if isinstance(leaf, PRNGKeys):
        keys = to_jax_keys(leaf.data, leaf.impl)
        return jax.ShapeDtypeStruct(keys.shape, keys.dtype)
    is_own = isinstance(leaf, ArrayLike)  # its data stays where it is
    if not is_own and isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct):
        return leaf
    if is_own or is_spec(leaf):
        weak = bool(getattr(leaf, "weak_type", False))
        return jax.ShapeDtypeStruct(tuple(leaf.shape), leaf.dtype, weak_type=weak)
    return leaf


class ServerTraced(jax.stages.Traced):
    """A traced function whose program a server compiles and runs."""

    __slots__ = ("_function",)

    def __init__(self, traced: Any, function: StagedFunction) -> None:
        for cls in type(traced).__mro__:
            for name in vars(cls).get("__slots__", ()):
                setattr(self, name, getattr(traced, name))
        self._function = function

    def lower(
        self, *, lowering_platforms: tuple[str, ...] | None = None, **private: Any
    ) -> jax.stages.Lowered:
        """As jax's; by default for what the server computes on.

        Raises:
            BaseException: what jax raises.
            NoServer: when no server says what that is.
        """
        local = self._function.local
        if lowering_platforms is None:
            platform = self._function.platform()
            if platform != jax.default_backend():
                lowering_platforms = (lowering_name(platform),)
        with local.settings():
            lowered: Any = super().lower(lowering_platforms=lowering_platforms, **private)
        own, name = lowered._lowering, "_lowering"  # noqa: SLF001  the one place that compiles
        setattr(lowered, name, _Lowering(own, lowered, self, self._function))
        return lowered  # type: ignore[no-any-return]


class _Lowering:
    """jax's lowering of a program, which a server compiles.

    It says that it is of the class of jax's own, because `jax.export` takes nothing else.
    """

    @property  # type: ignore[misc]  # what `isinstance` asks as well
    def __class__(self) -> type:
        return type(self._own)

    def __init__(
        self, own: Any, lowered: Any, traced: ServerTraced, function: StagedFunction
    ) -> None:
        self._own = own
        self._lowered, self._traced, self._function = lowered, traced, function

    def compile(
        self,
        compiler_options: Mapping[str, Any] | None = None,
        *,
        device_assignment: object = None,
    ) -> Any:
        """Has the server compile it, or jax of this process, where the server cannot."""
        if device_assignment is not None:
            raise ConfigurationError(
                "device_assignment names devices of this process, and a server has its own. Leave "
                "it out, and choose a device with f.on(device=…)."
            )
        options = dict(compiler_options or {})
        here = partial(self._compile_here, options)

        def there() -> _Executable:
            return _Executable(
                self._lowered,
                len(self._own.const_args),
                self._function._replace(call=self._function.call.compiled(options)),
                self._traced.jaxpr.debug_info,
                here,
            )

        return self._function.run(there, here)

    def _compile_here(self, options: Mapping[str, Any]) -> Any:
        with self._function.local.settings(), compiled_anew():
            lowered: Any = jax.stages.Traced.lower(self._traced)
            compiled = lowered.compile(compiler_options=dict(options) or None)
            return compiled._executable  # noqa: SLF001  of jax's own, which tells the rest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Executable:
    """What jax's `Compiled` consists of: here a call of the server.

    What a server does not tell (shardings and layouts as objects of this process's jax, the
    executable itself) is that of a program compiled here, when it is first asked for.
    """

    def __init__(
        self,
        lowered: Any,
        constants: int,
        function: StagedFunction,
        debug_info: Any,
        compile_here: Callable[[], Any],
    ) -> None:
        self._lowered, self._constants, self._function = lowered, constants, function
        self._debug_info, self._compile_here = debug_info, compile_here

    def create_cpp_call(self, params: Any) -> Callable[..., Any]:
        """What a call of jax's `Compiled` does: jax checks the structure of the arguments."""
        strict = self._function.is_strict
        call_of_jax: Any = jax.stages.Compiled.call

        def call(*args: Any, **kwargs: Any) -> Any:
            given = wrap_untraceable((args, kwargs), strict=strict)
            return call_of_jax(params, *given[0], **given[1])[0]

        return call

    def call(self, *leaves: Any) -> Sequence[Any]:
        """Runs the server's program on the leaves of arguments that have its structure.

        Raises:
            TypeError: as jax, when they have other shapes or dtypes.
            BaseException, JaxdError: as a call of the function.
        """
        whole, leaves = leaves, leaves[self._constants :]
        types = jax.tree.leaves(self._lowered.in_avals)
        given = [jax.typeof(_jax_spec(leaf)) for leaf in leaves]
        _check_types(types, given, self._debug_info)
        fitting = map(_fitted, types, given, leaves)
        args, kwargs = jax.tree.unflatten(self._lowered.in_tree, fitting)
        run = unwrapping_arguments(self._run, NO_STATIC_ARGS)
        return self._function.run(
            lambda: jax.tree.leaves(run(*args, **kwargs)), lambda: self._here.call(*whole)
        )

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        return self._function.call.run(args, kwargs, is_checked=True)

    def as_text(self) -> str:
        """The program as the server runs it."""
        return str(self._report["text"])

    def cost_analysis(self) -> Any:
        """What it costs there."""
        return self._report["cost"]

    def memory_analysis(self) -> Any:
        """What it takes of the memory of the server's device."""
        return MemoryAnalysis.of(self._report["memory"])

    @cached_property
    def _report(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._function.call.ask("compiled")
        return found

    @cached_property
    def _here(self) -> Any:
        return self._compile_here()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._here, name)


def _check_types(types: Sequence[Any], given: Sequence[Any], debug_info: Any) -> None:
    """Returns when arguments have the shapes and dtypes that a program was compiled for.

    Raises:
        TypeError: in jax's words, when one has another.
    """
    names = debug_info.safe_arg_names(len(types))
    wrong = [
        f"Argument '{name}' compiled with {one.str_short()} and called with {other.str_short()}"
        for one, other, name in zip(types, given, names, strict=True)
        if (one.shape, one.dtype) != (other.shape, other.dtype)
    ]
    if wrong:
        shown = "\n".join(wrong[:_MAX_SHOWN])
        which = "The" if len(wrong) < _MAX_SHOWN else f"The first {_MAX_SHOWN} of {len(wrong)}"
        raise TypeError(
            "Argument types differ from the types for which this computation was compiled. Perhaps "
            "you are calling the compiled executable with a different enable_x64 mode than when it "
            f"was AOT compiled? {which} mismatches are:\n{shown}"
        )


def _fitted(one: Any, given: Any, leaf: Any) -> Any:
    """The argument with exactly the dtype that the program was compiled for, weak or not."""
    weak = bool(getattr(one, "weak_type", False))
    if weak != bool(getattr(given, "weak_type", False)):
        return (
            to_jax(np.asarray(leaf), weak=True)
            if weak
            else jax.numpy.asarray(leaf, dtype=one.dtype)
        )
    is_wider = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype != one.dtype
    return np.asarray(leaf, one.dtype) if is_wider else leaf
