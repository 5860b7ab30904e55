"""Inspection of a persistent function without calling it: fingerprint, why, warm, lower."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxd.api.binding import FunctionBinding
    from jaxd.api.stages import Lowered
    from jaxd.api.why import Why
    from jaxd.dispatch.caller import Caller
    from jaxd.dispatch.warm import Warmed
    from jaxd.request.call_request import CallRequest
    from jaxd.request.function_snapshot import FunctionSpec


def fingerprint(binding: FunctionBinding) -> str:
    """The hex name of what the function means, as it is now."""
    return _spec(binding).snapshot.fingerprint.hex()


def why(binding: FunctionBinding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Why:
    """What a call would do, and why; of all calls where arguments are missing."""
    from jaxd.api.why import explain, is_valid_call, running_server

    caller = running_server(binding.find_caller())
    spec = _spec(binding)
    skeleton = None
    if is_valid_call(binding.function, args, kwargs):
        skeleton = caller.encode(spec, args, kwargs, None, "auto").skeleton
        if skeleton in spec.snapshot.pinned:  # else the call will pin it, and not the question
            spec = binding.snapshots.pinned_spec(spec, skeleton, binding.config())
    return explain(caller, spec, binding.function, skeleton)


def warm(binding: FunctionBinding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Warmed:
    """Builds what such a call needs, or loads it."""
    caller = binding.find_caller()
    if caller is None:
        from jaxd.tracing.inline import warm_inline

        return warm_inline(binding.function, binding.options, binding.settings.config, args, kwargs)
    from jaxd.dispatch import warm

    return warm.warm(caller, _specified(binding, caller, args, kwargs))


def lower(binding: FunctionBinding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lowered:
    """The program for such arguments; without a server jax's own."""
    caller = binding.find_caller()
    if caller is None:
        return _inline_stages(binding).lower(*args, **kwargs)  # type: ignore[no-any-return]
    from jaxd.api.stages import Lowered, ask_stage

    call = _specified(binding, caller, args, kwargs)
    return Lowered(call.spec.snapshot.name, functools.partial(ask_stage, caller, call))


def jaxpr(binding: FunctionBinding, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of what jax traces for such arguments."""
    caller = binding.find_caller()
    if caller is None:
        return str(_inline_stages(binding).trace(*args, **kwargs).jaxpr)
    from jaxd.api.stages import ask_stage

    text = ask_stage(caller, _specified(binding, caller, args, kwargs), "jaxpr")["text"]
    return str(text)


def clear(binding: FunctionBinding) -> int:
    """Has the server forget what it built of the function; returns how many programs."""
    from jaxd.dispatch.warm import drop_programs

    return drop_programs(binding.find_caller(), _spec(binding))


def _spec(binding: FunctionBinding) -> FunctionSpec:
    """The function as it is now; for who does not call it."""
    spec = binding.snapshots.spec(binding.config())
    spec.snapshot.is_fresh = False
    return spec


def _specified(
    binding: FunctionBinding, caller: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallRequest:
    """A call with such arguments, or with specs of them, that brings no data."""
    from jaxd.dispatch.warm import encode_warm_request

    config = binding.config()
    spec = binding.snapshots.spec(config)
    call = encode_warm_request(caller, spec, args, kwargs, binding.settings.strict)
    return binding.with_pinned_spec(caller, call, config)


def _inline_stages(binding: FunctionBinding) -> Any:
    from jaxd.tracing.inline import InlineStages

    return InlineStages(binding.function, binding.options, binding.settings.config)
