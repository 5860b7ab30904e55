"""Who has which program, and what it costs: counted lowerings, compilations and loads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from jaxd_protocol.jax_objects.program_bytes import Serialized
from jaxd_protocol.jit.options import Options
from jaxd_server.compilation import program_source
from jaxd_server.compilation.compiling.build_request import BuildRequest
from jaxd_server.compilation.compiling.compiler import Compiled, Compiler, LoweredFunction
from jaxd_server.compilation.compiling.program import Program
from jaxd_server.compilation.disk_cache.programs import NotStored
from jaxd_server.compilation.eviction import Limits
from jaxd_server.compilation.program_source import Preloader
from jaxd_server.jax_compat import programs as jax_programs
from jaxd_server.jax_compat.programs import Loaded, serialized
from jaxd_server.runtime.counters import Counters
from jaxd_server.runtime.events import SILENT
from tests.server.builds import live_executables
from tests.server.costs import BUILT, LOADED, SHARED, counts, double
from tests.server.in_process import PipelineHarness, Source
from tests.server.staging import PATIENCE_S, at_once, join, start, until, waiting

Open = Callable[..., PipelineHarness]

X = np.arange(5, dtype=np.float32)


def twice(y: Any) -> Any:
    """The same program under another name."""
    doubled = y * 2
    return doubled + 17


def test_a_renamed_function_shares_the_program(harness: PipelineHarness) -> None:
    """It is traced and lowered, not compiled, and takes no memory of its own."""
    gc.collect()
    before = live_executables()
    first, second = Source(double), Source(twice)
    assert first.key != second.key
    expected = harness.value(first, X).tolist()
    assert counts(harness) == BUILT
    assert harness.value(second, X).tolist() == expected
    assert counts(harness) == {**BUILT, "traces": 2, "lowers": 2, "programs_shared": 1}
    assert live_executables() == before + 1
    assert (len(harness.executables), len(harness.maker.programs.known._programs)) == (2, 1)


@pytest.mark.slow
def test_a_renamed_function_finds_the_program_of_an_earlier_process(open_harness: Open) -> None:
    """Traced and lowered once; the process after that loads it under both names."""
    expected = open_harness().value(Source(double), X).tolist()
    harness = open_harness()
    assert harness.value(Source(twice), X).tolist() == expected
    assert counts(harness) == SHARED
    harness = open_harness()
    for function in (double, twice):
        source = Source(function)
        assert harness.value(source, X).tolist() == expected
        assert source.asked == []
    assert counts(harness) == {**LOADED, "executable_loads": 2}
    assert len(harness.maker.programs.known._programs) == 1


@pytest.mark.parametrize(("limits", "loaded"), [(Limits(400), {5}), (Limits(400, 1), {1, 2, 3, 4})])
def test_programs_that_were_read_ahead_are_given_up(
    limits: Limits, loaded: set[int], open_harness: Open
) -> None:
    """Where memory is short; and no more are read than have room, but for one in each thread."""
    harness = open_harness()
    for number in range(6):
        harness.value(Source(lambda x, n=number: x * 3 + n), X)
    harness = open_harness()
    programs = harness.maker.programs
    preloader = Preloader(programs, harness.program_cache, 5, limits, list, lambda: None)
    preloader.start()
    until(lambda: "jaxd-preload" not in [thread.name for thread in threading.enumerate()])
    count = len(preloader)
    assert count in loaded
    given_up = preloader.shrink()
    assert given_up == (0 if limits.host_bytes > 1 else count)
    assert preloader.reclaim(1) == min(1, count - given_up)
    assert preloader.reclaim(8) == max(0, count - given_up - 1)
    gc.collect()
    assert len(programs.known._programs) == 0


def test_equal_functions_that_come_together_compile_once(open_harness: Open) -> None:
    """Also when all of them look on disk first."""
    harness = open_harness(builds=8)
    sources = []
    for index in range(8):
        scope: dict[str, Any] = {}
        exec(f"def step_{index}(x):\n    return x * 3 - 11", scope)
        sources.append(Source(scope[f"step_{index}"]))
    outcomes = at_once(8, lambda index: harness.value(sources[index], X).tolist())
    assert outcomes == [(X * 3 - 11).tolist()] * 8
    assert counts(harness) == {**BUILT, "traces": 8, "lowers": 8, "programs_shared": 7}


def test_whoever_waits_for_a_look_on_disk_compiles(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That somebody else has found nothing there is no answer for a call."""
    harness = open_harness()
    program_cache = harness.program_cache
    assert program_cache is not None
    monkeypatch.setattr(program_cache, "program", _absent)
    programs = harness.maker.programs.known
    obtained: list[bytes] = []
    obtain = programs.obtain

    def disturbed(name: bytes, make: Callable[[], Program]) -> Program:
        """Begins a look on disk just before the first build asks; it ends while that waits."""
        obtained.append(name)
        if len(obtained) > 1:
            return obtain(name, make)
        looking, release = threading.Event(), threading.Event()

        def program(*_: Any) -> Program:
            looking.set()
            assert release.wait(PATIENCE_S)
            raise NotStored

        monkeypatch.setattr(program_cache, "program", program)
        thread = start(harness.maker.programs.stored, name, 0)
        assert looking.wait(PATIENCE_S)
        monkeypatch.setattr(program_cache, "program", _absent)
        (flight,) = programs._flights._flights.values()

        def let_go() -> None:
            until(lambda: waiting(flight._condition) == 1)
            release.set()

        threads = [thread, start(let_go)]
        try:
            return obtain(name, make)
        finally:
            join(threads)

    monkeypatch.setattr(programs, "obtain", disturbed)
    assert harness.value(Source(double), X).tolist() == (X * 2 + 17).tolist()
    assert counts(harness) == BUILT


def _absent(*_: Any) -> Program:
    raise NotStored


class _Beside:
    """A `BuildPolicy` that has everything compiled elsewhere, as far as anybody can tell.

    Attributes:
        made: the bytes of each program.
    """

    def __init__(self) -> None:
        self.made: list[Serialized] = []

    def remote_build(self, request: BuildRequest) -> None:
        """Traced here."""

    def compiled_there(self, request: BuildRequest, lowered: LoweredFunction) -> LoweredFunction:
        def compile_it(device: int) -> Compiled:
            compiler = Compiler(Counters(), 1)
            program = compiler.compile(lowered, "it", Options(), SILENT, device)
            compiler.close()
            self.made.append(serialized(program.compiled, program.devices))
            return Compiled(self.made[-1], program.compile_s, program.is_bound)

        elsewhere = SimpleNamespace(
            compile=compile_it, hand_over=lambda: lowered.lowered, loaded=lambda seconds: None
        )
        return replace(lowered, elsewhere=cast("Any", elsewhere))


def test_what_was_compiled_elsewhere_is_kept_as_it_came(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was loaded is written; the next process loads the same bytes."""
    harness, beside = open_harness(), _Beside()
    harness.maker._building = cast("Any", beside)
    expected = harness.value(Source(double), X).tolist()
    assert expected == (X * 2 + 17).tolist()
    (executable,) = harness.executables.all()
    program = executable.program
    assert isinstance(program.compiled, Loaded)
    program_cache = harness.program_cache
    assert program_cache is not None
    program_cache.flush()
    record = program_cache.store.read("programs", program.id)
    assert record is not None
    assert record.payload == beside.made[0].data
    assert program.written is None
    monkeypatch.setattr(jax_programs, "serialize", _absent)
    harness = open_harness()
    assert harness.value(Source(double), X).tolist() == expected
    assert counts(harness) == LOADED


def test_a_program_of_a_function_without_a_lasting_name_is_kept_for_one_that_has_one(
    open_harness: Open,
) -> None:
    """Nothing but what the builder has sent can be written, so that is at hand."""
    harness = open_harness()
    harness.maker._building = cast("Any", _Beside())
    nameless = Source(twice)
    nameless.manifest = nameless.manifest._replace(shared=False)
    expected = harness.value(nameless, X).tolist()
    assert harness.value(Source(double), X).tolist() == expected
    assert counts(harness) == {**BUILT, "traces": 2, "lowers": 2, "programs_shared": 1}
    harness = open_harness()
    assert harness.value(Source(double), X).tolist() == expected
    assert counts(harness) == LOADED


def test_what_cannot_be_loaded_is_compiled_here(
    open_harness: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is answered all the same."""
    harness = open_harness()
    harness.maker._building = cast("Any", _Beside())
    monkeypatch.setattr(program_source, "load", _absent)
    assert harness.value(Source(double), X).tolist() == (X * 2 + 17).tolist()
    assert counts(harness) == BUILT
