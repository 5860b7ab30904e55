"""People with tokens of their own: made, known by name, and shown out, while the server runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxd import Client, connect, errors
from jaxd.cli.__main__ import main
from jaxd_protocol.network.accounts import add_account, remove_account, token_files
from jaxd_protocol.network.tokens import read_token_file
from tests.live_server import TOKEN, LiveServer
from tests.server.staging import until

pytestmark = pytest.mark.own_server


@pytest.fixture
def folder(live: LiveServer) -> Iterator[str]:
    """Where the server looks for named tokens; nobody has one afterwards."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")
    yield folder
    for file in token_files(folder):
        remove_account(file.name, folder)


@pytest.fixture
def alice(live: LiveServer, folder: str) -> Iterator[Client]:
    """A client of somebody who has got a token since the server started."""
    with connect(live.tls, token=add_account("alice", folder)[1]) as client:
        yield client


def here(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    """Connections by principal, as `jaxd status --json` has them."""
    main(["status", "--json", "--server", live.unix])
    rows = json.loads(capsys.readouterr().out)["worker"]["principals"]
    return {row["principal"]: row["connections"] for row in rows}


def test_a_name_is_known_by_its_token(
    live: LiveServer, alice: Client, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status and the log have the name, neither has the token."""
    assert float(alice.persistent_call(lambda x: x + 1)(1.0)) == 2.0
    assert here(live, capsys)["account:alice"] == 1
    live.wait_for("client_admitted", principal="account:alice")
    (file,) = token_files(folder)
    assert read_token_file(file.path) not in "".join(live.raw)


def test_whoever_is_revoked_is_out(
    live: LiveServer, alice: Client, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """At once, and with all that they had; others notice nothing."""
    double = alice.persistent_call(lambda x: x * 2)
    assert float(double(2.0)) == 4.0
    alice.put(np.zeros(30_000), name="mine")
    with connect(live.tcp, token=TOKEN) as other:
        other.statistics()
        remove_account("alice", folder)
        live.wait_for("client_shown_out", principal="account:alice")
        with pytest.raises(errors.AuthenticationFailed, match="revoked"):
            double(2.0)
        assert float(other.persistent_call(lambda x: x * 3)(2.0)) == 6.0
    until(lambda: "account:alice" not in here(live, capsys))
    with connect(live.tls, token=add_account("alice", folder)[1]) as again:
        with pytest.raises(errors.ValueDeleted):
            again.named("mine")
        assert again.statistics().bytes_received < 30_000, "the bytes of another Alice"


def test_another_token_for_the_same_name(live: LiveServer, alice: Client, folder: str) -> None:
    """The old one is good no more; what is kept under a name is still that person's."""
    alice.put(np.arange(3.0), name="kept")
    before = sum(line["event"] == "client_shown_out" for line in list(live.lines))
    _, token = add_account("alice", folder, replace=True)
    live.wait_for("client_shown_out", before + 1, principal="account:alice")
    with pytest.raises(errors.AuthenticationFailed):
        alice.statistics()
    with connect(live.tls, token=token) as again:
        assert np.asarray(again.get(again.named("kept"))).tolist() == [0.0, 1.0, 2.0]
        again.forget("kept")


def test_two_people_have_nothing_in_common(live: LiveServer, alice: Client, folder: str) -> None:
    """Neither a session nor what is kept under a name; but a process, as the log says."""
    alice.put(np.zeros(3), name="alices")
    session = alice.info()["session"]
    _, token = add_account("bob", folder)
    with connect(live.tls, token=token) as bob:
        assert bob.info()["session"] != session
        with pytest.raises(errors.ValueDeleted, match="You have none here"):
            bob.named("alices")
        assert not bob.forget("alices")
    assert alice.forget("alices")
    live.wait_for("accounts_share_a_worker")


def rewritten(path: Path) -> None:
    """The same file, the same length, the same time, and another token."""
    status = path.stat()
    with path.open("r+") as file:
        file.write(path.read_text().strip()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def readable(path: Path) -> None:
    """Others may read it now."""
    path.chmod(0o644)


def times_out(live: LiveServer, principal: str) -> int:
    """How often somebody was shown out so far."""
    lines = [line for line in list(live.lines) if line["event"] == "client_shown_out"]
    return sum(line["principal"] == principal for line in lines)


spoilt = pytest.mark.parametrize("spoil", [rewritten, readable, Path.unlink])


@contextmanager
def as_it_was(path: Path) -> Iterator[None]:
    """Afterwards."""
    text = path.read_text()
    try:
        yield
    finally:
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(text)


@spoilt
def test_a_name_whose_file_was_spoilt_is_out(
    live: LiveServer, alice: Client, folder: str, spoil: Callable[[Path], None]
) -> None:
    """Whether its token was changed in place, was made readable, or is gone."""
    before = times_out(live, "account:alice")
    with connect(live.tcp, token=TOKEN) as other:
        other.statistics()
        alice.statistics()
        spoil(Path(folder, "alice"))
        live.wait_for("client_shown_out", before + 1, principal="account:alice")
        with pytest.raises(errors.AuthenticationFailed):
            alice.statistics()
        other.statistics()


@spoilt
def test_the_token_without_a_name_is_looked_at_as_well(
    live: LiveServer, spoil: Callable[[Path], None]
) -> None:
    """Who came with it is out, until the file is as it was."""
    path = live.directory / "s.token"
    before = times_out(live, "token")
    with connect(live.tcp, token=TOKEN) as client:
        client.statistics()
        with as_it_was(path):
            spoil(path)
            live.wait_for("client_shown_out", before + 1, principal="token")
            with pytest.raises(errors.AuthenticationFailed):
                client.statistics()
        client.statistics()
