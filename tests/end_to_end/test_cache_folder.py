"""The folder of the cache: removed, refused, full, shared, of another target."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from jaxd import connect
from jaxd_server.cache.record_file import read_header
from tests.end_to_end.counting import BUILT, LOADED, WARM, costs, records, warnings_of
from tests.end_to_end.steps import SHARED, Steps, X, kill
from tests.live_server import LiveServer
from tests.xla_flags import devices

StartLive = Callable[..., LiveServer]

# Many programs of one function are what is wanted here.
pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice"),
]


def test_the_folder_is_removed_under_a_server(start_live: StartLive, runtime: Path) -> None:
    """What is made afterwards is kept again. What was loaded before cannot be written again."""
    steps = Steps()
    server = start_live()
    with connect(server.unix) as client:
        assert steps.cost(client, 2)[0] == BUILT
        steps.settle(client)
        kill(server)
        assert steps.cost(client, 2)[0] == LOADED
        shutil.rmtree(runtime / "cache")
        assert steps.cost(client, 2)[0] == WARM
        twin = client.persistent_call(lambda x: x * 2 + 0.5)
        for name, cost in (("before", SHARED), ("after", BUILT), ("later", LOADED)):
            with costs(client) as spent:
                np.testing.assert_array_equal(twin(X), X * 2 + 0.5)
            assert (name, spent) == (name, cost)
            assert steps.cost(client, 3)[0] == (BUILT if name == "before" else LOADED)
            steps.settle(client)
            if name != "later":
                kill(server)
    assert warnings_of(server) == []


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


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Within it that process cannot write files of more than a block."""
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (512, before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


def test_a_full_disk(start_live: StartLive) -> None:
    """Calls are answered, one warning is given; what is made when there is room is kept."""
    steps, server = Steps(), start_live()
    with connect(server.unix) as client:
        assert steps.cost(client, 2)[0] == BUILT
        steps.settle(client)
        with full_disk(server.worker_pid()):
            for number in (3, 4):
                assert steps.cost(client, number)[0] == BUILT
            steps.settle(client)
        assert warnings_of(server) == ["cache_not_written"]
        assert steps.cost(client, 5)[0] == BUILT
        steps.settle(client)
        kill(server)
        assert [steps.cost(client, number)[0] for number in (2, 3, 5)] == [LOADED, BUILT, LOADED]


def test_a_kill_right_after_a_call(start_live: StartLive, runtime: Path) -> None:
    """Maybe in the middle of a file: the next worker loads what is whole, and serves it right."""
    steps, server = Steps(), start_live()
    with connect(server.unix) as client:
        for number in (2, 3):
            for each in range(number, 24, 2):
                assert steps.cost(client, each)[0] == BUILT
            kill(server)
            for each in range(number, 24, 2):
                assert steps.cost(client, each)[0] in (BUILT, LOADED, SHARED)
    assert warnings_of(server) == []
    assert server.close() == 0
    for path in records(runtime):
        read_header(str(path), check=True)


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
