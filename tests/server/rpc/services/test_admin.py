"""What people ask who look after a server, answered in place and over the wire."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxd_server.rpc.services.admin
from jaxd_protocol.errors import ConfigurationError, ProtocolError, ServerDraining
from jaxd_protocol.jit.options import function_key
from jaxd_protocol.messages.calls import FAILED
from jaxd_protocol.messages.failures import decode_failure
from jaxd_protocol.messages.function_manifest import FunctionManifest
from jaxd_protocol.messages.recipes import load_recipes
from jaxd_server.rpc.services import check_arguments
from jaxd_server.rpc.services.admin import AdminService
from tests.ids import row
from tests.server.in_process import InProcessServer, PipelineHarness, Source
from tests.server.rpc.services.conftest import OpenHarness
from tests.server.staging import PATIENCE_S, join, start, until

X: Any = np.arange(6, dtype=np.float32)


def operations(harness: PipelineHarness) -> AdminService:
    """Those of a worker."""
    return AdminService(harness.pipeline)


def ask(harness: PipelineHarness, verb: str, *args: Any) -> Any:
    """What a JSON answer says; raises what it says instead."""
    check_arguments(verb, args)
    value, buffers = operations(harness).answer(verb, args)
    assert list(buffers) == []
    return json.loads(value)


def test_functions_without_a_recipe_are_named(open_beside: OpenHarness) -> None:
    """In the JSON beside the recipes."""
    harness = open_beside()
    answering = operations(harness)
    (said,), _ = answering.answer("recipes", ("",))
    source = Source(lambda x: x + 1)
    source.manifest = FunctionManifest(source.fingerprint, shared=False)
    harness.value(source, X)
    (said,), _ = answering.answer("recipes", (json.loads(said)["mark"],))
    (left_out,) = json.loads(said)["left_out"]
    assert set(left_out) == {"name", "key", "reason"}
    assert left_out["key"] == source.key.hex()


@pytest.mark.slow
def test_a_forgotten_function_is_built_anew(open_beside: OpenHarness) -> None:
    """Not loaded from a program file; one that another function has as well stays."""
    harness = open_beside()
    source, shared, sharing = (Source(lambda x: x + 1), Source(lambda x: x * 5), Source(_by_5))
    for one in (source, shared, sharing):
        harness.value(one, X)
    ask(harness, "forget", source.key)
    ask(harness, "forget", shared.key)
    restarted = open_beside()
    restarted.value(source, X)
    assert restarted.counts() == (1, 1)
    restarted.value(sharing, X)
    assert restarted.counts() == (1, 1)


def test_what_a_client_has_for_itself_is_forgotten_with_the_rest(
    open_beside: OpenHarness,
) -> None:
    """A function whose fingerprint is in doubt goes by a key that its client does not know."""
    harness, source = open_beside(), Source(lambda x: x + 1)
    source.fingerprint = b"f" * 16
    source.manifest = FunctionManifest(source.fingerprint)
    source.key = function_key(source.fingerprint, source.options)
    harness.value(source, X)
    (executable,) = harness.executables.all()
    assert executable.key != source.key
    assert ask(harness, "forget", source.key) == {"executables": 1}
    assert harness.executables.all() == []


def _by_5(y: Any) -> Any:
    """The same program under another name."""
    return y * 5


def test_what_is_only_on_disk_is_forgotten_too(open_beside: OpenHarness) -> None:
    """And counted, each signature once."""
    source = Source(lambda x: x + 1)
    first = open_beside()
    first.value(source, X)
    first.value(source, X[:2])
    assert first.program_cache is not None
    first.program_cache.flush()
    second = open_beside()
    second.value(source, X)
    assert ask(second, "forget", source.key) == {"executables": 2}
    assert ask(second, "forget", source.key) == {"executables": 0}


def test_without_a_disk_some_are_answered(open_beside: OpenHarness) -> None:
    """The others say what is missing."""
    harness = open_beside(None)
    source = Source(lambda x: x + 1)
    harness.value(source, X)
    assert len(ask(harness, "functions")["functions"]) == 1
    assert ask(harness, "forget", source.key) == {"executables": 1}
    with pytest.raises(ConfigurationError, match="keeps nothing on disk"):
        ask(harness, "recipes", "")


REFUSED: list[tuple[str, tuple[Any, ...]]] = [
    ("functions", (1,)),
    ("recipes", (b"",)),
    ("forget", ()),
    ("forget", ("",)),
    ("recent", ()),
    ("recent", ("many",)),
    ("why", (b"k",)),
    ("why", (b"k", None, "nonsense")),
    ("why", (3, None, ("f", b"", b"", (), (), True))),
    ("program", (b"", b"", "all")),
    ("stages", ()),
    ("put", (1, b"", b"", b"")),
    ("put", ("1", b"", b"", b"", ())),
    ("fetch", (7, b"")),
    ("part", (1, 0, 0, 1)),
    ("name", ("n", b"", b"", 7)),
    ("named", ()),
    ("unname", (b"n",)),
    ("values", (1,)),
]


def test_arguments_of_other_types_are_refused() -> None:
    """Of every service: they come from a client."""
    for verb, args in REFUSED:
        with (
            row((verb, args)),
            pytest.raises(
                ProtocolError, match=f"arguments of '{verb}' are not those that it takes"
            ),
        ):
            check_arguments(verb, args)


@pytest.mark.parametrize(("verb", "args"), [("recent", (5,)), ("why", (b"k",))])
def test_inquiries_are_answered_and_count_nothing(
    open_beside: OpenHarness, verb: str, args: tuple[Any, ...]
) -> None:
    """While the server drains as well; one that cannot be read has an error for an answer."""
    harness = open_beside(None)
    harness.admission.drain()
    harness.counters._last_activity -= 100.0
    if verb == "recent":
        assert ask(harness, verb, *args) == {"decisions": []}
    else:
        with pytest.raises(ProtocolError):
            ask(harness, verb, *args)
    assert harness.counters.idle_s >= 100.0


class Gate:
    """An inventory that waits until it is let go."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def inventory(self, *_: object) -> dict[str, Any]:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return {"functions": []}


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """In place of what answers `functions`."""
    gate = Gate()
    monkeypatch.setattr(jaxd_server.rpc.services.admin, "inventory", gate.inventory)
    return gate


def test_an_operation_runs_like_a_call(open_beside: OpenHarness, gate: Gate) -> None:
    """It is shown and ends idleness; a drain waits for it, and refuses others."""
    harness = open_beside(None)
    answers: list[Any] = []
    asked = start(lambda: answers.append(ask(harness, "functions")))
    assert gate.entered.wait(PATIENCE_S)
    assert [one["function"] for one in harness.admission.running()] == ["(functions)"]
    drained = start(harness.admission.drain)
    until(lambda: harness.admission.draining)
    with pytest.raises(ServerDraining):
        ask(harness, "recipes", "")
    assert drained.is_alive()
    harness.counters._last_activity -= 100.0
    gate.opened.set()
    join([asked, drained])
    assert answers == [{"functions": []}]
    assert harness.counters.idle_s < 100.0


# over the wire ----------------------------------------------------------------------------------


@pytest.fixture
def in_process_server(
    open_in_process_server: Callable[..., InProcessServer], runtime: Path
) -> InProcessServer:
    """A whole worker, with a disk."""
    return open_in_process_server(cache_dir=str(runtime / "cache"))


def answer_of(reply: Any) -> Any:
    """What a JSON answer says."""
    return json.loads(reply[0])


def test_every_operation_is_answered_over_the_wire(in_process_server: InProcessServer) -> None:
    """To whoever asks, after a call."""
    source = Source(lambda x: x + 1)
    peer = in_process_server.peer(source)
    mark = json.loads(peer.request("recipes", ("",))[0][0])["mark"]
    peer.call(X)
    assert len(answer_of(peer.request("functions", ()))["functions"]) == 1
    (_, *messages), buffers = peer.request("recipes", (mark,))
    assert load_recipes(messages, buffers)[0].code == bytes(source.code_)
    assert answer_of(peer.request("forget", (source.key,))) == {"executables": 1}
    until(lambda: in_process_server.parts._worker_context.budget.calls == 0)


def test_an_error_comes_as_that_of_a_call(in_process_server: InProcessServer) -> None:
    """Also that of arguments which no client of jaxd's sends."""
    peer = in_process_server.peer(Source(lambda x: x + 1))
    (kind, failure), _ = peer.request("forget", ("",))
    assert kind == FAILED
    with pytest.raises(ProtocolError, match="arguments of 'forget' are not those that it takes"):
        raise decode_failure(failure)


@pytest.mark.parametrize(
    ("verb", "args", "answer"),
    [("functions", (), {"functions": []}), ("recent", (2,), {"decisions": []})],
)
def test_an_operation_that_takes_long_holds_up_nobody(
    in_process_server: InProcessServer,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    args: tuple[Any, ...],
    answer: dict[str, Any],
) -> None:
    """Calls and questions on the same connection are answered meanwhile."""
    build_log = in_process_server.parts.pipeline.build_log
    monkeypatch.setattr(build_log, "recent", lambda *_: gate.inventory()["functions"])
    client = in_process_server.client()
    answers: list[Any] = []
    asked = start(lambda: answers.append(client.caller.session.ask(verb, *args)))
    assert gate.entered.wait(PATIENCE_S)
    double = client.persistent_call(lambda x: x * 2)
    assert [float(double(1.0)), float(double(2.0))] == [2.0, 4.0]
    assert client.statistics().calls == 2
    if verb == "functions":  # others are no operations
        assert in_process_server.parts.status.now()["idle_s"] == 0.0
        assert in_process_server.parts._worker_context.budget.calls == 1
    gate.opened.set()
    join([asked])
    assert answers == [answer]


def test_what_is_kept_is_counted_in_the_status(in_process_server: InProcessServer) -> None:
    """Programs, files and bytes, beside what was paid and saved."""
    first, second = in_process_server.client(), in_process_server.client()
    before = in_process_server.parts.status.now()
    assert (before["programs"], before["executables"]) == (0, 0)
    first.persistent_call(lambda x: x * 7)(X)
    second.persistent_call(lambda y: y * 7)(X)
    assert in_process_server.parts.pipeline.program_cache is not None
    in_process_server.parts.pipeline.program_cache.flush()
    seen = first.statistics()
    assert (seen.executables, seen.programs, seen.programs_shared) == (2, 1, 1)
    assert (seen.lowers, seen.compiles, seen.executable_loads) == (2, 1, 0)
    assert seen.disk_files >= 8  # code, function and call of each, one program, one environment
    assert seen.disk_bytes >= 4096 * seen.disk_files
    assert seen.trace_s > 0
    assert seen.compile_s > 0
