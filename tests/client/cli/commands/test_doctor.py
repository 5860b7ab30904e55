from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from jaxd.cli.__main__ import main
from jaxd.cli.commands import doctor
from jaxd.cli.doctor.context import Check

if TYPE_CHECKING:
    import pytest

GOOD = Check("disk", "ok", "room")
BAD = Check("token", "bad", "not usable", "Run: chmod 600 token")


def test_without_anything_bad_it_exits_with_0(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line for each thing that was looked at."""
    monkeypatch.setattr(doctor, "examine", lambda context: [GOOD])
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "ok   disk               room\n"


def test_something_bad_exits_with_1_and_says_what_to_do(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice stands below what it is about."""
    monkeypatch.setattr(doctor, "examine", lambda context: [GOOD, BAD])
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out.endswith(f"{'':<24}Run: chmod 600 token\n")


def test_json_has_every_check(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one word on all of them."""
    monkeypatch.setattr(doctor, "examine", lambda context: [BAD])
    assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "healthy": False,
        "checks": [
            {"name": "token", "state": "bad", "found": "not usable", "advice": BAD.advice},
        ],
    }


def test_the_real_checks_start_no_server(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking changes nothing."""
    main(["doctor"])
    assert "no server to try" in capsys.readouterr().out
    assert not (runtime / "jaxd").exists()
