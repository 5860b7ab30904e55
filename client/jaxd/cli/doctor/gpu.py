"""Checks of the NVIDIA GPU: driver, plugin, visibility, and other processes on it.

Made only where `has_gpu`.
"""

from __future__ import annotations

import glob
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from jaxd.cli.doctor.context import Check, DoctorContext

_MIN_DRIVER: Final = {12: 525, 13: 580}
"""The first drivers for CUDA 12 and 13 on Linux, by NVIDIA's table of compatibility."""

_FRACTIONS: Final = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""jax's variable, and what it was called before."""

_MIN_SHM_BYTES: Final = 512 << 20
_JAX_PLATFORMS_SCRIPT: Final = (
    "import jax, json; print(json.dumps([d.platform for d in jax.devices()]))"
)


def has_gpu(context: DoctorContext) -> bool:
    """Whether a server on this machine has an NVIDIA GPU to compute on, in whatever state."""
    if not context.is_server_local:
        return False
    if os.path.exists(context.path("proc/driver/nvidia/version")):
        return True
    devices = glob.glob("*", root_dir=context.path("sys/bus/pci/devices"))
    return any(_is_nvidia_display(context, device) for device in devices)


def _is_nvidia_display(context: DoctorContext, device: str) -> bool:
    folder = ("sys/bus/pci/devices", device)
    vendor, kind = (context.read(*folder, name).strip() for name in ("vendor", "class"))
    return vendor == "0x10de" and kind.startswith("0x03")


def _driver_version(context: DoctorContext) -> str:
    text = context.read("proc/driver/nvidia/version")
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return found[1] if found else ""


def _plugins(context: DoctorContext) -> dict[int, str]:
    """The CUDA plugins of jax that are installed, by the major version of CUDA."""
    versions = {n: context.version(f"jax-cuda{n}-plugin") for n in _MIN_DRIVER}
    return {number: version for number, version in versions.items() if version is not None}


def _install_advice(context: DoctorContext) -> str:
    major = int(_driver_version(context).partition(".")[0] or 0)
    extra = "cuda13" if major >= _MIN_DRIVER[13] else "cuda12"
    return f"Run: pip install 'jaxd[server,{extra}]'"


def driver(context: DoctorContext) -> Check:
    """Whether the kernel has a driver for it, and whether a container has the device."""
    version = _driver_version(context)
    if not version:
        advice = (
            "Install it (apt-get install nvidia-driver, or ubuntu-drivers install) and restart."
        )
        return Check("gpu driver", "bad", "an NVIDIA GPU without its driver", advice)
    if not os.path.exists(context.path("dev/nvidiactl")):
        advice = (
            "In a container: docker run --gpus all … (with nvidia-container-toolkit on the host). "
            "Else: nvidia-modprobe -c 0 -u"
        )
        return Check("gpu driver", "bad", f"{version}, but no device in /dev", advice)
    return Check("gpu driver", "ok", version)


def plugin(context: DoctorContext) -> Check | None:
    """Whether jax has a plugin for CUDA, for this driver, and for this jax."""
    version = _driver_version(context)
    if not version or context.version("jax") is None:
        return None
    found = _plugins(context)
    if not found:
        install = _install_advice(context)
        return Check("jax for cuda", "bad", "jax is installed for CPU only", install)
    if len(found) > 1:
        words = ", ".join(f"CUDA {number} (plugin {v})" for number, v in found.items())
        advice = "Keep one: pip uninstall jax-cuda12-plugin jax-cuda12-pjrt, or the same with 13."
        return Check("jax for cuda", "bad", f"two plugins: {words}", advice)
    ((number, plugin_version),) = found.items()
    return _plugin_versions(context, version, number, plugin_version)


def _plugin_versions(
    context: DoctorContext, version: str, number: int, plugin_version: str
) -> Check:
    """Whether the only plugin fits the driver, which has this version, and jaxlib."""
    words, install = f"CUDA {number} (plugin {plugin_version})", _install_advice(context)
    if int(version.partition(".")[0]) < _MIN_DRIVER[number]:
        found_words = f"{words} needs driver {_MIN_DRIVER[number]} or later, this is {version}"
        advice = "Update the driver" + (f", or: {install}" if number != 12 else ".")
        return Check("jax for cuda", "bad", found_words, advice)
    jaxlib = context.version("jaxlib")
    if jaxlib != plugin_version:
        advice = f"{install} --upgrade"
        return Check("jax for cuda", "bad", f"{words}, but jaxlib {jaxlib}", advice)
    return Check("jax for cuda", "ok", words)


def jax_sees_gpu(context: DoctorContext) -> Check | None:
    """Whether jax, started as a server would be, finds it."""
    if not _plugins(context):
        return None
    hidden = _hiding_variable(context)
    if hidden:
        name, _, value = hidden.partition("=")
        return Check("gpu for jax", "bad", f"hidden by {name}={value!r}", f"Run: unset {name}")
    if context.has_server:
        return None  # the server has the device; see `connection.devices`
    output = context.run(
        [sys.executable, "-c", _JAX_PLATFORMS_SCRIPT], XLA_PYTHON_CLIENT_PREALLOCATE="false"
    )
    platforms = json.loads(output.splitlines()[-1]) if output else []
    if "gpu" in platforms or "cuda" in platforms:
        return Check("gpu for jax", "ok", f"{len(platforms)} found")
    advice = """See its output: python -c 'import jax; jax.devices("cuda")'"""
    return Check("gpu for jax", "bad", "jax finds no GPU", advice)


def _hiding_variable(context: DoctorContext) -> str:
    """The variable that hides it from jax, as NAME=VALUE; empty when none does."""
    platforms = context.environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return f"JAX_PLATFORMS={platforms}"
    devices = context.environment.get("CUDA_VISIBLE_DEVICES")
    if devices is not None and devices.strip() in ("", "-1", "none", "NoDevFiles"):
        return f"CUDA_VISIBLE_DEVICES={devices}"
    return ""


def _query_smi(context: DoctorContext, what: str) -> list[list[str]]:
    """Rows of nvidia-smi's output; none when it cannot be run."""
    output = context.run(["nvidia-smi", what, "--format=csv,noheader,nounits"])
    return [[cell.strip() for cell in row.split(",")] for row in (output or "").splitlines()]


def other_processes(context: DoctorContext) -> Check:
    """Other processes that compute on it, without those of the server."""
    rows = _query_smi(context, "--query-compute-apps=pid,process_name,used_memory")
    own = _own_process_group(context)
    others = [row for row in rows if len(row) == 3 and row[0] not in own]
    if not others:
        return Check("gpu users", "ok", "no other process")
    words = ", ".join(f"process {pid} ({name}, {used} MiB)" for pid, name, used in others)
    advice = (
        "End it, or have the server take less: XLA_PYTHON_CLIENT_PREALLOCATE=false jaxd serve, or "
        "another device: CUDA_VISIBLE_DEVICES=1 jaxd serve"
    )
    return Check("gpu users", "note", words, advice)


def _own_process_group(context: DoctorContext) -> set[str]:
    """The numbers of the local server's processes."""
    from jaxd.connection.control_client import send_request
    from jaxd_protocol.network.local_server import control_path

    status: Mapping[str, Any] = {}
    with suppress(OSError):
        address = context.address
        status = send_request(control_path(address), {"ask": "status"}, address.uid) or {}
    host = status.get("host") or {}
    workers = [host, *status.get("workers", ())]
    numbers = (host.get("pid"), *(worker.get("worker_pid") for worker in workers))
    return {str(number) for number in numbers if number}


def preallocation(context: DoctorContext) -> Check | None:
    """How much of the device's memory a server takes at its start."""
    if not _plugins(context):
        return None
    environment = context.environment
    if environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() in ("false", "0"):
        return Check("gpu memory", "ok", "taken as it is needed")
    share = next(filter(None, map(environment.get, _FRACTIONS)), "0.75")
    advice = (
        "Nothing, where the server has the device for itself. Else: jaxd serve --no-preallocate, "
        "or --device-memory-fraction 0.3; a server that a call starts takes it as it is needed."
    )
    return Check("gpu memory", "note", f"a server by hand takes {share} of it at once", advice)


def shared_memory(context: DoctorContext) -> Check | None:
    """Room in /dev/shm, which NCCL needs where several GPUs work together."""
    if len(_query_smi(context, "--query-gpu=name")) < 2:
        return None
    try:
        status = os.statvfs(context.path("dev/shm"))
    except OSError:
        return None
    size = status.f_blocks * status.f_frsize
    found = f"{size >> 20} MiB in /dev/shm"
    if size < _MIN_SHM_BYTES:
        return Check("shared memory", "bad", found, "In a container: docker run --shm-size=1g …")
    return Check("shared memory", "ok", found)
