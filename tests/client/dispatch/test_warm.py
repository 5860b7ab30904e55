"""Programs that are built ahead, against a server that the test plays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxd import Client, connect, persistent_call
from jaxd.dispatch.warm import RecordedFunction, Warmed, warm
from jaxd_protocol.errors import ArgumentError, ConnectionLost, NoServer, ProtocolError
from jaxd_protocol.jit.options import Options
from jaxd_protocol.messages.calls import MAY_REPEAT, STRICT, WARM
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import Recipe, RecordedCall
from tests.client.fake_server import FakeServer, Request, failed, warm_reply

Start = Callable[..., tuple[FakeServer, Client]]


class Spec:
    """What a user may have made."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.dtype = "float32"


class Named:
    """Of sizes that have names."""

    def __init__(self, *shape: int | str) -> None:
        self.shape = shape
        self.dtype = "int32"


@pytest.fixture
def start(runtime: Path) -> Iterator[Start]:
    """Starts a server that gives these answers, and a client of it."""
    servers: list[FakeServer] = []
    clients: list[Client] = []

    def start(**answers: Any) -> tuple[FakeServer, Client]:
        servers.append(FakeServer(f"{runtime}/{len(servers)}.sock", **answers))
        clients.append(connect(servers[-1].address))
        return servers[-1], clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.close()


def test_a_function_is_warmed_over_sizes(start: Start) -> None:
    """For each combination, in the order in which they are given, as for specs of these sizes."""
    asked: list[bytes] = []

    def answer(request: Request) -> Any:
        asked.append(request.args[1])
        return warm_reply("compile", 1.0)

    _, client = start(call=answer)
    step = client.persistent_call(lambda tree, x, n: x * n)
    tree = {"tokens": Named("batch", "length"), "fixed": [Spec(3)]}
    sizes = {"batch": (1, 8), "length": (128, 512)}
    warmed = step.warm(tree, Spec(2), n=2.0, over=sizes)
    assert warmed == [Warmed("compile", 1.0)] * 4
    over = list(asked)
    for batch, length in ((1, 128), (1, 512), (8, 128), (8, 512)):
        step.warm({"tokens": Named(batch, length), "fixed": [Spec(3)]}, Spec(2), n=2.0)
    assert over == asked[4:]
    assert len(set(over)) == 4


@pytest.mark.parametrize(
    ("shape", "over", "message"),
    [
        (("batch", 3), {"length": (1,)}, "sizes for 'length', which stands in no spec's shape"),
        (("batch", 3), {}, "has the shape"),
        (("batch", 3), {"batch": ()}, "has no size for a name"),
        (("batch", 3), {"batch": ("many",)}, "has the shape"),
        (("batch", 3), {"batch": (-1,)}, "has the shape"),
        (("batch", 3), None, r"warm\(…, over="),
    ],
)
def test_sizes_that_are_none_are_refused(
    start: Start, shape: tuple[Any, ...], over: Any, message: str
) -> None:
    """With what would be right; nothing is sent."""
    _, client = start()
    function = client.persistent_call(lambda x: x)
    with pytest.raises(ArgumentError, match=message):
        function.warm(Named(*shape), over=over)


def test_a_function_is_warmed_for_specs(start: Start) -> None:
    """By a call that brings no data, with the key and skeleton of a real one."""

    def answer(asked: Request) -> Any:
        return warm_reply("load", 0.25) if asked.args[4] & WARM else failed(KeyError("called"))

    server, client = start(call=answer)
    scale = client.persistent_call(lambda x, n=1: x * n, static_argnames="n", strict=True)
    assert scale.warm([Spec(2000, 3), 1.5], n=3) == Warmed("load", 0.25)
    key, skeleton, *rest = server.asked[0].args
    assert rest == [b"", None, MAY_REPEAT | STRICT | WARM, b"", b"", b""]
    assert server.asked[0].buffers == []
    with pytest.raises(KeyError, match="called"):
        scale([np.ones((2000, 3), np.float32), 2.5], n=3)
    assert server.asked[1].args[:2] == (key, skeleton)
    assert server.asked[1].buffers != []


def test_a_connection_that_ends_twice_is_given_up(start: Start) -> None:
    """And the message says by which function."""
    server, client = start(call=FakeServer.hang_up)
    with pytest.raises(ConnectionLost, match="<lambda>"):
        client.persistent_call(lambda x: x).warm(Spec(1))
    assert len(server.asked) == 2


def test_what_the_function_reads_is_pinned_by_warming(start: Start) -> None:
    """A call that follows has the key that was warmed, as if it were the second call."""
    server, client = start(call=lambda _: warm_reply())
    large = np.zeros(1 << 18)  # too large to be looked at before each call
    function = client.persistent_call(lambda x: x + large)
    function.warm(Spec(4))
    large += 1
    function.warm(Spec(4))
    function.warm(Spec(5))
    first, second, third = (asked.args[0] for asked in server.asked)
    assert first == second != third


def test_what_the_server_refuses_is_raised(start: Start) -> None:
    """Its own error takes the place of an answer."""
    _, client = start(forget=lambda _: failed(ProtocolError("no such key.")))
    with pytest.raises(ProtocolError, match="no such key"):
        client.persistent_call(lambda x: x).clear()


def test_inline_is_jit_in_this_process(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is warmed is not traced again; there is nothing to clear."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    traced = []

    @persistent_call
    def counted(x: Any) -> Any:
        traced.append(x.shape)
        return x + 1

    warmed = counted.warm(Spec(3))
    assert (warmed.verdict, traced) == ("compile", [(3,)])
    counted(np.ones(3, np.float32))
    assert traced == [(3,)]
    with pytest.raises(NoServer, match=r"JAXD_INLINE.*jax\.clear_caches"):
        counted.clear()
    assert list(runtime.iterdir()) == []


# recipes ----------------------------------------------------------------------------------------


OPTIONS = Options().to_bytes()


def recipe(*calls: RecordedCall) -> Recipe:
    """One of a function that there is not."""
    manifest = FunctionManifest(b"f" * 16).to_message()
    return Recipe("step", b"k" * 16, OPTIONS, manifest, b"packed", calls, ("x",))


def test_a_recipe_is_warmed_without_its_function(start: Start) -> None:
    """The server gets name, options, meaning and code from it, and zeros for arrays."""
    call = RecordedCall(b"P\0\0\0\1", (3, 8), (b"abc",))

    def answer(asked: Request) -> Any:
        described, _ = asked.ask("describe", asked.args[0])
        assert described == ("step", OPTIONS, recipe().manifest)
        assert asked.ask("code", b"f" * 16) == ((), [b"packed"])
        return warm_reply("hit", 0.5)

    server, client = start(call=answer)
    recorded = RecordedFunction(recipe(call))
    assert warm(client.caller, recorded.call(client.caller, call)) == Warmed("hit", 0.5)
    (asked,) = server.asked
    flags = MAY_REPEAT | WARM
    assert asked.args == (b"k" * 16, call.skeleton, b"", None, flags, b"", b"", b"")
    assert asked.buffers == [b"abc", bytes(8)]


def test_a_recipe_is_not_unpacked_here() -> None:
    """Its code is another's, and this process runs none of it."""
    assert RecordedFunction(recipe()._replace(code=b"cos\nsystem\n(S'x'\ntR.")).code.startswith(
        b"cos"
    )
