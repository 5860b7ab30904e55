"""Plain `jax.jit` in this process: with `JAXD_INLINE=1`, and where a server cannot answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jaxd.dispatch.server_reports import Device
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
        version: of the function: what jax has traced of another one is not used.
        is_private: whether nothing that jax has compiled for this function elsewhere is used, and
            jax decides about arguments that cannot be static by their content.

    Attributes:
        statics: which arguments are static.

    Raises:
        NoServer: when this process has no jax.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        config: tuple[tuple[str, Any], ...] = (),
        results: ResultsAs = "auto",
        version: bytes | None = None,
        *,
        is_private: bool = False,
    ) -> None:
        self.statics = statics = infer_static_args(function, options)
        self._is_private = is_private
        if is_private:
            opened = unwrapping_arguments(function, statics)
        else:
            is_plain = statics.strict and version is None
            opened = function if is_plain else _opening_wrapper(function, statics, version)
        self._jitted = _import_jax().jit(opened, **options.jit_arguments())
        self._config = config
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

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The form of what it returns, as jax's own specs."""
        return self._under_settings(self._jitted.eval_shape, args, kwargs)

    def clear_cache(self) -> None:
        """Drops what jax keeps of it in this process."""
        self._jitted.clear_cache()

    def cache_size(self) -> int:
        """How many programs jax has of it in this process."""
        return int(self._jitted._cache_size())  # noqa: SLF001  jax's own tests use it

    def settings(self) -> AbstractContextManager[None]:
        """Within it, jax of this process has the function's settings."""
        return local_jax_settings(self._config, self._device)

    def _under_settings(
        self, do: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self.settings():
            if self.statics.strict:
                return do(*args, **kwargs)
            try:
                args, kwargs = wrap_untraceable_arguments(args, kwargs, self.statics)
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


def _opening_wrapper(
    function: Callable[..., Any], statics: StaticArgs, version: bytes | None
) -> Callable[..., Any]:
    """The same wrapper each time, so that jax finds what it has compiled for it."""
    try:
        return _cached_opening(function, statics, version)
    except TypeError:  # the function cannot be hashed
        return unwrapping_arguments(function, statics)


@lru_cache(maxsize=1024)
def _cached_opening(
    function: Callable[..., Any],
    statics: StaticArgs,
    version: bytes | None,  # noqa: ARG001  it is part of the key
) -> Callable[..., Any]:
    return unwrapping_arguments(function, statics)


@contextmanager
def local_jax_settings(
    config: tuple[tuple[str, Any], ...], device: int | None = None
) -> Iterator[None]:
    """Within it, jax of this process has these settings, and puts arrays on that device."""
    import jax

    from jaxd_protocol.jit.settings import context_of

    with ExitStack() as settings:
        if device is not None:
            settings.enter_context(jax.default_device(_device(device)))
        for name, value in config:
            settings.enter_context(context_of(name, value))
        yield


def lowering_name(platform: str) -> str:
    """What lowering calls a platform."""
    return "cuda" if platform == "gpu" else platform


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
