from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import ConfigurationError
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import LocalServerFiles
from jaxd_protocol.network.tokens import default_token_file, write_token_file
from jaxd_server.config.argument_types import SAME_USER
from jaxd_server.config.options import (
    _FIRST_PAGE,
    GIB,
    ServerOptions,
    parse_arguments,
    words_of,
)
from tests.server.option_table import parts_of_the_page, table

SECRET = "s3cret-for-tests-and-no-more"


def travelled(options: ServerOptions) -> ServerOptions:
    """What the worker reads of what the host writes as JSON."""
    return ServerOptions.from_json(json.loads(json.dumps(options.to_json())))


def test_the_default_is_the_local_socket_of_this_environment(runtime: Path) -> None:
    """The server listens where clients of the same environment look; no words mean the defaults."""
    files = LocalServerFiles.of_this_environment()
    assert ServerOptions().listen == (Address.unix(files.socket),)
    assert parse_arguments([]) == ServerOptions()


def test_defaults_that_depend_on_the_machine_are_sane() -> None:
    """At least a gigabyte for messages and for programs, two builds, and one standby unasked."""
    options = ServerOptions()
    assert options.budget_bytes >= GIB
    assert options.program_bytes >= GIB
    assert 2 <= options.builds <= max(2, (os.cpu_count() or 1) // 2)
    assert options.keeps_standby
    assert not ServerOptions(worker_per_principal=True).keeps_standby  # memory for each of them
    assert ServerOptions(worker_per_principal=True, standby=True).keeps_standby


def test_options_survive_the_way_to_the_worker() -> None:
    """A worker of another version does not silently drop what it was told."""
    listen = (Address.unix("/run/x/y.sock"), Address.tcp("::1", 18861))
    options = ServerOptions(
        listen=listen, token_file="/t", idle_timeout_s=1.5, auto=True, map_share=0.3
    )
    assert travelled(options) == options
    options = replace(options, worker_per_principal=True, worker_uids=(61000, 61009))
    assert travelled(options) == options
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


def test_the_token_comes_from_the_file_or_the_environment(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """White space around it does not count; one that can be guessed starts no server."""
    assert ServerOptions().read_token() is None
    file = runtime / "token"
    file.touch(mode=0o600)
    file.write_text(f"{SECRET}\n")
    assert ServerOptions(token_file=str(file)).read_token() == SECRET
    monkeypatch.setenv("JAXD_TOKEN", f" {SECRET} ")
    assert ServerOptions().read_token() == SECRET
    monkeypatch.setenv("JAXD_TOKEN", "s3cret")
    file.write_text("s3cret")
    for options in (ServerOptions(), ServerOptions(token_file=str(file))):
        with pytest.raises(ConfigurationError, match="jaxd token"):
            options.read_token()


def test_the_token_file_of_jaxd_token_is_found(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this order: said, in the environment itself, named there, the default file."""
    assert parse_arguments([]).token_file is None
    write_token_file(default_token_file())
    assert parse_arguments([]).token_file == default_token_file()
    monkeypatch.setenv("JAXD_TOKEN_FILE", "/elsewhere")
    assert parse_arguments([]).token_file == "/elsewhere"
    monkeypatch.setenv("JAXD_TOKEN", "s3cret")
    assert parse_arguments([]).token_file is None
    assert parse_arguments(["--token-file", "/said"]).token_file == "/said"


# the command line --------------------------------------------------------------------------------


def test_the_page_on_configuration_has_every_option() -> None:
    """In the words of `--help`."""
    _, found, _ = parts_of_the_page()
    assert found == table(), "write it anew: python -m tests.server.option_table"


HIDDEN = ("--auto", "--snapshot-dir")


def test_help_has_every_option_under_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """With `--help-all`, but for those that are not for people; each with its default."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    assert not any(flag in said for flag in HIDDEN)
    for words in map(words_of, fields(ServerOptions)):
        if words.flag not in HIDDEN:
            assert words.flag in said
            assert f"{words.group}:" in said
            assert words.shown in said


def test_help_is_a_short_first_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A dozen options in 80 columns, the way to all, and a whole command that can be copied."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    said = capsys.readouterr().out
    assert len(_FIRST_PAGE) == 12
    for words in [words_of(option) for option in fields(ServerOptions)]:
        name = words.flag[2:].replace("-", "_").replace("allow_uid", "allow_uids")
        assert (f"  {words.flag} " in said or f"  {words.flag}\n" in said) == (name in _FIRST_PAGE)
    assert f"--help-all            all {len(fields(ServerOptions)) - len(HIDDEN)} options" in said
    assert max(map(len, said.splitlines())) <= 80
    assert said.count("\n") < 70
    assert "jaxd serve --listen unix://" in said


SAID: list[tuple[str, dict[str, Any]]] = [
    (
        "--listen unix:///run/j/s --listen tcp://[::1]:0",
        {"listen": (Address.unix("/run/j/s"), Address.tcp("::1", 0))},
    ),
    (
        "--listen tls://0.0.0.0:1 --tls-cert a.pem --tls-key a.key --advertise gpu.example.org:443",
        {
            "listen": (Address.tls("0.0.0.0", 1),),
            "tls_cert": "HERE/a.pem",
            "tls_key": "HERE/a.key",
            "advertise": "gpu.example.org:443",
        },
    ),
    ("--allow-uid 1000 --allow-uid root", {"allow_uids": (1000, 0)}),
    ("--worker-uids 61000-61009", {"worker_uids": (61000, 61009)}),
    ("--worker-uids 7-8", {"worker_uids": (7, 8)}),
    ("--worker-uids none", {"worker_uids": SAME_USER}),
    ("--cache-dir mine", {"cache_dir": "HERE/mine"}),
    ("--cache-dir none", {"cache_dir": "none"}),
    ("--build-in builder", {"build_in": "builder"}),
    ("--max-frame-bytes 4096", {"max_frame_bytes": 4096}),
    ("--max-frame-bytes 512M", {"max_frame_bytes": 512 << 20}),
    ("--max-frame-bytes 8GiB", {"max_frame_bytes": 8 << 30}),
    ("--max-frame-bytes 1KB", {"max_frame_bytes": 1024}),
    ("--disk-bytes 2T", {"disk_bytes": 2 << 40}),
    ("--snapshot-bytes 0", {"snapshot_bytes": 0}),
    ("--snapshot-bytes 4G", {"snapshot_bytes": 4 << 30}),
    ("--slots 7 --idle-timeout-s 0", {"slots": 7, "idle_timeout_s": 0.0}),
    (
        "--max-executables 7 --program-bytes 2G --device-program-bytes 1M",
        {"max_executables": 7, "program_bytes": 2 << 30, "device_program_bytes": 1 << 20},
    ),
    ("--map-share 0.25 --principal-share 1", {"map_share": 0.25, "principal_share": 1.0}),
    (
        "--devices GPU-8f6a-11,MIG-77 --device-memory-fraction 0.4 --no-preallocate",
        {"devices": "GPU-8f6a-11,MIG-77", "device_memory_fraction": 0.4, "preallocate": False},
    ),
    ("--preallocate", {"preallocate": True}),
]


@pytest.mark.parametrize(("words", "said"), SAID)
def test_words_become_options(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: dict[str, Any]
) -> None:
    """And nothing else of them; a relative path is one of here, the worker may run elsewhere."""
    monkeypatch.chdir(tmp_path)
    said = {
        name: value.replace("HERE", str(tmp_path)) if isinstance(value, str) else value
        for name, value in said.items()
    }
    found = parse_arguments(words.split())
    assert found == replace(ServerOptions(), **said)
    assert travelled(found) == found


def test_devices_may_have_spaces_between_them(runtime: Path) -> None:
    """As people write lists; by default devices are left to jax, and so is where to build."""
    assert parse_arguments(["--devices", "0, 2"]).devices == "0,2"
    options = parse_arguments([])
    assert (options.preallocate, options.build_in) == (None, "auto")


SHARE = "is not a share such as 0.5"
SECONDS = "is not a number of seconds"
USERS = "--worker-uids"
WRONG: list[tuple[list[str], str]] = [
    (["--listen", "http://x"], "is not an address"),
    (["--listen", "ssh://host"], "'ssh://host'"),
    (["--listen", f"tls://h:1#sha256={'0' * 64}"], "an address for clients"),
    (["--advertise", "gpu:x"], "'gpu:x'"),
    (["--advertise", "a b:c"], "'a b:c'"),
    (["--slots", "0"], "at least 1"),
    (["--slots", "²"], "'²'"),
    (["--budget-bytes", "many"], "is not a size"),
    (["--budget-bytes", "0"], "'0'"),
    (["--idle-timeout-s", "-1"], SECONDS),
    (["--idle-timeout-s", "nan"], SECONDS),
    (["--idle-timeout-s", "inf"], SECONDS),
    (["--log-format", "xml"], "'xml' is none of: text, json"),
    (["--build-in", "elsewhere"], "'elsewhere' is none of"),
    (["--map-share", "0"], SHARE),
    (["--principal-share", "1.5"], SHARE),
    (["--map-share", "nan"], SHARE),
    (["--map-share", "half"], SHARE),
    (["--device-memory-fraction", "1.2"], SHARE),
    (["--devices", ""], "''"),
    (["--devices", "0,x"], "is not a list of GPUs such as 0,1"),
    (["--devices", "1,1"], "names a GPU twice"),
    (["--allow-uid", "no-such-user"], "no user 'no-such-user'"),
    *(
        ([USERS, each], repr(each))
        for each in ("61009-61000", "61000-61000", "0-9", "61000", "1-4294967295")
    ),
    (["--nonsense"], "there is no option --nonsense"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG)
def test_a_usage_error_is_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    """It says what is wrong and where to read on."""
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(words)
    said = capsys.readouterr().err
    assert reason in said
    assert said.startswith("jaxd: ")
    assert said.endswith("See: jaxd serve --help\n")
