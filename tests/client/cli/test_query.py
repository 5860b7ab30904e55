"""Commands that only ask, and which server they ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.query import ask_server, control_socket_of, server_address
from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from tests.client.fake_server import FakeServer

QUERIES = (
    *("status", "functions", "functions --quarantined", "values", "devices", "logs", "restart"),
    *("why --recent", "why --recent --json", "profile", "report", "top --once", "dashboard"),
)


@pytest.mark.parametrize("words", QUERIES)
def test_without_a_server_they_exit_with_3_and_start_none(
    words: str, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asking is not calling."""
    if words == "dashboard":
        pytest.importorskip("starlette")
    assert main(words.split()) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("jaxd: no server runs at ")
    assert said.err.endswith("jaxd start\n")
    assert not (runtime / "jaxd").exists()


def test_an_answer_says_who_gave_it(runtime: Path) -> None:
    """Beside what was asked."""
    server = FakeServer(f"{runtime}/s.sock", values={"holders": []})
    try:
        assert ask_server(server.address, "values") == {"server": server.address, "holders": []}
    finally:
        server.close()


def test_a_server_that_was_named_is_meant(runtime: Path) -> None:
    """Whether it runs or not."""
    address = Address.tcp("gpu-host", 1)
    assert server_address(str(address)) == address


@pytest.mark.parametrize("command", ["functions", "status"])
def test_a_pool_is_not_one_server(
    command: str, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says which address to use, and asks nobody."""
    assert main([command, "--server", f"pool+unix://{runtime}/d.sock"]) != 0
    assert "is a pool, and this command is about one server" in capsys.readouterr().err


def test_without_a_name_it_is_the_local_one(runtime: Path) -> None:
    """The one of this environment."""
    files = LocalServerFiles.of_this_environment()
    assert server_address(None) == Address.unix(files.socket)
    assert control_socket_of(Address.unix(files.socket)) == files.control


def test_a_server_elsewhere_has_no_control_socket_here() -> None:
    """The message says where to run the command."""
    with pytest.raises(ConfigurationError, match="on gpu-host"):
        control_socket_of(Address.tcp("gpu-host", 1))
