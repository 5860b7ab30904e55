"""What follows a call that the server cannot answer: a run in this process, or the error.

The table of docs/fallback.md in code. A call runs here, under plain `jax.jit`, when its function or
its arguments cannot travel, when it cannot be built on the server, or when its result cannot be
read; and only when it had no effect so far.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from jaxd.dispatch.local_runs import runs_locally
from jaxd.interop.jax_runtime import PRNGKeys, loaded_jax, map_leaves, to_jax_keys
from jaxd.request.function_snapshot import FunctionRefusal, Refused
from jaxd.tracing.inline import InlineFunction, local_jax_settings
from jaxd_protocol import errors
from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import FallbackWarning, JaxdError, TracerError
from jaxd_protocol.jit.options import Config, Options
from jaxd_protocol.messages.calls import origin_of
from jaxd_protocol.packages.installed import is_local_module, warn_user

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from jaxd.dispatch.caller import Caller
    from jaxd.dispatch.session import Session
    from jaxd.dispatch.warm import Warmed
    from jaxd.request.call_request import CallRequest, CallSettings
    from jaxd.request.function_snapshot import FunctionSnapshot, SnapshotCache

T = TypeVar("T")

_OWN: Final = frozenset({"jaxd", "jaxd_protocol"})
_SUSPENDABLE: Final = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

PHASES: Final = frozenset({"walking", "packing", "building", "reading"})
"""Where a call may fail and run here then: before it has run, or when it has left no trace."""

NEVER: Final[tuple[type[BaseException], ...]] = (
    errors.NoServer,
    errors.AuthenticationFailed,
    errors.NotPermitted,
    errors.VersionMismatch,
    errors.ProtocolError,
    errors.ConnectionLost,
    errors.ServerDraining,
    errors.Quarantined,
    errors.Busy,
    errors.LimitExceeded,
    errors.DeadlineExceeded,
    errors.Cancelled,
    errors.MissingPackage,
    errors.PackageMismatch,
    errors.StaleProgramError,
    errors.PlaceRefused,
    errors.CallbackError,
    errors.ValueDeleted,
    errors.ValuesLost,
    errors.ValuesFull,
    MemoryError,
    Warning,
)
"""Errors that are final: a run here would hide what has to be seen, or cost what nobody expects."""

_ENDS_PROCESS: Final = frozenset({"SystemExit", "KeyboardInterrupt", "GeneratorExit"})
_MAX_REASON: Final = 1000
_MAX_VERSIONS: Final = 8
_MAX_WARNED: Final = 4096
_warned = BoundedDict[Any, None](_MAX_WARNED)


class RanHere:
    """The calls of one function that ran in this process.

    Attributes:
        name: what people call the function.
        reason: why the first of them did.
        calls: how many.
    """

    def __init__(self, name: str, reason: str) -> None:
        self.name = name
        self.reason = reason
        self.calls = 0


ran_here: Final = BoundedDict[Any, RanHere](_MAX_WARNED)
"""By where the function was written, and what it is transformed by."""


def may_follow(error: BaseException, *, is_jit: bool = False) -> bool:
    """Whether a run in this process may follow an error, wherever the server is.

    Args:
        error: what the call has raised.
        is_jit: whether the author wrote `jax.jit`: so too after what the user's own code has raised
            while it was traced, so that the error is as without a server; and where what is to be
            called back would have to be listed, for which `jax.jit` has no option.
    """
    origin = origin_of(error)
    if origin.phase not in PHASES or isinstance(error, NEVER):
        return is_jit and origin.phase == "building" and isinstance(error, errors.CallbackError)
    if isinstance(error, errors.RemoteError):
        return error.type_name not in _ENDS_PROCESS
    if isinstance(error, JaxdError) or origin.phase != "building":
        return True
    return is_jit or not (origin.raised_in and is_local_module(origin.raised_in))


def reason_of(error: BaseException) -> str:
    """Why a call runs in this process, in a few words."""
    return f"{type(error).__name__}: {error}"[:_MAX_REASON]


class Fallback:
    """The local runs of one persistent function. Thread-safe.

    Each version of the function is jitted once, so that jax finds what it has compiled for it.

    Args:
        function: the function.
        options: how it is compiled.
        settings: how it is called.
        snapshots: what it means, as it is now.
        is_jit: whether the author wrote `jax.jit`, whose rules its runs here then follow: jax
            finds what it has traced of the function, in whatever version.

    Attributes:
        name: what people call it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        settings: CallSettings,
        snapshots: SnapshotCache,
        *,
        is_jit: bool = False,
    ) -> None:
        self._function = function
        self._is_jit = is_jit
        self._options = options._replace(device=None)  # which names one of the server's
        self._settings = settings
        self._snapshots = snapshots
        self._versions = BoundedDict[bytes, InlineFunction](_MAX_VERSIONS)
        self._is_counted = False
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__

    def after(
        self,
        caller: Caller,
        error: BaseException,
        call: CallRequest | None = None,
        *,
        is_plain: bool = False,
    ) -> LocalRun | None:
        """The run that follows an error; None: the error is final.

        Args:
            caller: what made the call.
            error: what it raised.
            call: the request; None when it could not be made.
            is_plain: whether it is a plain call, which jax may trace.
        """
        if isinstance(error, Refused):
            return LocalRun(self, caller, error.reason, call and call.without_data())
        if isinstance(error, TracerError) and not is_plain:
            return None
        if not may_follow(error, is_jit=self._is_jit):
            return None
        if not runs_locally(caller.session, self._settings.fallback):
            return None
        reason = reason_of(error)
        # what a trace changes makes another version of the function, or of its static arguments,
        # for each of which a server would trace it; to jax.jit it is the one that it has traced
        is_final = self._is_jit and isinstance(error, errors.LostUpdateError)
        _clear_frames(error)
        phase = origin_of(error).phase
        return LocalRun(self, caller, reason, call and call.without_data(), phase, is_final)

    def run(self, do: Callable[[InlineFunction], T], call: CallRequest | None) -> T:
        """What `do` makes of the function under `jax.jit`, in its present version.

        A trace may change what the function captures, as one that appends to a list does. That is
        no new version: jax would not trace it again either.
        """
        before = self._snapshot(call)
        made = do(self._inlined(before))
        if before is not None:
            with suppress(Exception):
                after = self._snapshots.latest()
                if after.fingerprint != before.fingerprint:
                    self._versions[after.fingerprint] = self._inlined(before)
                    after.refused.update(before.refused)
        return made

    def _snapshot(self, call: CallRequest | None) -> FunctionSnapshot | None:
        """The snapshot of a call; None where the function cannot be walked, or has no versions."""
        if self._is_jit or self._snapshots.refusal is not None:
            return None
        if call is not None:
            return call.spec.snapshot
        with suppress(Exception):
            return self._snapshots.latest()
        return None

    def _inlined(self, snapshot: FunctionSnapshot | None) -> InlineFunction:
        """The function, of that version, under `jax.jit`."""
        version = b"" if snapshot is None else snapshot.fingerprint
        found = self._versions.get(version)
        if found is None:
            _, results, *_ = self._settings
            made = InlineFunction(
                self._function,
                self._options,
                self._settings.config,
                results,
                is_private=not self._is_jit,
            )
            found = self._versions.setdefault(version, made)
        return found

    def remember(
        self, reason: str, call: CallRequest | None, phase: str, *, is_final: bool = False
    ) -> None:
        """Has calls like this one run here at once, as long as the function is what it is.

        Args:
            reason: why.
            call: the request; None when it could not be made.
            phase: where it has failed.
            is_final: whether all calls of the function run here from now on.
        """
        if is_final:
            self._snapshots.refusal = FunctionRefusal(reason)
        elif phase == "walking":
            self._snapshots.refusal = FunctionRefusal(reason, self._snapshots.walk_s)
        elif call is not None:
            call.spec.snapshot.refused[call.kind] = reason

    def forget(self, call: CallRequest | None) -> None:
        """Undoes `remember`, for a call that fails here too."""
        self._snapshots.refusal = None
        if call is not None:
            call.spec.snapshot.refused.pop(call.kind, None)

    def cache_size(self) -> int:
        """How many programs of the function jax has in this process."""
        return sum(each.cache_size() for each in set(self._versions.values()))

    def clear_cache(self) -> None:
        """Has jax forget them."""
        for each in set(self._versions.values()):
            each.clear_cache()

    def count(self, session: Session) -> None:
        """Counts a call that has run here."""
        is_new, self._is_counted = not self._is_counted, True
        session.count_fallback(new_function=is_new)

    def warn(self, reason: str, *, was_fetched: bool) -> None:
        """Notes that the function runs here, and warns of it once."""
        note_local_run(self._function, self._options, self.name, reason, was_fetched=was_fetched)


def note_local_run(
    function: Any, options: Options, name: str, reason: str, *, was_fetched: bool = False
) -> None:
    """Notes that a function runs in this process, and warns of it once.

    Args:
        function: the function.
        options: how it is compiled.
        name: what people call it.
        reason: why the server does not run it.
        was_fetched: whether arrays came from the server for that.
    """
    what = getattr(function, "__code__", None) or name, options.transformations
    ran_here.setdefault(what, RanHere(name, reason)).calls += 1
    if what in _warned:
        return
    _warned[what] = None
    fetched = " The arrays on the server that it takes are fetched, once." * was_fetched
    text = (
        f"{name} runs under plain jax.jit in this process, right but slower, because the "
        f"server cannot run it as it is: {reason}\n{fetched}Change what this says to have it "
        "served; fallback='error' (or JAXD_FALLBACK=error) makes it an error, with its "
        "traceback. See docs/fallback.md."
    )
    warn_user(text, FallbackWarning)


class LocalRun(NamedTuple):
    """One run in this process, in the place of a call.

    Attributes:
        fallback: those of its function.
        caller: what made the call.
        reason: why the server cannot answer it.
        call: the request; None when it could not be made.
        phase: where the call has failed; empty when that was known before.
        is_final: whether all calls of the function run here from now on.
    """

    fallback: Fallback
    caller: Caller
    reason: str
    call: CallRequest | None
    phase: str = ""
    is_final: bool = False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the function.

        Raises:
            BaseException: what it raises under `jax.jit`.
        """
        return self.ask(args, kwargs, lambda here, args, kwargs: here(*args, **kwargs))

    def warm(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Warmed:
        """Compiles it in this process, for such arguments or specs of them."""
        return self.ask(args, kwargs, lambda here, args, kwargs: here.warm(args, kwargs))

    def under(self, config: Config, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """As a call, in another thread than the one whose configuration that is."""
        with local_jax_settings(config):
            return self(args, kwargs)

    def ask(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        do: Callable[[InlineFunction, tuple[Any, ...], dict[str, Any]], T],
    ) -> T:
        """What `do` makes of the function under `jax.jit` and its arguments.

        Raises:
            BaseException: what the function raises under `jax.jit`.
        """
        fallback = self.fallback
        (given, named), was_fetched = fetched((args, dict(kwargs)))
        if self.phase:
            fallback.remember(self.reason, self.call, self.phase, is_final=self.is_final)
        try:
            result = fallback.run(lambda here: do(here, given, named), self.call)
        except BaseException:
            if self.phase:
                fallback.forget(self.call)
            raise
        fallback.count(self.caller.session)
        fallback.warn(self.reason, was_fetched=was_fetched)
        return result


def _clear_frames(error: BaseException) -> None:
    """Lets go of what jaxd's own frames of an error hold, which has been dealt with: its call."""
    trace = error.__traceback__
    while trace is not None:
        frame: FrameType | None = trace.tb_frame
        while frame is not None:  # those of the remote traceback were begun by others
            home = str(frame.f_globals.get("__name__")).partition(".")[0]
            if home in _OWN and not frame.f_code.co_flags & _SUSPENDABLE:
                with suppress(RuntimeError):  # it still runs
                    frame.clear()
            frame = frame.f_back
        trace = trace.tb_next


def fetched(tree: Any) -> tuple[Any, bool]:
    """The tree as jax takes it, its arrays fetched; and whether some were on a server."""
    remote: Any = getattr(sys.modules.get("jaxd.interop.remote_array"), "RemoteArray", ())
    lazy: Any = getattr(sys.modules.get("jaxd.interop.lazy_array"), "ArrayLike", ())
    jax = loaded_jax()
    leaves = jax.tree.leaves(tree)
    ours = [leaf for leaf in leaves if isinstance(leaf, (remote, lazy, PRNGKeys))]
    if not ours:
        return tree, False

    def as_jax(leaf: Any) -> Any:
        if isinstance(leaf, remote):
            leaf = leaf.fetch(copy=False)
        if isinstance(leaf, PRNGKeys):
            return to_jax_keys(leaf.data, leaf.impl)
        return jax.numpy.asarray(leaf) if isinstance(leaf, lazy) else leaf

    return map_leaves(as_jax, tree), any(isinstance(leaf, remote) for leaf in ours)
