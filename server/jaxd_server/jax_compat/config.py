"""One client's jax settings, in force for one call and in one thread only."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Final

import jax

from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Config
from jaxd_protocol.jit.settings import LOCAL, context_of, plain

DEFAULTS: Final[dict[str, Any]] = {
    name: value
    for name, value in {**CONFIG_DEFAULTS, **dict.fromkeys(LOCAL, False)}.items()
    if name in jax.config.values
}
"""What jax of this process has where a client sets nothing; not every jax has every setting."""


def set_default_settings() -> None:
    """Sets the defaults for what clients do not set, whatever the environment of this server.

    A server that was started in the background has the variables of the process that started it,
    and JAX_ENABLE_X64 of one client must not change the results of another.
    """
    restore_defaults()
    # Each client filters tracebacks by itself.
    jax.config.update("jax_traceback_filtering", "off")


def restore_defaults() -> list[str]:
    """Undoes what a function did to jax's settings; the names of those that it changed.

    To be called where no setting of a call is in force (outside of `configured`).
    """
    values = jax.config.values
    changed = [name for name, value in DEFAULTS.items() if plain(values[name]) != value]
    for name in changed:
        jax.config.update(name, DEFAULTS[name])
    return changed


_NOTHING: Final = nullcontext()


def configured(config: Config) -> AbstractContextManager[Any]:
    """A context in which jax has these settings, in this thread.

    Raises:
        ConfigurationError: when this jax does not have a setting, or there are too few devices.
        ValueError: when jax does not take a value; no setting stays behind then.
    """
    if not config:
        return _NOTHING
    with ExitStack() as stack:
        for name, value in config:
            stack.enter_context(context_of(name, value))
        return stack.pop_all()


def pinned(config: Config) -> AbstractContextManager[Any]:
    """A context in which jax has these settings, and its defaults for all others that count.

    For tracing: while a function is traced that sets something for the whole process, which is
    undone and refused later, others are traced beside it.

    Raises:
        ConfigurationError, ValueError: as `configured`.
    """
    return configured(tuple({**DEFAULTS, **dict(config)}.items()))
