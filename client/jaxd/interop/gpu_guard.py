"""Keeps jax of this process off a GPU that a server on the same machine uses.

jax takes three quarters of a GPU's memory when it first computes anything, such as the array that
a client makes of a result. A client's own jax therefore stays on the CPU, unless the user has
selected its devices.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
    if not any(isinstance(finder, _JaxImportHook) for finder in sys.meta_path):
        sys.meta_path.insert(0, _JaxImportHook())


class _JaxImportHook:
    """An import hook that extends jax's loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "jax":
            return None
        others = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            _select_cpu_after(spec.loader)
        return spec


def _select_cpu_after(loader: Loader) -> None:
    """Has a loader select the CPU once it has executed jax."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        prefer_cpu()

    loader.exec_module = exec_module  # type: ignore[method-assign]
