"""`jaxd completion`: the shells themselves complete with what it prints."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from jaxd.cli.__main__ import _COMMANDS, _parser
from jaxd.cli.commands import completion
from jaxd_protocol.base.terminal import Parser
from jaxd_server.cache import __main__ as cache_command
from jaxd_server.config import options
from tests.live_server import ROOT

SHTAB = importlib.util.find_spec("shtab")
needs_shtab = pytest.mark.skipif(SHTAB is None, reason="shtab is not installed (jaxd[completion])")


def needs(shell: str) -> pytest.MarkDecorator:
    """Skips a test where there is no such shell."""
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


def environment() -> dict[str, str]:
    """That of a process which finds the tree and shtab."""
    folders = [str(ROOT / name) for name in ("client", "server", "shared")]
    folders += [str(Path(SHTAB.origin).parents[1])] if SHTAB and SHTAB.origin else []
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders)}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """What the command prints for each shell that is here, in a folder with one file."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "train_model.py").touch()
    installed = [shell for shell in completion._SHELLS if shutil.which(shell)]
    for shell in installed:
        words = [sys.executable, "-P", "-m", "jaxd.cli", "completion", shell]
        done = subprocess.run(words, env=environment(), capture_output=True, check=True)
        assert done.stderr == b""
        (folder / f"jaxd.{shell}").write_bytes(done.stdout)
    return {shell: folder / f"jaxd.{shell}" for shell in installed}


# What is typed, and the word that is completed.
TYPED = [
    ("statu", "status"),
    ("status --js", "--json"),
    ("status --server unix:///x --rea", "--ready"),
    ("cache pur", "purge"),
    ("serve --log-format js", "json"),
    ("completion fis", "fish"),
    ("help verif", "verify"),
    ("token --file train_m", "train_model.py"),
    ("run train_m", "train_model.py"),
]


class Shell:
    """An interactive shell on a terminal, without files of its user's."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._said = ""
        self._terminal, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "TERM": "dumb", "PS1": "", "PS2": ""},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def type(self, text: str) -> None:
        """Sends keys."""
        os.write(self._terminal, text.encode())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Returns once something like this is on the screen; what stands before it is forgotten."""
        deadline = time.monotonic() + 30
        while not (found := re.search(pattern, self._said)):
            assert select.select([self._terminal], [], [], deadline - time.monotonic())[0], (
                self._said
            )
            self._said += os.read(self._terminal, 4096).decode()
        self._said = self._said[found.end() :]
        return found

    def close(self) -> None:
        """Ends it."""
        self.type("exit\n")
        self._process.wait()
        os.close(self._terminal)


STARTS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PROMPT=; autoload -U compinit && compinit -u -D; eval "$(<{script})"',
    ),
}


@needs_shtab
@pytest.mark.parametrize(
    "shell", [pytest.param("bash", marks=needs("bash")), pytest.param("zsh", marks=needs("zsh"))]
)
def test_a_key_completes_words(shell: str, scripts: Mapping[str, Path]) -> None:
    """Commands, options of every command, also of the server's, their values, and files.

    `jaxd` is a function that prints its last word, so that what was completed is run.
    """
    command, load = STARTS[shell]
    running = Shell(command, scripts[shell].parent)
    running.type(load.format(script=scripts[shell]) + '; jaxd() { echo "<${@: -1}>"; }\n')
    running.type("echo 're''ady'\n")
    running.wait_for("(?m)^ready")
    found = []
    for typed, _ in TYPED:
        running.type(f"jaxd {typed}\t\n")
        found.append((typed, running.wait_for(r"(?m)^<(.*)>")[1].strip()))
    running.close()
    assert found == TYPED


@needs_shtab
@needs("fish")
def test_fish_completes_words(scripts: Mapping[str, Path]) -> None:
    """The same, as `complete -C` of fish says."""
    for typed, word in TYPED:
        said = subprocess.run(
            ["fish", "--no-config", "-c", f"source jaxd.fish; complete -C 'jaxd {typed}'"],
            cwd=scripts["fish"].parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [line.partition("\t")[0] for line in said.splitlines()] == [word]


def test_the_parsers_are_the_only_list() -> None:
    """What a command of the server says of itself makes a parser with the same words."""
    parser = _parser(completion._fill)
    assert list(parser.commands) == list(_COMMANDS)
    for name, original in (("serve", options._parser()), ("cache", cache_command._parser())):
        assert words_of(parser.commands[name]) == words_of(original)
        assert list(parser.commands[name].commands) == list(original.commands)
    assert "--auto" not in parser.commands["serve"].format_help()


def words_of(parser: Parser) -> object:
    """As JSON has them."""
    return json.loads(json.dumps(parser.described()))["arguments"]


@pytest.mark.usefixtures("runtime")
def test_without_its_package_the_extra_is_named(tmp_path: Path) -> None:
    """And nothing is printed that a shell would run."""
    (tmp_path / "shtab.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jaxd.cli", "completion", "bash"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("Run: pip install 'jaxd[completion]'\n")
