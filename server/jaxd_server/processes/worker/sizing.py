"""Derives sizes, limits and modes of a worker from the options and the machine."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import jax

from jaxd_protocol.network.tokens import without_password
from jaxd_protocol.pickling.unpack.unpickler import unpickling_gate
from jaxd_server.cache.peers import Peers, peer_store
from jaxd_server.cache.shared_store import open_shared_store
from jaxd_server.cache.store import OpenShared, open_store
from jaxd_server.compilation.disk_cache.compile_target import target
from jaxd_server.compilation.disk_cache.programs import ProgramCache
from jaxd_server.compilation.eviction import Limits
from jaxd_server.compilation.functions.receive import receive_function
from jaxd_server.compilation.functions.table import PermissionCheck, Receive, permit_all
from jaxd_server.compilation.remote_build.builder_start import ForkServer
from jaxd_server.compilation.remote_build.policy import BuildIn
from jaxd_server.config.options import ServerOptions
from jaxd_server.jax_compat import compilation_cache
from jaxd_server.jax_compat.devices import all_devices_bytes, device_bytes_limit
from jaxd_server.runtime.imported_packages import ImportedPackages
from jaxd_server.runtime.logs import log_event
from jaxd_server.runtime.system_memory import MemoryLoss

_REST_AFTER_S = 600.0
"""An idle server that was started by a first call releases its GPU after so long."""


def limits(options: ServerOptions) -> Limits:
    """The limits of programs."""
    device_bytes = options.device_program_bytes
    if device_bytes is None:
        device_bytes = device_bytes_limit() // 10
    return Limits(
        options.max_executables, options.program_bytes, device_bytes, options.principal_share
    )


def value_bytes(options: ServerOptions, loss: MemoryLoss | None = None) -> int:
    """The limit of values; lower when a worker with values was ended for want of memory."""
    if loss is None:
        return all_devices_bytes() // 2 if options.value_bytes is None else options.value_bytes
    limit = loss.lowered(options.value_bytes or all_devices_bytes() // 2)
    log_event("values_limited", value_bytes=limit, held=loss.held)
    return limit


def content_bytes(options: ServerOptions) -> int:
    """The limit of contents, which clients may send again."""
    return all_devices_bytes() // 8 if options.content_bytes is None else options.content_bytes


def program_cache(
    options: ServerOptions, packages: ImportedPackages, peers: Peers | None = None
) -> ProgramCache | None:
    """The cache on disk for this machine; None if it is switched off or cannot be used.

    What is not in it is taken from the store that is shared, or, where there is none, from peers.
    """
    accepted = {}
    if options.accept == "exported":  # unchecked programs of the cache are not run
        accepted = {"accept": f"exported {' '.join(sorted(options.allow_targets))}".rstrip()}
    shared: OpenShared
    shared = partial(open_shared_store, options.store, read_only=options.store_read_only)
    if options.store is None and peers is not None:
        shared = partial(peer_store, peers)
    store = open_store(
        *target(accepted),
        options.cache_dir,
        options.disk_bytes,
        options.principal_disk_bytes,
        shared,
    )
    if store is None:
        if options.store is not None:
            why = "a store needs a cache folder, and there is none"
            log_event("store_refused", folder=without_password(options.store), reason=why)
        return None
    compilation_cache.install(store, os.path.join(store.folder, "xla"))
    return ProgramCache(store, packages)


def store_report(
    options: ServerOptions, program_cache: ProgramCache | None
) -> dict[str, Any] | None:
    """What there is to see of the store that is shared; None: there is to be none."""
    shared = None if program_cache is None else program_cache.store.shared
    if options.store is None and shared is None:
        return None
    if shared is None:  # the log says why
        return {"name": without_password(options.store or ""), "is_used": False}
    return {
        "name": shared.name,
        "is_used": True,
        "read_only": shared.read_only,
        "loaded": shared.loaded,
        "added": shared.added,
    }


def rest_after_s(options: ServerOptions) -> float:
    """Seconds without a call after which this worker ends; 0: never."""
    if options.rest_after_s is not None:
        return options.rest_after_s
    return _REST_AFTER_S if options.auto and jax.default_backend() != "cpu" else 0.0


def receiving(options: ServerOptions) -> Receive:
    """The function that unpacks code of clients; with `accept="exported"`, programs only."""
    if options.accept == "code":
        return receive_function
    from jaxd_server.compilation.functions.receive_exported import (
        receive_exported,  # few servers need it
    )
    from jaxd_server.jax_compat.exported import require_export

    require_export()
    unpickling_gate.shut()
    for name in options.allow_targets:
        log_event("native_code_unchecked", target=name)
    return partial(receive_exported, unchecked=frozenset(options.allow_targets))


def permitting(options: ServerOptions) -> PermissionCheck:
    """The check of the options of a function; with `accept="exported"`, that it uses no files."""
    if options.accept == "code":
        return permit_all
    from jaxd_server.compilation.functions.receive_exported import require_harmless

    return require_harmless


def fork_server(options: ServerOptions) -> ForkServer | None:
    """What starts builders; None where there are none, or each is a new interpreter.

    To be called before jax has a device, and before this process has threads.
    """
    if sys.platform != "linux" or options.accept == "exported" or options.build_in == "worker":
        return None
    try:
        return ForkServer()
    except OSError as error:
        log_event("fork_server_not_started", reason=str(error))
        return None


def build_in(options: ServerOptions) -> BuildIn:
    """Where functions are traced: a second process is possible only on a CPU."""
    if options.accept == "exported":
        return "worker"  # exported programs are not traced
    platform = jax.default_backend()
    if platform == "cpu":
        return options.build_in
    if options.build_in == "builder":
        log_event("builders_unsupported", platform=platform)
    return "worker"
