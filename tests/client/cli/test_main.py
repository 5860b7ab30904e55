from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxd.cli.__main__ import _COMMANDS, _GROUPS, Forwarded, main
from jaxd.cli.commands import token
from jaxd.connection import discovery
from jaxd_protocol import __version__
from jaxd_protocol.errors import ConfigurationError
from tests.warm_clients import run_command

pytestmark = pytest.mark.usefixtures("runtime")

FORWARDED = [name for name, command in _COMMANDS.items() if isinstance(command, Forwarded)]
OWN = [name for name in _COMMANDS if name not in FORWARDED]
PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def test_the_page_on_configuration_has_every_command() -> None:
    """With a row, or several."""
    rows = set(re.findall(r"^\| `jaxd ([\w-]+)", PAGE.read_text(), re.MULTILINE))
    assert rows >= set(_COMMANDS)


@pytest.mark.parametrize("name", OWN)
def test_each_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """One that can be copied."""
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert re.search(rf"^example: .*jaxd {name}", capsys.readouterr().out, re.MULTILINE)


USAGE = {
    **dict.fromkeys(("dance", "status --nonsense", "status extra", "token --file"), ""),
    **dict.fromkeys(("warm", "warm --record", "warm --record --check f", "warm a b"), ""),
    **dict.fromkeys(("why", "why --recent 0", "why --recent many", "why a:b --recent"), ""),
    "why --recent -1": "",
    "demo --epochs 0": "0",
    "demo --epochs -1": "-1",
    "demo --epochs many": "many",
    **{
        f"dashboard --port={port}": "is no port: 1 to 65535, or 0 for a free one"
        for port in ("-1", "65536", "x", "1.5")
    },
}


@pytest.mark.parametrize("words", USAGE)
def test_a_usage_error_exits_with_2(capsys: pytest.CaptureFixture[str], words: str) -> None:
    """One line that says where to read on."""
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    said = capsys.readouterr().err
    assert said.startswith("jaxd: ")
    assert USAGE[words] in said
    assert said.endswith("--help\n")
    assert said.count("\n") == 1


def test_an_error_is_one_line_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr, with exit code 1."""
    monkeypatch.setattr(token, "run", raising(ConfigurationError("wrong. Do that.")))
    assert main(["token"]) == 1
    assert capsys.readouterr() == ("", "jaxd: wrong. Do that.\n")


def test_ctrl_c_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quietly, as shells expect."""
    monkeypatch.setattr(token, "run", raising(KeyboardInterrupt()))
    assert main(["token"]) == 130
    assert capsys.readouterr() == ("", "")


def raising(error: BaseException) -> object:
    """A command that does nothing but raise."""

    def run(_: object) -> int:
        raise error

    return run


def test_a_closed_pipe_is_no_traceback(runtime: Path) -> None:
    """`jaxd … | head` reads what it wants and goes."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "jaxd.cli", "status", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        said = stderr.read()
    assert process.wait() != 0
    assert "Traceback" not in said
    assert "Exception ignored" not in said


@pytest.mark.parametrize("name", FORWARDED)
def test_some_commands_read_their_own_words(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever follows, also what looks like an option of ours."""
    became: list[tuple[str, list[str]]] = []

    def become(program: str, words: list[str]) -> None:
        became.append((program, words))
        raise SystemExit

    monkeypatch.setattr(os, "execv", become)
    monkeypatch.setattr(discovery, "has_server_extra", lambda: True)
    words = ["--help", "--listen", "unix:///x", "more"]
    with pytest.raises(SystemExit):
        main([name, *words])
    command = _COMMANDS[name]
    assert isinstance(command, Forwarded)
    expected = [sys.executable, "-P", "-m", command.module, *words]
    assert became == [(sys.executable, expected)]


def jaxd(*words: str, python: tuple[str, ...] = (), **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `jaxd WORDS`; an interpreter of its own gets `python`."""
    variables = {"COLUMNS": "80"} | variables
    if not python:
        done = run_command(*words, **variables)
        return done.returncode, done.stdout, done.stderr
    done = subprocess.run(
        [sys.executable, "-P", *python, "-m", "jaxd.cli", *words],
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_without_words_it_prints_its_help() -> None:
    """On stdout, with exit code 0: a newcomer has made no mistake. `help` says the same."""
    alone = jaxd()
    assert alone == jaxd("--help") == jaxd("-h") == jaxd("help")
    assert (alone[0], alone[2]) == (0, "")


def test_the_help_has_each_command_in_its_group() -> None:
    """One line each, in 80 columns, and examples."""
    lines = jaxd()[1].splitlines()
    assert max(map(len, lines)) <= 80
    for title, commands in _GROUPS.items():
        at = lines.index(f"{title}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(commands)]] == [*commands]
        assert lines[at + 1 + len(commands)] == ""
    assert "examples:" in lines


def test_a_narrow_terminal_gets_narrow_help() -> None:
    """No line of the list is cut; every word is there."""
    _, wide, _ = jaxd()
    _, narrow, _ = jaxd(COLUMNS="40")
    listed = narrow[: narrow.index("examples:")].partition("run programs:")[2]
    assert max(map(len, listed.splitlines())) <= 40
    assert narrow.split() == wide.split()


@pytest.mark.parametrize("name", ["status", "serve"])
def test_help_of_a_command_is_that_of_its_option(name: str) -> None:
    """Also of those that a program of the server runs."""
    code, said, error = jaxd("help", name)
    assert (code, error) == (0, "")
    assert said.startswith(f"usage: jaxd {name}")
    assert (0, said, "") == jaxd(name, "--help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["statsu"], "there is no command 'statsu'. Did you mean 'status'? See: jaxd --help"),
        (["help", "statsu"], "there is no command 'statsu'. Did you mean 'status'? See: jaxd"),
        (["cache", "lst"], "no command 'lst'. Did you mean 'ls'? See: jaxd cache --help"),
        (["xyzzy"], "there is no command 'xyzzy'. See: jaxd --help"),
        (["status", "--jsn"], "no option --jsn. Did you mean '--json'? See: jaxd status --help"),
        (["status", "x"], "unexpected argument 'x'. See: jaxd status --help"),
        (["run", "--reprot", "x.py"], "--reprot. Did you mean '--report'? See: jaxd run --help"),
        (["warm", "--chek"], "--chek. Did you mean '--check'? See: jaxd warm --help"),
        (["serve", "--lisen=x"], "--lisen. Did you mean '--listen'? See: jaxd serve --help"),
        (["serve", "--log-format", "jsn"], "'jsn' is none of: text, json. Did you mean 'json'?"),
        (["functions", "--sort", "cals"], "Did you mean 'calls'? See: jaxd functions --help"),
        (["--server", "x", "status"], "Options of a command stand behind it. See: jaxd --help"),
        (["--versoin"], "there is no option --versoin. Did you mean '--version'?"),
        (["cache", "gc", "--max-byte", "1"], "Did you mean '--max-bytes'? See: jaxd cache gc -"),
    ],
)
def test_a_wrong_word_is_answered_with_what_was_meant(words: list[str], said: str) -> None:
    """One line on stderr, exit code 2; the help that it names is that of the command."""
    code, out, error = jaxd(*words)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error


@pytest.mark.slow
def test_the_versions_are_told() -> None:
    """Those of jaxd, Python and the packages that matter, installed or not."""
    code, said, error = jaxd("version")
    assert (code, error) == (0, "")
    assert said.startswith(f"jaxd {__version__}\nPython {platform.python_version()}\njax ")
    assert (code, said, error) == jaxd("--version") == jaxd("-V")
    report = json.loads(jaxd("version", "--json")[1])
    assert list(report) == ["jaxd", "python", "jax", "jaxlib", "numpy", "rpyc", "cloudpickle"]
    assert "".join(f" {version or '(not installed)'}\n" for version in report.values()) == "".join(
        f" {line.partition(' ')[2]}\n" for line in said.splitlines()
    )


def test_what_is_not_installed_has_no_version(tmp_path: Path) -> None:
    """Where nothing is installed, all but jaxd and Python."""
    code, said, _ = jaxd("version", python=("-S",))
    assert code == 0
    assert said.count("(not installed)") == 5


def test_no_heavy_package_is_imported() -> None:
    """Neither jax nor numpy, rpyc or cloudpickle, by whatever only says something."""
    program = """
import contextlib, sys
from jaxd.cli.__main__ import main
for words in ([], ["version"], ["help", "status"], ["statsu"], ["status"], ["completion", "zsh"]):
    with contextlib.suppress(SystemExit):
        main(words)
    heavy = {"jax", "jaxlib", "numpy", "rpyc", "cloudpickle"} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_to_start_a_program_no_client_is_imported(tmp_path: Path) -> None:
    """`jaxd run` adds that time to each run of a program; nor is any other command imported."""
    (tmp_path / "program.py").touch()
    program = """
import os, sys
from jaxd.cli.__main__ import main
os.execve = lambda *_: print(*sorted(name for name in sys.modules if "jaxd" in name))
main(["run", "program.py"])
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    imported = done.stdout.split()
    assert "jaxd.cli.commands.run" in imported, done.stderr
    assert not {"jaxd.api.function", "jaxd.dispatch", "jaxd.api.launch.process"} & {*imported}
    assert [name for name in imported if name.startswith("jaxd.cli.commands.")] == [
        "jaxd.cli.commands.run"
    ]


@pytest.mark.parametrize("words", [[], ["serve", "--help-all"]], ids=" ".join)
def test_a_reader_may_go_early(words: list[str]) -> None:
    """`jaxd … | head -1`: no traceback."""
    line = f'"{sys.executable}" -P -m jaxd.cli {" ".join(words)} | head -n 1'
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: jaxd")
    assert done.stderr == ""


def test_where_no_server_can_run_none_is_to_be_started() -> None:
    """Without jax, `jaxd start` would be the next error."""
    hidden = "import sys; sys.modules['jax'] = None; from jaxd.cli.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", hidden, "status"], capture_output=True, text=True, check=False
    )
    assert "Either run: pip install 'jaxd[server]', or set JAXD_SERVER" in done.stderr
    assert "jaxd start" not in done.stderr


@pytest.mark.slow
def test_start_says_where_calls_go(tmp_path: Path) -> None:
    """Where JAXD_SERVER names another server, which is not the one that was started."""
    try:
        code, _, error = jaxd("start", JAXD_SERVER="tcp://gpu-host:1")
        assert code == 0
        assert "calls still go to tcp://gpu-host:1" in error
        assert "calls still go" not in jaxd("start")[2]
    finally:
        jaxd("stop")


def test_status_says_why_nothing_answers(tmp_path: Path) -> None:
    """As a call would; `--json` has the rest as before."""
    code, said, error = jaxd("status", "--json", "--server", "tcp://127.0.0.1:1")
    assert (code, json.loads(said)["worker_state"]) == (3, "absent")
    assert "(Connection refused)" in error
