from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import (
    LocalServerFiles,
    control_path,
    has_listener,
    is_server_running,
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
