"""On what the tests compute: on the CPU, or with `TEST_PLATFORM=cuda,cpu` on a GPU.

The value is that of `JAX_PLATFORMS`, in clients and servers. It has `cpu` as well because jax needs
it for callbacks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import pytest

from tests.xla_flags import makes_up_devices

_NAME: Final = "TEST_PLATFORM"


def is_cpu() -> bool:
    """Whether they compute where they always do."""
    return os.environ.get(_NAME, "cpu") == "cpu"


def environment() -> dict[str, str]:
    """What tells jax, in tests, clients and servers.

    On an accelerator each of them takes memory as it needs it: they are many, and share the device.
    """
    if is_cpu():
        return {"JAX_PLATFORMS": "cpu"}
    return {"JAX_PLATFORMS": os.environ[_NAME], "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


def made_up_devices_needed(variables: Mapping[str, str]) -> None:
    """Skips a test whose server has several devices, as only a CPU can be made to have them."""
    if makes_up_devices(variables) and not is_cpu():
        pytest.skip(f"needs several devices, as only a CPU has them: {_NAME}={os.environ[_NAME]}")
