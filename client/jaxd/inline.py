"""`JAXD_INLINE=1`: no server, plain `jax.jit` in this process, for a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxd_protocol.calls import Options
from jaxd_protocol.errors import NoServer

__all__ = ["inline_function"]


def inline_function(function: Callable[..., Any], options: Options) -> Callable[..., Any]:
    """`jax.jit(function)` with the same options.

    Raises:
        NoServer: when this process has no jax to run it with.
    """
    try:
        import jax
    except ImportError as error:
        raise NoServer(
            "JAXD_INLINE=1 runs functions in this process, which has no jax. "
            "Run: pip install 'jaxd[server]', or unset JAXD_INLINE."
        ) from error
    return jax.jit(function, **options.jit_arguments())
