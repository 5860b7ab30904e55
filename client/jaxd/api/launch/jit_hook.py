"""`jax.jit` becomes `persistent_call` from outside, without a changed line in the program.

    JitHook().install()  # before jax is imported; what was jitted before stays plain

`jax.jit` is replaced in the namespace of jax, and what stands there asks which module calls it:
for the program's own code and for libraries it makes a persistent function, for jax itself it is
jax's own. The server has no such hook, so that a trace there uses plain `jax.jit`.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from jaxd.api.decorator import CallOptions, bind, check_options
from jaxd.api.function import FunctionBinding, PersistentFunction
from jaxd.api.transforms import hide_frames
from jaxd.dispatch.caller import Caller, CallerLookup, end_held_output
from jaxd.dispatch.local_runs import former_runs, has_several_devices, runs_locally
from jaxd.interop.after_import import AfterImport
from jaxd.interop.jax_registry import array_class
from jaxd.interop.jax_runtime import is_staged, loaded_jax, named_in, replace_in
from jaxd.interop.local_programs import UNKNOWN, JitCalls, calls_here
from jaxd.request.function_snapshot import ELSEWHERE, FunctionRefusal, SnapshotCache
from jaxd_protocol.errors import JaxdError
from jaxd_protocol.fingerprint.function_wrapper import FunctionWrapper
from jaxd_protocol.jit.options import Config
from jaxd_protocol.jit.static_args import infer_static_args
from jaxd_protocol.messages.calls import origin_of
from jaxd_protocol.packages.installed import content_of

if TYPE_CHECKING:
    from jaxd.request.call_request import CallRequest
    from jaxd.tracing.fallback import LocalRun
    from jaxd.tracing.from_store import StoreCalls

_PLAIN_CALLERS: Final = frozenset({"jax", "jaxlib", "jaxd", "jaxd_protocol", "jaxd_server"})
"""Packages whose own use of `jax.jit` is left alone."""

_PLAIN_MODULES: Final = ("flax.nnx.transforms",)
"""Modules that write to objects of this process while jax traces what they jit."""


class _Jit(NamedTuple):
    """A function that jits others.

    Attributes:
        name: of the function in its module.
        static: what is static in the functions that it makes, as for `persistent_call`.
        plain: options that only the original has.
        resolve: gives options without those that mean what is done anyway.
    """

    name: str
    static: str
    plain: frozenset[str]
    resolve: Callable[[dict[str, Any]], dict[str, Any]] = dict


def _without_graph_mode(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `nnx.jit`, with a mode only where it is another one than `persistent_call`'s.

    That is nnx's own default, of which a program may have made another.
    """
    nnx = sys.modules["flax.nnx"]
    for option, mode in (("graph", "set_graph_mode"), ("graph_updates", "set_graph_updates")):
        asked = options.get(option)
        if asked is None and hasattr(nnx, mode):
            asked = getattr(nnx, mode).current_value()
        if asked is not None:
            options = {**options, option: None if asked else False}
    return options


_PLACEMENT: Final = frozenset({"device", "backend", "abstracted_axes"})

_JITS: Final[Mapping[str, tuple[_Jit, ...]]] = MappingProxyType(
    {
        "jax": (_Jit("jit", "jax", _PLACEMENT),),
        "jax.experimental.pjit": (_Jit("pjit", "jax", _PLACEMENT),),
        "flax.nnx": (
            _Jit("jit", "auto", _PLACEMENT | {"graph", "graph_updates"}, _without_graph_mode),
        ),
    }
)
"""By the module in which users find them."""


class JitHook:
    """Replaces `jax.jit` and what is like it, for modules that are imported from now on.

    Args:
        make: makes a persistent function of a function and options, as `persistent_call`.

    Attributes:
        not_served: why functions were given to plain `jax.jit`, and how many for each reason.
    """

    def __init__(self, make: Callable[..., Any] | None = None) -> None:
        self.not_served: Counter[str] = Counter()
        self._make = hooked if make is None else make
        self._finder = AfterImport(_JITS, self._patch)
        self._originals: list[tuple[ModuleType, str, Any]] = []

    def install(self) -> None:
        """Replaces them in what is imported already, and in the rest when it is imported."""
        for name in _JITS:
            if name in sys.modules:
                self._patch(sys.modules[name])
        for module, name, original in list(self._originals):
            self._patch_copies(original, named_in(module, name))
        sys.meta_path.insert(0, self._finder)

    def remove(self) -> None:
        """Gives modules their own functions again; what was made stays persistent."""
        sys.meta_path.remove(self._finder)
        while self._originals:
            replace_in(*self._originals.pop())

    def serves(self, module: str) -> bool:
        """Whether functions that this module jits become persistent."""
        is_plain = module.partition(".")[0] in _PLAIN_CALLERS or module.startswith(_PLAIN_MODULES)
        return not is_plain

    def jitted(
        self, jit: _Jit, original: Callable[..., Any], function: Any, options: dict[str, Any]
    ) -> Any:
        """The function as a persistent one; as the original makes it where that is not possible."""
        resolved = jit.resolve(options)
        given = {name for name, value in resolved.items() if value is not None}
        for name in sorted(given & jit.plain):
            self.not_served[f"the option {name}"] += 1
            return original(function, **options)
        passed = {name: value for name, value in resolved.items() if name not in jit.plain}
        try:
            return self._make(function, static=jit.static, **_without_defaults(passed))
        except Exception as error:  # noqa: BLE001  the original raises what jax raises, or nothing
            made = original(function, **options)
            self.not_served[f"{type(error).__name__}: {error}"] += 1
            return made

    def _patch_copies(self, original: Any, hooked_jit: Any) -> None:
        """Replaces a function where modules have imported it by name already."""
        for name, module in list(sys.modules.items()):
            if name in _JITS or not self.serves(name):
                continue
            for copy in [key for key, value in content_of(name).items() if value is original]:
                self._originals.append((module, copy, original))
                setattr(module, copy, hooked_jit)

    def _patch(self, module: ModuleType) -> None:
        if module.__name__ == "jax":
            self._originals.append((module, "clear_caches", module.clear_caches))
            module.clear_caches = _clear_caches(module.clear_caches)  # type: ignore[attr-defined]
        for jit in _JITS[module.__name__]:
            original = named_in(module, jit.name)
            if original is not None and not isinstance(original, HookedJit):
                self._originals.append((module, jit.name, original))
                replace_in(module, jit.name, HookedJit(original, jit, self))


class HookedFunction(PersistentFunction[..., Any]):
    """A persistent function whose author wrote `jax.jit`, and is shown what that shows.

    Where its calls run in this process, they are dispatched as `jax.jit` does it.
    """

    __slots__ = ("_is_new", "_jit_calls", "_local_runs", "_runs")

    _is_jit = True

    deletes_donated = False
    """Whether donated arrays of this process are deleted as under `jax.jit`, whoever answers."""

    def __init__(self, binding: FunctionBinding) -> None:
        super().__init__(binding)
        self._is_new = True
        self._local_runs = 0
        self._runs = former_runs.of(binding.function)
        statics = infer_static_args(binding.function, binding.options)
        self._jit_calls = binding.snapshots.jit_calls = JitCalls(binding.function, statics)
        binding.snapshots.kinds = _kinds_of(binding.function)
        _hooked.add(binding.snapshots)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As `jax.jit`, and as any persistent function."""
        try:
            if not (plain.is_wanted or is_watched()):
                result = self._jit_calls.call(*args, **kwargs)
                if result is not UNKNOWN:
                    calls_here.count += 1
                    return result
                if self._runs is not None:
                    self._runs.calls += 1
                if self._is_new:
                    self._is_new = not self._prepare()
            may_donate = self.deletes_donated and self._binding.options.donates
            if may_donate and loaded_jax().config.jax_debug_infs:  # no program comes here then
                return self._inlined()(*args, **kwargs)
            before = calls_here.count, self._local_runs
            result = super().__call__(*args, **kwargs)
            if may_donate and before == (calls_here.count, self._local_runs):
                return self._after_donation(result, args, kwargs)
            return result
        except BaseException as error:
            hide_frames(error)
            raise

    def _after_donation(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that a server has answered, and jax has the arrays that it donates.

        Which of them are used up, a program alone knows, and uses those of its own process. So the
        server's program comes here, also for later calls, and makes the result once more.
        """
        leaves = loaded_jax().tree.leaves(self._donated(args, kwargs))
        arrays: list[Any] = [each for each in leaves if type(each) is array_class()]
        caller = self._binding.find_caller()
        if caller is None or is_staged() or not arrays or any(x.is_deleted() for x in arrays):
            return result
        from jaxd.dispatch import warm  # few functions donate

        with suppress(Exception):  # there is a result already
            if caller.takes_programs():
                warm.warm(caller, self._binding.encode_specs(caller, args, kwargs))
        here = self._binding.run_here(caller, self._binding.config(), args, kwargs)
        return result if here is ELSEWHERE else here

    def _donated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments that a call donates: they are named as static ones are."""
        options = self._binding.options
        asked = options._replace(
            static_argnums=options.donate_argnums, static_argnames=options.donate_argnames
        )
        found = infer_static_args(self._binding.function, asked)
        named = [value for name, value in kwargs.items() if name in found.names]
        numbers = [number for number in found.positions if 0 <= number < len(args)]
        return [*map(args.__getitem__, numbers), *named]

    def _prepare(self) -> bool:
        """Has calls run here at once, where no server could answer them in a run before.

        And those of a function that reads while it is traced what each process has another one of:
        a clock, a random state. From a server all would get the value of the first process. And
        those that compute on several devices: what they return lies on these, which are of a
        process.

        Returns:
            Whether that is settled; else the next call is to ask again.
        """
        caller = self._binding.find_caller()
        if caller is None:
            return False
        if not runs_locally(caller.session, self._binding.settings.fallback):
            return caller.session.connected  # else the server could not be asked
        self._binding.snapshots.refuses_unrepeatable = True
        self._binding.snapshots.on_one_device = has_several_devices(caller.session.platform)
        server = caller.session.settings.server
        reason = None if self._runs is None else former_runs.refusal(self._runs, server)
        if reason is not None:
            self._binding.snapshots.refusal = FunctionRefusal(reason)
        return True

    def _local_run(
        self,
        caller: Caller,
        error: BaseException,
        call: CallRequest | None,
        *,
        is_plain: bool = False,
    ) -> LocalRun | None:
        """As of any persistent function, and noted for the next run."""
        found = super()._local_run(caller, error, call, is_plain=is_plain)
        if call is not None and (found is not None or _may_be_untraced(error)):
            self._snapshots.forget(call.kind)
        end_held_output(error, runs_here=found is not None)
        self._local_runs += found is not None
        if found is not None and self._runs is not None:
            self._runs.here += 1
            self._runs.reason = self._runs.reason or found.reason
        return found

    def _traced(
        self,
        caller: Caller,
        config: Config,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        instead: Callable[[], Any] | None = None,
    ) -> Any:
        """In the body of a loop it is a part of the loop's program, where that is compiled here.

        So is what calls Python, as to print: once, and under the rules of jax.
        """
        if self._runs is not None:
            self._runs.traced += 1
        if caller.takes_programs():
            instead = functools.partial(self._call_inline, *args, **kwargs)
            if is_staged():
                return instead()
        return super()._traced(caller, config, args, kwargs, instead)

    def clear(self) -> int:
        """As of any persistent function, and what this process has."""
        self._jit_calls.clear()
        dropped = super().clear()
        self._binding.snapshots.clear()
        return dropped

    def _cache_size(self) -> int:
        """For how many kinds of calls `jax.jit` would have traced it."""
        local = 0 if self._fallback is None else self._fallback.cache_size()
        return local + len(self._snapshots.kinds or ())

    def _store_calls(self) -> tuple[StoreCalls, Config] | None:
        """As of any persistent function; but what a tool looks at runs where it can see it."""
        return None if plain.is_wanted or is_watched() else super()._store_calls()

    def __repr__(self) -> str:
        try:
            return f"<PjitFunction of {self.__wrapped__!r}>"
        except Exception:  # noqa: BLE001  of an object of the user's, whose repr may do anything
            return "<PjitFunction>"

    def _remade(self, function: Callable[..., Any]) -> PersistentFunction[..., Any]:
        return HookedFunction(
            self._binding.with_function(function, self._binding.options, function)
        )


def _may_be_untraced(error: BaseException) -> bool:
    """Whether a call has failed that may have had no trace; else its program ran, and raised it."""
    return isinstance(error, JaxdError) or origin_of(error).phase in ("packing", "building")


_hooked: Final[WeakSet[SnapshotCache]] = WeakSet()
"""Of all hooked functions."""

_kinds: Final[WeakKeyDictionary[FunctionType, set[int]]] = WeakKeyDictionary()


def _kinds_of(function: Any) -> set[int]:
    """The kinds of calls that a function has had, however often it was jitted: jax traces it once.

    Others than functions have a set for each `jax.jit`: what is equal among them is theirs to say.
    """
    return _kinds.setdefault(function, set()) if type(function) is FunctionType else set()


def _clear_caches(original: Callable[[], None]) -> Callable[[], None]:
    """`jax.clear_caches`, after which hooked functions count as they are then, too."""

    @functools.wraps(original)
    def clear_caches() -> None:
        original()
        for snapshots in list(_hooked):
            snapshots.clear()

    return clear_caches


def hooked(function: Callable[..., Any], **options: Any) -> HookedFunction:
    """A function with such options of `persistent_call` that runs on a server, if not `watched`.

    Raises:
        ConfigurationError, TypeError, ValueError: as `persistent_call`.
    """
    given: CallOptions = options  # type: ignore[assignment]  # checked in the next line
    check_options(given)
    return HookedFunction(bind(function, given, _HookedLookup))


class Plain:
    """Whether hooked functions are plain ones under `jax.jit` now.

    Attributes:
        is_wanted: whether somebody has said so.
        watched: how many calls were plain because a debugger or a coverage tool looks at them.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self.watched = 0


def _is_watched() -> object:
    return _get_tool(_DEBUGGER) or _get_tool(_COVERAGE) or sys.gettrace()


_DEBUGGER: Final = 0
_COVERAGE: Final = 1
_get_tool: Final[Any] = getattr(getattr(sys, "monitoring", None), "get_tool", None)
"""Gives the tool of a number, from Python 3.12 on."""

# each call asks: a function of Python around it would take a third of what a hooked call costs
is_watched: Callable[[], object] = sys.gettrace if _get_tool is None else _is_watched
"""Something true where a debugger or a coverage tool sees each line of this process."""

plain: Final = Plain()
"""Of this process."""


class _HookedLookup(CallerLookup):
    """As for any persistent function; but what a tool looks at runs where it can see it."""

    __slots__ = ()

    def __call__(self) -> Caller | None:
        found = None if plain.is_wanted else super().__call__()
        if found is not None and is_watched() and _may_run_here(found):
            plain.watched += 1
            return None
        return found


def _may_run_here(caller: Caller) -> bool:
    """Whether calls that a server could answer may run in this process, by the rule of fallback.

    A server of this environment, which need not be started for it, has devices of the same kind.
    """
    settings = caller.session.settings
    if settings.server is None and settings.fallback is None:
        return True
    return runs_locally(caller.session, None)


class HookedJit(FunctionWrapper):
    """What stands in the place of `jax.jit`; in code that travels it is `jax.jit` itself."""

    def __init__(self, original: Callable[..., Any], jit: _Jit, hook: JitHook) -> None:
        functools.update_wrapper(self, original)
        self.__wrapped__ = original
        self._jit = jit
        self._hook = hook

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As `jax.jit`, also as a decorator with options."""
        caller = sys._getframe(1).f_globals.get("__name__")  # noqa: SLF001  what it is for
        if len(args) > 1 or plain.is_wanted or not self._hook.serves(str(caller)):
            return self.__wrapped__(*args, **options)
        if not args:
            return functools.partial(self, **options)
        try:
            return self._hook.jitted(self._jit, self.__wrapped__, args[0], options)
        except Exception as error:
            hide_frames(error)
            raise

    def __reduce__(self) -> Any:
        """On the way to a server it is the original."""
        from jaxd_protocol.jit.nested import nested

        return nested, (self.__wrapped__, None)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)


def _without_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that are as jax has them where nothing is said."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and type(value).__name__ != "UnspecifiedValue"
    }
