"""Keeps jax of this process off a GPU that a server on the same machine uses.

jax takes three quarters of a GPU's memory when it first computes anything, such as the array that
a client makes of a result. A client's own jax therefore stays on the CPU, unless the user has
selected its devices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxd.interop.after_import import AfterImport
from jaxd.interop.jax_runtime import prefer_cpu, require_jax, started_platform
from jaxd_protocol.base.process import machine_id

_PLATFORM_VARIABLES = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME")
_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def keep_jax_off_gpu(server: Mapping[str, Any]) -> str | None:
    """Makes jax use the CPU in this process, also when it is imported later.

    Does nothing where the server is on another machine or uses no accelerator, or where the
    environment selects jax's devices.

    Args:
        server: `platform`, `machine` and `visible_devices` of its welcome message.

    Returns:
        A warning when jax uses an accelerator in this process already; else None.
    """
    platform = server.get("platform", "cpu")
    if platform == "cpu" or _is_on_other_machine(server) or _has_user_choice(server):
        return None
    if "jax" not in sys.modules:
        _watch_imports()
        return None
    require_jax()  # another thread may be about to import it
    if started_platform() in {None, "cpu"}:
        prefer_cpu()
        return None
    return (
        f"jax in this process has taken the {platform} that the server on this machine uses, and "
        "with it most of its memory. Make the first call before jax computes anything here, set "
        "JAX_PLATFORMS=cpu for this process, or give each its own with CUDA_VISIBLE_DEVICES."
    )


def _is_on_other_machine(server: Mapping[str, Any]) -> bool:
    theirs = server.get("machine")
    return theirs is None or theirs != machine_id()


def _has_user_choice(server: Mapping[str, Any]) -> bool:
    """Whether the environment selects the devices of this process, other than the server's."""
    visible = os.environ.get(_VISIBLE_DEVICES)
    is_apart = visible is not None and visible != server.get("visible_devices")
    return is_apart or any(os.environ.get(name) for name in _PLATFORM_VARIABLES)


def _watch_imports() -> None:
    """Makes `import jax` select the CPU.

    A variable in the environment would also affect every process that this one starts.
    """
    if not any(isinstance(finder, _SelectsCpu) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SelectsCpu({"jax"}, lambda _: prefer_cpu()))


class _SelectsCpu(AfterImport):
    """Makes `import jax` select the CPU; in `sys.meta_path` once."""
