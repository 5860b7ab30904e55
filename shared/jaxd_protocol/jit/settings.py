"""What becomes of jax's settings and contexts, and how those that travel come into force.

`options.CONFIG_DEFAULTS` has the settings that travel, here are all others: together every setting
of jax. tests/shared/jit/test_settings.py compares them with jax 0.10.2 and 0.11.2, and with
docs/settings.md, which explains them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.jit.options import CONFIG_DEFAULTS, Config

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL: Final = frozenset({"jax_disable_jit", "jax_no_execution", "jax_debug_key_reuse"})
"""Where one is set, functions run in the client's process, as `jax.jit` runs them there.

The last has jax note in the arrays of the process which random keys were used.
"""

REFUSED: Final[Mapping[str, Any]] = {"jax_disable_most_optimizations": False}
"""Settings of a whole process that change programs, and the only value that a server has."""

CLIENTS: Final = frozenset(
    {
        "jax_array_garbage_collection_guard",
        "jax_default_device",
        "jax_export_calling_convention_version",
        "jax_export_deserialize_expired_versions",
        "jax_export_ignore_forward_compatibility",
        "jax_log_compiles",
        "jax_no_tracing",
        "jax_pprint_use_color",
        "jax_serialization_version",
        "jax_thread_guard",
        "jax_traceback_filtering",
        "jax_transfer_guard",
        "jax_transfer_guard_device_to_device",
        "jax_transfer_guard_device_to_host",
        "jax_transfer_guard_host_to_device",
    }
)
"""Settings that act where they are set, on what jax does in that process."""

SERVERS: Final = frozenset(
    {
        "jax2tf_associative_scan_reductions",
        "jax2tf_default_native_serialization",
        "jax_backend_target",
        "jax_captured_constants_report_frames",
        "jax_captured_constants_warn_bytes",
        "jax_check_proxy_envs",
        "jax_compilation_cache_check_contents",
        "jax_compilation_cache_dir",
        "jax_compilation_cache_expect_pgle",
        "jax_compilation_cache_include_metadata_in_key",
        "jax_compilation_cache_max_size",
        "jax_compiler_detailed_logging_min_ops",
        "jax_cpu_collectives_implementation",
        "jax_cpu_enable_async_dispatch",
        "jax_cpu_get_global_topology_timeout_minutes",
        "jax_cpu_get_local_topology_timeout_minutes",
        "jax_cross_host_transfer_socket_address",
        "jax_cross_host_transfer_timeout_seconds",
        "jax_cross_host_transfer_transfer_size",
        "jax_cross_host_transport_addresses",
        "jax_cuda_visible_devices",
        "jax_debug_leaked_clients_on_clear_backends",
        "jax_debug_log_modules",
        "jax_distributed_debug",
        "jax_distributed_verify_secure_credentials",
        "jax_dump_ir_modes",
        "jax_dump_ir_to",
        "jax_enable_compilation_cache",
        "jax_enable_pgle",
        "jax_enable_preemption_service",
        "jax_enable_recoverability",
        "jax_explain_cache_misses",
        "jax_force_dcn_cross_host_transfers",
        "jax_hlo_source_file_canonicalization_regex",
        "jax_include_debug_info_in_dumps",
        "jax_include_full_tracebacks_in_locations",
        "jax_log_checkpoint_residuals",
        "jax_logging_level",
        "jax_mock_gpu_topology",
        "jax_mtls_ca_file",
        "jax_mtls_cert_file",
        "jax_mtls_key_file",
        "jax_mtls_peer_uri_prefix",
        "jax_num_cpu_devices",
        "jax_oneapi_visible_devices",
        "jax_pallas_verbose_errors",
        "jax_persistent_cache_enable_xla_caches",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
        "jax_pgle_aggregation_percentile",
        "jax_pgle_profiling_runs",
        "jax_pjrt_client_create_options",
        "jax_platform_name",
        "jax_platforms",
        "jax_raise_persistent_cache_errors",
        "jax_remove_custom_partitioning_ptr_from_cache_key",
        "jax_rocm_visible_devices",
        "jax_send_traceback_to_runtime",
        "jax_share_binary_between_hosts",
        "jax_share_binary_between_hosts_timeout_ms",
        "jax_sort_devices_by_process_index",
        "jax_source_url_schema",
        "jax_traceback_in_locations_limit",
        "jax_tracer_error_num_traceback_frames",
        "jax_use_cpp_shard_args",
        "jax_xla_backend",
        "mock_num_gpu_processes",
    }
)
"""Settings that a server has as it was started: devices, caches, dumps, messages."""

SET_MESH: Final = "jax.set_mesh"
ABSTRACT_MESH: Final = "jax.sharding.use_abstract_mesh"
MESHES: Final = "jax.sharding.Mesh"
COMPUTE_ON: Final = "jax.experimental.compute_on"
XLA_METADATA: Final = "jax.experimental.xla_metadata"
"""Contexts that are no settings and travel beside them, each by the name of what sets it.

In the order of their names a mesh comes before an abstract one that was set inside of it.
"""

CONTEXTS: Final[Mapping[str, str | None]] = {
    "device_context": SET_MESH,
    "abstract_mesh_context_manager": ABSTRACT_MESH,
    "mesh_context_manager": MESHES,
    "compute_on_context_manager": COMPUTE_ON,
    "xla_metadata_context_manager": XLA_METADATA,
    "user_context": None,
    "axis_env_state": None,
}
"""jax's own names for what its contexts set; None: what it is does not travel with a call.

One that is not here, such as the interpreter of Pallas for TPUs, is refused where it is set.
"""

IN_FORCE_WHEN_RUN: Final = frozenset({"jax_enable_x64", "jax_debug_nans", "jax_debug_infs"})
"""Settings that count when a program runs, and not only when it is made."""


def when_run(config: Config) -> Config:
    """The settings among these that count when a program runs."""
    return tuple(pair for pair in config if pair[0] in IN_FORCE_WHEN_RUN)


def plain(value: Any) -> Any:
    """The value of a setting as it travels: of an enum, the text that sets it."""
    text = getattr(value, "value", value)
    if text is value:
        return value
    return str(text) if isinstance(text, str) else str(value.name).lower()


def context_of(name: str, value: Any) -> AbstractContextManager[Any]:
    """A context in which jax has this setting, in this thread. Imports jax.

    Args:
        name: of a setting, or one of those in `CONTEXTS`.
        value: as `plain` gives it, or as a client describes a context.

    Raises:
        ConfigurationError: when the jax of this process does not have the setting, or there are
            not as many devices.
        ValueError: when jax does not take the value.
    """
    make = _MAKERS.get(name)
    if make is not None:
        return make(value)
    from jax._src.config import config_states

    state: Callable[[Any], AbstractContextManager[Any]] | None = config_states.get(name)
    if state is not None:
        return state(value)
    if value == CONFIG_DEFAULTS[name] if name in CONFIG_DEFAULTS else not value:
        return nullcontext()  # of another jax: here it is as if it were off
    import jax

    raise ConfigurationError(
        f"{name} is {value!r} in the process that calls, and the server's jax {jax.__version__} "
        "does not have that. Install the same jax on both ends, or leave it at its default."
    )


def _concrete_mesh(described: Any) -> Any:
    import jax
    import numpy

    names, sizes, types, indices = described
    devices = jax.devices()
    if indices and max(indices) >= len(devices):
        raise ConfigurationError(
            f"the call is made under a mesh of {len(indices)} devices, the last of them number "
            f"{max(indices)} counted from 0, and the server has {len(devices)}. Use a smaller "
            "mesh, or a server with more devices."
        )
    placed = numpy.array([devices[index] for index in indices]).reshape(sizes)
    return jax.sharding.Mesh(placed, names, axis_types=_axis_types(types))


def _axis_types(names: Any) -> Any:
    import jax

    return tuple(jax.sharding.AxisType[name] for name in names)


def _set_mesh(described: Any) -> AbstractContextManager[Any]:
    import jax

    return jax.set_mesh(_concrete_mesh(described))


def _abstract_mesh(described: Any) -> AbstractContextManager[Any]:
    import jax

    names, sizes, types, device = described
    kind = None if device is None else jax.sharding.AbstractDevice(*device)
    mesh = jax.sharding.AbstractMesh(sizes, names, _axis_types(types), abstract_device=kind)
    return jax.sharding.use_abstract_mesh(mesh)


@contextmanager
def _meshes(described: Any) -> Iterator[None]:
    """As `with mesh:` for each, without its warning, which the client has had already."""
    from jax._src import config, mesh

    resources = mesh.thread_resources
    before = list(resources.stack)
    outer = config.mesh_context_manager.swap_local(tuple(map(_concrete_mesh, described)))
    try:
        for each in map(_concrete_mesh, described):
            resources.stack.append(resources.stack[-1].with_mesh(each))
        resources.env = resources.stack[-1]
        yield
    finally:
        resources.stack[:] = before
        resources.env = resources.stack[-1]
        config.mesh_context_manager.set_local(outer)


@contextmanager
def _compute_on(kind: Any) -> Iterator[None]:
    """As `compute_on(kind)` of jax 0.10; jax 0.11 has it for functions only."""
    from jax._src import config

    outer = config.compute_on_context_manager.swap_local(kind)
    try:
        yield
    finally:
        config.compute_on_context_manager.set_local(outer)


def _xla_metadata(described: Any) -> AbstractContextManager[Any]:
    from jax.experimental.xla_metadata import set_xla_metadata

    context: AbstractContextManager[Any] = set_xla_metadata(**dict(described))
    return context


_MAKERS: Final[Mapping[str, Callable[[Any], AbstractContextManager[Any]]]] = {
    SET_MESH: _set_mesh,
    ABSTRACT_MESH: _abstract_mesh,
    MESHES: _meshes,
    COMPUTE_ON: _compute_on,
    XLA_METADATA: _xla_metadata,
}
