from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Any, NoReturn

import pytest

from jaxd_protocol.errors import CannotListen
from jaxd_protocol.network.addresses import Address
from jaxd_server.auth.listeners import ListenerProbe, open_listeners
from tests.end_to_end.gates import in_thread

FREE_PORT = Address.tcp("127.0.0.1", 0)


def unix(path: Path) -> Address:
    return Address.unix(str(path))


def leave_a_dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))


def refused(words: str, *addresses: Address, **more: bool) -> None:
    """Checks that nobody listens there, and that the error says so in these words."""
    with pytest.raises(CannotListen, match=words), open_listeners(addresses, **more):
        pass


def test_a_missing_directory_is_made_private(runtime: Path) -> None:
    """Nobody else can enter it, and the socket file goes with the server."""
    path = runtime / "new" / "server.sock"
    with open_listeners([unix(path)]):
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert path.is_socket()
    assert not path.exists()


def test_a_directory_that_others_can_enter_is_refused(runtime: Path) -> None:
    """With the command that mends it."""
    runtime.chmod(0o755)
    refused(f"chmod 700 {runtime}", unix(runtime / "server.sock"))


def mode_of(path: Path) -> int:
    """Who may do what with it."""
    return stat.S_IMODE(path.stat().st_mode)


def test_a_socket_for_others_can_be_reached_and_not_replaced(runtime: Path) -> None:
    """Its folder can be entered and not changed; what lies beside it stays our own."""
    folder = runtime / "shared"
    ours, theirs = folder / "s.sock.control", folder / "s.sock"
    with (
        open_listeners([unix(theirs)], for_others=True),
        open_listeners([unix(ours)], beside_others=True),
    ):
        assert [mode_of(path) for path in (folder, theirs, ours)] == [0o711, 0o666, 0o600]
    with open_listeners([unix(runtime / "own" / "s.sock")]):
        assert mode_of(runtime / "own" / "s.sock") == 0o600


@pytest.mark.parametrize("for_others", [False, True])
def test_a_link_of_somebody_else_is_not_followed(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, for_others: bool
) -> None:
    """It may lead elsewhere by the time that the socket is made; one of our own may be used."""
    folder, link = runtime / "folder", runtime / "link"
    folder.mkdir(mode=0o700)
    folder.chmod(0o711 if for_others else 0o700)
    link.symlink_to(folder)
    with open_listeners([unix(link / "s.sock")], for_others=for_others):
        assert (folder / "s.sock").is_socket()
    lstat = os.lstat

    def of_another(path: Any, **more: Any) -> Any:
        found = lstat(path, **more)
        if not stat.S_ISLNK(found.st_mode):
            return found
        return os.stat_result((*found[:4], os.getuid() + 1, *found[5:]))

    monkeypatch.setattr(os, "lstat", of_another)
    refused("another user has made", unix(link / "s.sock"), for_others=for_others)


@pytest.mark.parametrize(("mode", "words"), [(0o777, "can change"), (0o700, "have to enter")])
def test_a_folder_that_is_not_fit_for_others_is_refused(
    runtime: Path, mode: int, words: str
) -> None:
    """With the command that makes it fit."""
    folder = runtime / "folder"
    folder.mkdir()
    folder.chmod(mode)
    refused(f"{words}.*chmod 711 {folder}", unix(folder / "s.sock"), for_others=True)
    (runtime / "file").touch()
    below = unix(runtime / "file" / "folder" / "s.sock")
    refused("cannot make the directory", below, for_others=True)


def test_the_socket_of_a_dead_server_is_replaced(runtime: Path) -> None:
    """A crash need not be cleaned up by hand; at its end a server removes its own file only."""
    path = runtime / "server.sock"
    leave_a_dead_socket(path)
    with open_listeners([unix(path)]), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))


def test_the_socket_of_a_living_server_is_left_alone(runtime: Path) -> None:
    """The error names the two ways out, and the other server still answers."""
    path = runtime / "server.sock"
    with open_listeners([unix(path)]):
        refused(r"already answers at .*`jaxd stop`.*another --listen", unix(path))
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(path))


def test_a_file_that_is_no_socket_is_left_alone(runtime: Path) -> None:
    """A mistyped path does not cost the user a file."""
    path = runtime / "thesis.tex"
    path.write_text("years of work")
    refused("is no socket", unix(path))
    assert path.read_text() == "years of work"


def test_a_socket_that_somebody_else_put_there_is_not_removed(runtime: Path) -> None:
    """At its end a server removes its own file only."""
    path = runtime / "server.sock"
    with open_listeners([unix(path)]):
        path.rename(runtime / "kept, so that its inode is not used again")
        leave_a_dead_socket(path)
    assert path.exists()


def test_a_path_that_is_too_long_is_refused(runtime: Path) -> None:
    """With the limit, and before anything is made."""
    path = runtime / ("x" * 60) / ("y" * 60)
    with pytest.raises(CannotListen, match=r"may have 107.*XDG_RUNTIME_DIR"):
        open_listeners([unix(path)]).__enter__()
    assert not path.parent.exists()


def test_port_0_becomes_the_port_that_was_given(runtime: Path) -> None:
    """The listener's address is the one that clients can use."""
    with open_listeners([FREE_PORT]) as (listener,):
        assert listener.address.port == listener.socket.getsockname()[1] != 0


def test_a_port_in_use_is_named(runtime: Path) -> None:
    """With the way to a free one; a host that no resolver knows is the user's to correct."""
    with open_listeners([FREE_PORT]) as (first,):
        words = rf"port {first.address.port} .*tcp://127\.0\.0\.1:0 takes a free"
        refused(words, first.address)
    refused(r"nowhere.invalid:0.*another --listen", Address.tcp("nowhere.invalid", 0))


def test_nothing_stays_open_when_a_later_address_fails(runtime: Path) -> None:
    """A failed start leaves the machine as it was."""
    path = runtime / "server.sock"
    refused(".", unix(path), Address.unix("/" + "x" * 200))
    assert not path.exists()


@pytest.mark.parametrize(
    ("broken", "number", "words"),
    [
        ("os.makedirs", errno.ENOSPC, r"No space left.*Free some room"),
        ("socket.socket.bind", errno.ENOSPC, "no room on its disk"),
        ("jaxd_server.auth.listeners.socket.socket", errno.EMFILE, "Too many open files"),
    ],
)
def test_what_the_system_has_no_more_of_is_named(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, broken: str, number: int, words: str
) -> None:
    """Room for the directory, or for the socket file itself, or files to open."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(broken, fail)
    refused(words, unix(runtime / "new" / "server.sock" if "os." in broken else runtime / "s.sock"))


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_probe_says_whether_clients_are_accepted(runtime: Path, kind: str) -> None:
    """Until somebody accepts them they wait, and the probe says so."""
    address = unix(runtime / "server.sock") if kind == "unix" else FREE_PORT
    with open_listeners([address]) as (listener,):
        probe = ListenerProbe(listener.socket)
        assert not probe.has_waiting()
        assert not probe.accepts(0.05)
        assert probe.has_waiting()
        listener.socket.accept()[0].close()
        answer = in_thread(probe.accepts, 30.0)
        listener.socket.accept()[0].close()
        assert answer.result(30)
        assert not probe.has_waiting()
