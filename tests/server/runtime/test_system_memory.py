from __future__ import annotations

import gc
import json
import mmap
import os
import resource
import sys
import threading
from pathlib import Path

import pytest

from jaxd_server.runtime import system_memory as module
from jaxd_server.runtime.system_memory import (
    MapGauge,
    MemoryLoss,
    OomWatch,
    Trimmer,
    allow_files,
    host_spare,
    host_use,
    machine_bytes,
    map_pressure,
    oom_kills,
    release_memory,
    resident_bytes,
    trim,
)
from jaxd_server.runtime.threads.executors import process_timers

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_the_pressure_counts_the_maps_of_this_process() -> None:
    """As a share of what the system allows."""
    with open("/proc/sys/vm/max_map_count", encoding="ascii") as file:
        limit = int(file.read())
    before = map_pressure()
    # neighbours with the same rights would be one map
    rights = [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE]
    maps = [mmap.mmap(-1, mmap.PAGESIZE, prot=rights[index % 2]) for index in range(200)]
    after = map_pressure()
    for one in maps:
        one.close()
    assert 0 < before < after < 1
    assert 150 < (after - before) * limit < 400


def test_without_proc_there_is_neither_pressure_nor_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other systems have no such limit, and what is not known limits nothing."""

    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert map_pressure() == 0.0
    assert resident_bytes() == 0
    assert machine_bytes() > 0


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_the_memory_of_a_container_is_what_it_may_have(tmp_path: Path, name: str) -> None:
    """Not that of the machine around it; without a limit of its own, that. In both versions."""
    file, whole = tmp_path / name, machine_bytes(str(tmp_path))
    file.parent.mkdir(exist_ok=True)
    for text, expected in (("1048576\n", 1 << 20), ("max\n", whole), (f"{whole * 2}\n", whole)):
        file.write_text(text)
        assert machine_bytes(str(tmp_path)) == expected


JOB = {
    "0::/batch/job_7/step": ("", "memory.max"),
    "4:cpu,memory:/batch/job_7/step\n9:name=systemd:/": ("memory/", "memory.limit_in_bytes"),
    "1:name=systemd:/\n0::/batch/job_7/step": ("unified/", "memory.max"),
    "0::/../batch/job_7/step": ("", "memory.max"),
}
"""What `/proc/self/cgroup` says, and where the files of that cgroup are."""


@pytest.mark.parametrize("own", JOB)
def test_the_least_limit_of_the_own_cgroup_and_all_above_it_counts(
    tmp_path: Path, own: str
) -> None:
    """Of a job of a batch system, say, whose steps have no limit of their own."""
    base, name = JOB[own]
    (tmp_path / "own").write_text(f"{own}\n")
    folder = tmp_path / f"{base}batch/job_7"
    (folder / "step").mkdir(parents=True)
    (folder / "step" / name).write_text("max\n")
    (folder.parent / name).write_text(f"{3 << 20}\n")
    asked = str(tmp_path), str(tmp_path / "own")
    assert machine_bytes(*asked) == 3 << 20
    (folder / name).write_text(f"{2 << 20}\n")
    assert machine_bytes(*asked) == 2 << 20


KILLS = {
    "0::/job\n": ("job", "memory.events.local", "oom 4\noom_kill 3\noom_group_kill 1\n"),
    "4:cpu,memory:/job\n": ("memory/job", "memory.oom_control", "under_oom 0\noom_kill 3\n"),
}
"""What `/proc/self/cgroup` says, and where and how that cgroup counts."""


@pytest.mark.parametrize("own", KILLS)
def test_kills_for_want_of_memory_are_counted_by_the_own_cgroup(tmp_path: Path, own: str) -> None:
    """Not by what happens elsewhere on the machine; without one that counts, by the machine."""
    (tmp_path / "own").write_text(own)
    vmstat = tmp_path / "vmstat"
    asked = str(tmp_path), str(vmstat), str(tmp_path / "own")
    assert oom_kills(*asked) is None
    vmstat.write_text("pgfault 7\noom_kill 2\n")
    assert oom_kills(*asked) == (str(vmstat), 2)
    place, name, text = KILLS[own]
    folder = tmp_path / place
    folder.mkdir(parents=True)
    (folder.parent / name).write_text("oom_kill 40\n")
    (folder / name).write_text(text)
    assert oom_kills(*asked) == (str(folder / name), 3)


def test_a_kill_for_want_of_memory_is_recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cgroup has counted long before is about another process."""
    now, counted = [0.0], [5]
    monkeypatch.setattr(module, "_kills_in", lambda _: counted[0])
    watch = OomWatch(os.getpid(), lambda: now[0])
    counted[0] = 6  # of another process
    assert watch.has_counted()
    for now[0] in range(1, 30):
        watch.look()
    assert watch.has_counted() is False
    counted[0] = 7
    watch.look()  # a process that is killed ends somewhat later
    assert watch.has_counted()
    monkeypatch.setattr(module, "_kills_in", lambda _: None)
    assert OomWatch(os.getpid()).has_counted() is None


@linux
def test_the_size_of_the_process_is_seen() -> None:
    """Memory that is written to counts."""
    before = resident_bytes()
    block = bytearray(b"x") * (64 << 20)
    assert resident_bytes() - before > 48 << 20
    del block


@pytest.mark.skipif(not hasattr(os, "confstr") or sys.platform != "linux", reason="asks glibc")
@pytest.mark.skipif(
    "glibc" not in str(getattr(os, "confstr", lambda _: "")("CS_GNU_LIBC_VERSION")), reason="glibc"
)
def test_what_was_freed_goes_back_to_the_system() -> None:
    """Small blocks, which glibc keeps for itself behind one that is still there."""
    blocks = [bytes(3000) for _ in range(30_000)]
    last = bytes(3000)
    full = resident_bytes()
    del blocks
    trim()
    assert full - resident_bytes() > 40 << 20
    assert len(last) == 3000


class _Knot:
    """Something that only the garbage collector finds."""

    def __init__(self, freed: list[None]) -> None:
        self.myself = self
        self.freed = freed

    def __del__(self) -> None:
        self.freed.append(None)


def test_giving_back_frees_cycles_and_trimming_does_not() -> None:
    """The collector holds up every thread, so only who asks for it gets it."""
    freed: list[None] = []
    gc.disable()
    try:
        _Knot(freed)
        trim()
        assert freed == []
        release_memory()
        assert freed == [None]
    finally:
        gc.enable()


def test_maps_are_counted_only_when_they_may_be_too_many() -> None:
    """Far from the limit, not for each program; near it, for each."""
    pressures = [0.1]
    looks: list[float] = []

    def look() -> float:
        looks.append(pressures[0])
        return pressures[0]

    gauge = MapGauge(0.5, look)
    assert [gauge.added() for _ in range(20)] == [False] * 20
    assert len(looks) == 1
    pressures[0] = 0.4999
    while len(looks) == 1:
        assert not gauge.added()
    assert [gauge.added() for _ in range(3)] == [False] * 3
    assert len(looks) == 5
    pressures[0] = 0.51
    assert gauge.added()
    assert gauge.is_high()


def test_maps_cannot_become_too_many_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even when each program takes as many as any ever did."""
    monkeypatch.setattr(module, "_max_maps", lambda: 65530)
    maps = 600
    gauge = MapGauge(0.5, lambda: maps / 65530)
    while not gauge.added():
        maps += 990
        assert maps < 0.52 * 65530


def test_memory_is_returned_once_for_all_that_was_freed_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a thread of its own, and again after that for what comes later."""
    trimmed: list[str] = []
    done, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def note() -> None:
        trimmed.append(threading.current_thread().name)
        done.release()

    monkeypatch.setattr(module, "trim", note)
    monkeypatch.setattr(process_timers, "after", lambda _, do: _Started(go_on, do).start())
    trimmer = Trimmer()
    for _ in range(5):
        trimmer.freed()
    assert trimmed == []
    go_on.release()
    assert done.acquire(timeout=30)
    trimmer.freed()
    go_on.release()
    assert done.acquire(timeout=30)
    assert len(trimmed) == 2
    assert threading.current_thread().name not in trimmed


class _Started(threading.Thread):
    """A timer that waits for a word."""

    def __init__(self, go_on: threading.Semaphore, do: object) -> None:
        super().__init__()
        self._go_on = go_on
        self._do = do

    def run(self) -> None:
        assert self._go_on.acquire(timeout=30)
        assert callable(self._do)
        self._do()


def test_as_many_files_as_there_are_clients() -> None:
    """As far as the system allows; never fewer than before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1124, hard)
        allow_files(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(1124, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("held", "limit", "lowered"), [(40, 100, 30), (0, 800, 100), (10, 800, 100), (4000, 100, 100)]
)
def test_what_values_may_take_is_lowered(held: int, limit: int, lowered: int) -> None:
    """To less than there was when the memory did not suffice, but not to nothing; never raised."""
    assert MemoryLoss(held).lowered(limit) == lowered


def test_who_held_most_is_told_and_nobody_else() -> None:
    """A client of another principal that asks for the same session neither."""
    loss = MemoryLoss(1 << 30, "a1", "uid:1", 1 << 29)
    assert "512.0 MiB" in loss.notice_for("a1", "uid:1", 1 << 28)
    for session, principal in ((None, "uid:1"), ("", "uid:1"), ("a1", "uid:2"), ("b2", "uid:1")):
        assert not loss.notice_for(session, principal, 1 << 28)
    assert not MemoryLoss(0).notice_for("", "", 1)
    assert MemoryLoss.from_message(json.loads(json.dumps(loss._asdict()))) == loss
    assert MemoryLoss.from_message(None) is None


GIB = 1 << 30
V1 = "memory/memory."

USES: dict[str, tuple[dict[str, str], float]] = {
    "machine": ({}, 0.25),
    "container without a limit": ({"memory.max": "max\n"}, 0.25),
    "container": (
        {
            "memory.max": f"{4 * GIB}\n",
            "memory.current": f"{3 * GIB}\n",
            "memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
        0.5,
    ),
    "container of the first kind": (
        {
            f"{V1}limit_in_bytes": f"{4 * GIB}\n",
            f"{V1}usage_in_bytes": f"{3 * GIB}\n",
            f"{V1}stat": "total_inactive_file 0\n",
        },
        0.75,
    ),
}


@pytest.mark.parametrize("what", USES)
def test_what_is_in_use_of_the_machine_or_its_container(tmp_path: Path, what: str) -> None:
    """Whichever has less room; without what the system drops by itself."""
    asked = str(tmp_path), str(tmp_path / "meminfo")
    assert (host_use(*asked), host_spare(*asked)) == (0.0, sys.maxsize)  # nobody says
    files, use = USES[what]
    (tmp_path / "memory").mkdir()
    meminfo = {"meminfo": "MemTotal: 400 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\n"}
    for name, text in (files | meminfo).items():
        (tmp_path / name).write_text(text)
    total = 4 * GIB if len(files) == 3 else 0
    spare = min(300 << 10, int(total * (1 - use)) or sys.maxsize)
    assert (host_use(*asked), host_spare(*asked)) == (use, spare)
    assert 0.0 < host_use() < 1.0  # the real files are read
