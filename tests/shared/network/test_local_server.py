from __future__ import annotations

import os
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import (
    STORE_VARIABLES,
    LocalServerFiles,
    control_path,
    environment_digest,
    has_listener,
    is_server_running,
    make_private_directory,
    runtime_dir,
)


@pytest.fixture
def path() -> Iterator[str]:
    """A path short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="jaxd-", dir="/tmp") as directory:
        yield os.path.join(directory, "sock")


def test_a_unix_socket_has_its_control_socket_beside_it() -> None:
    """The local server's files follow the same rule."""
    files = LocalServerFiles("/run/j")
    assert control_path(Address.unix(files.socket)) == files.control


def test_a_tcp_server_has_its_control_socket_among_the_local_files() -> None:
    """Named by the port, which is one server's at a time."""
    directory = Path(LocalServerFiles.of_this_environment().directory)
    assert control_path(Address.tcp("localhost", 1)) == str(directory / "tcp-1.control")


def test_nobody_answers_where_nothing_is(path: str) -> None:
    """No file, and a file that is no socket."""
    assert not has_listener(path)
    Path(path).touch()
    assert not has_listener(path)


def test_a_listening_socket_answers_and_a_dead_one_does_not(path: str) -> None:
    """Its file stays behind when a process is killed."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        assert has_listener(path)
    assert not has_listener(path)


def test_a_server_that_is_too_busy_to_accept_answers_all_the_same(path: str) -> None:
    """A full queue is a sign of life, and is not waited for."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(path)
            assert has_listener(path)


@pytest.mark.parametrize("suffix", ["", ".control"])
def test_a_server_runs_when_either_of_its_sockets_answers(path: str, suffix: str) -> None:
    """Its control socket may be elsewhere, and it need not be asked on the other one."""
    assert not is_server_running(path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path + suffix)
        listening.listen()
        assert is_server_running(path)


def test_without_unix_sockets_nobody_answers(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Some systems do not have them."""
    monkeypatch.delattr(socket, "AF_UNIX")
    assert not has_listener(path)


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
