"""`jaxd top`: one frame of a real server as text, and the screens in a real terminal."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jaxd import connect, errors
from jaxd.cli.__main__ import main
from jaxd.cli.commands import status
from jaxd.cli.server_tables import PANES
from tests.end_to_end.gates import Gate, in_thread, stop_at
from tests.live_server import LiveServer
from tests.server.host_process import HostProcess

if TYPE_CHECKING:
    from tests.client.cli.terminal import Terminal

StartHost = Callable[..., HostProcess]
OpenTerminal = Callable[..., "Terminal"]

X = np.linspace(0, 1, 4, dtype=np.float32)

pytestmark = [pytest.mark.own_server, pytest.mark.slow]


# without a terminal -------------------------------------------------------------------------------


def test_without_a_terminal_it_names_what_needs_none(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it looks for a server."""
    assert main(["top"]) == 1
    assert "jaxd top --once or jaxd status" in capsys.readouterr().err


def test_without_textual_it_names_the_extra(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the way that needs none."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "textual" else find(name)
    )
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["top"]) == 1
    assert "Run: pip install 'jaxd[top]'" in capsys.readouterr().err


def test_one_frame_needs_no_textual(live: LiveServer) -> None:
    """It is imported for the screen alone."""
    hidden = "import sys; sys.modules['textual'] = None; from jaxd.cli.__main__ import main; main()"
    done = live.run(hidden, "top", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  up " in done.stdout


def test_its_panes_are_those_of_the_tables() -> None:
    """The command line names them without making them."""
    assert tuple(PANES) == status._PANES


def test_a_frame_is_what_there_is_to_see(
    live: LiveServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first rows of each table that has any; with a pane all of its rows."""
    with connect(live.unix) as client:

        def counted_in_a_frame(x: Any) -> Any:
            return x + 1

        function = client.persistent_call(counted_in_a_frame)
        for _ in range(3):
            function(X)
        assert main(["top", "--once", "--server", live.unix]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert re.search(r"  ready  up .*  saved .*  [\d,]+ calls$", lines[0])
        assert "cpu:0" in lines[1].lower()
        assert {"Functions", "Builds", "Sessions", "Processes"} <= {
            line.split()[0] for line in lines[3:] if line
        }
        assert max(map(len, lines)) <= 80
        assert main(["top", "--once", "--server", live.unix, "--pane", "functions"]) == 0
        whole = capsys.readouterr().out
    (row,) = (line for line in whole.splitlines() if line.startswith("counted_in_a_fr"))
    assert row.split()[1] == "2", "calls that found it in memory"
    assert "and " not in whole


def test_a_frame_over_the_network_is_that_of_the_worker(
    live: LiveServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the token, as a client."""
    monkeypatch.setenv("JAXD_TOKEN", live.environment["JAXD_TOKEN"])
    assert main(["top", "--once", "--server", live.tls]) == 0
    assert "  ready  " in capsys.readouterr().out.splitlines()[0]


def test_it_waits_for_a_server(runtime: Path, start_host: StartHost) -> None:
    """With `--wait`; it says once that it does, and then goes on."""
    command = [sys.executable, "-m", "jaxd.cli", "top", "--wait", "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
        assert waiting.stderr is not None
        assert waiting.stdout is not None
        told = waiting.stderr.readline().decode()
        assert told.startswith("jaxd: waiting: no server runs at unix://")
        start_host().wait_until_ready()
        out, err = waiting.communicate()
    assert (waiting.returncode, err) == (0, b"")
    assert b"  up " in out


# in a terminal ------------------------------------------------------------------------------------


@pytest.fixture
def open_terminal(live: LiveServer) -> OpenTerminal:
    """Opens one with `jaxd top` in it, of the server that runs."""
    reason = "jaxd top needs textual, its tests pyte: pip install 'jaxd[top]' pyte"
    pytest.importorskip("textual", reason=reason)
    pytest.importorskip("pyte", reason=reason)
    from tests.client.cli.terminal import Terminal

    def opened(*arguments: str, **more: Any) -> Terminal:
        environment = live.environment | more.pop("environment", {})
        return Terminal("-m", "jaxd.cli", "top", *arguments, environment=environment, **more)

    return opened


RESTORED = {b"?1049l": b"?1049h", b"?25h": b"?25l", b"?1003l": b"?1003h", b"?2004l": b"?2004h"}
"""What brings back the screen, the cursor, the mouse and pasting, and what took them."""


@pytest.mark.parametrize("how", ["q", "\x03", signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_leaves_the_terminal_as_it_was(
    open_terminal: OpenTerminal, how: str | signal.Signals
) -> None:
    """Ended by a key, or from outside."""
    with open_terminal() as terminal:
        terminal.until("quit")
        assert terminal.modes() != terminal.modes_before
        if isinstance(how, str):
            terminal.type(how)
        else:
            os.kill(terminal.process.pid, how)
        assert terminal.wait() == 0
        assert terminal.modes_after == terminal.modes_before
        for back, taken in RESTORED.items():
            assert terminal.said.rindex(b"\x1b[" + back) > terminal.said.rindex(b"\x1b[" + taken)


def test_a_function_is_found_and_looked_at(live: LiveServer, open_terminal: OpenTerminal) -> None:
    """By keys alone, on 80 columns and 24 rows: why it was built, its jaxpr and its HLO."""
    with connect(live.unix) as client, open_terminal("--pane", "functions") as terminal:

        def seen_in_a_terminal(x: Any) -> Any:
            import jax.numpy as jnp

            return jnp.tanh(x) * 7

        function = client.persistent_call(seen_in_a_terminal)
        function(X)
        terminal.until("Sessions")
        terminal.type("/seen_in_a")  # the server may have more functions than there is room for
        terminal.until("seen_in_a_t")
        terminal.type("\r\r")
        terminal.until("Functions: seen_in_a_terminal")
        terminal.type("2")
        terminal.until("Why its programs were made")
        terminal.type("3")
        terminal.until("tanh")
        terminal.type("4")
        terminal.until("HloModule")
        terminal.type("\x1b")
        terminal.until("Sessions")
        terminal.type("q")
        assert terminal.wait() == 0


def test_a_call_is_cancelled(live: LiveServer, open_terminal: OpenTerminal, tmp_path: Path) -> None:
    """It is seen while it is built; its client gets the error."""
    gate = Gate(tmp_path / "gate")
    with connect(live.unix) as client, open_terminal() as terminal:
        call = in_thread(client.persistent_call(stop_at(gate.path)), X)
        with gate.reached():
            terminal.until("building")
            terminal.type("x")
            terminal.until("Cancel the call of")
            terminal.type("y")
            with pytest.raises(errors.Cancelled):
                call.result()
            terminal.until("Cancelled.")
            terminal.type("q")
            assert terminal.wait() == 0
        gate.let_leave(client)


def test_a_worker_that_hangs_is_seen_to_hang(live: LiveServer, open_terminal: OpenTerminal) -> None:
    """The host says so, and the keys go on."""
    with open_terminal() as terminal:
        terminal.until("ready")
        os.kill(live.worker_pid(), signal.SIGSTOP)
        try:
            terminal.until("has not answered for")
            terminal.type("7")
            terminal.until("worker")
        finally:
            os.kill(live.worker_pid(), signal.SIGCONT)
        terminal.until("ready")
        terminal.type("q")
        assert terminal.wait() == 0


def test_a_server_that_is_stopped_and_started_again_is_followed(
    runtime: Path, start_host: StartHost, open_terminal: OpenTerminal
) -> None:
    """Meanwhile the last view stays, with what to do."""
    host = start_host()
    host.wait_until_ready()
    with open_terminal(environment={**os.environ, "JAXD_SERVER": ""}) as terminal:
        terminal.until("up ")
        host.signal(signal.SIGTERM)
        host.wait()
        terminal.until("jaxd start")
        terminal.until("  gone  ")
        start_host().wait_until_ready()
        terminal.until_gone("  gone  ")
        terminal.type("q")
        assert terminal.wait() == 0


def test_no_color_leaves_colours_away(open_terminal: OpenTerminal) -> None:
    """Words say the same; bold and reversed text stay."""
    colour = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|38;[0-9;]+|4[0-7]|48;[0-9;]+|9[0-7])(?:;\d+)*m")
    for variables, has_colour in (({}, True), ({"NO_COLOR": "1"}, False)):
        with open_terminal(environment=variables) as terminal:
            terminal.until("ready")
            terminal.type("q")
            assert terminal.wait() == 0
            assert bool(colour.search(terminal.said)) == has_colour
