"""The options of a persistent function, and the key that it has under them."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple
from typing import Literal as OneOf

from jaxd_protocol.base.bounded import BoundedDict
from jaxd_protocol.errors import ConfigurationError, ProtocolError
from jaxd_protocol.pytree.literals import Literal, dump_literal, load_literal

StaticRule = OneOf["auto", "jax"]
"""How arguments are treated that jax cannot trace and that are not declared static."""

Ship = OneOf["value", "source"]
"""How the user's own code is sent: as the values that are reached, or as files of packages."""

Config = tuple[tuple[str, "Literal"], ...]
"""Names and values of the settings of jax that are not at their defaults, sorted by name."""

CONFIG_DEFAULTS: Final[Mapping[str, Literal]] = {
    "jax_enable_x64": False,
    "jax_default_matmul_precision": None,
    "jax_default_prng_impl": "threefry2x32",
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_threefry_partitionable": True,
    "jax_debug_nans": False,
    "jax_debug_infs": False,
    "check_vma": False,
    "eager_constant_folding": False,
    "jax_allow_f16_reductions": True,
    "jax_auto_pcast": True,
    "jax_bcoo_cusparse_lowering": False,
    "jax_check_static_indices": False,
    "jax_check_tracer_leaks": False,
    "jax_compiler_enable_remat_pass": True,
    "jax_custom_jvp3": False,
    "jax_custom_vjp3": False,
    "jax_disable_bwd_checks": False,
    "jax_disable_vmap_shmap_error": False,
    "jax_disallow_mesh_context_manager": False,
    "jax_embedded_constants_max_bytes": 32,
    "jax_enable_checks": False,
    "jax_enable_custom_prng": False,
    "jax_error_checking_behavior_divide": "ignore",
    "jax_error_checking_behavior_nan": "ignore",
    "jax_error_checking_behavior_oob": "ignore",
    "jax_exec_time_optimization_effort": 0.0,
    "jax_experimental_unsafe_xla_runtime_errors": False,
    "jax_explicit_x64_dtypes": "warn",
    "jax_high_dynamic_range_gumbel": False,
    "jax_legacy_prng_key": "allow",
    "jax_memory_fitting_effort": 0.0,
    "jax_memory_fitting_level": "O2",
    "jax_mosaic_allow_hlo": False,
    "jax_mutable_array_checks": True,
    "jax_optimization_level": "UNKNOWN",
    "jax_pallas_auto_assign_collective_ids": "no",
    "jax_pallas_auto_assign_collective_ids_limit": 25,
    "jax_pallas_enable_debug_checks": False,
    "jax_pallas_poison_buffers": False,
    "jax_pallas_use_mosaic_gpu": True,
    "jax_ragged_dot_use_gpu_pallas_triton_lowering": False,
    "jax_ragged_dot_use_ragged_dot_instruction": True,
    "jax_raise_on_ppermute_sort_diff": True,
    "jax_random_seed_offset": 0,
    "jax_refs_to_pins": False,
    "jax_remat3": False,
    "jax_remat_barrier_no_cotangents": False,
    "jax_remove_size_one_mesh_axis_from_type": False,
    "jax_scan3": False,
    "jax_softmax_custom_jvp": False,
    "jax_threefry_gpu_kernel_lowering": False,
    "jax_use_direct_linearize": True,
    "jax_use_emit_pipeline_primitive": False,
    "jax_use_hlo_logistic_lowering": None,
    "jax_use_magma": "auto",
    "jax_use_rgv3": True,
    "jax_use_shardy_partitioner": True,
    "jax_use_simplified_jaxpr_constants": False,
    "jax_xla_profile_version": 0,
}
"""The settings of jax that travel with a call, and jax's defaults, which are left out.

What becomes of all others stands in `jit.settings`.
"""

EXPORTED_CONFIG: Final = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl"),
    *("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_threefry_partitionable"),
    *("jax_debug_nans", "jax_debug_infs"),
)
"""Those that travel with an exported program; the others have done their work when it is traced."""


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

    @property
    def donates(self) -> bool:
        """Whether arguments are given up to calls."""
        return bool(self.donate_argnums or self.donate_argnames)

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
                arguments[name] = _shardings(packed)
        return arguments


_MAX_SHARDINGS: Final = 256
_own_shardings: Final = BoundedDict[int, tuple[bytes, Any]](_MAX_SHARDINGS)
"""What this process has packed, by the address of the bytes, which are held."""


def keep_shardings(packed: bytes, value: Any) -> bytes:
    """Has `jit_arguments` give the very shardings that this process has packed into these bytes.

    They may be in an object that has others, as a training state has its optimizer: jax compares
    these with those of the result, and copies may differ.
    """
    _own_shardings[id(packed)] = packed, value
    return packed


def _shardings(packed: bytes) -> Any:
    known, value = _own_shardings.get(id(packed), (b"", None))
    if known is packed:
        return value
    from jaxd_protocol.pickling.unpack.unpickler import unpack  # few functions have any

    return unpack(packed)


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


def normal_config(config: Mapping[str, Literal]) -> Config:
    """The settings that differ from jax's defaults, sorted by name.

    Raises:
        ConfigurationError: for a setting that does not travel.
    """
    for name in config:
        if name not in CONFIG_DEFAULTS:
            raise ConfigurationError(
                f"{name!r} is not a jax setting that travels with a call. Those that do: "
                f"{', '.join(CONFIG_DEFAULTS)}. docs/settings.md says what becomes of others."
            )
    changed = {name: value for name, value in config.items() if value != CONFIG_DEFAULTS[name]}
    return tuple(sorted(changed.items()))


@lru_cache(maxsize=256)
def overridden(config: Config, own: tuple[tuple[str, Literal], ...]) -> Config:
    """A configuration in which some settings have values of their own, defaults among them."""
    travelling = dict(config) | dict(own)
    return tuple(
        (name, travelling[name])
        for name in sorted(travelling)
        if name not in CONFIG_DEFAULTS or travelling[name] != CONFIG_DEFAULTS[name]
    )


def fingerprint_of(code: bytes | memoryview) -> bytes:
    """The fingerprint of packed code: BLAKE2b, 16 bytes."""
    return hashlib.blake2b(code, digest_size=16).digest()


def function_key(fingerprint: bytes, options: Options) -> bytes:
    """The name of (code, options, configuration) on the wire: BLAKE2b, 16 bytes."""
    return hashlib.blake2b(fingerprint + options.to_bytes(), digest_size=16).digest()
