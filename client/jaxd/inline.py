"""`JAXD_INLINE=1`: no server, plain `jax.jit` in this process, for a debugger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from jaxd.arrays_here import PRNGKeys
from jaxd.results import ResultsAs
from jaxd_protocol.calls import Options
from jaxd_protocol.errors import NoServer

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.warming import Warmed

__all__ = ["finished", "inline_function", "warm_inline"]

R = TypeVar("R")


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
    jitted: Callable[..., Any] = _jitted(function, options)
    if not config and results != "numpy":
        return jitted

    def call(*args: Any, **kwargs: Any) -> Any:
        import jax

        with _settings(config or {}):
            result = jitted(*args, **kwargs)
        return jax.tree.map(_to_numpy, result) if results == "numpy" else result

    return call


def warm_inline(
    function: Callable[..., Any],
    options: Options,
    config: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Warmed:
    """Compiles it in this process, for such arguments or for specs of them; runs nothing.

    Raises:
        NoServer: when this process has no jax to compile it with.
    """
    from jaxd.warming import Warmed

    jitted = _jitted(function, options)
    started = time.perf_counter()
    with _settings(config):
        jitted.lower(*args, **kwargs).compile()  # which jax remembers when the function is called
    return Warmed("compile", time.perf_counter() - started)


def finished(call: Callable[[], R]) -> Future[R]:
    """The future of a call that is made at once."""
    from concurrent.futures import Future

    future: Future[R] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        future.set_exception(error)
    return future


def _jitted(function: Callable[..., Any], options: Options) -> Any:
    try:
        import jax
    except ImportError as error:
        raise NoServer(
            "JAXD_INLINE=1 runs functions in this process, which has no jax. "
            "Run: pip install 'jaxd[server]', or unset JAXD_INLINE."
        ) from error
    return jax.jit(function, **options.jit_arguments())


@contextmanager
def _settings(config: Mapping[str, Any]) -> Iterator[None]:
    import jax

    with ExitStack() as settings:
        for name, value in config.items():
            settings.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
        yield


def _to_numpy(leaf: Any) -> Any:
    """An array of the caller's own, as a server's results are."""
    import jax
    import numpy

    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return PRNGKeys(str(jax.random.key_impl(leaf)), numpy.array(jax.random.key_data(leaf)))
    return numpy.array(leaf)
