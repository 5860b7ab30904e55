"""What a worker shows of itself; see also tests/end_to_end/test_watch.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from jaxd_protocol.messages.server_view import ServerView
from jaxd_server.execution import pipeline as pipeline_module
from jaxd_server.processes.worker import view as view_module
from jaxd_server.rpc.services import inventory
from tests.server.staging import until

if TYPE_CHECKING:
    from jaxd_server.processes.worker.view import WorkerView
    from tests.server.in_process import InProcessServer


pytestmark = pytest.mark.filterwarnings("ignore::jaxd.errors.CompileAdvice")


@pytest.fixture
def view(in_process_server: InProcessServer, monkeypatch: pytest.MonkeyPatch) -> WorkerView:
    """The view of a worker in this process, which may be collected as often as a test likes."""
    monkeypatch.setattr(view_module, "LEAST_AGE_S", 0.0)
    return in_process_server.parts.view


def whole(view: WorkerView) -> ServerView:
    """All that there is to see now."""
    content: dict[str, Any] = view.news(0, "", most=1_000_000)["view"]
    return ServerView.from_dict(content)


def made_by(view: WorkerView) -> int:
    """How many rows of functions and programs a collection makes."""
    before = view.programs.made
    view.news(0, "")
    return view.programs.made - before


@pytest.mark.slow
def test_only_rows_of_what_was_used_are_made(
    in_process_server: InProcessServer, view: WorkerView
) -> None:
    """However many programs there are, and however often they were called."""
    client = in_process_server.client()
    functions = [client.persistent_call(lambda x, n=n: x + n) for n in range(20)]
    for function in functions:
        function(1.0)
    assert made_by(view) == 40
    assert made_by(view) == 0
    for _ in range(5):
        functions[3](1.0)
    assert made_by(view) == 2
    rows = whole(view).programs.values()
    assert sorted(row.calls for row in rows) == [*[1] * 19, 6]


def test_a_function_is_counted_by_the_time_of_its_calls(
    in_process_server: InProcessServer, view: WorkerView
) -> None:
    """Each call that a ready program answers is in one class of the histogram."""
    client = in_process_server.client()

    def scale(x: Any) -> Any:
        return x * 3

    function = client.persistent_call(scale)
    for _ in range(4):
        function(1.0)
    (row,) = whole(view).functions.values()
    assert (row.name.rpartition(".")[2], row.programs, row.compiled) == ("scale", 1, 1)
    assert (row.hits, sum(row.latency)) == (3, 3)
    assert "test_view.py" in row.where
    assert row.run_s > 0 < row.built_s
    (program,) = whole(view).programs.values()
    assert (program.state, program.arguments, program.calls) == ("memory", "x: float", 4)


def test_programs_that_are_dropped_go_from_the_table(
    in_process_server: InProcessServer, view: WorkerView
) -> None:
    """Those that are not on disk either; their function stays, with what it has done."""
    client = in_process_server.client()
    function = client.persistent_call(lambda x: x + 1)
    function(1.0)
    assert len(whole(view).programs) == 1
    in_process_server.parts.pipeline.executables.reclaim(1)
    assert whole(view).programs == {}
    (row,) = whole(view).functions.values()
    assert (row.programs, row.compiled) == (0, 1)


@pytest.mark.slow
def test_more_touched_programs_than_are_noted_are_found_as_well(
    in_process_server: InProcessServer, view: WorkerView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are made then."""
    client = in_process_server.client()
    functions = [client.persistent_call(lambda x, n=n: x + n) for n in range(6)]
    for function in functions:
        function(1.0)
    whole(view)
    pipeline = in_process_server.parts.pipeline
    monkeypatch.setattr(inventory, "MAX_TOUCHED", 4)
    monkeypatch.setattr(pipeline, "touched", type(pipeline.touched)(maxlen=4))
    for function in functions:
        function(1.0)
    assert [row.calls for row in whole(view).programs.values()] == [2] * 6
    assert pipeline_module.MAX_TOUCHED > 4


def test_a_builds_row_says_when_and_why(
    in_process_server: InProcessServer, view: WorkerView
) -> None:
    """And one that failed, of what kind the error was."""
    client = in_process_server.client()

    def fails(x: Any) -> Any:
        raise ZeroDivisionError

    client.persistent_call(lambda x: x + 1)(1.0)
    with pytest.raises(ZeroDivisionError):
        client.persistent_call(fails)(1.0)
    made, failed = whole(view).builds.values()
    assert (made.verdict, made.arguments) == ("compile", "x: float")
    assert made.reason
    assert made.queued <= made.started <= made.finished
    assert (failed.verdict, failed.reason) == ("failed", "ZeroDivisionError")


def test_what_was_built_is_not_held_by_its_row(in_process_server: InProcessServer) -> None:
    """The table of builds is no reason to keep a program in memory."""
    client = in_process_server.client()
    client.persistent_call(lambda x: x + 1)(1.0)
    (record,) = in_process_server.parts.pipeline.build_log.records
    assert record.build is None


def test_values_are_shown_by_holder(in_process_server: InProcessServer, view: WorkerView) -> None:
    """The largest with their shapes; the contents nowhere."""
    client = in_process_server.client()
    held = client.put((np.full(1000, 7.25, "f4"), np.zeros((2, 3), "f4")))
    client.put(np.zeros(4), name="kept")
    rows = {row.kind: row for row in whole(view).values.values()}
    assert rows["name"].holder == "kept"
    assert (rows["session"].count, rows["session"].nbytes) == (2, 4024)
    assert rows["session"].largest == ("float32[1000]", "float32[2,3]")
    assert rows["session"].largest_nbytes == (4000, 24)
    del held


def test_nothing_changes_while_nothing_happens(
    in_process_server: InProcessServer, view: WorkerView
) -> None:
    """Not a number, so nothing is sent."""
    client = in_process_server.client()
    function = client.persistent_call(lambda x: x + 1)
    function(1.0)
    function(1.0)

    def is_quiet() -> bool:
        first = view.news(0, "")
        again = view.news(first["view"]["sequence"], first["source"])
        return set(again["change"]) <= {"sequence", "workers", "at"}  # memory of this process

    until(is_quiet)  # what is counted behind the reply comes a moment later
