"""A program that has just arrived, from a client that has traced its function by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jaxd_protocol.errors import NotPermitted, ProtocolError
from jaxd_protocol.jit.options import EXPORTED_CONFIG, Options, fingerprint_of
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_server.compilation.functions.function import Described
from jaxd_server.compilation.functions.receive import UnpackedFunction
from jaxd_server.jax_compat.exported import open_program

XLA_OPTIONS: Final[Mapping[str, type[bool | int]]] = {
    "xla_allow_excess_precision": bool,
    "xla_backend_optimization_level": int,
    "xla_cpu_enable_concurrency_optimized_scheduler": bool,
    "xla_cpu_enable_fast_math": bool,
    "xla_cpu_enable_fast_min_max": bool,
    "xla_cpu_fast_math_honor_division": bool,
    "xla_cpu_fast_math_honor_functions": bool,
    "xla_cpu_fast_math_honor_infs": bool,
    "xla_cpu_fast_math_honor_nans": bool,
    "xla_cpu_parallel_codegen_split_count": int,
    "xla_cpu_prefer_vector_width": int,
    "xla_embed_ir_in_executable": bool,
    "xla_gpu_autotune_level": int,
    "xla_gpu_deterministic_ops": bool,
    "xla_gpu_enable_cublaslt": bool,
    "xla_gpu_enable_fast_min_max": bool,
    "xla_gpu_enable_latency_hiding_scheduler": bool,
    "xla_gpu_enable_triton_gemm": bool,
    "xla_gpu_exclude_nondeterministic_ops": bool,
    "xla_gpu_triton_gemm_any": bool,
    "xla_llvm_disable_expensive_passes": bool,
}
"""Options of XLA that a client of a server of programs may give, and the types of their values.

XLA has hundreds more. Some write files, read them, or pass flags to LLVM, and new ones come with
each version: what is not here is refused. None of these is text.
"""

_MOST: Final = 1024
"""No number that an option of these takes is larger."""


def receive_exported(
    name: str,
    manifest: FunctionManifest | None,
    fingerprint: bytes,
    data: bytes | memoryview,
    *,
    unchecked: frozenset[str],
) -> UnpackedFunction:
    """As `receive_function`, for what `jax.export` has written; no code of the client's runs.

    Args:
        name: the name of the function.
        manifest: its client's.
        fingerprint: the one that was requested.
        data: the program.
        unchecked: native code that it may call with any shapes, beside what jax itself calls.

    Raises:
        ProtocolError: when the bytes are not those that were requested, or no program.
        NotPermitted: when it calls what it may not, or is a function.
    """
    code = bytes(data)
    if fingerprint_of(code) != fingerprint:
        raise NotPermitted(
            f"{name} came as a function, and this server takes exported programs only (it was "
            "started with --accept exported). Use a client of the same jaxd, which exports by "
            "itself, or a server that takes code."
        )
    if manifest is None:
        raise ProtocolError("an exported program came without saying what it is.")
    return UnpackedFunction(open_program(code, unchecked))


def require_harmless(described: Described) -> None:
    """Checks that a client sets no option that affects more than its own program.

    Raises:
        NotPermitted: when it names an option of XLA or jax that it may not set, or one that
            belongs to functions.
        ProtocolError: when its options have another form.
    """
    try:
        reason = _refused(described.options)
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"the options of {described.name} cannot be read.") from error
    if reason is not None:
        raise NotPermitted(
            f"{described.name} has {reason} This server takes exported programs only (--accept "
            "exported)."
        )


def _refused(options: Options) -> str | None:
    """What clients may not set among these options, if anything."""
    for name, value in options.compiler_options:
        if not _is_harmless(name, value):
            kind = XLA_OPTIONS.get(name)
            may = f"takes a value of type {kind.__name__}" if kind else "is not for clients to set"
            return (
                f"compiler_options={{{name!r}: {value!r}}}, and {name} {may}. Leave it out, or "
                "have it set with XLA_FLAGS where the server is started; clients may set "
                f"{', '.join(XLA_OPTIONS)}."
            )
    for name, _ in options.config:
        if name not in EXPORTED_CONFIG:
            return (
                f"config={{{name!r}: …}}, which is not for clients to set. Leave it out; these "
                f"travel with a program: {', '.join(EXPORTED_CONFIG)}."
            )
    for name, value in options.of_jit():
        if name not in _OF_PROGRAMS:
            return (
                f"{name}={value!r}, which belongs to functions. Leave it out, or use a server "
                "that takes code."
            )
    return None


_OF_PROGRAMS: Final = frozenset({"compiler_options", "donate_argnums", "keep_unused", "static"})
"""Options of `jax.jit` that a program has; the others are used where it is traced."""


def _is_harmless(name: str, value: object) -> bool:
    kind = XLA_OPTIONS.get(name)
    if kind is None or kind is bool:
        return kind is bool and type(value) is bool
    return type(value) is int and 0 <= value <= _MOST  # XLA aborts the process for some below
