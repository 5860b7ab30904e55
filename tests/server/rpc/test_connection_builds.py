"""What becomes of a build when clients come and go, over real connections."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from jaxd_protocol.messages.calls import MAY_REPEAT, OK, WARM
from tests.server.in_process import InProcessServer, Source, read_reply
from tests.server.rpc.test_connection import _pass, make_gate
from tests.server.staging import PATIENCE_S, until

X = np.ones((3, 4), np.float32)


def gated(x: Any) -> Any:
    """Waits at the gate while it is traced."""
    _pass("abandoned", -1.0)
    return x * 5


def double(x: Any) -> Any:
    """Is called in these tests."""
    return x * 2


def counts(in_process_server: InProcessServer) -> tuple[int, int, int]:
    """Traces, compilations and loads so far."""
    found = in_process_server.counters.snapshot()
    return int(found["traces"]), int(found["compiles"]), int(found["executable_loads"])


def test_a_client_that_goes_away_does_not_end_a_build_that_others_wait_for(
    in_process_server: InProcessServer,
) -> None:
    """They get what it had begun."""
    leaving, staying = in_process_server.client(), in_process_server.client()
    entered, release = make_gate("abandoned")
    leaving.persistent_call(gated).submit(np.float32(2))
    assert entered.wait(PATIENCE_S)
    future = staying.persistent_call(gated).submit(np.float32(3))
    (build,) = in_process_server.parts.pipeline.executables._builds._builds.values()
    until(lambda: len(build.waiting) == 2)
    leaving.close()
    release.set()
    assert float(future.result(PATIENCE_S)) == 15.0
    assert counts(in_process_server) == (1, 1, 0)


def test_a_build_whose_only_client_goes_away_is_there_for_the_next(
    in_process_server: InProcessServer,
) -> None:
    """What was begun is ended, since it was paid for."""
    leaving, later = in_process_server.client(), in_process_server.client()
    entered, release = make_gate("abandoned")
    leaving.persistent_call(gated).submit(np.float32(2))
    assert entered.wait(PATIENCE_S)
    leaving.close()
    release.set()
    until(lambda: counts(in_process_server)[1] == 1)
    assert float(later.persistent_call(gated)(np.float32(3))) == 15.0
    assert counts(in_process_server) == (1, 1, 0)


def test_a_call_to_warm_up_travels_without_data(in_process_server: InProcessServer) -> None:
    """Its reply says what was done, and the call itself finds the program."""
    source = Source(double)
    peer = in_process_server.peer(source)
    call = source.call((X,))
    for verdict in ("compile", "hit"):
        message = (call.key, call.skeleton, b"", None, MAY_REPEAT | WARM, b"", b"", b"")
        (kind, told, _), buffers = peer.request("call", message)
        assert (kind, list(buffers)) == (OK, [])
        assert json.loads(told)["verdict"] == verdict
    assert read_reply(peer.call(X), source).tolist() == (2 * X).tolist()
    assert counts(in_process_server) == (1, 1, 0)
    assert in_process_server.counters.snapshot()["calls"] == 1
