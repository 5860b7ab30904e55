"""Many recorded calls, one after the other or together."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd import Client, connect
from jaxd.cli.child_program import deferring_interrupts, run_program
from jaxd.cli.commands.warm import BuildBar, BuildOutcome, build_all, wait_for_interrupt
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import Recipe, RecordedCall
from tests.client.fake_server import FakeServer, Request, warm_reply


def recipe(name: str, calls: int = 1, skeleton: bytes = b"T\0\0\0\2T\0\0\0\0D\0\0\0\0") -> Recipe:
    """One that was called so often without arguments."""
    manifest = FunctionManifest(name.encode().ljust(16)).to_message()
    key = name.encode().ljust(16)
    return Recipe(name, key, Options().to_bytes(), manifest, b"", (RecordedCall(skeleton),) * calls)


@pytest.fixture
def server(runtime: Path) -> Iterator[FakeServer]:
    """One that the test plays."""
    server = FakeServer(f"{runtime}/s.sock", call=lambda _: warm_reply("hit", 0.5))
    yield server
    server.close()


@pytest.fixture
def client(server: FakeServer) -> Iterator[Client]:
    """A client of it."""
    with connect(server.address) as client:
        yield client


def test_several_are_built_at_the_same_time(client: Client, server: FakeServer) -> None:
    """How many really are is for the server to say."""
    together = threading.Barrier(4)

    def answer(_: Request) -> object:
        together.wait(20)
        return warm_reply()

    server.answers["call"] = answer
    assert len(list(build_all(client, [recipe("f", 4)]))) == 4


def test_closed_early_it_starts_no_more(client: Client, server: FakeServer) -> None:
    """And does not wait for those that are under way."""
    first, end = threading.Event(), threading.Event()

    def answer(_: Request) -> object:
        if first.is_set():
            end.wait(20)
        first.set()
        return warm_reply()

    server.answers["call"] = answer
    results = build_all(client, [recipe("f", 50)])
    next(results)
    results.close()
    assert not end.is_set()
    end.set()
    for thread in threading.enumerate():
        if thread.name == "jaxd-warm":
            thread.join(20)
    assert len(server.asked) < 50


def test_arguments_that_cannot_be_read_are_left_out(client: Client, server: FakeServer) -> None:
    """The server will say what is wrong with them."""
    server.answers["why"] = lambda _: (json.dumps({"verdict": "hit"}), ())
    assert list(build_all(client, [recipe("f", 1, b"garbage")], check=True)) == [
        BuildOutcome("f", "hit")
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal_in_place(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Takes the place of stderr."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_it_says_how_many_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is gone in the end."""
    terminal = terminal_in_place(monkeypatch)
    bar = BuildBar(2, shown=True)
    bar.advance()
    bar.advance()
    bar.close()
    parts = [part for part in terminal.getvalue().split("\r") if part.strip()]
    assert parts == ["[##########..........] 1/2", "[####################] 2/2"]
    assert terminal.getvalue().endswith(" \r")


def test_what_is_under_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it takes long; what was built, and why, is not told for each."""
    monkeypatch.setattr("jaxd.events.progress._SHOW_AFTER_S", 0.0)
    monkeypatch.setattr("jaxd.events.progress._TICK_S", 0.0)
    terminal = terminal_in_place(monkeypatch)
    bar = BuildBar(2, shown=True)
    bar.event("c", 1, "stage", {"stage": "compile", "function": "train_step"})
    assert bar._ticker is not None
    while "] 0/2  compiling train_step … 0 s" not in terminal.getvalue():
        bar._ticker.join(0.01)
    bar.event("c", 1, "built", {"function": "train_step", "reason": "first call"})
    ticker = bar._ticker
    bar.finish("c", 1)
    ticker.join()
    assert "first call" not in terminal.getvalue()
    assert "ready after" not in terminal.getvalue()


WATCHED = (signal.SIGINT, signal.SIGTERM)


def python(program: str) -> list[str]:
    """The words that run it."""
    return [sys.executable, "-c", program]


@pytest.mark.parametrize(
    ("program", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_programs(program: str, code: int) -> None:
    """As a shell says it, when a signal ended it."""
    assert run_program(python(program), None, "jaxd warm") == code


def test_signals_are_as_before_in_the_program_and_afterwards(tmp_path: Path) -> None:
    """Also where a script has ignored Ctrl-C for us."""
    program = (
        "import signal, sys; from pathlib import Path\n"
        f"Path({str(tmp_path / 'out')!r}).write_text(str(signal.getsignal(signal.SIGINT)))"
    )
    before = [signal.getsignal(number) for number in WATCHED]
    run_program(python(program), None, "jaxd warm")
    assert "default_int_handler" in (tmp_path / "out").read_text()
    assert [signal.getsignal(number) for number in WATCHED] == before


@pytest.mark.parametrize("number", WATCHED)
def test_a_signal_ends_the_waiting(number: int) -> None:
    """One that comes as soon as it is waited for as well."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wait_for_interrupt(lambda: os.kill(os.getpid(), number))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_deferred_signal_interrupts_at_the_end(number: signal.Signals) -> None:
    """What runs meanwhile is completed; the handlers are those from before."""
    before = signal.getsignal(number)
    steps: list[str] = []

    def interrupted_work() -> None:
        with deferring_interrupts():
            signal.raise_signal(number)
            steps.append("completed")
        steps.append("continued")

    with pytest.raises(KeyboardInterrupt):
        interrupted_work()
    assert steps == ["completed"]
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_is_raised() -> None:
    """The code behind it runs."""
    with deferring_interrupts():
        pass
