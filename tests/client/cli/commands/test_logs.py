from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands import logs
from jaxd.connection.local_server import start_background
from jaxd_protocol.network.local_server import LocalServerFiles
from jaxd_server.runtime.logs import shorten_log
from tests.server.host_process import FAKE_HOST, HostProcess

StartHost = Callable[..., HostProcess]
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def log(runtime: Path) -> Path:
    """The log that a local server has left."""
    path = Path(LocalServerFiles.of_this_environment().log)
    path.parent.mkdir(parents=True)
    return path


def shown(capsys: Captured, *options: str) -> list[str]:
    """What `jaxd logs` prints."""
    assert main(["logs", *options]) == 0
    return capsys.readouterr().out.splitlines()


def events(capsys: Captured, *options: str) -> list[Any]:
    """The events in what it prints as JSON."""
    found = [json.loads(line) for line in shown(capsys, "--json", *options)]
    return [line.get("event", line.get("text")) for line in found]


def line(event: str, level: str = "info", age_s: float = 0.0, **fields: Any) -> str:
    """A line of a server that logs JSON."""
    at = datetime.fromtimestamp(time.time() - age_s, UTC)
    when = f"{at:%Y-%m-%dT%H:%M:%S}.000Z"
    head = {"time": when, "level": level, "process": "worker", "event": event}
    return json.dumps(head | fields) + "\n"


# where the log is ---------------------------------------------------------------------------------


def test_it_finds_the_log_of_the_local_server(files: LocalServerFiles, capsys: Captured) -> None:
    """While it runs, and when it has ended."""
    assert main(["start"]) == 0
    assert capsys.readouterr().err.count("jaxd:") == 0
    assert "listening" in events(capsys)
    assert main(["stop"]) == 0
    capsys.readouterr()
    assert events(capsys)[-1] == "stopped"


def test_it_finds_the_file_that_a_server_writes_to(
    files: LocalServerFiles, runtime: Path, capsys: Captured
) -> None:
    """Wherever its stderr goes."""
    path = runtime / "elsewhere.log"
    host = (sys.executable, "-P", FAKE_HOST)
    start_background(files, server_command=("sh", "-c", f'exec "$@" 2>> {path}', "sh", *host))
    assert "worker_ready" in events(capsys)
    assert Path(files.log).read_text() == ""


def test_a_log_that_is_no_file_is_an_error(start_host: StartHost, capsys: Captured) -> None:
    """That says where to look, and how to have one."""
    address = start_host().wait_until_ready()["address"]
    assert main(["logs", "--server", address]) == 1
    said = capsys.readouterr().err
    assert "which is no file" in said
    assert said.endswith("jaxd serve 2>> FILE\n")


def test_a_server_elsewhere_shows_its_log_to_nobody(runtime: Path, capsys: Captured) -> None:
    """It is read on its own machine."""
    assert main(["logs", "--server", "tls://gpu-host:1"]) == 1
    assert "Run the same command on gpu-host" in capsys.readouterr().err


# what is shown ------------------------------------------------------------------------------------


def test_both_formats_are_read(log: Path, capsys: Captured) -> None:
    """As JSON they are the same, and for people too."""
    said = 'INFO    worker left_behind reason="a b" calls=3 name=f of=[1, "x y"]'
    text = f"2026-01-31T08:15:00.123Z {said}\n"
    fields = {"reason": "a b", "calls": 3, "name": "f", "of": [1, "x y"]}
    head = {"time": "2026-01-31T08:15:00.123Z", "level": "info", "process": "worker"}
    same = head | {"event": "left_behind"} | fields
    log.write_text(text + json.dumps(same) + "\n")
    first, second = (json.loads(each) for each in shown(capsys, "--json"))
    assert first == second == same
    first, second = shown(capsys)
    assert first == second
    assert first.endswith(said)


@pytest.mark.parametrize(
    "name", ["00123456789012345", "12e4567890123456", "12-3", "12e5", "1" * 16, "007"]
)
def test_names_of_digits_stay_as_they_are(name: str) -> None:
    """They are no numbers."""
    text = f"2026-01-31T08:15:00.123Z INFO    worker function_released fingerprint={name} calls=12"
    found = logs.parse_line(text)
    assert found is not None
    assert (found.fields["fingerprint"], found.fields["calls"]) == (name, 12)


def test_lines_are_chosen(log: Path, capsys: Captured) -> None:
    """By level, age, function and call."""
    log.write_text(
        line("listening", age_s=3000)
        + line("memory_short", "warning", age_s=500)
        + line("built", function="train.step", call="c1")
        + line("call_failed", function="train.other_step", call="c2")
        + line("job_failed", "error")
    )
    assert len(events(capsys)) == 5
    assert events(capsys, "--level", "warning") == ["memory_short", "job_failed"]
    assert events(capsys, "--since", "10m")[0] == "memory_short"
    assert events(capsys, "--since", "30s")[0] == "built"
    assert events(capsys, "--function", "step") == ["built"]
    assert events(capsys, "--function", "train.step") == ["built"]
    assert events(capsys, "--call", "c2") == ["call_failed"]
    assert events(capsys, "-n", "2") == ["call_failed", "job_failed"]


def test_what_is_printed_stands_where_it_was_printed(log: Path, capsys: Captured) -> None:
    """But not among chosen lines, where only tracebacks do: it is not known whose it is."""
    failed = "2026-01-31T08:15:00.123Z ERROR   worker job_failed\n"
    log.write_text(line("idle") + "printed by a function\n" + failed + "Traceback (most …\n")
    assert events(capsys) == ["idle", "printed by a function", "job_failed", "Traceback (most …"]
    assert events(capsys, "--level", "error") == ["job_failed", "Traceback (most …"]
    assert events(capsys, "--since", "1d") == ["idle"]


def test_nothing_is_done_to_the_terminal(log: Path, capsys: Captured) -> None:
    """By what functions print, nor by a line that looks like the server's."""
    log.write_bytes(b"\x1b[2J\xff\n" + line("\x1b[2J", "info", 0.0, **{"\x1b": "\x1b[2J"}).encode())
    assert "\x1b" not in "".join(shown(capsys))


def test_what_was_moved_away_is_shown_first(log: Path, capsys: Captured) -> None:
    """The file before, when the log was long."""
    log.write_text(line("first"))
    shorten_log(str(log), 0)
    log.write_text(line("second"))
    assert events(capsys) == ["first", "second"]


# -f -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missed", [False, True])
def test_it_goes_on_when_the_log_is_shortened(log: Path, missed: bool) -> None:
    """Also with what was written since it looked last; a line is shown once it is whole."""
    log.write_text(line("first") + line("second")[:20])
    file = logs.LogFile(str(log))
    assert [logs.parse_line(each) is not None for each in file.lines()] == [True]
    with log.open("a") as writing:
        writing.write(line("second")[20:] + (line("missed") if missed else ""))
        writing.flush()
        if not missed:
            assert len(list(file.lines())) == 1
        shorten_log(str(log), 0)
        writing.write(line("third"))
    found = list(file.lines())
    assert len(found) == (3 if missed else 1)
    assert '"third"' in found[-1]
    log.unlink()
    assert list(file.lines()) == []
    log.write_text(line("of the next server"))
    assert len(list(file.lines())) == 1


@pytest.mark.slow
def test_following_goes_on_over_a_restart(files: LocalServerFiles, runtime: Path) -> None:
    """Of the server, whose successor writes to the same file; each line comes at once."""
    assert main(["start"]) == 0
    command = [sys.executable, "-P", "-m", "jaxd.cli", "logs", "-f", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        for expected in ("listening", "stopped", "listening"):
            found = (json.loads(text).get("event") for text in follower.stdout)
            assert expected in found
            if expected == "listening":
                assert main(["stop"]) == 0
            else:
                assert main(["start"]) == 0
        follower.terminate()
