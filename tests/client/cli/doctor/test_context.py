from __future__ import annotations

import sys
from pathlib import Path

from jaxd.cli.doctor.context import DoctorContext
from jaxd.connection.settings import Settings
from jaxd_protocol.network.addresses import Address


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
