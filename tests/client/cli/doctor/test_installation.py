from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from jaxd.cli.doctor import installation
from jaxd.cli.doctor.context import DoctorContext
from jaxd.connection.settings import Settings
from jaxd_protocol.base import shared_memory
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.network.tokens import default_token_file, write_token_file
from tests.client.cli.doctor.contexts import FakeContext

if TYPE_CHECKING:
    import pytest

NAMED = Settings(server=Address.tls("gpu-host", 1))


def test_without_jax_it_depends_on_the_server(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A light client of a server elsewhere needs none."""
    monkeypatch.setattr(installation, "has_server_extra", lambda: False)
    assert installation.server_extra(DoctorContext(Settings())).state == "bad"
    assert installation.server_extra(DoctorContext(NAMED)).state == "note"
    monkeypatch.setattr(installation, "has_server_extra", lambda: True)
    assert installation.server_extra(DoctorContext(Settings())).state == "ok"


def test_a_missing_package_is_bad(runtime: Path) -> None:
    """With its name, and the command that brings it."""
    found = installation.packages(FakeContext(Settings(), installed={"rpyc": "6", "numpy": "2"}))
    assert (found.state, found.found) == ("bad", "not installed: cloudpickle")
    assert found.advice == "Install jaxd again, from its checkout or wheel."
    assert installation.packages(DoctorContext(Settings())).state == "ok"


def test_a_directory_that_others_can_enter_is_bad(runtime: Path) -> None:
    """With the command that closes it; one that is missing is made when it is needed."""
    context = DoctorContext(Settings())
    assert "made when it is needed" in installation.runtime_directory(context).found
    directory = Path(make_private_directory(context.files.directory))
    assert installation.runtime_directory(context).state == "ok"
    directory.chmod(0o755)
    assert f"chmod 700 {directory}" in installation.runtime_directory(context).advice


def test_a_path_that_no_socket_can_have_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server could not listen there; it says which variable to set."""
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    found = installation.runtime_directory(DoctorContext(Settings()))
    assert found.state == "bad"
    assert "XDG_RUNTIME_DIR" in found.advice


def test_a_full_disk_is_bad(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket, a log and a lock need a little room."""
    assert installation.disk(DoctorContext(Settings())).state == "ok"
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=4096))
    assert installation.disk(DoctorContext(Settings())).state == "bad"


def test_memory_to_share(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matters on one machine only."""
    assert installation.shared_memory_files(DoctorContext(NAMED)) is None
    monkeypatch.setattr(shared_memory, "available", lambda: False)
    found = installation.shared_memory_files(DoctorContext(Settings()))
    assert found is not None
    assert found.state == "note"


def test_a_token_that_others_can_read_is_bad(runtime: Path) -> None:
    """And one that is private is named."""
    write_token_file(default_token_file())
    assert installation.token(DoctorContext(NAMED)).found == f"in {default_token_file()}"
    Path(default_token_file()).chmod(0o644)
    assert installation.token(DoctorContext(NAMED)).state == "bad"
    assert (
        installation.token(DoctorContext(Settings(token="any-token-for-tests-only"))).found
        == "from JAXD_TOKEN"
    )


def test_a_missing_token_is_bad_where_one_is_needed(runtime: Path) -> None:
    """With where to take it from."""
    assert installation.token(DoctorContext(Settings())).state == "ok"
    found = installation.token(DoctorContext(NAMED))
    assert found.state == "bad"
    assert "JAXD_TOKEN_FILE" in found.advice


def test_what_it_is_and_where_its_file_is(runtime: Path) -> None:
    """Versions and places, which are never wrong."""
    assert "jaxd" in installation.python(DoctorContext(Settings())).found
    assert installation.configuration(DoctorContext(Settings())).found.startswith("none (")
