"""The options of a persistent function, and the key that it has under them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from typing import Literal as OneOf

from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.pytree.literals import Literal, dump_literal, load_literal

StaticRule = OneOf["auto", "jax"]
"""How arguments are treated that jax cannot trace and that are not declared static."""

Ship = OneOf["value", "source"]
"""How the user's own code is sent: as the values that are reached, or as files of packages."""

CONFIG_DEFAULTS: Final[Mapping[str, Literal]] = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_threefry_partitionable": True,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
}
"""The jax settings that are sent with a call, and the values that are left out."""

CONFIG_FIXED: Final[Mapping[str, Literal]] = {
    "jax_random_seed_offset": 0,
    "jax_enable_custom_prng": False,
    "jax_legacy_prng_key": "allow",
    "jax_softmax_custom_jvp": False,
    "jax_disable_jit": False,
}
"""Settings that affect results as well, but are not sent: a server has these values."""


class Options(NamedTuple):
    """How a function is to be compiled: `jax.jit`'s options, and jax's configuration.

    Attributes:
        static_argnums, static_argnames, donate_argnums, donate_argnames, keep_unused: as in
            `jax.jit`.
        inline: the same; text is the value of a member of `jax.Inline`.
        compiler_options: name and value of each XLA option, sorted.
        in_shardings, out_shardings: as in `jax.jit`, packed; empty when they are not given.
        static: `auto`: what jax cannot trace is static wherever it stands; `jax`: it is an error.
        config: name and value of each jax setting that is not the default, sorted.
        extra_key: anything that distinguishes two functions with the same code.
        transformations: what the function is transformed by, in this order; see
            `jit.transforms.transform_literals`. The options above are those of the result.
        device: the index of the server's device that calls run on; None: that of their session.
    """

    static_argnums: tuple[int, ...] | None = None
    static_argnames: tuple[str, ...] | None = None
    donate_argnums: tuple[int, ...] | None = None
    donate_argnames: tuple[str, ...] | None = None
    keep_unused: bool = False
    inline: bool | str = False
    compiler_options: tuple[tuple[str, Literal], ...] = ()
    in_shardings: bytes = b""
    out_shardings: bytes = b""
    static: str = "auto"
    config: tuple[tuple[str, Literal], ...] = ()
    extra_key: Literal = None
    transformations: tuple[Literal, ...] = ()
    device: int | None = None

    def to_bytes(self) -> bytes:
        """The canonical bytes: equal exactly when the options are equal."""
        values = self if self.device is not None else self[:-1]  # as before there was any
        return dump_literal(tuple(zip(self._fields, values, strict=False)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Options:
        """Reads what `to_bytes` wrote; raises `ProtocolError` for anything else."""
        if type(data) is not bytes:
            raise ProtocolError("a function's options are no bytes.")
        values, end = load_literal(data, 0)
        try:
            options = cls(**dict(values))
        except (TypeError, ValueError) as error:
            raise ProtocolError("a function's options cannot be read.") from error
        if end != len(data):
            raise ProtocolError("a function's options have bytes behind their end.")
        return options

    def of_jit(self) -> tuple[tuple[str, Literal], ...]:
        """Name and value of those that are not the default and that one call does not set."""
        plain = self._replace(config=(), extra_key=None, device=None)._asdict().items()
        defaults = Options()._asdict()
        return tuple((name, value) for name, value in plain if value != defaults[name])

    def jit_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `jax.jit`, those left at their defaults omitted."""
        names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
        arguments = {name: getattr(self, name) for name in (*names, "keep_unused")}
        arguments = {name: value for name, value in arguments.items() if value not in (None, False)}
        if self.inline:
            arguments["inline"] = self.inline if self.inline is True else _inline(self.inline)
        if self.compiler_options:
            arguments["compiler_options"] = dict(self.compiler_options)
        for name in ("in_shardings", "out_shardings"):
            packed = getattr(self, name)
            if packed:
                from jaxd_protocol.pickling.unpack.unpickler import unpack  # few functions have any

                arguments[name] = unpack(packed)
        return arguments


def _inline(name: str) -> Any:
    """A member of `jax.Inline`.

    Raises:
        ConfigurationError: when this process's jax does not have it.
    """
    try:
        return sys.modules["jax"].Inline(name)
    except (AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"inline={name!r} is not known to the server's jax. Use True or False, or install the "
            "same jax on both sides."
        ) from error


def normal_config(config: Mapping[str, Literal]) -> tuple[tuple[str, Literal], ...]:
    """The settings that differ from jax's defaults, sorted by name.

    Raises:
        ConfigurationError: for a setting that does not travel.
    """
    for name in config:
        if name not in CONFIG_DEFAULTS:
            raise ConfigurationError(
                f"{name!r} is not a jax setting that travels with a call. Those that do: "
                f"{', '.join(CONFIG_DEFAULTS)}. Others are set where the server is started."
            )
    changed = {name: value for name, value in config.items() if value != CONFIG_DEFAULTS[name]}
    return tuple(sorted(changed.items()))


def fingerprint_of(code: bytes | memoryview) -> bytes:
    """The fingerprint of packed code: BLAKE2b, 16 bytes."""
    return hashlib.blake2b(code, digest_size=16).digest()


def function_key(fingerprint: bytes, options: Options) -> bytes:
    """The name of (code, options, configuration) on the wire: BLAKE2b, 16 bytes."""
    return hashlib.blake2b(fingerprint + options.to_bytes(), digest_size=16).digest()
