"""No secret is written, shown or passed on, whatever goes wrong."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxd import connect, errors
from jaxd.connection.settings import Settings
from jaxd_protocol.network.accounts import add_account, remove_account
from tests.live_server import TOKEN, LiveServer

pytestmark = pytest.mark.own_server

WRONG = "a-wrong-token-that-nobody-has"


@pytest.fixture
def tokens(live: LiveServer) -> Iterator[dict[str, str]]:
    """Of two people, and the one without a name."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")
    made = {name: add_account(name, folder)[1] for name in ("alice", "bob")}
    yield {**made, "": TOKEN}
    for name in made:
        with contextlib.suppress(errors.ConfigurationError):
            remove_account(name, folder)


def processes(live: LiveServer) -> list[int]:
    """The host, its workers, and whatever these have started."""
    found, look = [], [live.process.pid]
    while look:
        found.append(look.pop())
        for task in Path(f"/proc/{found[-1]}/task").iterdir():
            look += map(int, (task / "children").read_text().split())
    return found


def session_with_failures(live: LiveServer, tokens: dict[str, str]) -> Iterator[Any]:
    """Whatever a client could show or log of it."""
    for address in (live.tcp, live.tls):
        for token in (WRONG, tokens["alice"][:-1], tokens["alice"] + "x", ""):
            try:
                with connect(address, token=token or None):
                    yield "it was let in"
            except errors.JaxdError as error:
                yield "".join(traceback.format_exception(error))
        with connect(address, token=tokens["alice"]) as client:
            yield repr(client), repr(client.caller), client.info()
            yield client.caller.session.ask("statistics"), client.caller.session.ask("functions")
            with pytest.raises(ZeroDivisionError) as caught:
                client.persistent_call(lambda x: 1 / 0)(1.0)
            yield "".join(traceback.format_exception(caught.value))
            with pytest.raises(errors.JaxdError) as refused:
                client.caller.session.ask("forget", "nothing")
            yield "".join(traceback.format_exception(refused.value))
    yield repr(Settings.resolve(server=live.tcp, token=WRONG))


def commands(live: LiveServer, token: str) -> Iterator[str]:
    """What people paste into reports."""
    for words in (
        ("status", "--json"),
        ("doctor", "--json", "--server", live.tcp),
        ("token", "--list"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "jaxd.cli", *words],
            env=live.environment | {"JAXD_TOKEN": token},
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        yield done.stdout + done.stderr


@pytest.mark.slow
def test_no_secret_is_to_be_found(live: LiveServer, tokens: dict[str, str]) -> None:
    """In errors, reprs, logs, reports, the arguments of processes, and files beside the tokens'."""
    said = [json.dumps(each, default=str) for each in session_with_failures(live, tokens)]
    said += commands(live, WRONG)
    for number in processes(live):
        said.append(Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace"))
    said.append("".join(live.raw) + live.invitation)
    own = live.directory / "config" / "jaxd" / "tokens"
    for path in live.directory.rglob("*"):
        if path.is_file() and path.parent != own and not path.name.endswith(".token"):
            said.append(path.read_bytes().decode("latin-1"))
    assert "it was let in" not in "".join(said)
    assert len(said) > 20
    for secret in (*tokens.values(), WRONG):
        assert not [text for text in said if secret in text]
