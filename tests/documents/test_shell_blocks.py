"""The commands in README.md and docs/ exist, with the options that they are given; none is run."""

from __future__ import annotations

import configparser
import importlib.util
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jaxd.api.launch import pytest_plugin
from jaxd.cli.__main__ import _parser, _split_program
from jaxd.cli.commands.completion import _fill
from jaxd.connection.settings import Settings
from jaxd_protocol.base.terminal import Parser
from tests.documents.blocks import ROOT, Block, blocks_of, pages
from tests.ids import row

if TYPE_CHECKING:
    import pytest

_PROMPT: Final = re.compile(r"[\w-]*\$ (.*)")
_INSIDE: Final = re.compile(r"\$\(([^()]*)\)")
_IN_A_TEXT: Final = re.compile(r"`(?:[A-Z_]+=\S+ )?jaxd ([a-z][^`]*)`")
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_WORDS_OF_A_SHELL: Final = frozenset({"if", "then", "fi"})

_OTHERS: Final = frozenset(
    {
        ".",
        "[",
        "cat",
        "command",
        "curl",
        "docker",
        "echo",
        "eval",
        "export",
        "false",
        "grep",
        "id",
        "install",
    }
    | {"kubectl", "ls", "mkdir", "nvidia-smi", "openssl", "rm", "scp", "sh", "sleep", "srun", "ssh"}
    | {"sudo", "timeout", "true"}
)
"""Programs of others that the documents name, whose options nobody checks here."""

Command = list[str]


def _shell_blocks() -> list[Block]:
    shells = ("console", "sh", "dockerfile")
    return [block for page in pages() for block in blocks_of(page) if block.language in shells]


def _command_lines(block: Block) -> Iterator[str]:
    """What is typed, each with its continuation lines; the output of commands is left out."""
    lines = iter(block.text.splitlines())
    for line in lines:
        typed = line
        if block.language == "console":
            prompted = _PROMPT.fullmatch(line)
            if prompted is None:
                continue
            typed = prompted[1]
        if block.language == "dockerfile":
            if not line.startswith("RUN "):
                continue
            typed = line.removeprefix("RUN ")
        while typed.endswith("\\"):
            typed = typed[:-1] + next(lines).removeprefix("> ")
        if "<<" not in typed:
            yield re.sub(r"(^|\s)#.*", "", typed)


def _commands(line: str) -> Iterator[Command]:
    """The simple commands of a line, those in `$(…)` as well."""
    for inside in _INSIDE.findall(line):
        yield from _commands(inside)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.commenters = ""
    lexer.whitespace_split = True
    command: Command = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;"):
            yield from _without_redirection(command)
            command = []
        else:
            command.append(word)


def _without_redirection(command: Command) -> Iterator[Command]:
    kept: Command = []
    words = iter(command)
    for word in words:
        if set(word) <= set("<>&"):
            next(words, "")
        elif not (re.fullmatch(r"[A-Z_]+=.*", word) and not kept) and word not in _WORDS_OF_A_SHELL:
            kept.append(word)
    if kept:
        yield kept


@cache
def _jaxd() -> Parser:
    """The parser of `jaxd`, with the options of the commands that the server package runs."""
    return _parser(_fill)


def _check_jaxd(words: Command) -> None:
    own, _ = _split_program(words)
    _jaxd().parse_args(own)


def _check_make(words: Command) -> None:
    text = (ROOT / "Makefile").read_text()
    targets = " ".join(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)).split()
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert re.search(rf"^{name} \?=", text, re.MULTILINE) if is_variable else name in targets


def _check_pip(words: Command) -> None:
    """Extras exist, and nothing says that an index has jaxd."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words if words[0] == "install" else []:
        name, _, extras = word.rstrip("]").partition("[")
        assert name != "jaxd" or (extras and "server" not in extras), "jaxd is on no index"
        asked = extras.split(",") if extras else []
        assert set(asked) <= set(known["optional-dependencies"])


def _check_pytest(words: Command) -> None:
    source = inspect.getsource(pytest_plugin)
    assert all(f'"{word}"' in source for word in words if word.startswith("--"))


def _check_python(words: Command) -> None:
    if words[:1] == ["-m"]:
        assert importlib.util.find_spec(words[1]) is not None


_CHECKS: Final = {
    "jaxd": _check_jaxd,
    "make": _check_make,
    "pip": _check_pip,
    "pytest": _check_pytest,
    "python": _check_python,
    "python3": _check_python,
}


def test_the_commands_of_a_block_exist() -> None:
    """With their options, extras, targets and modules; a program of others is in the list above."""
    for block in _shell_blocks():
        for line in _command_lines(block):
            for program, *words in _commands(line):
                with row(f"{block}: {line}"):
                    name = re.sub(r"^python3\.\d+$", "python3", Path(program).name) or program
                    assert name in _CHECKS or name in _OTHERS
                    _CHECKS.get(name, len)(words)


def test_a_command_in_a_text_has_the_options_that_it_is_given() -> None:
    """As `jaxd cache gc --max-bytes SIZE`, in a sentence or a table."""
    described = _jaxd().described()["commands"]
    texts = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in pages())
    for text in _IN_A_TEXT.findall(texts):
        own = text.partition(" -- ")[0].partition(" && ")[0]
        first, *more = own.split()
        assert first in described, text
        assert set(_OPTION.findall(own)) <= _options(described[first], more), text


def _options(command: Mapping[str, Any], words: list[str]) -> set[str]:
    """Those of a command; where its next words name commands of its own, theirs as well."""
    names = {name for names, _ in command["arguments"] for name in names} | {"--help"}
    for word in words:
        if word in command["commands"]:
            names |= _options(command["commands"][word], [])
    return names


def test_the_configuration_file_on_the_page_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a client; an unknown key would be an error."""
    page = "docs/configuration.md"
    text = next(block.text for block in blocks_of(page) if block.language == "toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "jaxd").mkdir()
    (tmp_path / "jaxd" / "config.toml").write_text(text)
    assert str(Settings.resolve().server) == tomllib.loads(text)["server"]


def test_the_ini_file_of_pytest_has_options_of_the_plugin() -> None:
    """Which pytest reads under this name."""
    (block,) = (block for block in blocks_of("docs/pytest.md") if block.language == "ini")
    read = configparser.ConfigParser()
    read.read_string(block.text)
    source = inspect.getsource(pytest_plugin)
    assert all(f'addini("{name}"' in source for name in read["pytest"])


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    """A block of Python or of a program's output that no test runs has its reason above it."""
    reasons = [block.reason for page in pages() for block in blocks_of(page) if block.reason]
    assert len(reasons) <= 6
    assert all(len(reason.split()) > 2 for reason in reasons)
