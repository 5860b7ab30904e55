"""What a compiled program depends on beside its key: software, hardware, and settings."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import jax

from jaxd_protocol import PROTOCOL_VERSION
from jaxd_protocol.jit.settings import CLIENTS, plain
from jaxd_server.cache.record_file import FORMAT
from jaxd_server.jax_compat.config import DEFAULTS

_MODULES: Final = ("jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "opt_einsum")
"""Whose code decides what is traced, compiled, or called by a program."""

_NATIVE: Final = ("jax_cuda", "jax_rocm", "jax_metal", "jaxlib", "libtpu", "nvidia_")
"""How the names of distributions begin that hold compilers and native code for devices."""

_VARIABLES: Final = ("XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")
"""Read by XLA and its libraries when they start. What begins with JAX_ is in jax's settings."""

_CPU_FACTS: Final = {
    *("vendor_id", "cpu family", "model", "model name", "stepping", "flags"),
    *("Features", "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
}

_CPU: Final = "/proc/cpuinfo"
_DRIVER: Final = "/proc/driver/nvidia/version"

_WITHOUT_EFFECT: Final = (CLIENTS - {"jax_default_device"}) | frozenset(
    {
        # what jax keeps on disk, and where
        "jax_compilation_cache_check_contents",
        "jax_compilation_cache_dir",
        "jax_compilation_cache_include_metadata_in_key",
        "jax_compilation_cache_max_size",
        "jax_enable_compilation_cache",
        "jax_persistent_cache_enable_xla_caches",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
        "jax_raise_persistent_cache_errors",
        # messages for people
        "jax_captured_constants_report_frames",
        "jax_captured_constants_warn_bytes",
        "jax_compiler_detailed_logging_min_ops",
        "jax_debug_log_modules",
        "jax_dump_ir_modes",
        "jax_dump_ir_to",
        "jax_explain_cache_misses",
        "jax_hlo_source_file_canonicalization_regex",
        "jax_include_debug_info_in_dumps",
        "jax_include_full_tracebacks_in_locations",
        "jax_log_checkpoint_residuals",
        "jax_log_compiles",
        "jax_logging_level",
        "jax_pprint_use_color",
        "jax_traceback_filtering",
        "jax_traceback_in_locations_limit",
        "jax_tracer_error_num_traceback_frames",
        # what was requested; what there is stands in the facts
        "jax_platform_name",
        "jax_platforms",
    }
)
"""Settings of jax that cannot change a program. One that is not known here counts."""


class Target(NamedTuple):
    """What the programs of one worker are good for.

    Attributes:
        digest: sixteen hex digits, equal exactly when the facts are.
        facts: name and value of everything that is in the digest, for people.
    """

    digest: str
    facts: dict[str, str]


def target(more: Mapping[str, str] = MappingProxyType({}), *, is_of_client: bool = False) -> Target:
    """That of this process, and `more` facts; starts jax's backend. Takes some milliseconds.

    To be called when jax has the settings that it is to keep. Those that travel with a call are in
    the call's key; here they have their defaults.

    Args:
        more: names and values of other facts.
        is_of_client: whether it is that of a client's process, where they may have any values; and
            so may the default device, which only says where its calls run.
    """
    settings = {**DEFAULTS, "jax_default_device": None} if is_of_client else {}
    facts = dict(_facts(settings)) | dict(more)
    text = json.dumps(facts, sort_keys=True).encode()
    return Target(hashlib.blake2b(text, digest_size=8).hexdigest(), facts)


def _facts(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "format", str(FORMAT)
    yield "protocol", str(PROTOCOL_VERSION)  # of which packed code is a part
    yield "python", str(sys.implementation.cache_tag)
    yield "machine", f"{sys.platform} {platform.machine()}"
    for name in _MODULES:
        yield name, _version(name)
    yield from _plugins()
    yield from _devices()
    yield "driver", _contents(_DRIVER)
    yield "cpu", _cpu()
    for name in _VARIABLES:
        yield name, os.environ.get(name, "")
    yield from _settings({**jax.config.values, **settings})


def _version(name: str) -> str:
    """The version of what is loaded; that on disk may be newer by now."""
    return str(getattr(import_module(name), "__version__", "")) or metadata.version(name)


def _plugins() -> Iterator[tuple[str, str]]:
    for entry in metadata.entry_points(group="jax_plugins"):
        version = entry.dist.version if entry.dist is not None else ""
        yield f"plugin {entry.name}", f"{entry.value} {version}"
    for name, version in chain.from_iterable(map(_distributions, sys.path)):
        if name.startswith(_NATIVE):
            yield f"distribution {name}", version


def _distributions(folder: str) -> Iterator[tuple[str, str]]:
    """Names and versions from the names of the folders; reading each METADATA takes too long."""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return
    for entry in entries:
        if entry.endswith(".dist-info"):
            name, _, version = entry.removesuffix(".dist-info").partition("-")
            yield name.lower(), version


def _devices() -> Iterator[tuple[str, str]]:
    devices = jax.devices()
    client: Any = devices[0].client
    yield "platform", str(client.platform)
    yield "platform_version", str(client.platform_version)
    named = (
        f"{one.id} {one.device_kind} {getattr(one, 'compute_capability', '')}" for one in devices
    )
    yield "devices", ", ".join(map(str.strip, named))


def _cpu() -> str:
    """Model and features of the first core, from which XLA chooses instructions."""
    lines = _contents(_CPU).partition("\n\n")[0].splitlines()
    pairs = [(name.strip(), value.strip()) for name, _, value in (x.partition(":") for x in lines)]
    known = [f"{name}: {value}" for name, value in pairs if name in _CPU_FACTS]
    return "\n".join(known) or platform.processor()


def _contents(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in sorted(values.keys() - _WITHOUT_EFFECT):
        yield name, str(plain(values[name]))
