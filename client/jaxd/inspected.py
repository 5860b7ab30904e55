"""What can be asked of a persistent function without calling it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

from jaxd.class_methods import LOSES_CLASS, refuse_lost_class
from jaxd.jax_side import current_config

if TYPE_CHECKING:
    from jaxd.caller import Caller
    from jaxd.encoded import Encoded
    from jaxd.identities import Identities
    from jaxd.identity import Spec
    from jaxd.persistent_function import Manner
    from jaxd.stages import Lowered
    from jaxd.warming import Warmed
    from jaxd.why import Why
    from jaxd_protocol.calls import Options

__all__ = ["Inspected"]

P = ParamSpec("P")


class Inspected(Generic[P]):
    """The part of a `PersistentFunction` that looks at it, and builds ahead of calls."""

    __wrapped__: Callable[..., Any]
    _options: Options
    _find_caller: Callable[[], Caller | None]
    _manner: Manner
    _identities: Identities

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
        from jaxd.warming import warm

        caller = self._asked(args)
        if caller is None:
            return self._warm_inline(args, kwargs)
        return warm(caller, self._specified(caller, args, kwargs))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The program for such arguments, to look at, as that of `jax.jit(f).lower(...)`.

        Specs stand for arrays as in `warm`. With `JAXD_INLINE=1` it is jax's own.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        from jaxd.stages import Lowered, ask_stage

        caller = self._asked(args)
        if caller is None:
            return self._inline_stages().lower(*args, **kwargs)  # type: ignore[no-any-return]
        call = self._specified(caller, args, kwargs)
        return Lowered(call.spec.identity.name, functools.partial(ask_stage, caller, call))

    def jaxpr(self, *args: Any, **kwargs: Any) -> str:
        """The text of what jax traces for such arguments, as `jax.make_jaxpr` prints it.

        Raises:
            BaseException, JaxdError: as `warm`.
        """
        from jaxd.stages import ask_stage

        caller = self._asked(args)
        if caller is None:
            return str(self._inline_stages().trace(*args, **kwargs).jaxpr)
        text = ask_stage(caller, self._specified(caller, args, kwargs), "jaxpr")["text"]
        return str(text)

    def clear(self) -> int:
        """Has the server forget what it built of the function; returns how many programs.

        On disk as well. The next call builds anew. Versions of the function that are no more,
        and those under jax settings that it was not called with here, stay.

        Raises:
            NoServer: when there is no server, as with `JAXD_INLINE=1`.
        """
        from jaxd.warming import forget

        return forget(self._find_caller(), self._spec(self._current_config()))

    def _asked(self, args: tuple[Any, ...]) -> Caller | None:
        """Who is to be asked about a call with such arguments; None: jax in this process."""
        if LOSES_CLASS:
            refuse_lost_class(self, args)
        return self._find_caller()

    def _warm_inline(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Warmed:
        from jaxd.inline import warm_inline

        return warm_inline(self.__wrapped__, self._options, self._manner.config, args, kwargs)

    def _inline_stages(self) -> Any:
        from jaxd.inline import InlineStages

        return InlineStages(self.__wrapped__, self._options, self._manner.config)

    def _specified(self, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Encoded:
        """A call with such arguments, or with specs of them, that brings no data."""
        from jaxd.warming import encode_warming

        config = self._current_config()
        spec = self._identities.spec(config)
        call = encode_warming(caller, spec, args, kwargs, self._manner.strict)
        return self._settled(caller, call, config)

    def _spec(self, config: Mapping[str, Any]) -> Spec:
        """The function as it is now, under a configuration; for who does not call it."""
        spec = self._identities.spec(config)
        spec.identity.is_fresh = False
        return spec

    def _current_config(self) -> Mapping[str, Any]:
        """The configuration of this moment and thread, with what the function says of it."""
        config = current_config()
        return {**config, **self._manner.config} if self._manner.config else config

    def _settled(self, caller: Caller, call: Encoded, config: Mapping[str, Any]) -> Encoded:
        """The call, of the function as calls with such arguments mean it."""
        settled = self._identities.settle(call.spec, call.skeleton, config)
        if settled is call.spec:
            return call
        caller.remember(settled)
        return call._replace(spec=settled)
