"""One client's jax settings, in force for one call and in one thread only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

import jax

from jaxd_protocol.jit.options import CONFIG_DEFAULTS, CONFIG_FIXED
from jaxd_server.jax_compat.arrays import setting

Config = tuple[tuple[str, Any], ...]

CONTEXTS: Final[Mapping[str, Callable[[Any], AbstractContextManager[Any]]]] = {
    "jax_enable_x64": jax.enable_x64,
    "jax_default_matmul_precision": jax.default_matmul_precision,
    "jax_default_prng_impl": jax.default_prng_impl,
    "jax_numpy_dtype_promotion": jax.numpy_dtype_promotion,
    "jax_numpy_rank_promotion": jax.numpy_rank_promotion,
    "jax_threefry_partitionable": jax.threefry_partitionable,
    "jax_debug_nans": jax.debug_nans,
    "jax_debug_infs": jax.debug_infs,
}
"""jax's own context managers for the settings in `jaxd_protocol.jit.options.CONFIG_DEFAULTS`."""


def set_default_settings() -> None:
    """Sets the defaults for what clients do not set, whatever the environment of this server.

    A server that was started in the background has the variables of the process that started it,
    and JAX_ENABLE_X64 of one client must not change the results of another.
    """
    for name, value in {**CONFIG_FIXED, **CONFIG_DEFAULTS}.items():
        jax.config.update(name, value)
    # Each client filters tracebacks by itself.
    jax.config.update("jax_traceback_filtering", "off")


def restore_defaults() -> list[str]:
    """Undoes what a function did to jax's settings; the names of those that it changed.

    To be called where no setting of a call is in force (outside of `configured`).
    """
    expected = {**CONFIG_FIXED, **CONFIG_DEFAULTS}
    changed = [name for name, value in expected.items() if getattr(jax.config, name) != value]
    for name in changed:
        jax.config.update(name, expected[name])
    return changed


_NOTHING: Final = nullcontext()


def configured(config: Config) -> AbstractContextManager[Any]:
    """A context in which jax has these settings, in this thread.

    Raises:
        ValueError: when jax does not take a value; no setting stays behind then.
    """
    if not config:
        return _NOTHING
    with ExitStack() as stack:
        for name, value in config:
            stack.enter_context(CONTEXTS[name](value))
        return stack.pop_all()


def pinned(config: Config) -> AbstractContextManager[Any]:
    """A context in which jax has these settings, and its defaults for all others that count.

    For tracing: while a function is traced that sets something for the whole process, which is
    undone and refused later, others are traced beside it.

    Raises:
        ValueError: when jax does not take a value; no setting stays behind then.
    """
    with ExitStack() as stack:
        for name, value in CONFIG_FIXED.items():
            stack.enter_context(setting(name)(value))
        for name, value in {**CONFIG_DEFAULTS, **dict(config)}.items():
            stack.enter_context(CONTEXTS[name](value))
        return stack.pop_all()
