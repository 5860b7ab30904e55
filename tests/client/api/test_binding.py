"""A function with what its calls need; how these are encoded, `test_persistent_function` shows."""

from __future__ import annotations

from typing import Any

from jaxd.api.function import FunctionBinding
from jaxd.dispatch.caller import CallerLookup
from jaxd.interop.jax_runtime import current_config
from jaxd.request.call_request import CallSettings
from jaxd.request.function_snapshot import SnapshotCache
from jaxd_protocol.jit.options import Options


def double(x: Any) -> Any:
    """What is bound."""
    return x * 2


def triple(x: Any) -> Any:
    """Another one."""
    return x * 3


def bound(**config: Any) -> FunctionBinding:
    """`double`, with these settings."""
    snapshots = SnapshotCache(double, Options(), ("IGNORED",))
    return FunctionBinding(
        double, Options(), CallerLookup(), CallSettings(tuple(config.items())), snapshots
    )


def test_settings_of_the_function_win_over_those_of_the_process() -> None:
    """The others are the process's, and without any of its own all are."""
    assert bound().config() == current_config()
    assert bound(jax_enable_x64=True).config() == (("jax_enable_x64", True),)


def test_another_function_is_called_in_the_same_way() -> None:
    """With options and a meaning of its own."""
    one = bound(jax_enable_x64=True)
    other = one.with_function(triple, Options(extra_key=1), triple)
    assert (other.function, other.options) == (triple, Options(extra_key=1))
    assert (other.find_caller, other.settings) == (one.find_caller, one.settings)
    key = SnapshotCache(triple, Options(extra_key=1), ("IGNORED",)).spec(one.config()).key
    assert other.snapshots.spec(other.config()).key == key
