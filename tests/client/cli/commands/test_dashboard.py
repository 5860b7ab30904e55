"""`jaxd dashboard`: its options, and what is in its way."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands import dashboard
from tests.client.cli.dashboard.running import dashboard as running
from tests.server.host_process import HostProcess

Captured = pytest.CaptureFixture[str]


def test_the_help_says_where_it_listens(capsys: Captured) -> None:
    """And how it is reached from elsewhere."""
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    for word in ("--server", "--port", "--open, --no-open", "127.0.0.1", "ssh -L"):
        assert word in said


@pytest.mark.parametrize("missing", [{"starlette"}, {"uvicorn"}, {"starlette", "uvicorn"}])
def test_without_the_extra_it_names_it(
    missing: set[str], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Before a server is looked for."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    assert main(["dashboard"]) == 1
    said = capsys.readouterr().err
    assert said.endswith("Run: pip install 'jaxd[dashboard]'\n")
    assert all(name in said for name in missing)


def test_a_port_that_is_taken(runtime: Path, capsys: Captured) -> None:
    """The error says which, and what to do."""
    pytest.importorskip("starlette")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--port", str(port)]) == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_ends_it_quietly(start_host: Callable[..., HostProcess]) -> None:
    """With the exit code of an interrupt, although a page is open; the server goes on."""
    host = start_host()
    host.wait_until_ready()
    with running("jaxd.cli", "dashboard", "--no-open") as board:
        assert board.ask("/").status == 401
        with board.events(board.cookie()) as events:
            assert next(events) == ("state", {"state": "live", "text": ""})
            assert next(events)[0] == "view"
            code, errors = board.end()
            assert [name for name, _ in events][-1] == "end"
    assert (code, errors) == (130, "")
    assert host.process.poll() is None


def test_the_browser_gets_the_link_out_of_a_private_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its arguments can be read by everybody on the machine."""
    opened: list[Any] = []

    def look(url: str) -> bool:
        file = Path(url.removeprefix("file://"))
        opened.extend([url, file.read_text(), file.stat().st_mode & 0o777])
        return True

    monkeypatch.setattr("webbrowser.open", look)
    with dashboard._opened("http://127.0.0.1:1/x/open?token=secret", is_wanted=True):
        url, text, mode = opened
    assert "secret" not in url
    assert "url=http://127.0.0.1:1/x/open?token=secret" in text
    assert mode == 0o600
    assert not Path(url.removeprefix("file://")).exists()
