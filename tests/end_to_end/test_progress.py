"""What a user sees while a first call takes long."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.gates import Gate
from tests.end_to_end.terminals import TerminalProcess
from tests.live_server import LiveServer

CALLS = """
import sys, warnings
warnings.simplefilter("ignore")  # the gate is a file that is read while tracing
from jaxd import persistent_call

def make(path):
    def slow_step(x):
        with open(path, "rb") as gate:
            gate.read()
        return x + 1
    return slow_step

@persistent_call
def quick(x):
    return x * 2

results = [float(quick(1.0)), float(quick(2.0))]
if len(sys.argv) > 1:
    results.append(float(persistent_call(make(sys.argv[1]))(1.0)))
print(results)
"""


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate of this test's own."""
    return Gate(tmp_path / "gate")


@pytest.mark.slow
def test_a_long_first_call_says_what_it_does_and_for_how_long(live: LiveServer, gate: Gate) -> None:
    """On a terminal, in one line that is written over, and that stays with the whole time."""
    with TerminalProcess(CALLS, [gate.path], live.environment) as terminal:
        with gate.reached():
            terminal.wait_for(" 1 s")
        assert terminal.end() == (0, "[2.0, 4.0, 2.0]\n")
    lines = terminal.said.split("\r")
    assert any("tracing" in line and "slow_step" in line for line in lines)
    # on a busy machine the build itself may take so long that its reason is told
    assert re.search(r"slow_step (was ready after \d+\.\d s|in \d+\.\d s: )", lines[-2])
    assert "quick" not in terminal.said
    assert terminal.said.count("\n") == 1


@pytest.mark.slow
def test_a_long_build_ends_in_its_reason(live: LiveServer, gate: Gate) -> None:
    """Instead of the line that only says how long the call took."""
    with TerminalProcess(CALLS, [gate.path], live.environment) as terminal:
        with gate.reached():
            terminal.wait_for(" 3 s")
        assert terminal.end() == (0, "[2.0, 4.0, 2.0]\n")
    last = terminal.said.rstrip("\r\n").rpartition("\r")[2]
    assert re.fullmatch(r"jaxd: compiled make\.<locals>\.slow_step in \d+\.\d s: .+", last.strip())
    assert "was ready" not in terminal.said
    assert terminal.said.count("\n") == 1


def test_a_fast_call_says_nothing(live: LiveServer) -> None:
    """No flicker on a terminal for what is answered soon."""
    with TerminalProcess(CALLS, [], live.environment) as terminal:
        assert terminal.end() == (0, "[2.0, 4.0]\n")
    assert terminal.said == ""


@pytest.mark.slow
def test_nothing_is_said_into_a_pipe(live: LiveServer, gate: Gate, tmp_path: Path) -> None:
    """However long it takes: another client, on a terminal, shows that the time has passed."""
    second = Gate(tmp_path / "second")
    command = [sys.executable, "-c", CALLS, gate.path]
    process = subprocess.Popen(
        command, env=live.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        with gate.reached():
            terminal = TerminalProcess(CALLS, [second.path], live.environment)
            terminal.wait_for(" 1 s")
        with terminal:
            assert process.communicate() == ("[2.0, 4.0, 2.0]\n", "")
            with second.reached():
                pass
            assert terminal.end()[0] == 0
    finally:
        process.kill()
        process.communicate()
