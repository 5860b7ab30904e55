"""What a watcher sees of a server is what there is: also while that hangs, restarts and is used."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import jaxd
from jaxd import Client, Watch, connect, errors
from jaxd.api import watcher
from jaxd.connection.control_client import send_request
from jaxd_protocol.messages.server_view import MAX_ROWS, ServerView
from jaxd_protocol.network.addresses import Address
from jaxd_protocol.network.local_server import control_path
from tests.end_to_end.gates import Gate, stop_at, stop_when_run
from tests.live_server import TOKEN, LiveServer
from tests.warm_clients import run_command

pytestmark = pytest.mark.own_server

PATIENCE_S = 30.0


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A gate of this test's own."""
    return Gate(tmp_path / "gate")


@pytest.fixture(params=["unix", "tcp"])
def seen(request: pytest.FixtureRequest, live: LiveServer) -> Iterator[Watch]:
    """A watcher of the common server, by its control socket and over the client's protocol."""
    address = Address.parse(getattr(live, request.param))
    with _watch(address, is_local=request.param == "unix") as found:
        yield found


def _watch(address: Address, *, is_local: bool) -> Watch:
    if is_local:
        return jaxd.watch(address, every_s=0.1)
    from jaxd.connection.settings import Settings

    with pytest.MonkeyPatch.context() as patch:  # as if it were on another machine
        patch.setattr(watcher, "open_stream", lambda *_: None)
        settings = Settings.resolve(address, token=TOKEN)
        return watcher.Watch(settings, address, 0.1)


def until(seen: Watch, holds: Callable[[ServerView], bool]) -> ServerView:
    """The first view of which something holds."""
    view = seen.view
    while not holds(view):
        found = seen.next(PATIENCE_S)
        assert found is not None, f"nothing came any more: {seen.problem}\n{view}"
        view = found
    return view


def stopping_since(view: ServerView, began: float) -> list[str]:
    """The calls that stop at a gate, of this test."""
    calls = view.calls.items()
    return [n for n, one in calls if "stopping" in one.function and one.since >= began]


def test_a_call_is_seen_while_it_is_built_and_gone_afterwards(
    seen: Watch, client: Client, gate: Gate
) -> None:
    """With its build, and then what was counted of its function and program."""
    began = time.time() - 0.01
    call = client.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        view = until(seen, lambda view: bool(stopping_since(view, began)))
        (name,) = stopping_since(view, began)
        view = until(seen, lambda view: view.calls[name].phase == "building")
        assert view.calls[name].principal == f"uid:{os.getuid()}" or not seen.is_local
        builds = [one for one in view.builds.values() if "stopping" in one.function]
        assert builds[-1].verdict == "building"
        assert builds[-1].queued > 1e9
    assert float(call.result()) == 2.0
    key = builds[-1].key
    view = until(seen, lambda view: name not in view.calls)
    view = until(seen, lambda view: key in view.functions and view.functions[key].programs > 0)
    assert seen.changed
    assert [one.arguments for one in view.programs.values() if one.function == key] == ["x: float"]
    view = until(
        seen,
        lambda view: any(
            one.verdict == "compile" and "stopping" in one.function for one in view.builds.values()
        ),
    )
    assert {"calls", "saved_s", "connections"} <= view.counters.keys()
    assert str(os.getpid()) in {one.process for one in view.sessions.values()}
    assert view.devices
    assert view.queues.keys() == {"calls", "builds", "held"}
    assert any(one.name == "built" for one in view.events.values())
    client.persistent_call(stop_at(gate.path)).clear()


def test_a_call_can_be_cancelled_by_its_id(seen: Watch, client: Client, gate: Gate) -> None:
    """Whoever has made it; and one that there is not, cannot."""
    began = time.time() - 0.01
    call = client.persistent_call(stop_at(gate.path)).submit(1.0)
    with gate.reached():
        view = until(seen, lambda view: bool(stopping_since(view, began)))
        (name,) = stopping_since(view, began)
        assert seen.cancel(name) is True
        assert seen.cancel("c00000000") is False
        with pytest.raises(errors.Cancelled):
            call.result()
    gate.let_leave(client)


def test_a_function_can_be_looked_at_closely(seen: Watch, client: Client) -> None:
    """Why it was built, what XLA says of its program, and the texts."""

    def looked_at_closely(x: Any) -> Any:
        return x * 2 + 1

    function = client.persistent_call(looked_at_closely)
    function(np.ones(3, "f4"))
    view = until(
        seen, lambda view: any("looked_at_closely" in one.name for one in view.functions.values())
    )
    (key,) = (key for key, one in view.functions.items() if "looked_at_closely" in one.name)
    detail = seen.detail(key)
    assert detail.history[0]["verdict"] == "compile"
    (program,) = detail.programs
    assert program.arguments == "x: float32[3]"
    assert program.cost["flops"] > 0
    assert program.memory
    assert "float32[3]" in program.arguments
    assert "f32[3]" in seen.text(key, program.name, "hlo")
    assert "mul" in seen.text(key, program.name, "jaxpr")
    assert seen.clear(key) >= 1
    until(seen, lambda view: view.functions[key].programs == 0)
    with pytest.raises(errors.NotPermitted, match="no such program"):
        seen.text(key, program.name, "hlo")


def test_values_can_be_seen_and_forgotten(seen: Watch, client: Client) -> None:
    """Under their names."""
    client.put(np.zeros((2, 500)), name="seen-values")
    view = until(seen, lambda view: any(v.holder == "seen-values" for v in view.values.values()))
    (row,) = (one for one in view.values.values() if one.holder == "seen-values")
    assert (row.kind, row.count, row.nbytes, row.largest) == (
        "name",
        1,
        4000,
        ("float32[2,500]",),
    )
    assert client.forget("seen-values") is True
    until(seen, lambda view: all(v.holder != "seen-values" for v in view.values.values()))
    assert seen.forget("seen-values") is False


def test_nobody_is_found_where_no_server_runs(runtime: Path) -> None:
    """None is started."""
    with pytest.raises(errors.NoServer, match="no server runs"):
        jaxd.watch(f"unix://{runtime}/nobody.sock")
    with pytest.raises(errors.ConfigurationError, match="every_s"):
        jaxd.watch(every_s=0.01)


@pytest.fixture
def one(start_live: Callable[..., LiveServer]) -> LiveServer:
    """A server of the test's own."""
    return start_live("--stuck-after-s", "1")


@pytest.mark.slow
def test_a_watcher_sees_a_worker_that_hangs(one: LiveServer, gate: Gate) -> None:
    """What it ran, that it does not answer, and that it does again."""
    with jaxd.watch(one.unix, every_s=0.1) as seen, connect(one.unix) as client:
        function = client.persistent_call(stop_when_run(gate.path))
        assert float(function(1.0)) == 2.0
        until(seen, lambda view: bool(view.functions))
        call = function.submit(-1.0)
        with gate.reached():
            os.kill(one.worker_pid(), signal.SIGSTOP)
            try:
                until(seen, lambda view: [w.state for w in view.workers.values()] == ["stuck"])
                view = until(seen, lambda view: bool(view.calls))
                assert any("stopping" in row.function for row in view.calls.values())
                (worker,) = view.workers.values()
                assert worker.answered > 0
                assert worker.pid == one.worker_pid()
                until(
                    seen,
                    lambda view: any(row.name == "worker_stuck" for row in view.events.values()),
                )
                assert view.functions
            finally:
                os.kill(one.worker_pid(), signal.SIGCONT)
        assert float(call.result()) == 0.0
        view = until(seen, lambda view: [w.state for w in view.workers.values()] == ["ready"])
        until(seen, lambda view: not view.calls)


@pytest.mark.slow
def test_a_watcher_sees_the_next_worker(one: LiveServer) -> None:
    """After one was killed: what it had is gone, and what it has done is not."""
    with jaxd.watch(one.unix, every_s=0.1) as seen, connect(one.unix) as client:
        function = client.persistent_call(lambda x: x + 1)
        assert float(function(1.0)) == 2.0
        view = until(seen, lambda view: bool(view.functions and view.builds))
        (build,) = view.builds
        os.kill(one.worker_pid(), signal.SIGKILL)
        view = until(
            seen, lambda view: [(w.epoch, w.state) for w in view.workers.values()] == [(2, "ready")]
        )
        assert build in view.builds
        assert any(row.name == "worker_exited" for row in view.events.values())
        assert float(function(1.0)) == 2.0
        until(seen, lambda view: any(one.state == "memory" for one in view.programs.values()))


@pytest.mark.slow
def test_a_watcher_goes_on_when_the_server_is_back(
    start_live: Callable[..., LiveServer],
) -> None:
    """It says that the server is gone, and begins anew."""
    first = start_live()
    with jaxd.watch(first.unix, every_s=0.1) as seen:
        assert seen.view.server.pid == first.process.pid
        with connect(first.unix) as client:
            client.persistent_call(lambda x: x + 1)(1.0)
        view = until(seen, lambda view: any(p.disk_bytes for p in view.programs.values()))
        (name,) = view.programs
        assert first.close() == 0
        gone = seen.next(PATIENCE_S)
        while gone is not None and not seen.problem:
            gone = seen.next(PATIENCE_S)
        assert "has ended" in seen.problem
        assert seen.next(0.2) is None
        second = start_live()
        view = until(seen, lambda view: view.server.pid == second.process.pid)
        assert seen.problem == ""
        assert view.server.since > 0
        view = until(seen, lambda view: bool(view.programs))
        (program,) = view.programs.values()
        assert (list(view.programs), program.state, program.calls) == ([name], "disk", 0)
        assert program.disk_bytes > 0
        with connect(second.unix) as client:
            client.persistent_call(lambda x: x + 1)(1.0)
            view = until(seen, lambda view: view.programs[name].state == "memory")
            assert view.programs[name].disk_bytes == program.disk_bytes
            assert seen.clear(view.programs[name].function) == 1
            until(seen, lambda view: not view.programs)


def test_a_reader_that_does_not_read_costs_nothing(live: LiveServer, client: Client) -> None:
    """It gets what there is when it reads again, and others are not delayed by it."""
    names = {f"name-{number}" + "x" * 180 for number in range(30)}

    def has_all(view: ServerView) -> bool:
        return names <= {one.holder for one in view.values.values()}

    with (
        socket.socket(socket.AF_UNIX) as lazy,
        jaxd.watch(live.unix, every_s=0.1) as seen,
    ):
        lazy.connect(control_path(Address.parse(live.unix)))
        lazy.sendall(b'{"ask": "watch", "every_s": 0.1}\n')
        for name in names:
            client.put(np.zeros(3), name=name)
        view = until(seen, has_all)
        with lazy.makefile("rb") as lines:
            known = ServerView.from_dict(json.loads(lines.readline())["view"])
            while not has_all(known):
                known = known.patched(json.loads(lines.readline())["change"])
        assert known.values == view.values
    assert all(client.forget(name) for name in names)


def test_the_command_shows_the_same(live: LiveServer, client: Client) -> None:
    """`jaxd status --json` has the view beside what it always had."""
    client.persistent_call(lambda x: x + 1)(1.0)
    shown = run_command("status", "--json", "--server", live.unix, **live.environment)
    report = json.loads(shown.stdout)
    view = ServerView.from_dict(report["view"])
    assert view.to_dict() == report["view"]
    assert view.counters["calls"] == report["worker"]["calls"] > 0
    assert view.counters["compiles"] == report["worker"]["compiles"] > 0
    assert view.server.pid == report["host"]["pid"]


_LOAD = """
import sys, numpy as np, jaxd
number = int(sys.argv[1])
for step in range(6):
    def load(x, step=step, number=number):
        return x * step + number
    f = jaxd.persistent_call(load)
    for length in (1, 2):
        for _ in range(5):
            f(np.ones(length))
    jaxd.put(np.ones(10), name=f"soak-{number}")
"""


def _has_reached(sequence: int, view: ServerView) -> bool:
    return view.sequence >= sequence


@pytest.mark.slow
def test_a_watcher_has_what_the_command_shows_while_all_is_used(one: LiveServer) -> None:
    """Clients, builds and a killed worker: at the same sequence both views are the same."""
    path = control_path(Address.parse(one.unix))
    with jaxd.watch(one.unix, every_s=0.1) as seen:
        clients = [
            subprocess.Popen([sys.executable, "-c", _LOAD, str(number)], env=one.environment)
            for number in range(3)
        ]
        compared = 0
        is_killed = False
        while compared < 5 or any(one.poll() is None for one in clients):
            shown = send_request(path, {"ask": "status", "view": True})
            assert shown is not None
            now = ServerView.from_dict(shown["view"])
            view = until(seen, partial(_has_reached, now.sequence))
            if view.sequence == now.sequence:
                assert view == now
                compared += 1
            if not is_killed and len(now.functions) > 3:
                is_killed = True
                os.kill(one.worker_pid(), signal.SIGKILL)
        assert [client.wait() for client in clients] == [0, 0, 0]
        assert is_killed


@pytest.mark.slow
def test_a_build_says_what_it_waited_for(
    start_live: Callable[..., LiveServer], gate: Gate, tmp_path: Path
) -> None:
    """Who was queued, behind whom, and when each began: so that it can be drawn."""
    one = start_live("--builds", "1", "--build-in", "worker")
    second = Gate(tmp_path / "second")
    with (
        jaxd.watch(one.unix, every_s=0.1) as seen,
        connect(one.unix) as client,
        connect(one.unix) as other,
    ):
        first = client.persistent_call(stop_at(gate.path)).submit(1.0)
        with gate.reached():

            def behind(x: Any) -> Any:
                Path(second.path).read_bytes()
                return x - 1

            later = other.persistent_call(behind).submit(1.0)
            view = until(seen, lambda view: any(row.behind for row in view.calls.values()))
            (call,) = (row for row in view.calls.values() if row.behind)
            assert "behind" in call.function
            assert "stopping" in call.behind
            assert call.behind_since >= call.since - 60
            (build,) = (row for row in view.builds.values() if "behind" in row.function)
            assert (build.verdict, build.started, build.finished) == ("building", 0.0, 0.0)
            assert "stopping" in build.behind
            assert view.queues["builds"].length == view.queues["builds"].limit == 1
        with second.reached():
            pass
        assert (float(first.result()), float(later.result())) == (2.0, 0.0)
        view = until(
            seen, lambda view: [row.verdict for row in view.builds.values()] == ["compile"] * 2
        )
        made = {row.function.rpartition(".")[2]: row for row in view.builds.values()}
        assert made["behind"].queued < made["stopping"].finished
        assert made["behind"].started > made["behind"].queued
        assert "stopping" in made["behind"].behind
        assert made["stopping"].behind == ""


@pytest.mark.slow
def test_a_watcher_sees_a_worker_rest_and_does_not_keep_it_awake(
    start_live: Callable[..., LiveServer],
) -> None:
    """Nor wake it: a call does."""
    one = start_live("--rest-after-s", "0.5")
    with jaxd.watch(one.unix, every_s=0.1) as seen:
        view = until(seen, lambda view: [w.state for w in view.workers.values()] == ["resting"])
        assert [worker.pid for worker in view.workers.values()] == [0]
        with connect(one.unix) as client:
            assert float(client.persistent_call(lambda x: x + 1)(1.0)) == 2.0
            view = until(
                seen, lambda view: [w.epoch for w in view.workers.values() if w.pid] == [2]
            )


class _Answers:
    """A session of a server that answers as the test has it, and counts how often it is asked."""

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, *args: Any) -> Any:
        """The next answer."""
        self.asked.append(args[1:])
        return self.answer(len(self.asked))


def _asking(
    answer: Callable[[int], Any], closing: threading.Event | None = None
) -> tuple[watcher._Questions, _Answers]:
    session = _Answers(answer)
    client: Any = SimpleNamespace(caller=SimpleNamespace(session=session))
    return watcher._Questions(client, 0.1, closing or threading.Event()), session


def _piece(number: int, *, more: bool = True, what: str = "change", **tables: Any) -> Any:
    return {what: {**tables, "sequence": number}, "source": "s", "more": more}


def test_a_server_that_always_has_more_holds_no_watcher() -> None:
    """Without progress it has none; with progress it is asked until the time is over, or closed."""
    source, session = _asking(lambda n: _piece(1, values={f"v{n}": {}}))
    for pieces in (2, 3):
        message = source.receive(PATIENCE_S)
        assert message is not None
        assert len(session.asked) == pieces
    source, session = _asking(_piece)
    assert source.receive(0.0) is None
    assert len(session.asked) == 1
    closing = threading.Event()

    def answer(number: int) -> Any:
        if number == 5:
            closing.set()
        return _piece(number, values={f"v{number}": {}})

    source, session = _asking(answer, closing)
    assert source.receive(PATIENCE_S) is None
    assert len(session.asked) == 5


def test_pieces_go_on_where_the_time_was_over() -> None:
    """Nothing is lost, and a piece that is whole begins anew."""
    source, session = _asking(
        lambda n: _piece(
            n, what="view" if n in (1, 3) else "change", more=n < 5, values={f"v{n}": {}}
        )
    )
    for _ in range(4):
        assert source.receive(0.0) is None
    message = source.receive(0.0)
    assert message is not None
    assert message.is_whole
    assert list(message.content["values"]) == ["v3", "v4", "v5"]
    assert [known for known, _ in session.asked] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"view": []},
        {"change": {"values": [1]}},
        {"change": {"values": {str(n): None for n in range(MAX_ROWS + 1)}}},
    ],
)
def test_an_answer_that_is_none_of_a_server_is_said(said: Any) -> None:
    """Of another shape, or too large."""
    source, _ = _asking(lambda n: _piece(1, values={"v": {}}) if n == 1 else said)
    with pytest.raises(errors.ProtocolError):
        source.receive(PATIENCE_S)
