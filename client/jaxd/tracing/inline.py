"""`JAXD_INLINE=1`: no server, plain `jax.jit` in this process, for a debugger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jaxd.dispatch.devices import Device
from jaxd.interop.jax_runtime import PRNGKeys
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import ConfigurationError, NoServer
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args
from jaxd_protocol.jit.static_leaves import unwrapping_arguments, wrap_untraceable_arguments

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.dispatch.warm import Warmed


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
    jitted, statics = _jitted(function, options)
    if not config and results != "numpy" and statics.strict and options.device is None:
        return jitted  # type: ignore[no-any-return]

    def call(*args: Any, **kwargs: Any) -> Any:
        import jax

        with local_jax_settings(config or {}, options.device):
            args, kwargs = wrap_untraceable_arguments(args, kwargs, statics)
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
    from jaxd.dispatch.warm import Warmed

    jitted, statics = _jitted(function, options)
    started = time.perf_counter()
    with local_jax_settings(config, options.device):
        args, kwargs = wrap_untraceable_arguments(args, dict(kwargs), statics)
        jitted.lower(*args, **kwargs).compile()  # which jax remembers when the function is called
    return Warmed("compile", time.perf_counter() - started)


def completed_future(call: Callable[[], R]) -> Future[R]:
    """The future of a call that is made at once."""
    from concurrent.futures import Future

    future: Future[R] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        future.set_exception(error)
    return future


def local_devices() -> tuple[Device, ...]:
    """The devices of this process, which are all its own; 0 where jax says nothing of memory.

    Raises:
        NoServer: when this process has no jax.
    """
    found = []
    for index, device in enumerate(_require_jax().devices()):
        memory = device.memory_stats() or {}
        used, limit = memory.get("bytes_in_use", 0), memory.get("bytes_limit", 0)
        found.append(Device(index, device.platform, device.device_kind, used, limit, 1, True))
    return tuple(found)


class InlineStages:
    """`lower` and `trace` of the jitted function, under its settings.

    Args:
        function: what is jitted.
        options: how.
        config: jax's settings for it.

    Raises:
        NoServer: when this process has no jax.
    """

    def __init__(
        self, function: Callable[..., Any], options: Options, config: Mapping[str, Any]
    ) -> None:
        self._jitted, self._statics = _jitted(function, options)
        self._config = config
        self._device = options.device

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax's own `Lowered`."""
        with local_jax_settings(self._config, self._device):
            args, kwargs = wrap_untraceable_arguments(args, kwargs, self._statics)
            return self._jitted.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """jax's own `Traced`."""
        with local_jax_settings(self._config, self._device):
            args, kwargs = wrap_untraceable_arguments(args, kwargs, self._statics)
            return self._jitted.trace(*args, **kwargs)


def _jitted(function: Callable[..., Any], options: Options) -> tuple[Any, StaticArgs]:
    jax = _require_jax()
    statics = infer_static_args(function, options)
    opened = function if statics.strict else _opening_wrapper(function, statics)
    return jax.jit(opened, **options.jit_arguments()), statics


def _require_jax() -> Any:
    try:
        import jax
    except ImportError as error:
        raise NoServer(
            "JAXD_INLINE=1 runs functions in this process, which has no jax. "
            "Run: pip install 'jaxd[server]', or unset JAXD_INLINE."
        ) from error
    return jax


def _opening_wrapper(function: Callable[..., Any], statics: StaticArgs) -> Callable[..., Any]:
    """The same one each time, so that jax finds what it has compiled for it."""
    try:
        return _cached_opening(function, statics)
    except TypeError:  # it cannot be hashed
        return unwrapping_arguments(function, statics)


_cached_opening = lru_cache(maxsize=1024)(unwrapping_arguments)


@contextmanager
def local_jax_settings(config: Mapping[str, Any], device: int | None = None) -> Iterator[None]:
    """Within it, jax of this process has these settings, and puts arrays on that device."""
    import jax

    with ExitStack() as settings:
        if device is not None:
            settings.enter_context(jax.default_device(_device(device)))
        for name, value in config.items():
            settings.enter_context(getattr(jax, name.removeprefix("jax_"))(value))
        yield


def _device(index: int) -> Any:
    import jax

    devices = jax.devices()
    if index >= len(devices):
        raise ConfigurationError(
            f"device={index} is not there: with JAXD_INLINE=1 functions run in this process, of "
            f"which the jax has {len(devices)}. Count from 0, or unset JAXD_INLINE."
        )
    return devices[index]


def _to_numpy(leaf: Any) -> Any:
    """An array of the caller's own, as a server's results are."""
    import jax
    import numpy

    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return PRNGKeys(str(jax.random.key_impl(leaf)), numpy.array(jax.random.key_data(leaf)))
    return numpy.array(leaf)
