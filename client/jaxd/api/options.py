"""Parses and checks the options of `persistent_call`, with or without jax.

Those of `jax.jit` as jax does it.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, get_args

from jaxd.connection.settings import Fallbacks, Places
from jaxd.results.reader import ResultsAs
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import (
    CONFIG_DEFAULTS,
    Options,
    Ship,
    StaticRule,
    keep_shardings,
    normal_config,
)

if TYPE_CHECKING:
    from inspect import Signature

_GENERATOR: Final = 0x20  # inspect.CO_GENERATOR
_CHOICES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "fallback": ("nothing that can become of a call", get_args(Fallbacks)),
    "place": ("no place where calls run", get_args(Places)),
    "results": ("not a form of results", get_args(ResultsAs)),
    "ship": ("no way to send code", get_args(Ship)),
    "static": ("no rule for static arguments", get_args(StaticRule)),
}
"""Of options that have one of a few values: the problem with any other, and these; the default is
the first."""

_SERVER_OPTIONS = ("server", "host", "port", "token")


def check_function(function: object) -> None:
    """Returns when it is something that can be traced.

    Raises:
        TypeError: as `jax.jit`, when it is not.
    """
    if isinstance(function, staticmethod):
        raise TypeError(
            f"staticmethod arguments are not supported, got {function}. Put @staticmethod above "
            "@persistent_call."
        )
    if not callable(function):
        raise TypeError(f"Expected a callable value, got {function}. Give it a function.")
    code = getattr(_innermost(function), "__code__", None)
    if code is not None and code.co_flags & _GENERATOR:
        raise TypeError(
            f"Expected a function, got a generator function: {function}. Return arrays instead."
        )


def _innermost(function: Any) -> Any:
    import functools

    while isinstance(function, functools.partial | MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function if isinstance(function, FunctionType) else None


def positions_of(value: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """`static_argnums` or `donate_argnums` as a tuple.

    Raises:
        TypeError: as `jax.jit`, when there is something else than integers in it.
    """
    if value is None:
        return None
    try:
        return (operator.index(value),)  # type: ignore[arg-type]
    except TypeError:
        return tuple(map(operator.index, value))  # type: ignore[arg-type]


def names_of(value: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """`static_argnames` or `donate_argnames` as a tuple.

    Raises:
        TypeError: as `jax.jit`, when there is something else than text in it.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    names = tuple(value) if isinstance(value, Sequence) else tuple(sorted(value))
    others = [name for name in names if not isinstance(name, str)]
    if others:
        raise TypeError(f"argument is not a string: {others[0]}. Give names of parameters.")
    return names


def inline_of(value: Any) -> bool | str:
    """`inline` as it travels: yes or no, or the value of a member of `jax.Inline`."""
    from enum import Enum

    return str(value.value) if isinstance(value, Enum) else bool(value)


def packed_shardings(option: str, value: Any) -> bytes:
    """Shardings as they travel; empty for None, which means the same as leaving the option out.

    Raises:
        TypeError: as `jax.jit`, when there is something in it that is no sharding.
        PackingError: when something in it cannot travel.
    """
    if value is None:
        return b""
    from jaxd.interop.jax_runtime import check_shardings
    from jaxd_protocol.pickling.pack.arguments import pack

    value = tuple(value) if isinstance(value, list) else value  # as jax takes a list here
    check_shardings(option, value)
    return keep_shardings(bytes(pack(value, f"the option {option}")), value)


def check_arguments(function: Callable[..., Any], options: Options) -> None:
    """Returns when the function has the parameters that its options name.

    Raises:
        ValueError: as `jax.jit`, when it has not, or one is both static and donated.
    """
    nums = {name: getattr(options, name) for name in ("static_argnums", "donate_argnums")}
    names = {name: getattr(options, name) for name in ("static_argnames", "donate_argnames")}
    if all(value is None for value in (*nums.values(), *names.values())):
        return
    import inspect

    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # as of some functions written in C
        if options.donate_argnames is not None:
            raise ValueError(
                f"Getting the signature of function {function} failed. Pass donate_argnums "
                "instead of donate_argnames."
            ) from None
        return
    for option, positions in nums.items():
        _check_positions(signature, positions or (), option)
    for option, given in names.items():
        _check_names(signature, given or (), option)
    _check_apart(signature, options)


def _check_positions(signature: Signature, positions: tuple[int, ...], option: str) -> None:
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if any(kind.name == "VAR_POSITIONAL" for kind in kinds):
        return  # it takes any number
    count = sum(kind.name in ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD") for kind in kinds)
    if positions and (-min(positions) > count or max(positions) >= count):
        raise ValueError(
            f"Jitted function has {option}={positions}, but only accepts {count} positional "
            "arguments."
        )


def _check_names(signature: Signature, names: tuple[str, ...], option: str) -> None:
    kinds = {name: parameter.kind.name for name, parameter in signature.parameters.items()}
    unnamed = {name for name in names if kinds.get(name) in ("POSITIONAL_ONLY", "VAR_POSITIONAL")}
    if unnamed:
        raise ValueError(
            f"Jitted function has invalid argnames {unnamed} in {option}. These are positional-only"
        )
    named = {n for n, kind in kinds.items() if kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")}
    unknown = set(names) - named
    if unknown and "VAR_KEYWORD" not in kinds.values():
        raise ValueError(
            f"Jitted function has invalid argnames {unknown} in {option}. Function does not take "
            "these args."
        )


def _check_apart(signature: Signature, options: Options) -> None:
    """As jax, by the names; those of positions follow from the signature."""
    static = _all_names(signature, options.static_argnums, options.static_argnames)
    donated = _all_names(signature, options.donate_argnums, options.donate_argnames)
    both = static & donated
    if both:
        raise ValueError(
            "static_argnames and donate_argnames cannot intersect. Argument names "
            f"{both} appear in both static_argnames and donate_argnames"
        )


def _all_names(
    signature: Signature, nums: tuple[int, ...] | None, names: tuple[str, ...] | None
) -> set[str]:
    if names is not None:
        return set(names)
    return {
        name
        for i, (name, parameter) in enumerate(signature.parameters.items())
        if i in (nums or ()) and parameter.kind.name == "POSITIONAL_OR_KEYWORD"
    }


# values of the other options ---------------------------------------------------------------------


def check_option_values(options: Mapping[str, Any]) -> None:
    """Returns when all options have values that can be used, but for those of `jax.jit`.

    Raises:
        ConfigurationError: when one is not; its message has the possible ones.
    """
    _check_choices(options)
    strict = options.get("strict", False)
    if not isinstance(strict, bool):
        raise ConfigurationError(f"strict={strict!r} is neither yes nor no. Use True or False.")
    given = {name: value for name, value in options.items() if value is not None}
    for name, (is_right, problem) in _FORMS.items():
        if name in given and not is_right(given[name]):
            raise ConfigurationError(f"{name}={given[name]!r} {problem}")
    if "timeout_s" in given:
        _check_timeout(given["timeout_s"])
    if "config" in given:
        _check_config(given["config"])
    others = [name for name in _SERVER_OPTIONS if name in given]
    if others and "client" in given:
        raise ConfigurationError(
            f"client= is given together with {others[0]}=, but a client has its server already. "
            f"Leave out {others[0]}=, or client=."
        )


def _check_choices(options: Mapping[str, Any]) -> None:
    for name, (problem, choices) in _CHOICES.items():
        value = options.get(name, choices[0])
        if not isinstance(value, str) or value not in choices:
            raise ConfigurationError(
                f"{name}={value!r} is {problem}. Use one of: {', '.join(map(repr, choices))}."
            )


def _check_timeout(timeout_s: object) -> None:
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise ConfigurationError(
            f"timeout_s={timeout_s!r} is not a number. Give seconds, such as 30, or leave it out."
        )
    if not (math.isfinite(timeout_s) and 0 < timeout_s <= threading.TIMEOUT_MAX):
        raise ConfigurationError(
            f"timeout_s={timeout_s!r} cannot be waited for. Give a positive number of seconds, "
            "or leave it out to wait without end."
        )


def _check_config(config: object) -> None:
    if not isinstance(config, Mapping):
        raise ConfigurationError(
            f"config={config!r} has no names. Write it as {{'jax_enable_x64': True}}."
        )
    normal_config(config)  # refuses a name that does not travel
    for name, value in config.items():
        default = CONFIG_DEFAULTS[name]
        text = str, f"text, such as {default!r}"
        accepted, example = _CONFIG_VALUES.get(type(default), text)
        if not isinstance(value, accepted):
            raise ConfigurationError(f"{name} cannot be {value!r} in config. Use {example}.")


_CONFIG_VALUES: Final[Mapping[type, tuple[Any, str]]] = {
    bool: (bool, "True or False"),
    int: (int, "a whole number"),
    float: (int | float, "a number"),
    type(None): (str | bool | None, "text or None"),
}
"""By the type of the default: the accepted types, and an example."""


def _has_names(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


_FORMS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "client": (
        lambda value: hasattr(value, "caller"),
        "is no client. Give what jaxd.connect returns, or server= with an address.",
    ),
    "compiler_options": (
        _has_names,
        "does not map names to values. Write it as {'xla_embed_ir_in_executable': True}.",
    ),
    "bucket": (
        _has_names,
        "has no names of parameters. Write it as bucket={'tokens': {1: (128, 256, 512)}}.",
    ),
    "callbacks": (
        lambda value: isinstance(value, list | tuple) and all(map(callable, value)),
        "is no list of functions. Write it as callbacks=[log, history.append].",
    ),
    "verify": (
        lambda value: isinstance(value, bool),
        "is neither yes nor no. Use True or False.",
    ),
}
"""Of options whose default is None: whether a value is one, and the problem with any other."""
