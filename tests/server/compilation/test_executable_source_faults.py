"""Records on disk that are broken, or no longer right: nothing wrong is served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.server.costs import BUILT, LOADED, SHARED, counts, double
from tests.server.in_process import PipelineHarness, Source

Open = Callable[..., PipelineHarness]

X = np.arange(5, dtype=np.float32)


def damage(harness: PipelineHarness, kind: str) -> None:
    """Flips a bit in each record of a kind, where nobody holds them."""
    assert harness.program_cache is not None
    harness.program_cache.flush()
    files = list(Path(harness.program_cache.store.folder, kind).iterdir())
    assert files
    for file in files:
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)


def spoil(harness: PipelineHarness, kind: Any) -> None:
    """Writes something whole, but senseless, in place of each record of a kind."""
    assert harness.program_cache is not None
    harness.program_cache.flush()
    store = harness.program_cache.store
    names = store.names(kind)
    assert names
    for name in names:
        store.write(kind, name, ("sense", 3), b"less")


BROKEN = {
    "functions": (LOADED, ["describe", "code"]),  # asked for again, and then it is found
    "calls": (SHARED, []),
    "environments": (SHARED, []),
    "programs": (BUILT, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("spoiler", [damage, spoil])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_record_costs_what_it_held(
    open_harness: Open, warned: Callable[[], list[str]], kind: str, spoiler: Any
) -> None:
    """The result is right, one warning is in the log, and the next process has it again."""
    harness = open_harness()
    expected = harness.value(Source(double), X).tolist()
    spoiler(harness, kind)
    expected_counts, asked = BROKEN[kind]
    harness, source = open_harness(), Source(double)
    assert harness.value(source, X).tolist() == expected
    assert counts(harness) == expected_counts
    assert source.asked in (asked, [each for each in asked if each == "describe"])
    assert len(warned()) == 1
    harness, source = open_harness(), Source(double)
    assert harness.value(source, X).tolist() == expected
    assert counts(harness) == LOADED
    assert source.asked == []
    assert len(warned()) == 1


@pytest.mark.slow
def test_code_on_disk_that_means_something_else_by_now_is_asked_for_again(
    open_harness: Open,
) -> None:
    """What was kept of the function goes, and its client says anew what it means."""
    harness = open_harness()
    source = Source(double)
    harness.value(source, X)
    assert harness.program_cache is not None
    harness.program_cache.keep_code(source.fingerprint, bytes(Source(lambda x: -x).code_))
    harness, source = open_harness(), Source(double)
    assert harness.value(source, X[:2]).tolist() == [17, 19]
    assert source.asked == ["describe", "code"]
    assert counts(harness) == BUILT
    harness, source = open_harness(), Source(double)
    harness.value(source, X[:2])
    assert (counts(harness), source.asked) == (LOADED, [])


@pytest.mark.slow
def test_a_program_that_was_loaded_and_does_not_run_is_made_again(
    open_harness: Open, warned: Callable[[], list[str]]
) -> None:
    """In the same call, and the next process loads the new one."""
    source = Source(double)
    right = open_harness().value(source, X)
    harness = open_harness()
    harness.value(source, X)
    (executable,) = harness.executables.all()

    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("NOT_FOUND: Function fusion not found")

    executable.program.call = broken
    np.testing.assert_array_equal(harness.value(source, X), right)
    assert counts(harness) == BUILT | {"executable_loads": 1}
    assert warned() == ["program_broken"]
    again = open_harness()
    again.value(source, X)
    assert counts(again) == LOADED


@pytest.mark.slow
def test_a_program_that_does_not_run_stays_on_disk_until_there_is_another(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been the device that failed; then the file is as good as before."""
    source = Source(double)
    open_harness().value(source, X)
    harness = open_harness()
    harness.value(source, X)
    (executable,) = harness.executables.all()
    program_cache = harness.program_cache
    assert program_cache is not None

    def broken(*_: Any, **__: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is gone")

    executable.program.call = broken
    with monkeypatch.context() as patched:
        patched.setattr(harness.compiler, "compile", broken)
        with pytest.raises(Exception, match="the device is gone"):
            harness.value(source, X)
    file = Path(program_cache.store.folder, "programs", executable.program.id.hex())
    before = file.stat().st_mtime_ns, file.read_bytes()
    harness.value(source, X)  # which compiles, and replaces it
    program_cache.flush()
    assert counts(harness)["compiles"] == 1
    assert (file.stat().st_mtime_ns, file.read_bytes()) != before
    again = open_harness()
    again.value(source, X)
    assert counts(again) == LOADED


def test_what_was_compiled_here_and_does_not_run_fails(open_harness: Open) -> None:
    """It would not run any better the second time."""
    harness, source = open_harness(), Source(double)
    harness.value(source, X)
    (executable,) = harness.executables.all()

    def broken(*_: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: no")

    executable.program.call = broken
    with pytest.raises(Exception, match="INTERNAL: no"):
        harness.value(source, X)
