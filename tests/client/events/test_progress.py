"""The line that says what a long call is doing."""

from __future__ import annotations

import io
import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.events import progress
from jaxd.events.progress import Progress
from jaxd_protocol.base import process
from tests.server.staging import until


class Terminal(io.StringIO):
    """Takes what is written to a terminal."""

    def isatty(self) -> bool:
        super().isatty()  # raises when it is closed
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stands in for stderr; calls count as long at once."""
    found = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", 0.0)
    monkeypatch.setattr(progress, "_TICK_S", 0.001)
    return found


def stage(name: str, function: str = "step") -> dict[str, Any]:
    """The content of a stage event."""
    return {"stage": name, "function": function}


def test_what_it_waits_behind_is_named_unless_it_is_another_client_s(terminal: Terminal) -> None:
    """With how long that has been built; gone when its own build begins."""
    shown = Progress()
    content = {**stage("queued"), "behind": "slow", "behind_s": 78.2}
    shown.event("connection", 1, "stage", content)
    until(lambda: "jaxd: waiting to compile step behind slow (78 s)" in terminal.getvalue())
    shown.event("connection", 1, "stage", {**content, "behind": ""})
    until(lambda: "step behind another client's function (78 s)" in terminal.getvalue())
    shown.event("connection", 1, "stage", stage("trace"))
    until(lambda: "jaxd: tracing step …" in terminal.getvalue())
    shown.finish("connection", 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("queued", "waiting to compile"),
        ("trace", "tracing"),
        ("lower", "lowering"),
        ("compile", "compiling"),
        ("run", "running"),
        ("invented later", "working on"),
    ],
)
def test_each_stage_has_its_words(terminal: Terminal, name: str, words: str) -> None:
    """Also one that a newer server may report."""
    shown = Progress()
    shown.event("connection", 1, "stage", stage(name))
    until(lambda: f"jaxd: {words} step" in terminal.getvalue())
    shown.finish("connection", 1)
    assert re.search(r"jaxd: step was ready after \d+\.\d s", terminal.getvalue())
    assert terminal.getvalue().endswith("\n")


def test_a_long_build_ends_in_its_reason(terminal: Terminal) -> None:
    """In one line, whatever the server says; also when nothing was shown so far."""
    shown = Progress()
    content = {"function": "step", "seconds": 8.21, "reason": "global LR:\n0.1 → 0.01"}
    shown.event("connection", 1, "stage", stage("run"))
    shown.event("connection", 1, "built", content)
    shown.finish("connection", 1)
    last = "jaxd: compiled step in 8.2 s: global LR: 0.1 → 0.01\n"
    assert terminal.getvalue().endswith(last)
    assert "was ready" not in terminal.getvalue()
    shown.event("connection", 2, "built", content)
    shown.finish("connection", 2, ready=False)
    assert terminal.getvalue().endswith(last)


def test_the_longest_of_several_is_shown(terminal: Terminal) -> None:
    """Then the next; calls of other connections with the same number are others."""
    shown = Progress()
    shown.event("one", 1, "stage", stage("trace", "first"))
    shown.event("other", 1, "stage", stage("trace", "second"))
    until(lambda: "tracing first" in terminal.getvalue())
    assert "second" not in terminal.getvalue()
    shown.finish("one", 1)
    until(lambda: "tracing second" in terminal.getvalue())
    shown.finish("other", 1)


def test_a_shorter_line_leaves_nothing_of_a_longer_one(terminal: Terminal) -> None:
    """It is written over to its end."""
    shown = Progress()
    shown.event("connection", 1, "stage", stage("queued"))
    until(lambda: "waiting to compile" in terminal.getvalue())
    shown.event("connection", 1, "stage", stage("run"))
    until(lambda: "running" in terminal.getvalue())
    shown.finish("connection", 1)
    longest = 0
    for line in terminal.getvalue().split("\r"):
        assert len(line.rstrip("\n")) >= longest or line.endswith("\n")
        longest = len(line.rstrip())


def test_into_a_pipe_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where there is no stderr, or a closed one."""
    pipe, closed = io.StringIO(), Terminal()
    closed.close()
    for stderr in (pipe, None, closed):
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
        shown = Progress()
        shown.event("connection", 1, "stage", stage("trace"))
        assert shown._ticker is None
        shown.finish("connection", 1)
    assert pipe.getvalue() == ""


def test_a_terminal_that_goes_away_is_no_error(terminal: Terminal) -> None:
    """The call goes on without its line."""
    shown = Progress()
    shown.event("connection", 1, "stage", stage("trace"))
    until(lambda: "tracing" in terminal.getvalue())
    ticker = shown._ticker
    assert ticker is not None
    terminal.close()
    shown.finish("connection", 1)
    ticker.join()


def test_late_events_of_a_call_that_was_given_up_are_ignored(terminal: Terminal) -> None:
    """Ctrl-C or timeout_s: the server goes on, and nobody would finish a new entry."""
    shown = Progress()
    shown.event("connection", 1, "stage", stage("trace"))
    until(lambda: "tracing" in terminal.getvalue())
    shown.finish("connection", 1, ready=False)
    shown.finish("connection", 2, ready=False)  # before its first event
    for number in (1, 2):
        shown.event("connection", number, "stage", stage("run"))
    assert shown._calls == {}
    assert "ready" not in terminal.getvalue()
    assert not terminal.getvalue().rpartition("\r")[0].rpartition("\r")[2].strip()  # wiped out


def test_only_the_last_finished_calls_are_remembered(terminal: Terminal) -> None:
    """A process that gives up calls for days does not grow."""
    shown = Progress()
    for number in range(1000):
        shown.finish("connection", number, ready=False)
    assert len(shown._finished) == progress._MAX_FINISHED
    assert ("connection", 999) in shown._finished


def test_a_terminal_that_stands_still_stops_nobody(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-S whoever reads for all goes on; after Ctrl-Q what was said appears."""
    entered, released = threading.Event(), threading.Event()

    class Stopped(Terminal):
        def write(self, text: str) -> int:
            entered.set()
            released.wait()
            return super().write(text)

    stopped = Stopped()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stopped))
    shown = Progress()
    shown.event("connection", 1, "stage", stage("trace"))
    entered.wait()
    shown.event("connection", 1, "stage", stage("run"))
    shown.finish("connection", 1)
    assert shown._calls == {}
    released.set()
    ready = re.compile(r"jaxd: step was ready after \d+\.\d s\n$")
    until(lambda: ready.search(stopped.getvalue()) is not None)


def test_the_child_of_a_fork_begins_anew(terminal: Terminal) -> None:
    """A lock that a thread of the parent held is not its own."""
    shown = Progress()
    shown._lock.acquire()
    shown._writes.acquire()
    process._in_child()
    shown.event("connection", 1, "stage", stage("trace"))
    until(lambda: "tracing" in terminal.getvalue())
    shown.finish("connection", 1)
    until(lambda: "was ready" in terminal.getvalue())


class Link:
    """A connection over which something is on its way, or nothing."""

    def __init__(self, word: str = "sending", moved: int = 0, total: int = 1) -> None:
        self.now: tuple[str, int, int] | None = (word, moved, total)

    def transfer_progress(self) -> tuple[str, int, int] | None:
        return self.now


@pytest.mark.parametrize(
    ("link", "words"),
    [
        (Link("sending", 1_234_567_890, 4_000_000_000), "sending 1.2 of 4.0 GB"),
        (Link("receiving", 500_000, 12_000_000), "receiving 0.5 of 12.0 MB"),
        (Link("sending", 0, 999), "sending 0.0 of 1.0 kB"),
    ],
)
def test_a_large_transfer_says_how_far_it_is(terminal: Terminal, link: Link, words: str) -> None:
    """And nothing of it stays on the line."""
    Progress().transfer(link)
    until(lambda: f"jaxd: {words}" in terminal.getvalue())
    link.now = None
    until(lambda: terminal.getvalue().endswith("\r"))
    assert terminal.getvalue().rsplit("\r", 2)[1].strip() == ""


def test_a_transfer_goes_before_a_stage(terminal: Terminal) -> None:
    """Which is shown again when the transfer is over."""
    shown, link = Progress(), Link()
    shown.transfer(link)
    until(lambda: "sending" in terminal.getvalue())
    shown.event("connection", 1, "stage", stage("compile"))
    assert "compiling" not in terminal.getvalue()
    link.now = None
    until(lambda: "jaxd: compiling step" in terminal.getvalue())
    shown.finish("connection", 1)
    assert terminal.getvalue().endswith("\n")


def test_the_end_of_a_call_wipes_its_transfer_out(terminal: Terminal) -> None:
    """At once: the process may end now."""
    shown, link = Progress(), Link()
    shown.transfer(link)
    until(lambda: "sending" in terminal.getvalue())
    with shown._lock:
        del shown._transfers[link]
    shown.finish("connection", 1)
    assert terminal.getvalue().endswith("\r")


def test_a_short_transfer_is_not_mentioned(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one where nobody looks; nothing runs on behind either of them."""
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", 60.0)
    shown, link = Progress(), Link()
    shown.transfer(link)
    link.now = None
    until(lambda: shown._ticker is None)
    assert terminal.getvalue() == ""
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO()))
    shown.transfer(Link())
    assert shown._ticker is None


def test_the_stages_of_a_long_build_are_told(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that took long, each with all of its time; not the run, which is no part of it."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    shown = Progress()
    for name, seconds in (("trace", 0.5), ("lower", 0.01), ("compile", 2.0), ("run", 3.0)):
        shown.event("connection", 1, "stage", stage(name))
        now[0] += seconds
    until(lambda: "running step" in terminal.getvalue())
    shown.finish("connection", 1)
    assert terminal.getvalue().endswith(
        "jaxd: step was ready after 5.5 s (tracing 0.5 s, compiling 2.0 s)\n"
    )


def test_something_else_that_is_written_makes_the_line_go_first(terminal: Terminal) -> None:
    """A print of the function does not stand behind it."""
    shown = Progress()
    shown.event("connection", 1, "stage", stage("trace"))
    until(lambda: "tracing step" in terminal.getvalue())
    shown.clear_line()
    assert re.search(r"\r +\r$", terminal.getvalue())
    shown.finish("connection", 1)
