"""A server that wants more called on its client than the client's function gives to be called.

Each attack is said in each way that a server could say it, and leaves something behind where it
succeeds: a file, or a word that only this process has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jaxd import Client, errors
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.pytree import dump_literal
from jaxd_protocol.pytree.decoder import COUNT
from jaxd_protocol.pytree.leaves import spec_bytes
from jaxd_protocol.pytree.references import function_mark
from tests.client.fake_server import FakeServer, Request

pytestmark = pytest.mark.own_server

WORD = "only-this-process-knows"
OVER = (FAILED, ("builtins", "ValueError", "over", None, 0.0, "", (), (), (), (), (), ("", ""))), ()


class Array(NamedTuple):
    """Stands in a tree for sixteen bytes of the server's."""

    number: int = 0


class Own(NamedTuple):
    """Stands in a tree for an object of the client's, as a reference names it."""

    kind: str
    detail: tuple[Any, ...]


def skeleton(value: Any) -> bytes:
    """A tree as a server writes it."""
    if type(value) is Array:
        return spec_bytes("A", "uint8", (16,))
    if type(value) is Own:
        return b"R" + dump_literal((value.kind, value.detail, b"", "something"))
    if type(value) is tuple:
        return b"T" + COUNT.pack(len(value)) + b"".join(map(skeleton, value))
    if type(value) is dict:
        pairs = [dump_literal(key) + skeleton(each) for key, each in value.items()]
        return b"D" + COUNT.pack(len(value)) + b"".join(pairs)
    return b"S" + dump_literal(value)


def arrays_in(value: Any) -> int:
    """How many arrays a tree has."""
    if type(value) is Array:
        return 1
    return sum(map(arrays_in, value)) if type(value) is tuple else 0


class EvilServer(FakeServer):
    """Asks for callbacks while a call is open, and then fails the call.

    Attributes:
        trees: what it asks with, or what makes that of the function's mark.
        wanted: what it wants to know of the client's process before that.
        answered: what the client says to the trees.
        read: what the client says to what is wanted.
        lost: how many questions had no answer, because the connection was over.
        over: set when all has been asked.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path, call=self._on_call)
        self.trees: list[Any] = []
        self.wanted: list[Any] = []
        self.answered: list[Any] = []
        self.read: list[Any] = []
        self.lost = 0
        self.over = threading.Event()

    def _on_call(self, asked: Request) -> Any:
        (_, _, message), _ = asked.ask("describe", asked.args[0])
        fingerprint = FunctionManifest.from_message(message).fingerprint
        self.read += [asked.ask("read", fingerprint, (each,)) for each in self.wanted]
        mark = function_mark(fingerprint)
        for make in self.trees:
            tree = make(mark) if callable(make) else make
            blob = b"0123456789abcdef" * arrays_in(tree)
            self._ask_with(asked, skeleton(tree), blob)
        self.over.set()
        return OVER

    def _ask_with(self, asked: Request, written: bytes, blob: bytes) -> None:
        done = threading.Event()

        def ask() -> None:
            try:
                self.answered.append(
                    asked.ask("callback", asked.number, written, blob, 1, -1, 0)[0]
                )
            except (EOFError, TimeoutError):
                self.lost += 1
            finally:
                done.set()

        threading.Thread(target=ask, daemon=True).start()
        while not done.wait(0.05):
            if self._connections[-1].closed:
                self.lost += 1
                return


@pytest.fixture
def evil(runtime: Path) -> Iterator[EvilServer]:
    """One that a client has been led to."""
    server = EvilServer(f"{runtime}/evil.sock")
    yield server
    server.close()


class Box:
    """Of which one method is given, and another is only there."""

    def __init__(self) -> None:
        self.wiped: list[Any] = []

    def note(self, *_: Any) -> None:
        """Is given."""

    def wipe(self, *args: Any) -> None:
        """Is reached."""
        self.wiped.append(args)


box = Box()


def repeated(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator, as each program has some."""

    def twice(*args: Any) -> Any:
        return function(*args)

    return twice


@repeated
def helper(x: Any) -> Any:
    """Is decorated."""
    return x + len(os.sep)


def gives(x: Any) -> Any:
    """Gives one thing, and reaches much more."""
    jax.debug.callback(box.note, x)
    if x is None:
        str(box)
        box.wipe()
        repeated(helper)
        os.mkdir("never")
        np.save("never", 1)
    return x


def attacks(path: str) -> dict[str, list[Any]]:
    """What is asked for."""
    live = [("live", n, names) for n in range(3) for names in (("wipe",), ("wipe", "__func__"))]
    own = [("get", ("object", n), "wipe") for n in range(12)]
    folder = (path,)

    def formatted(mark: bytes) -> Any:
        """Of a function of the client's, which has its globals."""
        callback_target = ("get", ("value", "{0.__globals__[os].environ}"), "format")
        return callback_target, (Own("n", (((mark, 0),),)),), {}

    def rebuilt(number: int) -> Any:
        saves = ("value", Own("i", ("numpy", "save")))
        return ("made", ("object", number), (0,), (saves,), None, None), (path, Array()), {}

    literals: list[Any] = [
        (("given", 1), folder),
        (("listed", 0), folder),
        (("argument", 0), folder),
        (("made", 0, (("function", ("given", 0)),), None, None), folder),
        (("partial", ("get", ("given", 0), "__self__"), (), ()), folder),
        (("get", ("held", 0), "tofile"), folder),
        (("live", 0, ("wipe",)), folder),
        (("library", "os", "global", "mkdir", ()), folder),
        (("library", "jax._src.debugging", "module", "os", ("mkdir",)), folder),
        (("library", "pytest", "module", "os", ("mkdir",)), folder),
        (("library", __name__, "global", "box", ("wipe",)), folder),
    ]
    return {
        "tofile of its array": [(("get", ("array", Array()), "tofile"), folder, {})],
        "format of its text": [formatted],
        "a decorator with its cells": [rebuilt(number) for number in range(12)],
        "a method that is only reached": [(callback_target, folder, {}) for callback_target in own],
        "an attribute of what is given": [
            (callback_target, folder, {}) for callback_target in live
        ],
        "an entry that is none": [
            (dump_literal(callback_target), (Array(),), x, {}) for callback_target, x in literals
        ],
        "a function as an argument": [
            lambda mark: (("live", 0, ("note",)), (Own("n", (((mark, 0),),)),), {}),
            lambda mark: (dump_literal(("given", 0)), (), (Own("n", (((mark, 0),),)),), {}),
        ],
    }


ATTACKS = tuple(attacks(""))


@pytest.mark.parametrize("function", [gives, lambda x: x + 1], ids=["gives one", "gives none"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_else_is_called(
    victim: Client,
    evil: EvilServer,
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    attack: str,
    function: Any,
) -> None:
    """Of a function that gives one thing, and of one that gives nothing."""
    monkeypatch.setenv("JAXD_TEST_WORD", WORD)
    box.wiped.clear()
    before = set(runtime.iterdir())
    evil.trees = attacks(str(runtime / "left.npy"))[attack]
    with pytest.raises((ValueError, errors.JaxdError)):
        victim.persistent_call(function)(1.0)
    assert evil.over.wait(20)
    assert evil.answered or evil.lost
    assert all(answer[0] == FAILED for answer in evil.answered)
    assert WORD not in repr(evil.answered)
    assert set(runtime.iterdir()) == before
    assert not box.wiped


def test_a_server_that_calls_back_for_a_call_that_gives_nothing_is_left(
    victim: Client, evil: EvilServer
) -> None:
    """Before anything of its question is read; the call is not repeated."""
    evil.trees = [(dump_literal(("given", 0)), (), (), {})] * 3
    with pytest.raises(errors.ProtocolError, match="which gives none"):
        victim.persistent_call(lambda x: x + 1)(1.0)
    assert evil.over.wait(20)
    assert len(evil.of("call")) == 1
    assert len(evil.answered) <= 1
    assert evil.lost


def test_what_is_given_is_called(victim: Client, evil: EvilServer) -> None:
    """So that the refusals above say something."""
    evil.trees = [(dump_literal(("given", 0)), (), (3,), {})]
    with pytest.raises(ValueError, match="over"):
        victim.persistent_call(gives)(1.0)
    ((verdict, _),) = evil.answered
    assert verdict != FAILED


kept: list[Any] = []


def keeps(x: Any) -> Any:
    """Has what its callback was given among what it reaches."""
    jax.debug.callback(kept.append, x)
    return x + len(kept)


@pytest.mark.parametrize(
    "tree",
    [
        (dump_literal(("given", 0)), (), ("JAXD_TEST_WORD",), {}),
        (dump_literal(("given", 0)), (), (("x", {"JAXD_TEST_WORD": 0}),), {}),
        (dump_literal(("partial", ("given", 0), (("value", b"JAXD_TEST_WORD"),), ())), (), (), {}),
    ],
    ids=["its argument", "inside of it", "held by what is called"],
)
def test_a_text_of_a_servers_names_nothing_of_the_process(
    victim: Client, evil: EvilServer, monkeypatch: pytest.MonkeyPatch, tree: Any
) -> None:
    """Where a callback has kept it, and the function reaches it from then on."""
    monkeypatch.setenv("JAXD_TEST_WORD", WORD)
    kept.clear()
    evil.trees = [tree]
    function = victim.persistent_call(keeps)
    with pytest.raises(ValueError, match="over"):
        function(1.0)
    assert "JAXD_TEST_WORD" in repr(kept)
    evil.trees, evil.wanted = [], [("variable", "JAXD_TEST_WORD")]
    with pytest.raises((ValueError, errors.JaxdError)):
        function(1.0)
    assert len(evil.read) == 1
    assert WORD not in repr(evil.read)
