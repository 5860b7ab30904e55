"""The GPU, for tests that need one."""

from __future__ import annotations

import pytest

from tests import chosen_platform
from tests.gpu.nvidia import Gpu, gpus


@pytest.fixture(scope="session", autouse=True)
def _this_process_has_begun() -> None:
    """What it takes of a GPU itself, as any client with jax, it takes before tests look at that."""
    if not chosen_platform.is_cpu():
        import jax

        jax.block_until_ready(jax.numpy.ones((8, 8)) @ jax.numpy.ones((8, 8)))


@pytest.fixture
def gpu() -> Gpu:
    """The first one, before the test."""
    found = gpus()
    if chosen_platform.is_cpu() or not found:
        pytest.skip("needs an NVIDIA GPU, and TEST_PLATFORM=cuda,cpu")
    return found[0]
