"""The rows of `jaxd functions`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from jaxd_protocol.jit.options import Options
from jaxd_server.rpc.services.inventory import arguments_text, inventory
from jaxd_server.rpc.sessions import Session
from tests.server.in_process import PipelineHarness, Source, encode
from tests.server.rpc.services.conftest import OpenHarness

X: Any = np.arange(6, dtype=np.float32)


def report(harness: PipelineHarness) -> dict[str, Any]:
    """The answer to `functions`, once all is on disk."""
    if harness.program_cache is not None:
        harness.program_cache.flush()
    return inventory(harness.pipeline)


def only_row(harness: PipelineHarness) -> dict[str, Any]:
    """The one that there is."""
    (row,) = report(harness)["functions"]
    found: dict[str, Any] = row
    return found


ROW = {
    *("name", "key", "arguments", "state", "build_s", "load_s", "calls", "last_use_s"),
    *("host_bytes", "device_bytes", "disk_bytes", "saved_s", "shared_with"),
}


def test_an_executable_in_memory_has_a_row(open_beside: OpenHarness) -> None:
    """That it is on disk as well makes no other one."""
    harness = open_beside()
    source = Source(lambda x, y: x + y)
    harness.value(source, X, 1.0)
    harness.value(source, X, 1.0)
    row = only_row(harness)
    assert set(row) == ROW
    assert (row["name"], row["key"]) == ("<lambda>", source.key.hex())
    assert (row["arguments"], row["state"]) == ("x: float32[6], y: float", "memory")
    assert (row["calls"], row["load_s"], row["shared_with"]) == (2, 0.0, 0)
    assert row["build_s"] > 0
    assert row["last_use_s"] >= 0
    assert row["disk_bytes"] >= 2 * 4096


def test_an_executable_on_disk_has_a_row(open_beside: OpenHarness) -> None:
    """After a restart; once it is called, the row is that of memory."""
    source = Source(lambda x: x + 1)
    first = open_beside()
    first.value(source, X)
    before = only_row(first)
    second = open_beside()
    on_disk = only_row(second)
    assert set(on_disk) == ROW
    same = ("name", "key", "arguments", "build_s", "disk_bytes")
    assert [on_disk[name] for name in same] == [before[name] for name in same]
    assert (on_disk["state"], on_disk["calls"], on_disk["host_bytes"]) == ("disk", 0, 0)
    assert on_disk["last_use_s"] >= 0
    second.value(source, X)
    loaded = only_row(second)
    assert [loaded[name] for name in same] == [before[name] for name in same]
    assert (loaded["state"], loaded["calls"]) == ("memory", 1)
    assert loaded["load_s"] > 0


def test_looking_at_what_is_on_disk_is_no_use_of_it(open_beside: OpenHarness) -> None:
    """Else nothing would ever be swept."""
    first = open_beside()
    first.value(Source(lambda x: x + 1), X)
    report(first)
    again = open_beside()
    report(again)
    assert again.program_cache is not None
    assert again.program_cache.store._touched == {}


def test_functions_with_the_same_program_are_said_to_share_it(open_beside: OpenHarness) -> None:
    """Its bytes count once in the totals."""
    harness = open_beside()
    harness.value(Source(lambda x: x * 5), X)
    harness.value(Source(lambda y: y * 5), X)
    found = report(harness)
    assert [row["shared_with"] for row in found["functions"]] == [1, 1]
    assert (found["totals"]["executables"], found["totals"]["programs"]) == (2, 1)
    program = next(iter(harness.executables.all())).program
    assert found["totals"]["host_bytes"] == program.host_bytes


def test_totals_are_those_of_the_worker(open_beside: OpenHarness) -> None:
    """What was paid and what was saved by the hits of other processes."""
    harness = open_beside()
    source = Source(lambda x: x + 1)
    for number in range(3):
        harness.answer(source.call([X], session=Session(str(number), "uid:1")))
    found = report(harness)
    totals, (row,) = found["totals"], found["functions"]
    counts = harness.counters.snapshot()
    assert set(totals) == {
        *("executables", "programs", "on_disk", "calls", "build_s", "trace_s", "compile_s"),
        *("load_s", "saved_s", "host_bytes", "device_bytes", "disk_bytes"),
    }
    assert totals["build_s"] == pytest.approx(counts["trace_s"] + counts["compile_s"], abs=1e-5)
    assert totals["saved_s"] == pytest.approx(2 * row["build_s"], abs=1e-5)
    assert row["saved_s"] == pytest.approx(totals["saved_s"], abs=1e-5)
    assert (totals["calls"], totals["on_disk"]) == (3, 1)
    assert totals["disk_bytes"] > row["disk_bytes"]  # code, function and environment too


def test_what_cannot_be_kept_is_not_said_to_be_on_disk(open_beside: OpenHarness) -> None:
    """A note that there is an obstacle is no program, although it is a file; nor without a disk."""

    def printing(x: Any) -> Any:
        jax.debug.callback(lambda: None)
        return x

    for folder in ("cache", None):
        harness = open_beside(folder)
        harness.value(Source(printing), X)
        found = report(harness)
        (row,) = found["functions"]
        assert (row["state"], row["disk_bytes"], found["totals"]["on_disk"]) == ("memory", 0, 0)
        assert row["arguments"] == "x: float32[6]"
        assert harness.executables.all()[0].kept_as == b""
    assert report(open_beside())["functions"] == []


def test_arguments_in_words() -> None:
    """Static ones by value, trees by kind and size; garbage is not an error."""
    options = Options(static_argnames=("n",))
    source = Source(lambda x, tree, n: x, options)
    call = source.call([X, {"a": 1, "b": 2}, 3])
    assert arguments_text(call.skeleton, ("x", "tree", "n")) == (
        "x: float32[6], tree: dict of 2, n: 3"
    )
    assert arguments_text(encode([X])[0], ()) == "0: float32[6]"
    assert arguments_text(b"\xff", ()) == "?"
