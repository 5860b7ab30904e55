from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from jaxd.cli.doctor import installation
from jaxd.cli.doctor.context import Check, DoctorContext
from jaxd.connection.settings import Settings
from jaxd_protocol.base import shared_memory
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import make_private_directory
from jaxd_protocol.network.tokens import default_token_file, store_key_file, write_token_file
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


def test_a_store_is_looked_at(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it can be used, where its key is, and whether it is only read; nothing is made."""

    def found(**environment: str) -> Check | None:
        for name in ("JAXD_STORE", "JAXD_STORE_KEY", "JAXD_STORE_KEY_FILE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return installation.store(DoctorContext(Settings()))

    assert found() is None
    named = {"JAXD_STORE": str(tmp_path)}
    plain = found(**named)
    assert plain == Check(
        "store", "ok", f"{tmp_path}, read and written, its key will be made in {store_key_file()}"
    )
    assert not os.path.exists(store_key_file())
    secret = {"JAXD_STORE_KEY": "a-key-of-tests-0123456789-abcdefghij"}
    read = found(**named, **secret, JAXD_STORE_READ_ONLY="1")
    assert read == Check("store", "ok", f"{tmp_path}, read only, its key in JAXD_STORE_KEY")
    monkeypatch.delenv("JAXD_STORE_READ_ONLY")
    for environment, advice in (
        ({**named, "JAXD_STORE_KEY": "short"}, "can be guessed"),
        ({**named, "JAXD_STORE_KEY_FILE": str(tmp_path / "none")}, "cannot read the token file"),
        ({"JAXD_STORE": "store"}, "absolute path"),
    ):
        refused = found(**environment)
        assert refused is not None
        assert refused.state == "bad"
        assert advice in refused.advice
    monkeypatch.setattr(installation, "find_spec", lambda _: None)
    url = found(JAXD_STORE="ftp://me:secret@host/a")
    assert url == Check(
        "store", "bad", "ftp://me:…@host/a needs fsspec", "Run: pip install 'jaxd[store]'"
    )
