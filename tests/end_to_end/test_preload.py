"""Programs that a worker reads from the disk before a call asks for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd import connect
from tests.end_to_end.counting import BUILT, LOADED, WARM, records, warnings_of
from tests.end_to_end.steps import Steps, X, kill
from tests.live_server import LiveServer

StartLive = Callable[..., LiveServer]


def remove_programs(directory: Path) -> None:
    """What is not in memory has to be compiled after that."""
    for path in records(directory, "programs"):
        path.unlink()


@pytest.mark.slow
def test_what_was_used_last_is_ready_when_a_call_comes(
    start_live: StartLive, runtime: Path
) -> None:
    """In this worker and those after it, although its files are gone by then."""
    steps, server = Steps(), start_live("--preload", "3")
    with connect(server.unix) as client:
        for number in (2, 3, 4):
            assert steps.cost(client, number)[0] == BUILT
        steps.settle(client)  # its own program is the last one
        kill(server)
        server.wait_for("preloaded", 1, programs=3)
        assert steps.cost(client, 2)[0] == LOADED  # from the disk: it was used before the others
        steps.settle(client)
        kill(server)
        server.wait_for("preloaded", 2, programs=3)
        remove_programs(runtime)
        assert [steps.cost(client, number)[0] for number in (2, 4, 3)] == [LOADED, LOADED, BUILT]
        assert steps.cost(client, 2)[0] == WARM
    assert warnings_of(server) == []


@pytest.mark.slow
def test_a_damaged_program_is_passed_over(start_live: StartLive, runtime: Path) -> None:
    """Another one is loaded in its place, and a call has it made anew."""
    steps, server = Steps(), start_live("--preload", "1")
    with connect(server.unix) as client:
        client.persistent_call(steps.make(2)).warm(X)
        sound = set(records(runtime, "programs"))
        client.persistent_call(steps.make(3)).warm(X)
        for path in {*records(runtime, "programs")} - sound:
            content = bytearray(path.read_bytes())
            content[-1] ^= 255
            path.write_bytes(content)
        kill(server)
        server.wait_for("preloaded", 1, programs=1)
        remove_programs(runtime)
        assert [steps.cost(client, number)[0] for number in (2, 3)] == [LOADED, BUILT]


@pytest.mark.slow
def test_there_is_nothing_to_preload_without_a_cache(start_live: StartLive) -> None:
    """Which the log says; calls are answered."""
    server = start_live("--preload", "3", "--cache-dir", "none")
    server.wait_for("preload_refused")
    with connect(server.unix) as client:
        assert Steps().cost(client, 2)[0] == BUILT
