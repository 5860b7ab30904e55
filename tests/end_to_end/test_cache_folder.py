"""The folder of the cache: removed, refused, full, shared, of another target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd import connect
from tests.end_to_end.counting import BUILT, LOADED, records, warnings_of
from tests.end_to_end.steps import Steps, X, kill
from tests.live_server import LiveServer
from tests.xla_flags import devices

StartLive = Callable[..., LiveServer]

# Many programs of one function are what is wanted here.
pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]


def test_a_folder_that_others_can_write_is_refused(start_live: StartLive, runtime: Path) -> None:
    """One warning; the server works without, and puts nothing there."""
    root = runtime / "cache" / "jaxd"
    root.mkdir(parents=True, mode=0o700)
    root.chmod(0o777)
    steps, server = Steps(), start_live()
    with connect(server.unix) as client:
        assert steps.cost(client, 2)[0] == BUILT
        kill(server)
        assert steps.cost(client, 2)[0] == BUILT
        assert client.persistent_call(steps.make(2)).why(X).verdict == "hit"
    assert warnings_of(server).count("cache_refused") == 2  # of two workers
    (refused, _) = (line for line in server.lines if line["event"] == "cache_refused")
    assert "chmod go-w" in refused["reason"]
    assert list(root.iterdir()) == []


def test_without_a_cache_nothing_is_written(start_live: StartLive, runtime: Path) -> None:
    """Nowhere below the home that the server has."""
    steps, server = Steps(), start_live("--cache-dir", "none", HOME=str(runtime))
    before = sorted(runtime.rglob("*"))
    with connect(server.unix) as client:
        for number in (2, 3):
            assert steps.cost(client, number)[0] == BUILT
        steps.settle(client)
        assert client.persistent_call(steps.make(4)).why(X).verdict == "compile"
    assert sorted(runtime.rglob("*")) == before
    assert warnings_of(server) == []


# the disk -----------------------------------------------------------------------------------------


# other targets ------------------------------------------------------------------------------------


def test_another_target(start_live: StartLive, runtime: Path) -> None:
    """Its programs are not loaded: not from its folder, nor when its files are copied to ours."""
    steps = Steps()
    two = devices(2)
    starts: tuple[tuple[dict[str, str], dict[str, int]], ...] = (
        ({}, BUILT),
        (two, BUILT),
        (two, BUILT),  # after its files were replaced
        ({}, LOADED),
    )
    for turn, (environment, cost) in enumerate(starts):
        server = start_live(name=f"s{turn}", **environment)
        with connect(server.unix) as client:
            assert steps.cost(client, 2)[0] == cost
        assert server.close() == 0
        assert warnings_of(server) == (["cache_broken"] if turn == 2 else [])
        targets = {path.parent.parent for path in records(runtime, "calls")}
        if turn == 0:
            (theirs,) = targets
        if turn == 1:
            (ours,) = targets - {theirs}
            for path in records(runtime, target=theirs.name):
                shutil.copy(path, ours / path.parent.name / path.name)
