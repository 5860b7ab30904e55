"""Many recorded calls, one after the other or together."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxd import Client, connect
from jaxd.cli.commands.warm import BuildOutcome, build_all
from jaxd_protocol.errors import Cancelled
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import Recipe, RecordedCall
from tests.client.fake_server import FakeServer, Request, failed, warm_reply


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


def test_each_call_of_each_function_is_built(client: Client, server: FakeServer) -> None:
    """Whatever is ready already the server knows."""
    done = list(build_all(client, [recipe("f", 3), recipe("g")]))
    assert sorted(done) == [BuildOutcome("f()", "hit", 0.5)] * 3 + [BuildOutcome("g()", "hit", 0.5)]
    assert len(server.asked) == 4


def test_several_are_built_at_the_same_time(client: Client, server: FakeServer) -> None:
    """How many really are is for the server to say."""
    together = threading.Barrier(4)

    def answer(_: Request) -> object:
        together.wait(20)
        return warm_reply()

    server.answers["call"] = answer
    assert len(list(build_all(client, [recipe("f", 4)]))) == 4


def test_an_error_is_the_result_of_its_call_alone(client: Client, server: FakeServer) -> None:
    """Of our own errors the text says enough."""
    errors = {b"f": KeyError("mine"), b"g": Cancelled("given up. Ask again.")}
    server.answers["call"] = lambda asked: failed(errors[asked.args[0].strip()])
    done = dict(each[::3] for each in build_all(client, [recipe("f"), recipe("g")]))
    assert done == {"f()": "KeyError: 'mine'", "g()": "given up. Ask again."}


def test_a_check_asks_and_builds_nothing(client: Client, server: FakeServer) -> None:
    """One answer for each."""
    server.answers["why"] = {"verdict": "compile"}
    assert (
        list(build_all(client, [recipe("f", 2)], check=True))
        == [BuildOutcome("f()", "compile")] * 2
    )
    assert server.of("call") == []


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
