"""Whether two processes run on one machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jaxd_protocol.base import process
from jaxd_protocol.base.process import machine_id
from tests.live_server import source_environment


def test_two_processes_of_one_machine_agree(tmp_path: Path) -> None:
    """Sixteen hex digits that are not the kernel's own name for this boot."""
    program = "from jaxd_protocol.base.process import machine_id; print(machine_id())"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == machine_id()
    assert int(str(machine_id()), 16) >= 0
    assert str(machine_id()) not in Path(process._BOOT).read_text().replace("-", "")


@pytest.mark.parametrize("path", ["/nowhere/boot_id", "/proc"])
def test_a_system_without_that_name_is_like_no_other(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Nothing is guessed."""
    monkeypatch.setattr(process, "_BOOT", path)
    assert machine_id() is None
