"""Whether the options of `persistent_call` have values that can be used."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, Literal

from jaxd.results import ResultsAs
from jaxd_protocol.calls import CONFIG_DEFAULTS, normal_config
from jaxd_protocol.errors import ConfigurationError

__all__ = ["Ship", "StaticRule", "check_option_values"]

StaticRule = Literal["auto", "jax"]
"""What becomes of arguments that jax cannot trace and that are not declared static."""

Ship = Literal["value", "source"]
"""How the user's own code travels: as the values that are reached, or as files of packages."""

_RESULTS: tuple[ResultsAs, ...] = ("auto", "numpy", "jax", "remote")
_SHIP: tuple[Ship, ...] = ("value", "source")
_STATIC: tuple[StaticRule, ...] = ("auto", "jax")
_PLACES = ("server", "host", "port", "token")


def check_option_values(options: Mapping[str, Any]) -> None:
    """Returns when all options have values that can be used, but for those of `jax.jit`.

    Raises:
        ConfigurationError: when one is not; says what it may be.
    """
    _check_client(options)
    _check_results(options.get("results", "auto"))
    _check_timeout(options.get("timeout_s"))
    _check_strict(options.get("strict", False))
    _check_ship(options.get("ship", "value"))
    _check_static(options.get("static", "auto"))
    _check_config(options.get("config"))
    _check_compiler_options(options.get("compiler_options"))
    _check_callbacks(options.get("callbacks"))


def _check_client(options: Mapping[str, Any]) -> None:
    client = options.get("client")
    if client is None:
        return
    if not hasattr(client, "caller"):
        raise ConfigurationError(
            f"client={client!r} is no client. Give what jaxd.connect returns, "
            "or server= with an address."
        )
    both = [name for name in _PLACES if options.get(name) is not None]
    if both:
        raise ConfigurationError(
            f"client= is given together with {both[0]}=, but a client has its server already. "
            f"Leave out {both[0]}=, or client=."
        )


def _check_results(results: object) -> None:
    if not isinstance(results, str) or results not in _RESULTS:
        raise ConfigurationError(
            f"results={results!r} is not a form of results. "
            f"Use one of: {', '.join(map(repr, _RESULTS))}."
        )


def _check_timeout(timeout_s: object) -> None:
    if timeout_s is None:
        return
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ConfigurationError(
            f"timeout_s={timeout_s!r} is not a number. Give seconds, such as 30, or leave it out."
        )
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= threading.TIMEOUT_MAX):
        raise ConfigurationError(
            f"timeout_s={timeout_s!r} cannot be waited for. Give a positive number of seconds, "
            "or leave it out to wait without end."
        )


def _check_strict(strict: object) -> None:
    if not isinstance(strict, bool):
        raise ConfigurationError(f"strict={strict!r} is neither yes nor no. Use True or False.")


def _check_ship(ship: object) -> None:
    if not isinstance(ship, str) or ship not in _SHIP:
        raise ConfigurationError(
            f"ship={ship!r} is no way to send code. Use one of: {', '.join(map(repr, _SHIP))}."
        )


def _check_static(static: object) -> None:
    if not isinstance(static, str) or static not in _STATIC:
        raise ConfigurationError(
            f"static={static!r} is no rule for static arguments. "
            f"Use one of: {', '.join(map(repr, _STATIC))}."
        )


def _check_config(config: object) -> None:
    if config is None:
        return
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            f"config={config!r} has no names. Write it as {{'jax_enable_x64': True}}."
        )
    normal_config(config)  # refuses a name that does not travel
    for name, value in config.items():
        default = CONFIG_DEFAULTS[name]
        if isinstance(default, bool):
            fits, example = isinstance(value, bool), "True or False"
        elif default is None:
            fits, example = value is None or isinstance(value, str), "text or None"
        else:
            fits, example = isinstance(value, str), f"text, such as {default!r}"
        if not fits:
            raise ConfigurationError(f"{name} cannot be {value!r} in config. Use {example}.")


def _check_compiler_options(options: object) -> None:
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigurationError(
            f"compiler_options={options!r} does not map names to values. "
            "Write it as {'xla_embed_ir_in_executable': True}."
        )


def _check_callbacks(callbacks: object) -> None:
    if callbacks is None:
        return
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise ConfigurationError(
            f"callbacks={callbacks!r} is no list of functions. Write it as callbacks=[log, "
            "history.append]."
        )
