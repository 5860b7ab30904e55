"""How a worker is told which devices to take, and how much of their memory: by its environment.

jax and the libraries below it read these variables once, when they start, so they are set before a
worker is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jaxd_server.options import ServerOptions

__all__ = ["worker_environment"]

_FRACTION: Final = "XLA_CLIENT_MEM_FRACTION"
_FRACTION_BEFORE: Final = "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""Its older name; jax refuses to start when both are set."""

_PREALLOCATE: Final = "XLA_PYTHON_CLIENT_PREALLOCATE"


def worker_environment(options: ServerOptions, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: what the options say, else what is inherited.

    A server that nobody asked for, or whose workers share a device, preallocates only where
    `inherited` says so.
    """
    modest = {_PREALLOCATE: "false"} if options.auto or options.worker_per_principal else {}
    environment = modest | dict(inherited)
    if options.device_memory_fraction is not None:
        environment.pop(_FRACTION_BEFORE, None)
        environment[_FRACTION] = str(options.device_memory_fraction)
    if options.preallocate is not None:
        environment[_PREALLOCATE] = "true" if options.preallocate else "false"
    if options.devices is not None:
        # By the numbers that nvidia-smi shows; CUDA's own order is by speed.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": options.devices}
    return environment
