"""The methods of a persistent function, where flax nnx objects are passed.

Loaded with `jaxd` itself, so nothing heavy is imported before flax.nnx is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jaxd.nnx_calls import NnxCall, NnxCalls
    from jaxd.persistent_function import PersistentFunction

__all__ = ["with_nnx_objects"]

C = TypeVar("C", bound=type)
Method = Callable[..., Any]


def with_nnx_objects(cls: C) -> C:
    """Makes the methods of a persistent function bring the caller's nnx objects up to date.

    Those that ask about a call, or prepare one, are about the one that would be made. A call that
    is submitted ends at a time of its own, so one that changes something is an error.
    """
    for name in ("__call__", "remote"):
        setattr(cls, name, _updating(getattr(cls, name)))
    for name in ("why", "warm"):
        setattr(cls, name, _asking(getattr(cls, name)))
    methods: Any = cls
    methods.call_async = _awaiting(methods.call_async)
    methods.submit = _submitting(methods.submit)
    methods.clear = _clearing(methods.clear)
    return cls


def _updating(method: Method) -> Method:
    @functools.wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if "flax.nnx" in sys.modules:
            nnx = _nnx_call(self, args, kwargs)
            if nnx is not None:
                return nnx.finish(method(nnx.function, *nnx.sent_args, **nnx.sent_kwargs))
        return method(self, *args, **kwargs)

    return call


def _awaiting(method: Method) -> Method:
    @functools.wraps(method)
    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        nnx = _nnx_call(self, args, kwargs)
        if nnx is None:
            return await method(self, *args, **kwargs)
        return nnx.finish(await method(nnx.function, *nnx.sent_args, **nnx.sent_kwargs))

    return call


def _asking(method: Method) -> Method:
    @functools.wraps(method)
    def ask(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        nnx = _nnx_call(self, args, kwargs)
        if nnx is None:
            return method(self, *args, **kwargs)
        return method(nnx.function, *nnx.sent_args, **nnx.sent_kwargs)

    return ask


def _submitting(method: Method) -> Method:
    @functools.wraps(method)
    def submit(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        nnx = _nnx_call(self, args, kwargs, refuses=True)
        if nnx is None:
            return method(self, *args, **kwargs)
        return method(nnx.function, *nnx.sent_args, **nnx.sent_kwargs)

    return submit


def _clearing(method: Method) -> Method:
    @functools.wraps(method)
    def clear(self: Any) -> Any:
        calls: NnxCalls | None = self.nnx_calls
        return method(self) + (0 if calls is None else calls.clear())

    return clear


def _nnx_call(
    function: PersistentFunction[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    refuses: bool = False,
) -> NnxCall | None:
    """A call with nnx objects; None when there are none, or when they are seen to already."""
    if "flax.nnx" not in sys.modules:
        return None
    from jaxd.nnx_calls import NnxCalls, holds_nnx_objects
    from jaxd_protocol.jax_objects.nnx_updates import Updating

    if isinstance(function.__wrapped__, Updating) or function.is_derived:
        return None  # whoever derives a function derives one that returns what it changes
    if not holds_nnx_objects(args, kwargs):
        return None
    if function.nnx_calls is None:
        made = NnxCalls(function.__wrapped__, function.remade, gives_up=function.donates)
        function.nnx_calls = made  # of two threads, one makes it in vain
    return function.nnx_calls.prepared(args, kwargs, refuses=refuses)
