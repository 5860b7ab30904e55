from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxd.connection import ssh_relay
from jaxd_protocol.network.local_server import runtime_dir


@pytest.fixture
def listening(runtime: Path) -> Iterator[socket.socket]:
    """A Unix socket at `s` on which somebody listens."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(runtime / "s"))
        sock.listen()
        yield sock


def run(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """The program by itself, without anything of ours to import."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", ssh_relay.__file__, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda own: own.chmod(0o755),
        lambda own: own.parent.chmod(0o777),
        lambda own: own.rename(own.with_name("real")).parent.joinpath(own.name).symlink_to("real"),
    ],
    ids=["entered by others", "changed by others", "a link"],
)
def test_a_folder_of_which_others_dispose_is_not_looked_into(runtime: Path, spoil: Any) -> None:
    """Whoever made it would be spoken with."""
    own = runtime / "jaxd" / "environment"
    own.mkdir(parents=True, mode=0o700)
    own.parent.chmod(0o700)
    assert ssh_relay._is_trusted(str(own / "server.sock"))
    spoil(own)
    assert not ssh_relay._is_trusted(str(own / "server.sock"))


def test_it_ends_with_the_server(listening: socket.socket) -> None:
    """Also while it waits for its own input."""
    process = run(listening.getsockname())
    listening.accept()[0].close()
    assert process.wait() == 0
    process.communicate()


def test_the_only_server_that_runs_is_found(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders where `jaxd start` has them; what is left of others does not count."""
    with ExitStack() as stack:

        def serve(name: str) -> str:
            folder = runtime / "jaxd" / name
            folder.mkdir(parents=True, mode=0o700)
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(str(folder / "server.sock"))
            sock.listen()
            return str(folder / "server.sock")

        left = runtime / "jaxd" / "left"
        left.mkdir(parents=True, mode=0o700)
        with socket.socket(socket.AF_UNIX) as gone:
            gone.bind(str(left / "server.sock"))
        monkeypatch.setattr(
            ssh_relay, "_socket_folders", lambda: [str(runtime / "none"), str(runtime / "jaxd")]
        )
        with pytest.raises(LookupError, match="jaxd start"):
            ssh_relay._find_only_socket()
        one = serve("one")
        assert ssh_relay._find_only_socket() == one
        other = serve("other")
        with pytest.raises(LookupError, match=f"name one: {one} {other}"):
            ssh_relay._find_only_socket()
        os.chmod(os.path.dirname(other), 0o755)  # anybody's socket could lie in there
        assert ssh_relay._find_only_socket() == one


def test_where_servers_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folders where they are put, also by a login without the variable."""
    uid = os.getuid()
    always = [f"/run/user/{uid}/jaxd", f"/tmp/jaxd-{uid}"]
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    assert ssh_relay._socket_folders() == always
    assert runtime_dir() in always
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")
    assert ssh_relay._socket_folders() == [runtime_dir(), *always] == ["/tmp/jaxd", *always]


@pytest.mark.parametrize(
    ("owner", "uid", "mode", "words"),
    [
        (None, "", 0o700, None),
        (4321, "", 0o700, r"\?uid=4321"),
        (4321, "4321", 0o755, None),
        (0, "", 0o711, None),
        (None, "", 0o1777, "others can put a socket"),
        (None, "", 0o770, "others can put a socket"),
    ],
)
def test_a_socket_that_may_be_anybodys_is_not_spoken_with(
    listening: socket.socket,
    runtime: Path,
    owner: int | None,
    uid: str,
    mode: int,
    words: str | None,
) -> None:
    """By who listens, and by who can write in its folder."""
    runtime.chmod(mode)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(listening.getsockname())
        if owner is not None:
            told = struct.pack("3i", 1, owner, owner)
            asked = cast("Any", SimpleNamespace(getsockopt=lambda *_: told))
        else:
            asked = sock
        expected = nullcontext() if words is None else pytest.raises(LookupError, match=words)
        with expected:
            ssh_relay.check_owner(asked, listening.getsockname(), uid)


def test_where_the_system_does_not_tell_the_folder_counts(
    listening: socket.socket, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who can put a socket there is who listens there."""
    monkeypatch.delattr(socket, "SO_PEERCRED")
    folder = os.stat_result((0o40755, *(1,) * 3, 4321, 4321, *(0,) * 4))
    system = SimpleNamespace(stat=lambda path: folder, getuid=os.getuid, path=os.path)
    monkeypatch.setattr(ssh_relay, "os", system)
    with pytest.raises(LookupError, match=r"\?uid=4321"):
        ssh_relay.check_owner(listening, listening.getsockname(), "")
    ssh_relay.check_owner(listening, listening.getsockname(), "4321")
