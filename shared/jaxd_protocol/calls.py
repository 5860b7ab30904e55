"""The wire on one screen: what each end asks of the other.

Each line is an rpyc request to the peer's root; `[…]` travels as buffers beside it.

    client → server
      call(key, skeleton, blob, timeout_s, flags, stay, elsewhere, drops) [arrays]
            → (OK, skeleton, blob) [arrays]  or  (FAILED, failure)
            with `stay`: (OK, skeleton, blob, donated, away) [arrays]
              or  (FAILED, failure, donated)
              skeleton: empty when it is the one of which `stay` has the hash;
              donated: leaves of the call that it has taken for good; away: leaves of the result
              that are not in the reply; then ids, if some of what was to be kept was not
      call(key, skeleton, b"", timeout_s, flags | WARM, b"", b"", b"") [pickles]
            → (OK, JSON {verdict, seconds, kept}, skeleton)  or  (FAILED, failure)
              builds or loads, runs nothing; kept: it is on disk; the skeleton is the result's
      put(number, skeleton, blob, elsewhere, config) [arrays] → (OK, skeleton)
              a flat tuple of arrays becomes values; the skeleton says what they are now
      fetch(ids, places) → (OK,) [arrays]     or into the client's blocks at `places`
      part(id, index, above, number) → (OK, skeleton) [array]
              `[array]` unless it has more bytes than `above`: then it becomes a value
      drop(ids)                               the client holds them no longer; no reply
      adopt(contents, ids) → (OK, a byte for each)      1: what has that content is a value now
      share(number, nbytes) <descriptor> → (OK, its first bytes)      shared memory, as a block
      unshare(numbers)                        blocks that are gone; no reply
      cancel(number)                          nobody waits for that call any more; no reply of its
                                              own, but the call is answered all the same
      bye()                                   the client ends, and with it its session; no reply
      name(name, skeleton, ids, ttl_s) → (OK,)          named(name, number) → (OK, skeleton)
      unname(name) → (OK, was it there)       values() → JSON {holders, totals}
      statistics() → JSON                     info() → JSON
      why(key, skeleton or None, description) → JSON    what a call would do, and why
      stages(key, skeleton, stage, dialect, places) [pickles] → JSON
              what becomes of a function: its `jaxpr`, `lowered` or `compiled`, derived anew
      devices() → JSON                        what there is of each, and where this session is
      recent(count) → JSON                    the last builds, and why each was made
      functions() → JSON {functions, totals}  what there is, what it cost and what it has saved
      recipes("") → (JSON {mark},)            a mark; later, with that mark:
      recipes(mark) → (JSON {mark, left_out}, recipe…) [codes and pickles]
                                              what was called since, see `recipes`
      forget(key) → JSON {executables}        drops what was built under a key, on disk as well

    server → client, while a call or `stages` of the client's is open
      describe(key) → (name, options, meaning)          what is this function?
      code(fingerprint) → () [packed function]          its call waits meanwhile
      event(number, kind, JSON)               progress of the request `number`, and what its
                                              function prints, warns of and logs; no reply
      callback(number, skeleton, blob, wanted) [arrays] → (skeleton, blob) [arrays]
              calls a function of the client for the program that answers the request `number`;
              as in a result: (aim, args, kwargs), see jaxd_server.aims; back as in arguments:
              (result,)

Who cannot answer says (FAILED, failure) instead. `[pickles]` are the buffers of the
skeleton's `P` leaves alone: of each its pickle, then what travels beside that.

A call names its function by `key`, sixteen bytes that stand for code, options and configuration.
Only a server that does not know the key asks for what is behind it.

`stay`, `elsewhere`, `ids` and `donated` are described in `elsewhere`. A value is named by a number
that its client has made of the call's `number`, so that it can be used before it is there.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from jaxd_protocol.errors import ConfigurationError, JaxdError, ProtocolError
from jaxd_protocol.trees.literals import Literal, dump_literal, load_literal

__all__ = [
    "CONFIG_DEFAULTS",
    "CONFIG_FIXED",
    "FAILED",
    "INSIDE",
    "LOST_AGAIN",
    "LOST_ONCE",
    "MAY_REPEAT",
    "OK",
    "ON_VALUES",
    "STRICT",
    "WARM",
    "Options",
    "fingerprint_of",
    "function_key",
    "is_failure",
    "normal_config",
]

OK: Final = 0
FAILED: Final = 1


def is_failure(failure: tuple[Any, ...], kind: type[JaxdError]) -> bool:
    """Whether what a call has failed with is exactly this one of our own errors.

    Args:
        failure: as `jaxd_protocol.failures` describes it.
        kind: the error.
    """
    return bool(failure[:2] == (kind.__module__, kind.__name__))


MAY_REPEAT: Final = 1
"""Flag of a call: running it twice is the same as running it once."""

STRICT: Final = 2
"""Flag of a call: a package that is not the same on both sides is an error."""

WARM: Final = 4
"""Flag of a call: what it needs is to be built or loaded, and not run; it brings no data."""

ON_VALUES: Final = 8
"""Flag of a call: it refers to values, so it runs in order with its session's others, and once."""

INSIDE: Final = 16
"""Flag of a call: it is made by something that a program of the same client has called back."""

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
"""The jax settings that travel with a call, and the values that need not be said."""

CONFIG_FIXED: Final[Mapping[str, Literal]] = {
    "jax_random_seed_offset": 0,
    "jax_enable_custom_prng": False,
    "jax_legacy_prng_key": "allow",
    "jax_softmax_custom_jvp": False,
    "jax_disable_jit": False,
}
"""Settings that decide about results as well, but do not travel: a server has these values."""

LOST_ONCE: Final = 32
"""Flag of a call: a worker died while it was under way, perhaps of it. It is repeated alone."""

LOST_AGAIN: Final = 64
"""Flag of a call: another worker died when it was repeated."""


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
        extra_key: anything that is to tell two functions apart.
        transformations: what the function is transformed by, in this order; see
            `transformations.spelling`. The options above are those of what comes out.
        device: which of the server's devices calls run on, by index; None: that of their session.
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
        """Name and value of those that are not the default, but for what no call can bring."""
        plain = self._replace(config=(), extra_key=None, device=None)._asdict().items()
        defaults = Options()._asdict()
        return tuple((name, value) for name, value in plain if value != defaults[name])

    def jit_arguments(self) -> dict[str, Any]:
        """Keyword arguments for `jax.jit`, those left at their defaults omitted."""
        names = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")
        given = {name: getattr(self, name) for name in names}
        arguments = {name: value for name, value in given.items() if value is not None}
        if self.keep_unused:
            arguments["keep_unused"] = True
        if self.inline:
            arguments["inline"] = self.inline if self.inline is True else _inline(self.inline)
        if self.compiler_options:
            arguments["compiler_options"] = dict(self.compiler_options)
        for name in ("in_shardings", "out_shardings"):
            packed = getattr(self, name)
            if packed:
                from jaxd_protocol.packing import unpack  # few functions have any

                arguments[name] = unpack(packed)
        return arguments


def _inline(name: str) -> Any:
    """A member of `jax.Inline`, where there is jax and this jax has it."""
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
