"""Arrays of jax from plain data and back, without the 50 µs of Python that its own functions take.

Imported only where jax is. Where a private name has moved in a newer jax, the public functions are
used in its place, but for weak types and typed keys, which need these. Verified on jax 0.10.2 and
0.11.2 by tests/shared/jax_objects/test_arrays.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from jax._src import config, core, xla_bridge
from jax._src.array import ArrayImpl
from jax._src.lib import guard_lib
from jax._src.random import prng
from jaxlib import _jax

_MOST_PATTERNS: Final = 1 << 12
_enable_x64: Final = (
    jax.enable_x64 if hasattr(jax, "enable_x64") else import_module("jax.experimental").enable_x64
)
"""Before jax 0.8 it has another place."""


class KeySpec(NamedTuple):
    """What the numbers of a typed key array look like.

    Attributes:
        impl: the name of the PRNG implementation.
        dtype: name of the numbers' dtype.
        shape: of the numbers: the key array's own, then that of one key.
    """

    impl: str
    dtype: str
    shape: tuple[int, ...]


def is_key_array(value: Any) -> bool:
    """Whether a jax array holds typed PRNG keys."""
    return isinstance(value, prng.PRNGKeyArray)


def key_spec(aval: Any) -> KeySpec | None:
    """What is in an array of that abstract value, if that is typed keys."""
    if not jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return None
    impl = aval.dtype._impl
    return KeySpec(str(impl.name), "uint32", (*aval.shape, *impl.key_shape))


def key_impl(value: Any) -> str:
    """The name of the PRNG implementation of a typed key array."""
    return str(value._impl.name)


def key_data(value: Any) -> Any:
    """The numbers of a typed key array, without the small program that `key_data` compiles."""
    return np.asarray(value._base_array)


def key_array(impl: str, data: Any) -> Any:
    """A typed key array over `data`, without the small program that `wrap_key_data` compiles.

    Raises:
        KeyError: when jax has no such PRNG implementation here.
        TypeError: when the data is not that of such keys.
    """
    kind = prng.prngs[impl]
    return prng.PRNGKeyArray(kind, exact_array(np.asarray(data)))


def exact_array(data: Any) -> Any:
    """An array on the default device with exactly this dtype, whatever jax's settings are.

    What is jax's already stays as it is; numpy's memory may be shared with the array. Where jax
    traces the caller, this is an array as well, and no tracer.
    """
    return data if isinstance(data, jax.Array) else _put([(np.asarray(data), False)])[0]


def weak_array(data: Any) -> Any:
    """As `exact_array`, a weakly typed array."""
    return _put([(np.asarray(data), True)])[0]


def exact_arrays(data: Iterable[tuple[Any, bool]]) -> list[Any]:
    """As `exact_array` and `weak_array`, of many of numpy's, each with whether it is weak."""
    return _put(data)


class _Pattern(NamedTuple):
    """What the arrays of one dtype, shape and weak type have in common: abstract value, place."""

    aval: Any
    sharding: Any
    devices: list[Any]


class _Put:
    """`jax.device_put` of numpy's arrays to the default device, uncommitted.

    What jax makes of the first array of a kind is the pattern of the others, as long as jax's
    settings in the thread, its default device among them, and its backends are the same.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, Any, dict[Any, _Pattern]] = None, None, {}
        try:
            self._batched: Callable[..., Any] = _jax.batched_device_put
            self._context: Callable[[], Any] = config.trace_context
            self._guards: Callable[[], Any] = guard_lib.thread_local_state
            takes_width = "enable_x64" in str(self._batched.__doc__)  # from jax 0.7 on
            self._is_quick = takes_width and hasattr(xla_bridge, "_default_backend")
        except AttributeError:
            self._is_quick = False

    def __call__(self, data: Iterable[tuple[Any, bool]]) -> list[Any]:
        if not (self._is_quick and core.trace_state_clean()):
            return [_put_publicly(array, weak=weak) for array, weak in data]
        guards, patterns, put = self._guards(), self._patterns(), self._batched
        made = []
        before = guards.explicit_device_put
        guards.explicit_device_put = True  # as `jax.device_put` says to `jax.transfer_guard`
        try:
            for array, weak in data:
                pattern = patterns.get((array.dtype, array.shape, weak))
                if pattern is None:
                    made.append(self._first(patterns, array, weak=weak))
                else:
                    aval, sharding, devices = pattern
                    made.append(put(aval, sharding, [array], devices, False, enable_x64=True))
        finally:
            guards.explicit_device_put = before
        return made

    def _patterns(self) -> dict[Any, _Pattern]:
        """Those that are valid now, in this thread."""
        context, backend = self._context(), xla_bridge._default_backend
        known_context, known_backend, patterns = self._known
        if backend is not known_backend or context != known_context:
            patterns = {}
            self._known = context, backend, patterns
        return patterns

    def _first(self, patterns: dict[Any, _Pattern], array: Any, *, weak: bool) -> Any:
        made = _put_publicly(array, weak=weak)
        # not where jax has just made its backends, nor where it takes one dtype for another
        is_usual = self._patterns() is patterns and made.dtype == array.dtype
        if is_usual and len(patterns) < _MOST_PATTERNS:
            kind = array.dtype, array.shape, weak
            patterns[kind] = _Pattern(made.aval, made.sharding, list(made.devices()))
        return made


def _put_publicly(array: Any, *, weak: bool) -> Any:
    with _enable_x64(True), jax.ensure_compile_time_eval():
        strong = jax.device_put(array)
    if not weak:
        return strong
    return ArrayImpl(strong.aval.update(weak_type=True), strong.sharding, [strong], committed=False)


_put: Final = _Put()
