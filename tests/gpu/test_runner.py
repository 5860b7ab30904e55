"""`make gpu` itself, without a GPU: it goes on where it stopped, and says what failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from tests.gpu import carried, nvidia
from tests.gpu.__main__ import main
from tests.gpu.parts import Part, parts
from tests.gpu.results import read
from tests.gpu.summary import is_good, write_summary
from tests.live_server import ROOT

SUITE = """
import pytest

def test_good(): pass

def test_bad(): assert 1 == 2

@pytest.mark.skip("has a reason")
def test_skipped(): pass

@pytest.fixture
def broken(): raise OSError("no device")

def test_of_a_fixture(broken): pass
"""


def _run(folder: Path, until: float, *more: str, **variables: str) -> str:
    (folder / "test_suite.py").write_text(SUITE)
    told = {"GPU_RESULTS": str(folder / "results.jsonl"), "GPU_UNTIL": str(until)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.gpu.recorded_results"]
    command += ["-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull, *more]
    done = subprocess.run(
        [*command, str(folder / "test_suite.py")],
        cwd=ROOT,
        env=os.environ | told | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def _outcomes(folder: Path) -> dict[str, str]:
    found = read(folder / "results.jsonl")
    return {name.partition("::")[2]: one["outcome"] for name, one in found.items()}


EXPECTED = {
    "test_good": "passed",
    "test_bad": "failed",
    "test_skipped": "skipped",
    "test_of_a_fixture": "failed",
}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(), ("-n", "2")], ids=["one process", "two"])
def test_each_result_is_written_once(tmp_path: Path, processes: tuple[str, ...]) -> None:
    """A second run has nothing left to do, and one that is to try again runs what failed."""
    _run(tmp_path, time.time() + 60, *processes)
    assert _outcomes(tmp_path) == EXPECTED
    assert (
        "no device" in read(tmp_path / "results.jsonl")["test_suite.py::test_of_a_fixture"]["text"]
    )
    written = (tmp_path / "results.jsonl").read_text()
    assert "4 deselected" in _run(tmp_path, time.time() + 60)
    assert (tmp_path / "results.jsonl").read_text().split() == written.split()
    assert "1 failed, 2 deselected, 1 error" in _run(tmp_path, time.time() + 60, GPU_AGAIN="1")


@pytest.mark.slow
def test_a_run_goes_on_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    """As by the end of the machine; that test is run again, and no other."""
    _run(tmp_path, time.time() + 60)
    whole = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(whole[: whole.rindex('"outcome"')])
    assert "3 deselected, 1 error" in _run(tmp_path, time.time() + 60)
    assert _outcomes(tmp_path) == EXPECTED


@pytest.mark.slow
def test_what_had_no_time_has_no_result(tmp_path: Path) -> None:
    """So that the next run finds it."""
    _run(tmp_path, time.time() - 1)
    assert _outcomes(tmp_path) == {}
    _run(tmp_path, time.time() + 60)
    assert _outcomes(tmp_path) == EXPECTED


@pytest.mark.slow
def test_the_summary_says_what_failed_and_why(tmp_path: Path) -> None:
    """And what was skipped, for what reason; a part without results is not good."""
    known = [Part("tests", (), "results.jsonl", {}), Part("figures", (), "figures.json", {})]
    assert not is_good(known, ["tests"], tmp_path)
    _run(tmp_path, time.time() + 60)
    rows = [{"name": "r", "unit": "s", "median": {"jaxd": 0.5}, "ratios": []}]
    (tmp_path / "figures.json").write_text(json.dumps({"rows": rows}))
    write_summary(known, tmp_path)
    summary = (tmp_path / "summary.md").read_text()
    assert "2 failed, 1 passed, 1 skipped" in summary
    assert "- `test_suite.py::test_bad`" in summary
    assert "assert 1 == 2" in summary
    assert "- skipped, 1: Skipped: has a reason" in summary
    assert "- r (s): jaxd 0.5" in summary
    assert f"- jax {metadata.version('jax')}" in summary
    assert not is_good(known, [], tmp_path)
    assert is_good(known, ["figures"], tmp_path)


def test_without_a_gpu_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says so, and how to rehearse; a part that there is not is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--output", str(tmp_path / "out")]) == 2
    assert "make gpu GPU_REHEARSAL=1" in capsys.readouterr().out
    assert main(["--output", str(tmp_path / "out"), "--parts", "devices"]) == 2
    assert "there is no part devices: device, figures" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_no_more_files_are_written_than_are_brought_back(tmp_path: Path) -> None:
    """Eight: those of the parts, the table of the figures, the log and the summary."""
    files = {part.writes for part in parts(is_rehearsal=False, output=tmp_path)}
    assert len(files) + len({"accelerator.md", "log.txt", "summary.md"}) <= 8


def test_the_memory_of_a_gpu_is_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all devices; a line that is no device is none."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 580.1, 81559, 512'\n"
        "echo 'NVIDIA H100 80GB HBM3, 580.1, 81559, 4'\necho 'broken, [N/A], [N/A], [N/A]'\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    first, second = nvidia.gpus()
    assert first == nvidia.Gpu("NVIDIA H100 80GB HBM3", "580.1", 81559, 512)
    assert second.used_mib == 4
    assert nvidia.used_mib() == 516
    assert nvidia.falls_to(516)
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert nvidia.gpus() == []


def test_what_is_carried_replaces_nothing_of_the_machine() -> None:
    """Pure Python in the versions for that Python; jax and numpy stay the machine's own."""
    environment = {"python_version": "3.12", "python_full_version": "3.12.0"}
    names = carried.closure(environment)
    assert {"rpyc", "plumbum", "cloudpickle", "pytest", "pytest-xdist"} <= names
    assert not {"jax", "jaxlib", "numpy", "scipy", "ml-dtypes"} & names
    assert carried.pinned(environment)["jax"] == "==0.11.2"
    assert carried.pinned({**environment, "python_version": "3.11"})["jax"] == "==0.10.2"


def test_only_what_is_missing_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By file, without an index and without what it needs besides."""
    for name in ("pytest-1.0", "Not_Here-2.0"):
        (tmp_path / f"{name}-py3-none-any.whl").touch()
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: commands.append(words))
    carried.install_missing(tmp_path)
    (command,) = commands
    assert "--no-index" in command
    wheels = command[command.index("--no-deps") + 1 :]
    assert wheels == [str(tmp_path / "Not_Here-2.0-py3-none-any.whl")]
