"""How a trace is made of what was recorded, and what is taken from a server's profile."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.cli.__main__ import main
from jaxd.cli.commands import trace
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
    made = recording.to_json()
    events = made["traceEvents"]
    assert faults(events) == []
    at = {(e["cat"], e["name"]): e for e in events if e["ph"] == "X"}
    assert at["server", "run"]["ts"] == at["client", "call f"]["ts"] + 0.04
    assert at["server", "run"]["pid"] != at["client", "send"]["pid"] == 7
    assert [e["args"]["labels"] for e in events if e["name"] == "process_labels"] == [
        "clock within 0.0 µs"
    ]
    assert [e["ph"] for e in events if e["ph"] in "stf"] == ["s", "t", "f"]
    (server,) = made["otherData"]["servers"]
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


def packed(*events: Any) -> bytes:
    """A profile of XLA, with the mark of the clock."""
    mark = {"ph": "X", "name": "jaxd clock 9000000", "pid": 1, "tid": 1, "ts": 3.5, "dur": 1}
    return gzip.compress(json.dumps({"traceEvents": [mark, *events]}).encode())


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "no gzip": (b"{}", "cannot be unpacked"),
    "cut": (packed()[:-9], "ends too early"),
    "bad deflate": (packed()[:10] + b"\xff" * 50, "cannot be unpacked"),
    "too large": (packed(*[{}] * 5000), "more than 10,000 bytes"),
    "no JSON": (gzip.compress(b"{"), "Expecting"),
    "deep": (gzip.compress(b"[" * 9000), ""),
    "no events": (gzip.compress(b"{}"), "KeyError"),
    "a list": (gzip.compress(b"[]"), "TypeError"),
    "no mark": (gzip.compress(b'{"traceEvents":[]}'), "when it began"),
    "a number": (packed(1), "AttributeError"),
    "no time": (packed({"ph": "X", "ts": None}), "TypeError"),
    "an infinite time": (packed({"ph": "X", "ts": float("inf")}), "Infinity"),
    "an exponent": (gzip.compress(b'{"traceEvents":[1e999]}'), "1e999"),
    "a large time": (packed({"ph": "X", "ts": 10**400}), "OverflowError"),
    "no pid": (packed({"ph": "X", "pid": {}}), "TypeError"),
    "a large pid": (packed({"ph": "X", "pid": 1 << 40}), "a number that none has"),
    "no name": (packed({"ph": "M", "name": "process_name", "args": {}}), "KeyError"),
    "no args": (packed({"ph": "M", "args": 1}), "AttributeError"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_a_profile_of_xla_that_cannot_be_read_costs_only_itself(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace of the program is written, and says why there is none of XLA."""
    data, why = UNREADABLE[what]
    recording = written(tmp_path / "f", ["process", PROCESS], span("call", 1, 9, function="f"))
    monkeypatch.setattr(trace, "Client", lambda _: nullcontext())
    monkeypatch.setattr(trace, "_MAX_XLA_BYTES", 10_000)
    files = [("plugins/profile/a/b.trace.json.gz", data)]
    monkeypatch.setattr(trace, "_profile_files", lambda _: files)
    recording.add_xla("tcp://127.0.0.1:1")
    made = recording.to_json()
    assert names(made["traceEvents"], "client") == {"call f"}
    (note,) = made["otherData"]["notes"]
    assert note.startswith("there is no profile of XLA: ")
    assert why in note
    assert note in recording.summary("trace.json")


def test_an_event_of_xla_is_a_process_of_its_own() -> None:
    """Values that no viewer shows are left out."""
    recording = Recording()
    name = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "/host:CPU"}}
    dot = {"ph": "X", "name": "dot", "pid": 1, "ts": 5.5, "cat": "c", "args": {"a": 1, "b": []}}
    recording.xla = _xla_events(packed(name, dot))
    found = {event["name"]: event for event in recording.to_json()["traceEvents"]}
    assert found["process_name"]["args"] == {"name": "XLA: /host:CPU"}
    assert found["dot"]["pid"] == found["process_name"]["pid"] > 1 << 27
    assert (found["dot"]["cat"], found["dot"]["args"]) == ("c", {"a": 1})


def test_a_name_that_ends_in_gz_is_compressed(tmp_path: Path) -> None:
    """Perfetto reads both."""
    made: dict[str, Any] = {"traceEvents": []}
    for name in ("t.json", "t.json.gz"):
        _write(str(tmp_path / name), made)
    packed = (tmp_path / "t.json.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "t.json").read_bytes() == b'{"traceEvents":[]}'


@pytest.mark.parametrize(
    "answer",
    [
        '{"files": ["plugins/profile/../x"]}',
        '{"files": ["/etc/passwd"]}',
        '{"files": ["plugins/profile/a/.b"]}',
        '{"files": ["plugins/profile/a/b/c"]}',
        *("{}", "[]", "1", '{"files": null}', '{"files": []}', "{", "[" * 100_000),
    ],
)
def test_a_profile_is_written_nowhere_else(answer: str) -> None:
    """Whatever a server calls its files, or answers instead."""
    value = (answer,), SimpleNamespace(buffers=[b"x"])
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
