"""Plain `jax.jit` in this process: with `JAXD_INLINE=1`, and where a server cannot answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jaxd.dispatch.devices import Device
from jaxd.interop.jax_runtime import PRNGKeys, import_jax
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import ArgumentError, ConfigurationError, NoServer
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.static_args import StaticArgs, infer_static_args
from jaxd_protocol.jit.static_leaves import unwrapping_arguments, wrap_untraceable_arguments

if TYPE_CHECKING:
    from concurrent.futures import Future

    from jaxd.dispatch.warm import Warmed


R = TypeVar("R")


class InlineFunction:
    """`jax.jit(function)` with the same options, jax settings and form of results.

    Args:
        function: the function.
        options: of `jax.jit`, and what is static.
        config: jax settings under which it is traced and runs.
        results: the form of its results.
        is_private: whether nothing that jax has compiled for this function elsewhere is used, and
            jax decides about arguments that cannot be static by their content.

    Raises:
        NoServer: when this process has no jax.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        config: Mapping[str, Any] | None = None,
        results: ResultsAs = "auto",
        *,
        is_private: bool = False,
    ) -> None:
        self._statics = statics = infer_static_args(function, options)
        self._is_private = is_private
        if is_private:
            opened = unwrapping_arguments(function, statics)
        else:
            opened = function if statics.strict else _opening_wrapper(function, statics)
        self._jitted = _import_jax().jit(opened, **options.jit_arguments())
        self._config = config or {}
        self._device = options.device
        self._results = results

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls it in this process."""
        import jax

        result = self._under_settings(self._jitted, args, kwargs)
        return jax.tree.map(_to_numpy, result) if self._results == "numpy" else result

    def warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Warmed:
        """Compiles it for such arguments or for specs of them; runs nothing."""
        from jaxd.dispatch.warm import Warmed

        started = time.perf_counter()
        self._under_settings(self._compile, args, kwargs)
        return Warmed("compile", time.perf_counter() - started)

    def _compile(self, *args: Any, **kwargs: Any) -> None:
        self._jitted.lower(*args, **kwargs).compile()  # jax caches it for calls of the function

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """jax's own `Lowered`."""
        return self._under_settings(self._jitted.lower, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """jax's own `Traced`."""
        return self._under_settings(self._jitted.trace, args, kwargs)

    def _under_settings(
        self, do: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with local_jax_settings(self._config, self._device):
            try:
                args, kwargs = wrap_untraceable_arguments(args, kwargs, self._statics)
            except ArgumentError:
                if not self._is_private:
                    raise
            return do(*args, **kwargs)


def completed_future(call: Callable[[], R]) -> Future[R]:
    """A future that is done: of a call that is made at once."""
    from concurrent.futures import Future

    future: Future[R] = Future()
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001  the future's owner decides about it
        future.set_exception(error)
    return future


def local_devices() -> tuple[Device, ...]:
    """The devices of this process, all its own; memory is 0 where jax does not report it.

    Raises:
        NoServer: when this process has no jax.
    """
    found = []
    for index, device in enumerate(_import_jax().devices()):
        memory = device.memory_stats() or {}
        used, limit = memory.get("bytes_in_use", 0), memory.get("bytes_limit", 0)
        found.append(Device(index, device.platform, device.device_kind, used, limit, 1, True))
    return tuple(found)


def _import_jax() -> Any:
    return import_jax(
        NoServer,
        "JAXD_INLINE=1 runs functions in this process, which has no jax. "
        "Run: pip install 'jaxd[server]', or unset JAXD_INLINE.",
    )


def _opening_wrapper(function: Callable[..., Any], statics: StaticArgs) -> Callable[..., Any]:
    """The same wrapper each time, so that jax finds what it has compiled for it."""
    try:
        return _cached_opening(function, statics)
    except TypeError:  # the function cannot be hashed
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
            f"device={index} is not there: with JAXD_INLINE=1 functions run in this process, where "
            f"jax has {len(devices)} device(s). Count from 0, or unset JAXD_INLINE."
        )
    return devices[index]


def _to_numpy(leaf: Any) -> Any:
    """An array of the caller's own, as a server's results are."""
    import jax
    import numpy

    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return PRNGKeys(str(jax.random.key_impl(leaf)), numpy.array(jax.random.key_data(leaf)))
    return numpy.array(leaf)
