from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jaxd import doctor
from jaxd.doctor import Situation, examine, installation
from jaxd.settings import Settings

if TYPE_CHECKING:
    import pytest


def test_a_fresh_machine_has_nothing_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No server, no token and no directory are how everybody begins."""
    monkeypatch.setattr(installation, "has_server_extra", lambda: True)
    found = examine(Situation(Settings(), root=str(runtime)))
    assert [check for check in found if check.state != "ok"] == []
    assert [check.name for check in found][-1] == "connection"


def test_every_check_is_in_the_list(runtime: Path) -> None:
    """One that is written and not listed would never be made."""
    written = {
        getattr(module, name)
        for module in (doctor.gpu, doctor.installation)
        for name in set(module.__all__) - {"has_gpu"}
    }
    assert written | {doctor.reaching.local_server} == set(doctor.CHECKS)


def test_nothing_is_changed(runtime: Path) -> None:
    """Not even a folder is made."""
    before = sorted(runtime.rglob("*"))
    examine(Situation(Settings(), root=str(runtime)))
    assert sorted(runtime.rglob("*")) == before
