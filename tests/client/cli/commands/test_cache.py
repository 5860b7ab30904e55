"""`jaxd cache`: the folder's own command does the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main


@pytest.mark.parametrize("words", [["ls", "--json"], ["show", "ab12"], ["--help"], []])
def test_this_process_becomes_the_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that follows; nothing of it is read here."""
    seen: list[Any] = []

    def become(program: str, given: list[str]) -> None:
        seen.append((program, given))
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    with pytest.raises(SystemExit):
        main(["cache", *words])
    expected = [sys.executable, "-P", "-m", "jaxd_server.cache", *words]
    assert seen == [(sys.executable, expected)]


def test_the_command_is_there(runtime: Path, tmp_path: Path) -> None:
    """Under the name that we call it by; on a folder that is not there as well."""
    done = subprocess.run(
        [sys.executable, "-m", "jaxd.cli", "cache", "ls", "--json"],
        env=os.environ | {"JAXD_CACHE_DIR": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["calls"]) == (0, [])
    assert runtime.is_dir()
