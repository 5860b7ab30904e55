"""`jaxd cache`: the folder's own command does the work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli import main
from jaxd.commands import cache
from jaxd_protocol.errors import ConfigurationError
from tests.client.fake_server import FakeServer, failed

SAME = {"checked": 3, "same": 2, "different": [], "skipped": ["callbacks"]}
DIFFERENT = {"checked": 1, "same": 0, "different": ["train_step (01234567)"], "skipped": []}
COMMAND = """
import json, sys
words = sys.argv[1:]
if "--json" in words:
    print(json.dumps({"checked": 4}))
else:
    print("checked", words, flush=True)
sys.exit(int(words[-1]) if words[-1].isdigit() else 0)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the place of the command that knows the folder: says what it was given."""
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.setattr(cache, "COMMAND", (sys.executable, str(tmp_path / "command.py")))


@pytest.fixture
def server(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """The server that commands find by themselves."""
    server = FakeServer(f"{runtime}/s.sock", verify=SAME)
    monkeypatch.setenv("JAXD_SERVER", server.address)
    yield server
    server.close()


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
    expected = [sys.executable, "-P", "-m", "jaxd_server.cache_command", *words]
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


@pytest.mark.usefixtures("command")
def test_verify_asks_the_server_as_well(
    server: FakeServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """To build some anew; how many can be said, none as well."""
    assert main(["cache", "verify", "--cache-dir", "/d"]) == 0
    said = capfd.readouterr().out
    assert said.splitlines() == [
        "checked ['verify', '--cache-dir', '/d']",
        "3 programs built anew, 2 of them the same, 1 skipped",
    ]
    assert main(["cache", "verify", "--sample", "20", "--server", server.address]) == 0
    assert main(["cache", "verify", "--sample", "0"]) == 0
    assert [asked.args for asked in server.asked] == [(3,), (20,)]


@pytest.mark.usefixtures("command")
def test_either_finding_is_a_failure(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    """A broken file, or a program that is another when it is built anew."""
    assert main(["cache", "verify", "--cache-dir", "1"]) == 1
    server.answers["verify"] = DIFFERENT
    assert main(["cache", "verify"]) == 1
    assert "not the same when built anew: train_step (01234567)\n" in capfd.readouterr().out


@pytest.mark.usefixtures("command")
def test_what_cannot_be_begun_is_passed_on(server: FakeServer) -> None:
    """Nobody is asked then."""
    assert main(["cache", "verify", "--cache-dir", "2"]) == 2
    assert server.asked == []


def test_verify_has_a_help_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    """With what both halves take; a usage error names it."""
    with pytest.raises(SystemExit) as ended:
        main(["cache", "verify", "--help"])
    assert ended.value.code == 0
    said = capfd.readouterr().out
    assert all(f"--{name}" in said for name in ("cache-dir", "json", "sample", "server"))
    with pytest.raises(SystemExit) as ended:
        main(["cache", "verify", "--smaple", "3"])
    assert ended.value.code == 2
    assert "See: jaxd cache verify --help" in capfd.readouterr().err


@pytest.mark.usefixtures("command")
def test_json_is_one_object(server: FakeServer, capfd: pytest.CaptureFixture[str]) -> None:
    """With both answers."""
    assert main(["cache", "verify", "--json"]) == 0
    programs = {"server": server.address, **SAME}
    assert json.loads(capfd.readouterr().out) == {"checked": 4, "programs": programs}
    assert server.asked


@pytest.mark.usefixtures("command")
def test_without_a_server_the_files_are_checked(
    runtime: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And none is started; one that was named must run."""
    assert main(["cache", "verify"]) == 0
    assert capfd.readouterr().out == "checked ['verify']\n"
    assert main(["cache", "verify", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["checked"], told["programs"]) == (4, None)
    assert "no server runs" in told["programs_error"]
    assert not (runtime / "jaxd").exists()
    assert main(["cache", "verify", "--server", f"unix://{runtime}/none.sock"]) == 1


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_server_that_keeps_nothing_is_no_failure(
    server: FakeServer, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The files are checked, and it is said why nothing was built."""
    error = failed(ConfigurationError("this server keeps nothing on disk."))
    server.answers["verify"] = lambda _: error
    assert main(["cache", "verify", *words]) == 0
    said = capfd.readouterr()
    assert said.err == "jaxd: no program was built anew: this server keeps nothing on disk.\n"
    if words:
        told = json.loads(said.out)
        assert (told["checked"], told["programs"]) == (4, None)
        assert told["programs_error"] == "this server keeps nothing on disk."
    else:
        assert said.out == "checked ['verify']\n"


@pytest.mark.usefixtures("command")
def test_a_named_server_that_cannot_be_reached_is_told_after_the_files(
    runtime: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With JSON as well, which is whole; the exit code says that not all was done."""
    words = ["--json", "--server", f"unix://{runtime}/none.sock"]
    assert main(["cache", "verify", *words]) == 1
    told = json.loads(capfd.readouterr().out)
    assert (told["checked"], told["programs"]) == (4, None)
    assert "none.sock" in told["programs_error"]
