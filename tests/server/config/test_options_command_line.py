from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.tokens import default_token_file, write_token_file
from jaxd_server.config.options import _FIRST_PAGE, ServerOptions, parse_arguments, words_of
from tests.server.option_table import parts_of_the_page, table


def test_no_words_mean_the_defaults(runtime: Path) -> None:
    """The defaults stand in one place only."""
    assert parse_arguments([]) == ServerOptions()


def test_the_page_on_configuration_has_every_option() -> None:
    """In the words of `--help`."""
    _, found, _ = parts_of_the_page()
    assert found == table(), "write it anew: python -m tests.server.option_table"


def test_help_has_every_option_under_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """With `--help-all`, but for the one that is not for people; each with its default."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help-all"])
    said = " ".join(capsys.readouterr().out.split())
    assert "--auto" not in said
    for words in map(words_of, fields(ServerOptions)):
        if words.flag != "--auto":
            assert words.flag in said
            assert f"{words.group}:" in said
            assert words.shown in said


def test_help_is_a_short_first_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A dozen options, each of them one that there is, in 80 columns; it names the way to all."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    said = capsys.readouterr().out
    assert len(_FIRST_PAGE) == 12
    for words in [words_of(option) for option in fields(ServerOptions)]:
        name = words.flag[2:].replace("-", "_").replace("allow_uid", "allow_uids")
        assert (f"  {words.flag} " in said or f"  {words.flag}\n" in said) == (name in _FIRST_PAGE)
    assert f"--help-all            all {len(fields(ServerOptions)) - 1} options" in said
    assert max(map(len, said.splitlines())) <= 80
    assert said.count("\n") < 70


def test_several_addresses_may_be_opened(runtime: Path) -> None:
    """`--listen` may be repeated, and the order is kept."""
    options = parse_arguments(["--listen", "unix:///run/j/s", "--listen", "tcp://[::1]:0"])
    assert options.listen == (Address.unix("/run/j/s"), Address.tcp("::1", 0))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--listen", "http://x"], "is not an address"),
        (["--slots", "0"], "at least 1"),
        (["--budget-bytes", "many"], "is not a size"),
        (["--idle-timeout-s", "-1"], "is not a number of seconds"),
        (["--idle-timeout-s", "nan"], "is not a number of seconds"),
        (["--log-format", "xml"], "'xml' is none of: text, json"),
        (["--map-share", "0"], "is not a share such as 0.5"),
        (["--principal-share", "1.5"], "is not a share such as 0.5"),
        (["--map-share", "nan"], "is not a share such as 0.5"),
        (["--map-share", "half"], "is not a share such as 0.5"),
        (["--devices", "0,x"], "is not a list of GPUs such as 0,1"),
        (["--devices", "1,1"], "names a GPU twice"),
        (["--device-memory-fraction", "1.2"], "is not a share such as 0.5"),
        (["--nonsense"], "there is no option --nonsense"),
    ],
)
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


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` shows a whole command that can be copied."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    assert "jaxd serve --listen unix://" in capsys.readouterr().out


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


def test_the_cache_folder_is_absolute(
    runtime: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means the folder where the command was typed; `none` is no path."""
    monkeypatch.chdir(tmp_path)
    assert parse_arguments(["--cache-dir", "mine"]).cache_dir == str(tmp_path / "mine")
    assert parse_arguments(["--cache-dir", "none"]).cache_dir == "none"


def test_where_functions_are_traced_can_be_said(runtime: Path) -> None:
    """By default that depends on how many clients there are."""
    assert parse_arguments([]).build_in == "auto"
    assert parse_arguments(["--build-in", "builder"]).build_in == "builder"
    with pytest.raises(SystemExit):
        parse_arguments(["--build-in", "elsewhere"])


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("512M", 512 << 20), ("8GiB", 8 << 30), ("1KB", 1024), ("2T", 2 << 40)],
)
def test_sizes_may_have_a_unit(runtime: Path, text: str, size: int) -> None:
    """Units are powers of 1024, however they are written."""
    assert parse_arguments(["--max-frame-bytes", text]).max_frame_bytes == size


def test_the_room_on_disk_is_a_size(runtime: Path) -> None:
    """`--disk-bytes` takes what the other sizes take."""
    assert parse_arguments(["--disk-bytes", "3G"]).disk_bytes == 3 << 30


def test_how_many_programs_stay_in_memory_can_be_said(runtime: Path) -> None:
    """As a number, in bytes here and on the device, and as shares of what the system allows."""
    words = "--max-executables 7 --program-bytes 2G --device-program-bytes 1M --map-share 0.25"
    options = parse_arguments([*words.split(), "--principal-share", "1"])
    assert options == ServerOptions(
        listen=options.listen,
        max_executables=7,
        program_bytes=2 << 30,
        device_program_bytes=1 << 20,
        map_share=0.25,
        principal_share=1.0,
    )


def test_devices_and_their_memory_can_be_said(runtime: Path) -> None:
    """By default that is left to jax and its variables."""
    words = "--devices 0,GPU-8f6a --device-memory-fraction 0.4 --no-preallocate"
    options = parse_arguments(words.split())
    assert options.devices == "0,GPU-8f6a"
    assert options.device_memory_fraction == 0.4
    assert options.preallocate is False
    assert parse_arguments(["--preallocate"]).preallocate is True
    assert parse_arguments([]).preallocate is None


def test_other_users_can_be_let_in(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By number or name; they travel to the worker."""
    found = parse_arguments(["--allow-uid", "1000", "--allow-uid", "root"])
    assert found.allow_uids == (1000, 0)
    assert ServerOptions.from_json(json.loads(json.dumps(found.to_json()))) == found
    with pytest.raises(SystemExit):
        parse_arguments(["--allow-uid", "no-such-user"])
    assert "no user 'no-such-user'" in capsys.readouterr().err


def test_tls_can_be_said(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The files are absolute, since the worker may run in another folder."""
    words = ["--tls-cert", "a.pem", "--tls-key", "a.key", "--advertise", "gpu:443"]
    found = parse_arguments(["--listen", "tls://0.0.0.0:1", *words])
    assert found.listen == (Address.tls("0.0.0.0", 1),)
    assert (found.tls_cert, found.tls_key) == (os.path.abspath("a.pem"), os.path.abspath("a.key"))
    assert found.advertise == "gpu:443"
    for wrong in (
        ["--listen", "ssh://host"],
        ["--listen", f"tls://h:1#sha256={'0' * 64}"],
        ["--advertise", "gpu:x"],
    ):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)
    assert "an address for clients" in capsys.readouterr().err
