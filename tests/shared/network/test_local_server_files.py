from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.local_server import (
    STORE_VARIABLES,
    LocalServerFiles,
    environment_digest,
    make_private_directory,
    runtime_dir,
)


def test_files_live_where_the_system_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`$XDG_RUNTIME_DIR`, else below `/tmp` under the user's number."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert runtime_dir() == str(tmp_path / "jaxd")
    for missing in ("", str(tmp_path / "missing")):
        monkeypatch.setenv("XDG_RUNTIME_DIR", missing)
        assert runtime_dir() == f"/tmp/jaxd-{os.getuid()}"


def test_all_files_of_a_server_lie_in_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is named by user and environment."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    files = LocalServerFiles.of_this_environment()
    assert files.directory == f"/tmp/jaxd/{environment_digest()}"
    found = {files.socket, files.control, files.log, files.lock}
    assert len(found) == 4
    assert {os.path.dirname(path) for path in found} == {files.directory}


def test_the_environment_has_one_name() -> None:
    """Twelve digits: the path of a socket has little room."""
    assert environment_digest() == environment_digest()
    assert len(environment_digest()) == 12
    int(environment_digest(), 16)


def install(folder: Path, version: str, record: str | None) -> None:
    """A distribution of jax, as pip leaves it."""
    info = folder / f"jax-{version}.dist-info"
    info.mkdir(parents=True)
    if record is not None:
        (info / "RECORD").write_text(record)


def test_each_environment_has_another_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another prefix, Python, jax, protocol, version or store, and the same jax built anew."""
    digests = []
    for name in STORE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path / "missing")])
    digests.append(environment_digest())
    for folder, version, record in (
        ("one", "1.0", "jax/__init__.py,sha256=a,1"),
        ("two", "1.0", "jax/__init__.py,sha256=b,1"),
        ("three", "1.0", None),
        ("four", "2.0", None),
    ):
        install(tmp_path / folder, version, record)
        monkeypatch.setattr(sys, "path", [str(tmp_path / folder)])
        digests.append(environment_digest())
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    digests.append(environment_digest())
    monkeypatch.setattr(sys.implementation, "cache_tag", "cpython-399")
    digests.append(environment_digest())
    monkeypatch.setattr("jaxd_protocol.PROTOCOL_VERSION", 99)
    digests.append(environment_digest())
    monkeypatch.setattr("jaxd_protocol.__version__", "9.9")
    digests.append(environment_digest())
    monkeypatch.setenv("JAXD_STORE", "/store")
    digests.append(environment_digest())
    monkeypatch.setenv("JAXD_STORE_READ_ONLY", "1")
    digests.append(environment_digest())
    assert len(set(digests)) == len(digests)


def test_only_the_jax_that_is_imported_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first on the path; packages whose names begin with it are others."""
    install(tmp_path / "first", "1.0", "first")
    install(tmp_path / "second", "1.0", "second")
    (tmp_path / "first" / "jaxtyping-1.0.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first")])
    alone = environment_digest()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert environment_digest() == alone


def test_a_private_directory_is_the_users_alone(tmp_path: Path) -> None:
    """Made with its parents, and found again."""
    path = tmp_path / "jaxd" / "0123"
    assert make_private_directory(str(path)) == make_private_directory(str(path)) == str(path)
    for made in (path, path.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_a_directory_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    """With the command that mends it."""
    path = tmp_path / "open"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"chmod 700 {path}"):
        make_private_directory(str(path))


def test_somebody_elses_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever owns it can enter it."""
    path = make_private_directory(str(tmp_path / "theirs"))
    monkeypatch.setattr(os, "getuid", lambda: os.stat(path).st_uid + 1)
    with pytest.raises(ConfigurationError, match="directory of yours"):
        make_private_directory(path)


def test_a_link_is_no_directory(tmp_path: Path) -> None:
    """Whoever made it can turn it elsewhere."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(ConfigurationError):
        make_private_directory(str(tmp_path / "link"))


def test_a_directory_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    """And where another may be."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"cannot make .*XDG_RUNTIME_DIR"):
        make_private_directory(str(tmp_path / "file" / "jaxd" / "0123"))
