from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring
from jax._src import compilation_cache

from jaxd_server.jax_compat.compilation_cache import Compilations, bypassed, install

ONES = np.ones(3, np.float32)
BACKEND_COMPILE = "/jax/core/compile/backend_compile_duration"
SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_persistent_cache_enable_xla_caches",
    "jax_raise_persistent_cache_errors",
)


class Entry(NamedTuple):
    content: Any
    payload: bytes


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, bytes], Entry] = {}
        self.reads = 0

    def read(self, kind: str, name: bytes) -> Entry | None:
        self.reads += 1
        return self.entries.get((kind, name))

    def write(self, kind: str, name: bytes, content: Any, payload: bytes = b"") -> None:
        self.entries[kind, name] = Entry(content, payload)


class Count:
    """What was compiled, and what was found on disk."""

    def __init__(self) -> None:
        self.compiled: list[float] = []
        self.found = 0
        self.threads: set[str] = set()
        self._listener = Compilations(self._on_compile, self._on_disk_hit)

    def _on_compile(self, seconds: float) -> None:
        self.compiled.append(seconds)
        self.threads.add(threading.current_thread().name)

    def _on_disk_hit(self) -> None:
        self.found += 1
        self.threads.add(threading.current_thread().name)

    @property
    def both(self) -> tuple[int, int]:
        return len(self.compiled), self.found

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def count() -> Iterator[Count]:
    """Counts while the test runs."""
    count = Count()
    yield count
    count.close()


@pytest.fixture(autouse=True)
def _jax_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """jax's cache is one for the whole process."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    with monkeypatch.context() as patches:
        for name in ("get_file_cache", "is_cache_used"):
            patches.setattr(compilation_cache, name, getattr(compilation_cache, name))
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def program_cache(tmp_path: Path) -> MemoryStore:
    """A store in which jax keeps what it compiles."""
    program_cache = MemoryStore()
    assert install(program_cache, str(tmp_path / "xla"))
    return program_cache


def run_once(number: float, x: Any = ONES) -> Any:
    """Runs a function that jax has not seen, whose program only the number tells apart."""
    return jax.jit(lambda x: jnp.sin(x) * number)(x)


def test_a_program_is_compiled_once(
    program_cache: MemoryStore, tmp_path: Path, count: Count
) -> None:
    """However quickly that was; all is written through the store, which checks and counts it."""
    first, second = run_once(3.25), run_once(3.25)
    assert count.both == (1, 1)
    assert count.compiled[0] < 1
    assert first.tolist() == second.tolist()
    ((kind, _), entry), *_ = program_cache.entries.items()
    assert kind == "xla"
    assert isinstance(entry.content, str)
    assert type(entry.payload) is bytes
    run_once(3.75)
    assert count.both == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_it_can_be_bypassed(program_cache: MemoryStore, count: Count) -> None:
    """In one thread, for a while: nothing is found, and nothing is kept."""
    run_once(5.5)
    kept = dict(program_cache.entries)
    elsewhere = threading.Thread(target=run_once, args=(5.5,))
    with bypassed():
        run_once(5.5)
        run_once(5.625)
        elsewhere.start()
        elsewhere.join()
    assert (count.both, program_cache.entries) == ((3, 1), kept)
    run_once(5.5)
    assert count.both == (3, 2)


def test_what_bypasses_it_costs_no_key_and_is_not_written(
    program_cache: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both keep all other threads from running Python; installed twice, it is still as it was."""
    assert install(program_cache, "/nowhere")
    asked: list[str] = []
    for name in ("get_cache_key", "put_executable_and_time"):
        jaxs = getattr(compilation_cache, name)

        def ask(*args: Any, name: str = name, jaxs: Any = jaxs, **options: Any) -> Any:
            asked.append(name)
            return jaxs(*args, **options)

        monkeypatch.setattr(compilation_cache, name, ask)
    with bypassed():
        run_once(5.75)
    assert (asked, program_cache.reads) == ([], 0)
    run_once(5.75)
    assert asked == ["get_cache_key", "put_executable_and_time"]


@pytest.mark.parametrize(
    ("events", "compiled", "found"),
    [
        (["ask", "ask", "hit", 1.0, 2.0], [2.0], 1),
        (["hit", "ask", 1.0], [1.0], 0),
        (["hit", "bypass", 1.0], [1.0], 0),
    ],
    ids=["one within another", "a hit that failed later", "a hit before one that bypasses it"],
)
def test_each_compilation_counts_for_itself(
    count: Count, events: list[Any], compiled: list[float], found: int
) -> None:
    """Python that the compiler calls may compile; a hit that failed says nothing of the next."""
    names = {"ask": "compile_requests_use_cache", "hit": "cache_hits"}
    with ExitStack() as stack:
        for event in events:
            if event == "bypass":
                stack.enter_context(bypassed())
            elif isinstance(event, str):
                monitoring.record_event(f"/jax/compilation_cache/{names[event]}")
            else:
                monitoring.record_event_duration_secs(BACKEND_COMPILE, event)
    assert (count.compiled, count.found) == (compiled, found)


def test_names_have_one_length(program_cache: MemoryStore, count: Count) -> None:
    """jax's keys begin with the function's name."""

    def function(x: Any) -> Any:
        return x * 6.25

    function.__name__ = "f" * 300
    jax.jit(function)(ONES)
    assert count.both == (1, 0)
    ((_, name),) = program_cache.entries
    assert len(name) == 16


def test_an_entry_of_another_key_is_not_used(program_cache: MemoryStore, count: Count) -> None:
    """The key stands in the entry, too."""
    run_once(7.25)
    for place, entry in program_cache.entries.items():
        program_cache.entries[place] = entry._replace(content=f"{entry.content}0")
    run_once(7.25)
    assert count.both == (2, 0)


def test_what_was_compiled_before_does_not_matter(tmp_path: Path, count: Count) -> None:
    """jax decides at the first compilation whether it has a cache."""
    run_once(8.25)
    program_cache = MemoryStore()
    assert install(program_cache, str(tmp_path))
    run_once(8.5)
    run_once(8.5)
    assert count.both == (2, 1)
    assert len(program_cache.entries) == 1
    program_cache = MemoryStore()
    for folder in ("one", "other"):
        assert install(program_cache, str(tmp_path / folder))
        run_once(9.25)
    assert count.both == (3, 2)


def test_each_callback_stays_with_its_function(program_cache: MemoryStore, count: Count) -> None:
    """jax 0.10 compiles such a function again; 0.11 does not, and still calls the right one."""
    same = jax.ShapeDtypeStruct((3,), np.float32)
    seen: list[str] = []

    def run(label: str) -> None:
        def called(x: Any) -> Any:
            seen.append(label)
            return x

        jax.jit(lambda x: jax.pure_callback(called, same, x) + 10.25)(ONES).block_until_ready()

    run("first")
    run("second")
    assert seen == ["first", "second"]
    assert count.both == ((2, 0) if jax.__version_info__ < (0, 11) else (1, 1))


def test_compilations_are_told_in_the_thread_that_compiles(
    program_cache: MemoryStore, count: Count
) -> None:
    """So that they can be put down to whoever asked."""
    for name in ("one", "two"):
        thread = threading.Thread(target=run_once, args=(11.25,), name=name)
        thread.start()
        thread.join()
    assert count.both == (1, 1)
    assert count.threads == {"one", "two"}


def test_what_one_thread_finds_is_not_anothers(count: Count) -> None:
    """A hit in one thread while another compiles."""
    found, compiled = threading.Event(), threading.Event()

    def hit() -> None:
        monitoring.record_event("/jax/compilation_cache/cache_hits")
        found.set()
        compiled.wait()
        monitoring.record_event_duration_secs(BACKEND_COMPILE, 1.0)

    thread = threading.Thread(target=hit)
    thread.start()
    found.wait()
    monitoring.record_event_duration_secs(BACKEND_COMPILE, 2.0)
    compiled.set()
    thread.join()
    assert (count.compiled, count.found) == ([2.0], 1)


def test_without_a_cache_each_compilation_is_one(count: Count) -> None:
    """And nothing is counted after the end."""
    run_once(12.25)
    run_once(12.25)
    assert count.both == (2, 0)
    count.close()
    run_once(12.75)
    assert count.both == (2, 0)
    count._listener = Compilations(count._on_compile, count._on_disk_hit)  # for the fixture


@pytest.mark.parametrize("broken", [b"", b"not an executable"])
def test_an_entry_that_jax_cannot_read_is_compiled_again(
    program_cache: MemoryStore, count: Count, broken: bytes
) -> None:
    """With jax's warning; the result is right."""
    right = run_once(13.25)
    for place, entry in program_cache.entries.items():
        program_cache.entries[place] = entry._replace(payload=broken)
    with pytest.warns(UserWarning, match="persistent compilation cache"):
        result = run_once(13.25)
    assert count.both == (2, 0)
    assert result.tolist() == right.tolist()


@pytest.mark.parametrize("move", ["get_file_cache", "is_cache_used", "reset_cache"])
def test_a_jax_whose_names_have_moved_has_no_cache(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    count: Count,
    tmp_path: Path,
    move: str,
) -> None:
    """It is logged, and compiling goes on."""
    with monkeypatch.context() as patches:
        patches.delattr(compilation_cache, move)
        assert not install(MemoryStore(), str(tmp_path / "xla"))
    assert [record.getMessage() for record in caplog.records] == ["jax_cache_off"]
    assert getattr(jax.config, "jax_compilation_cache_dir") is None  # noqa: B009
    run_once(14.25)
    assert count.both == (1, 0)
    assert list(tmp_path.iterdir()) == []


IN_A_PROCESS = """
import pickle, sys
from pathlib import Path
import jax, numpy as np
from jaxd_server.jax_compat.compilation_cache import Compilations, install
from tests.server.jax_compat.test_compilation_cache import MemoryStore
shelf, file, compiled, found = MemoryStore(), Path(sys.argv[1]), [], []
if file.exists():
    shelf.entries = pickle.loads(file.read_bytes())
assert install(shelf, "/nowhere")
Compilations(compiled.append, lambda: found.append(1))
matrix = np.diag(np.array([1, 2, 4], np.float32))
print(jax.jit(jax.numpy.linalg.inv)(matrix).diagonal().tolist())
print(bool(compiled), bool(found))
file.write_bytes(pickle.dumps(shelf.entries))
"""


@pytest.mark.slow
def test_another_process_compiles_nothing(tmp_path: Path) -> None:
    """Everything is found, helpers such as `diagonal` included, and LAPACK is called rightly."""
    root = str(Path(__file__).resolve().parents[3])
    outputs = [
        subprocess.run(
            [sys.executable, "-P", "-c", IN_A_PROCESS, str(tmp_path / "entries")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([root, *sys.path])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    ]
    assert outputs[0] == ["[1.0, 0.5, 0.25]", "True False"]
    assert outputs[1] == ["[1.0, 0.5, 0.25]", "False True"]
