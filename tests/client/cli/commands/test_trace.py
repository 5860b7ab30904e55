"""How a trace is made of what was recorded, and what is taken from a server's profile."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands.trace import Recording, _profile_files, _write, _xla_events
from jaxd_protocol.errors import ProtocolError
from tests.traces import faults, names

PROCESS: dict[str, Any] = {"pid": 7, "parent": 1, "words": ["train.py"], "clock": "c", "at_ns": 0}
SERVER = {
    "address": "tcp://far:1",
    "connection": "7.1",
    "server": 7,
    "offset_ns": 5000,
    "error_ns": 40,
}


def written(path: Path, *lines: list[Any], rest: str = "") -> Recording:
    """What is read of a file that a process has written."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + rest)
    recording = Recording()
    recording.read(str(path))
    return recording


def span(name: str, started: int, ended: int, **about: Any) -> list[Any]:
    """A line of a client."""
    return ["span", name, 3, started, ended, about]


def of_server(name: str, started: int, ended: int, thread: int = 9, **about: Any) -> list[Any]:
    """A span of a server, of the first request."""
    return ["7.1", 1, name, started, ended, thread, about]


def told(*spans: list[Any], left_out: int = 0) -> list[Any]:
    """A line with the server's part."""
    return ["spans", {"spans": spans, "threads": {"9": "jaxd-client"}, "left_out": left_out}]


def test_a_server_elsewhere_is_on_the_clock_of_this_machine(tmp_path: Path) -> None:
    """With a number of its own, though both machines have a process 7; the error is shown."""
    recording = written(
        tmp_path / "f",
        ["process", PROCESS],
        ["server", {**SERVER, "error_ns": 900, "offset_ns": 1}],
        ["server", SERVER],
        span("send", 110, 120, number=1, connection="7.1"),
        span("reply", 190, 191, number=1, connection="7.1"),
        span("call", 100, 200, function="f"),
        told(of_server("run", 5140, 5150), of_server("call", 5130, 5160, function="f")),
    )
    trace = recording.to_json()
    events = trace["traceEvents"]
    assert faults(events) == []
    at = {(e["cat"], e["name"]): e for e in events if e["ph"] == "X"}
    assert at["server", "run"]["ts"] == at["client", "call f"]["ts"] + 0.04
    assert at["server", "run"]["pid"] != at["client", "send"]["pid"] == 7
    assert [e["args"]["labels"] for e in events if e["name"] == "process_labels"] == [
        "clock within 0.0 µs"
    ]
    assert [e["ph"] for e in events if e["ph"] in "stf"] == ["s", "t", "f"]
    (server,) = trace["otherData"]["servers"]
    assert (server["offset_us"], server["error_us"]) == (5.0, 0.04)


def test_what_a_dying_process_has_written_last(tmp_path: Path) -> None:
    """A line may be incomplete, and a call has no end."""
    recording = written(
        tmp_path / "f",
        ["process", PROCESS],
        ["begin", "call", 3, 100, {"function": "f"}],
        span("send", 110, 120),
        rest='["span", "wa',
    )
    events = recording.to_json()["traceEvents"]
    assert faults(events) == []
    (call,) = [event for event in events if event["name"] == "call f"]
    assert call["args"]["unfinished"]
    assert call["dur"] == pytest.approx(0.02)
    assert "1 calls" in recording.summary("trace.json")


def test_a_process_that_has_called_nothing_has_no_row(tmp_path: Path) -> None:
    """Such as `jaxd run`, before it becomes the program."""
    recording = written(tmp_path / "f", ["process", PROCESS])
    assert recording.to_json()["traceEvents"] == []
    assert "jaxd trace -- jaxd run" in recording.summary("trace.json")


def test_slices_that_cut_each_other_are_in_different_rows(tmp_path: Path) -> None:
    """Of a thread, and of calls at the server, of which none is in another."""
    recording = written(
        tmp_path / "f",
        ["process", PROCESS],
        ["server", SERVER],
        span("call", 0, 100, function="f"),
        span("run", 10, 30),
        span("run", 20, 40),
        told(
            of_server("call", 5000, 5100, function="f"),
            of_server("call", 5010, 5020, function="g"),
            of_server("compile", 5000, 5001, builder=12),
            left_out=3,
        ),
    )
    events = recording.to_json()["traceEvents"]
    assert faults(events) == []
    rows = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    calls = "calls of process 7"
    assert rows == ["thread 3", "thread 3 (2)", calls, f"{calls} (2)", "builds"]
    assert names(events, "builder") == {"compile"}
    assert recording.notes == ["the server has left out 3 spans"]


def test_the_events_of_xla_are_on_the_same_clock() -> None:
    """By an event whose name says what time it was."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}},
        {"ph": "X", "name": "jaxd clock 9000000", "pid": 1, "tid": 1, "ts": 3.5, "dur": 1},
        {"ph": "X", "name": "dot", "pid": 1, "tid": 1, "ts": 5.5, "dur": 1},
        {},
    ]
    packed = gzip.compress(json.dumps({"traceEvents": events}).encode())
    assert [e.get("ts") for e in _xla_events(packed)] == [None, 9000.0, 9002.0]
    del events[1]
    with pytest.raises(ValueError, match="when it began"):
        _xla_events(gzip.compress(json.dumps({"traceEvents": events}).encode()))


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    """Perfetto reads both."""
    trace: dict[str, Any] = {"traceEvents": []}
    for name in ("t.json", "t.json.gz"):
        _write(str(tmp_path / name), trace)
    packed = (tmp_path / "t.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "t.json").read_bytes() == b'{"traceEvents":[]}'


@pytest.mark.parametrize(
    "name", ["plugins/profile/../x", "/etc/passwd", "plugins/profile/a/.b", "plugins/profile/a/b/c"]
)
def test_a_profile_is_written_nowhere_else(name: str) -> None:
    """Whatever a server calls its files."""
    value = (json.dumps({"files": [name]}),), SimpleNamespace(buffers=[b"x"])
    session = SimpleNamespace(request=lambda *_: value)
    client: Any = SimpleNamespace(caller=SimpleNamespace(session=session))
    with pytest.raises(ProtocolError, match="other files than XLA writes"):
        _profile_files(client)


@pytest.mark.parametrize(
    ("words", "said"),
    [(["trace"], "there is no program to run"), (["profile", "--seconds", "0"], "no number")],
)
def test_a_wrong_command_line(
    words: list[str], said: str, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is said before anything is done."""
    with suppress(SystemExit):
        assert main(words) == 1
    assert said in capsys.readouterr().err


def test_a_profile_needs_a_server(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """None is started for it."""
    assert main(["profile"]) == 3
    assert "no server runs" in capsys.readouterr().err
