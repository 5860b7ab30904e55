"""`JAXD_INLINE=1`: no server, plain `jax.jit` in this process, for a debugger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from jaxd.results import PRNGKeys, ResultsAs
from jaxd_protocol.calls import Options
from jaxd_protocol.errors import NoServer

__all__ = ["inline_function"]


def inline_function(
    function: Callable[..., Any],
    options: Options,
    config: Mapping[str, Any] | None = None,
    results: ResultsAs = "auto",
) -> Callable[..., Any]:
    """`jax.jit(function)` with the same options, jax settings and form of results.

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
    jitted = jax.jit(function, **options.jit_arguments())
    if not config and results != "numpy":
        return jitted

    def call(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as settings:
            for name, value in (config or {}).items():
                settings.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
            result = jitted(*args, **kwargs)
        return jax.tree.map(_to_numpy, result) if results == "numpy" else result

    return call


def _to_numpy(leaf: Any) -> Any:
    """An array of the caller's own, as a server's results are."""
    import jax
    import numpy

    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return PRNGKeys(str(jax.random.key_impl(leaf)), numpy.array(jax.random.key_data(leaf)))
    return numpy.array(leaf)
