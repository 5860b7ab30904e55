"""The GPU, for tests that need one."""

from __future__ import annotations

import pytest

from tests import chosen_platform
from tests.gpu.nvidia import Gpu, gpus


@pytest.fixture
def gpu() -> Gpu:
    """The first one, before the test."""
    found = gpus()
    if chosen_platform.is_cpu() or not found:
        pytest.skip("needs an NVIDIA GPU, and TEST_PLATFORM=cuda,cpu")
    return found[0]
