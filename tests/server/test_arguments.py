from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxd_protocol.addresses import Address
from jaxd_protocol.tokens import default_token_file, write_token_file
from jaxd_server.arguments import parse_arguments
from jaxd_server.options import ServerOptions
from tests.live_server import ROOT


def test_no_words_mean_the_defaults(runtime: Path) -> None:
    """The defaults stand in one place only."""
    assert parse_arguments([]) == ServerOptions()


def test_the_page_on_configuration_has_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """In the first column of a row."""
    with pytest.raises(SystemExit, match="0"):
        parse_arguments(["--help"])
    options = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    lines = (ROOT / "docs" / "configuration.md").read_text().splitlines()
    told = [re.findall("`(--[a-z-]+)", line.split(" | ")[0]) for line in lines]
    assert len(options) > 50
    assert options - {option for row in told for option in row} == set()


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
        (["--log-format", "xml"], "invalid choice"),
        (["--map-share", "0"], "is not a share such as 0.5"),
        (["--principal-share", "1.5"], "is not a share such as 0.5"),
        (["--map-share", "nan"], "is not a share such as 0.5"),
        (["--map-share", "half"], "is not a share such as 0.5"),
        (["--devices", "0,x"], "is not a list of GPUs such as 0,1"),
        (["--devices", "1,1"], "names a GPU twice"),
        (["--device-memory-fraction", "1.2"], "is not a share such as 0.5"),
        (["--nonsense"], "unrecognized arguments"),
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
    assert parse_arguments([]).trace_in == "auto"
    assert parse_arguments(["--trace-in", "tracer"]).trace_in == "tracer"
    with pytest.raises(SystemExit):
        parse_arguments(["--trace-in", "elsewhere"])
