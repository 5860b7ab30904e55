from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from jaxd_server.config.options import GIB, ServerOptions, parse_arguments

SECRET = "s3cret-for-tests-and-no-more"


def test_the_default_is_the_local_socket_of_this_environment(runtime: Path) -> None:
    """Without a word said, the server listens where clients of the same environment look."""
    files = LocalServerFiles.of_this_environment()
    assert ServerOptions().listen == (Address.unix(files.socket),)


def test_defaults_that_depend_on_the_machine_are_sane() -> None:
    """At least a gigabyte for messages and for programs, and two builds."""
    options = ServerOptions()
    assert options.budget_bytes >= GIB
    assert options.program_bytes >= GIB
    assert 2 <= options.builds <= max(2, (os.cpu_count() or 1) // 2)


def test_options_survive_the_way_to_the_worker() -> None:
    """What the host writes as JSON is what the worker reads."""
    listen = (Address.unix("/run/x/y.sock"), Address.tcp("::1", 18861))
    options = ServerOptions(
        listen=listen, token_file="/t", idle_timeout_s=1.5, auto=True, map_share=0.3
    )
    assert ServerOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    options = replace(options, worker_per_principal=True, worker_uids=(61000, 61009))
    assert ServerOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_only_the_one_worker_of_a_server_has_a_standby_unasked() -> None:
    """It takes memory, which it would do for each principal."""
    assert ServerOptions().keeps_standby
    assert not ServerOptions(worker_per_principal=True).keeps_standby
    assert ServerOptions(worker_per_principal=True, standby=True).keeps_standby


def test_an_unknown_option_is_refused() -> None:
    """A worker of another version does not silently drop what it was told."""
    with pytest.raises(TypeError, match="shiny"):
        ServerOptions.from_json(ServerOptions().to_json() | {"shiny": 1})


def test_the_store_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless an option names another one, or none; a server in the background is elsewhere."""
    monkeypatch.setenv("JAXD_STORE", "/store")
    found = [parse_arguments(each).store for each in ([], ["--store", "/b"], ["--store", "none"])]
    assert found == ["/store", "/b", None]
    monkeypatch.setenv("JAXD_STORE", "s3://bucket/jaxd")
    assert parse_arguments([]).store == "s3://bucket/jaxd"
    assert parse_arguments(["--store", "gs://b"]).store == "gs://b"
    monkeypatch.setenv("JAXD_STORE", "")
    assert parse_arguments([]).store is None
    monkeypatch.setenv("JAXD_STORE", "store")
    with pytest.raises(SystemExit):
        parse_arguments([])
    said = capsys.readouterr().err
    assert "JAXD_STORE has to be an absolute path or a URL, and is 'store'" in said


def test_the_token_comes_from_the_file(tmp_path: Path) -> None:
    """White space around it does not count."""
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    file.chmod(0o600)
    assert ServerOptions(token_file=str(file)).read_token() == SECRET


def test_without_a_file_the_token_comes_from_the_environment(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container can be given the token in a variable, or none at all."""
    assert ServerOptions().read_token() is None
    monkeypatch.setenv("JAXD_TOKEN", f" {SECRET} ")
    assert ServerOptions().read_token() == SECRET


def test_a_token_that_can_be_guessed_starts_no_server(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the environment as of a file."""
    monkeypatch.setenv("JAXD_TOKEN", "s3cret")
    with pytest.raises(ConfigurationError, match="jaxd token"):
        ServerOptions().read_token()
    file = runtime / "token"
    file.touch(mode=0o600)
    file.write_text("s3cret")
    with pytest.raises(ConfigurationError, match="jaxd token"):
        ServerOptions(token_file=str(file)).read_token()
