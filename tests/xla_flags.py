"""How XLA compiles in the tests: fast, without most of its optimizations.

What it makes of a program then is slower and just as right, and a compile takes a fifth of the
time. A set variable is left alone: `XLA_FLAGS= make test` compiles as users do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Final

_NAME: Final = "XLA_FLAGS"

_FAST: Final = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
)
_WITHOUT_EMITTERS: Final = "--xla_cpu_use_fusion_emitters=false"
"""What jaxlib 0.11 no longer knows: a process with an unknown flag ends when XLA begins."""


def compile_fast() -> None:
    """In this process, where it has not used jax yet, and in those that it starts."""
    os.environ.setdefault(_NAME, fast_flags())


def fast_flags() -> str:
    """The value that has XLA do so."""
    is_known = metadata.version("jaxlib").startswith("0.10.")
    return f"{_FAST} {_WITHOUT_EMITTERS}" if is_known else _FAST


_DEVICES: Final = "--xla_force_host_platform_device_count="


def devices(count: int) -> dict[str, str]:
    """The environment of a process with so many devices."""
    return {_NAME: f"{os.environ.get(_NAME, '')} {_DEVICES}{count}".strip()}


def makes_up_devices(variables: Mapping[str, str]) -> bool:
    """Whether this environment is of that kind."""
    return _DEVICES in variables.get(_NAME, "")
