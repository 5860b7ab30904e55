"""`jaxd trace` and `jaxd profile`: real programs, a real server, and what is in their files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from jaxd import Client, connect
from jaxd.cli.__main__ import main
from jaxd.errors import Busy, ConfigurationError, NotPermitted
from jaxd_protocol.network.accounts import add_account, remove_account
from tests.another_server import own_server_needed
from tests.end_to_end.unchanged import run
from tests.live_server import TOKEN, LiveServer
from tests.traces import Event, faults, names, read_trace

pytestmark = pytest.mark.timeout(120)

JAXD: Final = (sys.executable, "-m", "jaxd.cli")

HEAD: Final = """
import os, sys, threading
import numpy as np
from jaxd import persistent_call

@persistent_call(extra_key=sys.argv[1])
def traced_step(x):
    return x * 2

x = np.ones(3, np.float32)
"""

Traced = tuple[list[Event], subprocess.CompletedProcess[str]]
Trace = Callable[..., Traced]


@pytest.fixture
def trace(live: LiveServer, tmp_path: Path, request: pytest.FixtureRequest) -> Trace:
    """Traces a program, which has a name of its own for what it compiles; events and its end."""

    def traced(program: str, *options: str, command: tuple[str, ...] = (sys.executable,)) -> Traced:
        (tmp_path / "program.py").write_text(HEAD + program)
        words = (*JAXD, "trace", *options, "--", *command, "program.py", request.node.name)
        ended = run(words, live.environment, tmp_path)
        return read_trace(tmp_path / "jaxd-trace.json"), ended

    return traced


def slices(events: list[Event], name: str) -> list[Event]:
    """Those of a name, in the order of time."""
    found = [event for event in events if event["ph"] == "X" and event["name"] == name]
    return sorted(found, key=lambda event: float(event["ts"]))


@pytest.mark.slow
def test_both_ends_of_each_call_are_on_one_clock(trace: Trace) -> None:
    """A first call compiles and a second one is warm; an arrow joins the ends of each."""
    events, ended = trace(
        "import random\n"
        "factor = random.random()\n"  # no other test has compiled such a program
        "@persistent_call\n"
        "def step(x): return x * factor / factor\n"
        "print(step(x).sum().round(), step(x).sum().round())"
    )
    assert (ended.returncode, ended.stdout) == (0, "3.0 3.0\n"), ended.stderr
    assert "jaxd-trace.json: 2 calls. Open it at https://ui.perfetto.dev" in ended.stderr
    stages = {"call step", "connect", "key", "pack", "send", "wait", "reply", "decode"}
    assert names(events, "client") >= stages | {"answer"}
    built = {"function", "build", "trace", "lower", "compile"}
    stages = {"step", "receive", "arguments", "run", "encode", "send"}
    assert names(events, "server") >= built | stages
    arrows = [[e for e in events if e["ph"] in "stf" and e["id"] == n] for n in (1, 2)]
    assert [[event["ph"] for event in arrow] for arrow in arrows] == [["s", "t", "f"]] * 2
    assert all(a["ts"] <= b["ts"] <= c["ts"] for a, b, c in arrows)
    for call, at_server in zip(slices(events, "call step"), slices(events, "step"), strict=True):
        assert call["ts"] <= at_server["ts"]
        assert at_server["ts"] + at_server["dur"] <= call["ts"] + call["dur"]
    cold, warm = slices(events, "step")
    assert cold["args"]["id"].startswith("c")  # as in the server's log
    assert "id" not in warm["args"]


ENDS: Final = {
    "an error": ("traced_step(x); raise SystemExit(3)", 3),
    "killed": ("traced_step(x); os.kill(os.getpid(), 9)", 137),
    "ended at once": ("traced_step(x); os._exit(4)", 4),
    "interrupted": ("traced_step(x); os.kill(os.getpid(), 2)", 130),
}


@pytest.mark.parametrize(
    "how", [*list(ENDS)[:2], *(pytest.param(how, marks=pytest.mark.slow) for how in list(ENDS)[2:])]
)
def test_a_program_that_ends_in_any_way_leaves_a_trace(how: str, trace: Trace) -> None:
    """With the server's part, and its exit code."""
    program, code = ENDS[how]
    events, ended = trace(program)
    assert ended.returncode == code, ended.stderr
    assert len(slices(events, "call traced_step")) == len(slices(events, "traced_step")) == 1


@pytest.mark.slow
def test_a_server_that_is_named_is_asked_where_it_is(trace: Trace, live: LiveServer) -> None:
    """Over TLS, with the token of the environment, which is in no file; also at the end."""
    events, _ = trace("traced_step(x); os.kill(os.getpid(), 9)", "--server", live.tls)
    assert len(slices(events, "traced_step")) == 1
    assert "127.0.0.1" in json.dumps(events)
    assert TOKEN not in json.dumps(events)


@pytest.mark.slow
def test_a_call_in_which_a_program_dies_is_in_the_trace(trace: Trace) -> None:
    """It ends with the last that is known, and says so."""
    events, ended = trace(
        "import jaxd\n"
        "def die(_): os.kill(os.getpid(), 9)\n"
        "@persistent_call(extra_key=sys.argv[1])\n"
        "def deadly(x):\n"
        "    import jax\n"
        "    jax.debug.callback(die, x)\n"
        "    return x\n"
        "deadly(x)"
    )
    assert ended.returncode == 137
    (call,) = slices(events, "call deadly")
    assert call["args"]["unfinished"]


@pytest.mark.slow
def test_threads_and_children_have_rows_of_their_own(trace: Trace) -> None:
    """Threads, a fork, and a child of multiprocessing, which skips what is done at an exit."""
    events, ended = trace(
        "import multiprocessing\n"
        "traced_step(x)\n"
        "threads = [threading.Thread(target=traced_step, args=(x,), name=n) for n in ('a', 'b')]\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
        "child = multiprocessing.get_context('fork').Process(target=traced_step, args=(x,))\n"
        "child.start(); child.join(); sys.exit(child.exitcode)"
    )
    assert ended.returncode == 0, ended.stderr
    calls = slices(events, "call traced_step")
    assert len(calls) == len(slices(events, "traced_step")) == 4
    assert len({event["pid"] for event in calls}) == 2
    rows = [e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"]
    assert {row.split()[0] for row in rows} >= {"MainThread", "a", "b"}


@pytest.mark.slow
def test_other_kinds_of_calls_are_traced(trace: Trace) -> None:
    """Submitted and mapped ones, values that stay, and an error, which is named."""
    events, ended = trace(
        "f = traced_step\n"
        "print(f.submit(x).result().sum(), sum(y.sum() for y in f.map([x] * 3)))\n"
        "print(np.asarray(f(f.remote(x))).sum())\n"
        "@persistent_call(extra_key=sys.argv[1])\n"
        "def wrong(x): raise KeyError(x.shape)\n"
        "wrong(x)"
    )
    assert ended.stdout == "6.0 18.0\n12.0\n"
    assert ended.returncode == 1
    assert "recording.py" not in ended.stderr  # the traceback has the program's own frames
    asked = [event["name"] for event in events if event.get("cat") == "client"]
    assert asked.count("submit traced_step") == 4
    assert asked.count("remote traced_step") == asked.count("call traced_step") == 1
    assert len(slices(events, "traced_step")) == 6
    (failed,) = slices(events, "call wrong")
    assert failed["args"]["error"] == "KeyError"


@pytest.mark.slow
def test_more_calls_than_the_server_keeps(trace: Trace) -> None:
    """It is asked for its part from time to time."""
    events, _ = trace("for _ in range(2000): traced_step(x)")
    assert len(slices(events, "traced_step")) == len(slices(events, "call traced_step")) == 2000


@pytest.mark.slow
def test_a_program_that_gives_functions_to_jit(trace: Trace, live: LiveServer) -> None:
    """Is traced where `jaxd run` runs it; else the command says so."""
    program = "import jax\nprint(jax.jit(lambda x: x + 1)(1))"
    _, ended = trace(program)
    assert "called no persistent function" in ended.stderr
    events, ended = trace(program, command=(*JAXD, "run"))
    assert ended.stdout == "2\n"
    assert slices(events, "call <lambda>")


@pytest.mark.slow
def test_the_profile_of_xla_is_in_the_same_trace(trace: Trace) -> None:
    """Its events are where the calls ran on the device."""
    events, ended = trace("for _ in range(50): traced_step(x)", "--xla", "30")
    assert ended.returncode == 0, ended.stderr
    xla = {e["pid"] for e in events if e["ph"] == "M" and "XLA" in str(e["args"].get("name"))}
    times = [e["ts"] for e in events if e["ph"] == "X" and e["pid"] in xla]
    calls = slices(events, "traced_step")
    assert [t for t in times if calls[0]["ts"] < t < calls[-1]["ts"] + calls[-1]["dur"]]


@pytest.mark.slow
def test_a_builder_has_a_process_of_its_own(
    start_live: Callable[..., LiveServer], tmp_path: Path
) -> None:
    """In which the function is traced and compiled, while the worker waits."""
    server = start_live("--build-in", "builder")
    server.wait_for("builder_ready")
    (tmp_path / "program.py").write_text(f"{HEAD}print(traced_step(x).sum())")
    words = (*JAXD, "trace", "--", sys.executable, "program.py", "once")
    assert run(words, server.environment, tmp_path).stdout == "6.0\n"
    events = read_trace(tmp_path / "jaxd-trace.json")
    assert names(events, "builder") >= {"trace", "lower", "compile"}
    assert "compile" not in names(events, "server")
    assert len({event["pid"] for event in events}) == 3


@pytest.mark.slow
def test_a_server_that_the_program_starts_is_not_told_to_record(
    runtime: Path, tmp_path: Path
) -> None:
    """Its functions may import the client, and it outlives the folder of the trace."""
    own_server_needed()
    (tmp_path / "program.py").write_text(f"{HEAD}traced_step(x)")
    try:
        run((*JAXD, "trace", "--", sys.executable, "program.py", "once"), os.environ, tmp_path)
        events = read_trace(tmp_path / "jaxd-trace.json")
        (worker,) = {event["pid"] for event in events if event.get("cat") == "server"}
        assert b"JAXD_TRACE" not in Path(f"/proc/{worker}/environ").read_bytes()
    finally:
        run((*JAXD, "stop"), os.environ, tmp_path)


def test_a_trace_of_nothing_says_what_to_do(trace: Trace, tmp_path: Path) -> None:
    """No program, and a file that cannot be written, are found before anything runs."""
    assert run((*JAXD, "trace"), os.environ, tmp_path).returncode == 1
    with pytest.raises(FileNotFoundError):
        trace("", "-o", "none/such.json")


# profiles -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_profile_is_what_xprof_reads(live: LiveServer, client: Client, tmp_path: Path) -> None:
    """While the command waits, clients go on; their programs are in the files that it writes."""
    command = (*JAXD, "profile", "--seconds", "1", "-o", "out", "--json")
    step = client.persistent_call(lambda x: x * 3 + 0.1875)  # another test's program has its name
    step(np.ones(3, np.float32))  # else all of the second may go into its compile
    profiling = subprocess.Popen(
        command, env=live.environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    while profiling.poll() is None:
        step(np.ones(3, np.float32))
    report = json.loads(profiling.communicate()[0])
    (xplane,) = [path for path in report["files"] if path.endswith(".xplane.pb")]
    assert xplane.startswith("out/plugins/profile/")
    assert b"jaxd clock" in (tmp_path / xplane).read_bytes()
    (events,) = [path for path in report["files"] if path.endswith(".trace.json.gz")]
    written = json.loads(gzip.decompress((tmp_path / events).read_bytes()))["traceEvents"]
    assert [e for e in written if "lambda" in str(e.get("name"))]


def test_ctrl_c_ends_a_profile_earlier(
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded until then is written; there is no other one meanwhile. It is logged."""

    def interrupted(_: float) -> None:
        with connect(live.unix) as other, pytest.raises(Busy):
            other.caller.session.ask("profile", "start", 1)
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    words = ["profile", "--server", live.unix, "--seconds", "300", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert list(tmp_path.glob("out/plugins/profile/*/*.xplane.pb"))
    live.wait_for("profile_started", principal=f"uid:{os.getuid()}")


def test_a_profile_is_made_for_the_servers_own_user(live: LiveServer) -> None:
    """It shows what all run; an account is told whom to ask. Without a start there is none."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")
    with (
        connect(live.tls, token=add_account("carol", folder)[1]) as carol,
        connect(live.unix) as owner,
    ):
        with pytest.raises(NotPermitted, match="the user who runs the server"):
            carol.caller.session.ask("profile", "start", 1)
        with pytest.raises(ConfigurationError, match="no profile to fetch"):
            owner.caller.session.ask("profile", "stop", 0)
    remove_account("carol", folder)


def test_the_trace_of_another_is_empty(live: LiveServer) -> None:
    """Also for the one whose server it is: a trace holds the calls of one principal."""
    folder = str(live.directory / "config" / "jaxd" / "tokens")

    def spans(of: Client, name: bytes) -> list[Any]:
        found: list[Any] = of.caller.session.ask("traced", name)["spans"]
        return found

    with (
        connect(live.tls, token=add_account("dave", folder)[1]) as dave,
        connect(live.unix) as owner,
    ):
        dave.caller.session.ask("trace", b"name", "1.1")
        owner.caller.session.ask("trace", b"other", "2.1")
        for each in (dave, owner):
            each.persistent_call(lambda x: x * 5)(np.ones(2, np.float32))
        assert spans(owner, b"name") == []
        assert {span[0] for span in spans(dave, b"name")} == {"1.1"}
        assert {span[0] for span in spans(owner, b"other")} == {"2.1"}
    remove_account("dave", folder)


def test_the_check_of_traces_finds_what_is_wrong() -> None:
    """Else the tests above would say nothing."""
    good = {"ph": "X", "name": "a", "cat": "client", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    named = [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0},
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1},
    ]
    arrow = {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 0}
    assert faults([*named, good]) == []
    assert faults([good])
    assert faults([*named, good, {**good, "ts": 3}])
    assert faults([*named, {**good, "ts": 3}, {**good, "ts": 1, "dur": 1}])
    assert faults([*named, good, arrow])
    assert faults([*named, good, arrow, {**arrow, "ph": "f", "ts": 2}])
    assert faults([*named, good, arrow, {**arrow, "ph": "f"}]) == []
