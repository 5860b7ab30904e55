"""`TEST_PLATFORM`: the suite on another platform than the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import chosen_platform
from tests.live_server import source_environment
from tests.xla_flags import devices


def test_the_suite_computes_on_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless it is told otherwise."""
    monkeypatch.delenv("TEST_PLATFORM", raising=False)
    assert source_environment(tmp_path)["JAX_PLATFORMS"] == "cpu"
    chosen_platform.made_up_devices_needed(devices(8))


def test_another_platform_is_that_of_clients_and_servers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They share the device's memory; what needs several devices is skipped."""
    monkeypatch.setenv("TEST_PLATFORM", "cuda,cpu")
    environment = source_environment(tmp_path)
    assert environment["JAX_PLATFORMS"] == "cuda,cpu"
    assert environment["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert source_environment(tmp_path, JAX_PLATFORMS="cpu")["JAX_PLATFORMS"] == "cpu"
    chosen_platform.made_up_devices_needed(environment)
    with pytest.raises(pytest.skip.Exception, match="TEST_PLATFORM=cuda,cpu"):
        chosen_platform.made_up_devices_needed(devices(8))
