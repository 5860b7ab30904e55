from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

from jaxd.cli.__main__ import main
from jaxd.cli.commands import doctor
from jaxd.cli.commands.doctor import all_checks, examine
from jaxd.cli.doctor import connection, gpu, installation
from jaxd.cli.doctor.context import Check, DoctorContext
from jaxd.connection.settings import Settings
from jaxd_protocol.network.addresses import Address
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


def test_what_a_program_prints(runtime: Path) -> None:
    """With variables of its own; None when it fails or is not there."""
    context = DoctorContext(Settings())
    program = "import os; print(os.environ['WORD'])"
    assert context.run([sys.executable, "-c", program], WORD="hello") == "hello\n"
    assert context.run([sys.executable, "-c", program]) is None
    assert context.run(["no-such-program"]) is None


def test_what_is_installed_and_what_can_be_read(runtime: Path) -> None:
    """Below any root; nothing where there is nothing."""
    context = DoctorContext(Settings(), root=str(runtime))
    (runtime / "some").mkdir()
    (runtime / "some" / "file").write_text("text")
    assert context.read("some", "file") == "text"
    assert context.read("none") == ""
    assert context.version("rpyc")
    assert context.version("no-such-package") is None


def test_which_server_it_is_about(runtime: Path) -> None:
    """The local one, unless another is named."""
    local = DoctorContext(Settings())
    assert local.address == Address.unix(local.files.socket)
    assert (local.is_server_local, local.has_server) == (True, False)
    named = DoctorContext(Settings(server=Address.tls("gpu-host")))
    assert (named.is_server_local, named.has_server) == (False, True)


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
        "checks": [{"name": "token", "state": "bad", "found": "not usable", "advice": BAD.advice}],
    }


def test_the_real_checks_start_no_server(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking changes nothing."""
    main(["doctor"])
    assert "no server to try" in capsys.readouterr().out
    assert not (runtime / "jaxd").exists()
