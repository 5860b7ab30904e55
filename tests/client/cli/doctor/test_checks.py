from __future__ import annotations

from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

from jaxd.cli.commands.doctor import all_checks, examine
from jaxd.cli.doctor import connection, gpu, installation
from jaxd.cli.doctor.context import DoctorContext
from jaxd.connection.settings import Settings
from tests.client.cli.doctor.contexts import gpu_machine

if TYPE_CHECKING:
    import pytest


def test_a_fresh_machine_has_nothing_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no token and no directory are how everybody begins."""
    monkeypatch.setattr(installation, "has_server_extra", lambda: True)
    found = examine(DoctorContext(Settings(), root=str(runtime)))
    assert [check for check in found if check.state != "ok"] == []
    assert [check.name for check in found][-1] == "connection"


def test_every_check_is_in_the_list(runtime: Path, tmp_path: Path) -> None:
    """One that is written and not listed would never be made."""
    written = {
        value
        for module in (gpu, installation)
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__
        and isinstance(value, FunctionType)
        and name != "has_gpu"
        and not name.startswith("_")
    }
    machine = DoctorContext(Settings(), root=gpu_machine(tmp_path))
    assert written | {connection.local_server} == set(all_checks(machine))


def test_nothing_is_changed(runtime: Path) -> None:
    """Not even a folder is made."""
    before = sorted(runtime.rglob("*"))
    examine(DoctorContext(Settings(), root=str(runtime)))
    assert sorted(runtime.rglob("*")) == before
