"""`jaxd why`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd.cli.__main__ import main
from tests.live_server import LiveServer

MODULE = """
from jaxd import persistent_call

LR = 0.1

@persistent_call
def train_step(x):
    return x * LR

def plain(x):
    return x + 1

class Model:
    @persistent_call
    def step(self, x):
        return x

model = Model()
"""


@pytest.fixture
def folder(tmp_path: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that is forgotten after the test."""
    (tmp_path / "train_for_why.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert runtime.is_dir()
    yield tmp_path
    for name in ("train_for_why", "broken_for_why", "jitted_for_why"):
        sys.modules.pop(name, None)


@pytest.fixture
def server(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> LiveServer:
    """The server that commands find by themselves."""
    monkeypatch.setenv("JAXD_SERVER", live.unix)
    return live


@pytest.mark.usefixtures("folder", "server")
@pytest.mark.parametrize("name", ["train_step", "plain", "Model.step", "model.step"])
def test_a_function_of_this_folder_is_asked_about(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Persistent or plain, also inside of a class."""
    assert main(["why", f"train_for_why:{name}"]) == 0
    said = capsys.readouterr().out
    assert f"{name.rpartition('.')[2]}: compile\n" in said


@pytest.mark.usefixtures("folder", "server")
def test_json_holds_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """One object with names that stay."""
    assert main(["why", "train_for_why:train_step", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verdict"], answer["function"]) == ("compile", "train_step")
    assert {"key", "reason", "nearest", "differences", "advice", "programs"} <= set(answer)


@pytest.mark.usefixtures("folder")
def test_the_server_can_be_named(
    live: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of the one that the environment names."""
    monkeypatch.setenv("JAXD_SERVER", "unix:///nowhere.sock")
    assert main(["why", "--recent", "--server", live.unix]) == 0
    assert main(["why", "train_for_why:plain", "--server", live.unix]) == 0
    capsys.readouterr()
    monkeypatch.setenv("JAXD_SERVER", "unix:///nowhere.sock")
    assert main(["why", "train_for_why:train_step"]) == 3
    assert capsys.readouterr().err.startswith("jaxd: ")


@pytest.mark.usefixtures("server")
def test_recent_builds_are_listed(live: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one first, as many as are asked for; also as JSON."""
    program = (
        "from jaxd import persistent_call; import numpy as np\n"
        "@persistent_call\n"
        "def listed_step(x):\n"
        "    return x - 6.5\n"
        "listed_step(np.zeros(2)), listed_step(np.zeros(3))"
    )
    assert live.run(program).returncode == 0
    assert main(["why", "--recent", "2"]) == 0
    last, before = capsys.readouterr().out.splitlines()
    assert "  listed_step  compiled in " in last
    assert last.endswith("s: argument x: float64[2] → float64[3]")
    assert before.endswith("s: first call of this function on this server")
    assert main(["why", "--recent", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["server"] == live.unix
    (decision,) = report["decisions"]
    assert (decision["function"], decision["verdict"]) == ("listed_step", "compile")


@pytest.mark.usefixtures("folder", "server")
@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("train_for_why", "does not name a function"),
        ("train_for_why.py:plain", "Write MODULE:FUNCTION"),
        (":plain", "does not name a function"),
        ("no_such_module:f", "there is no module 'no_such_module'"),
        ("train_for_why.sub:f", "there is no module 'train_for_why.sub'"),
        ("train_for_why:missing", "train_for_why has no 'missing'"),
        ("jitted_for_why:f", "f is made by jax.jit"),
        ("train_for_why:LR", "train_for_why:LR is a float and no function"),
        ("broken_for_why:f", "importing broken_for_why raised ZeroDivisionError"),
        ("needing_for_why:f", "importing needing_for_why raised ModuleNotFoundError"),
    ],
)
def test_what_is_no_function_is_told(
    folder: Path, target: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line that ends in what to do, with exit code 1."""
    (folder / "broken_for_why.py").write_text("1 / 0")
    (folder / "jitted_for_why.py").write_text("import jax; f = jax.jit(abs)")
    (folder / "needing_for_why.py").write_text("import no_such_module_at_all")
    assert main(["why", target]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
