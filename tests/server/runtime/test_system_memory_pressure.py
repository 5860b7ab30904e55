from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from jaxd_server.runtime import memory_reclaimer as module
from jaxd_server.runtime.memory_reclaimer import MemoryPressure, Reclaimer
from jaxd_server.runtime.system_memory import host_spare, host_use

GIB = 1 << 30


class Pool:
    """Things that can be made again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def shrink(self) -> int:
        """It has no limit of its own."""
        return 0

    def reclaim(self, count: int) -> int:
        """As many as there are."""
        gone = min(count, self.count)
        self.count -= gone
        return gone


class Scenario:
    """A machine whose memory the test decides about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: float = 0.9) -> None:
        self.now = self.host = self.device = 0.0
        self.own = 0.5
        self.pool = Pool(80)
        self.logged: list[tuple[str, Any]] = []
        reclaimer = Reclaimer()
        reclaimer.register(self.pool)
        self.pressure = MemoryPressure(
            reclaimer,
            limit,
            lambda: self.host,
            lambda: self.device,
            lambda: self.own,
            lambda: self.now,
        )
        monkeypatch.setattr(
            module, "log_event", lambda event, **f: self.logged.append((event, f["dropped"]))
        )

    def poll(self, host: float = 0.0, device: float = 0.0) -> int:
        """A second later; how much is left."""
        self.now += 1.0
        self.host, self.device = host, device
        self.pressure.poll()
        return self.pool.count


def test_what_is_idle_goes_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until there is room again, with some to spare; it is logged at the start and at the end."""
    scenario = Scenario(monkeypatch)
    assert [scenario.poll(0.89), scenario.poll(0.91), scenario.poll(0.88), scenario.poll(0.86)] == [
        *(80, 70, 62, 62)
    ]
    assert scenario.logged == [("memory_short", 10), ("memory_relieved", 18)]


def test_the_device_is_watched_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever has less room."""
    scenario = Scenario(monkeypatch)
    assert scenario.poll(0.1, device=0.95) == 70


def test_a_small_process_does_not_suffer_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has next to nothing to give."""
    scenario = Scenario(monkeypatch)
    scenario.own = 0.05
    assert scenario.poll(0.99) == 80


def test_it_looks_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is called."""
    scenario = Scenario(monkeypatch)
    scenario.poll(0.95)
    for _ in range(5):
        scenario.pressure.poll()
    assert scenario.pool.count == 70


def test_nothing_is_dropped_where_nobody_wants_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--memory-share 0`."""
    assert Scenario(monkeypatch, limit=0.0).poll(1.0, device=1.0) == 80


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("files", "use"),
    [
        ({}, 0.25),
        ({"memory_DOT_max": "max\n"}, 0.25),
        (
            {
                "memory_DOT_max": f"{4 * GIB}\n",
                "memory_DOT_current": f"{3 * GIB}\n",
                "memory_DOT_stat": f"anon 5\ninactive_file {GIB}\n",
            },
            0.5,
        ),
        (
            {
                "memory__memory_DOT_limit_in_bytes": f"{4 * GIB}\n",
                "memory__memory_DOT_usage_in_bytes": f"{3 * GIB}\n",
                "memory__memory_DOT_stat": "total_inactive_file 0\n",
            },
            0.75,
        ),
    ],
    ids=["machine", "container without a limit", "container", "container of the first kind"],
)
def test_what_is_in_use_of_the_machine_or_its_container(
    files: dict[str, str], use: float, tmp_path: Path
) -> None:
    """Whichever has less room; without what the system drops by itself."""
    write(tmp_path, meminfo="MemTotal: 400 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\n", **files)
    assert host_use(str(tmp_path), str(tmp_path / "meminfo")) == use
    total = 4 * GIB if len(files) == 3 else 0
    assert host_spare(str(tmp_path), str(tmp_path / "meminfo")) == min(
        300 << 10, int(total * (1 - use)) or sys.maxsize
    )


def test_nobody_says(tmp_path: Path) -> None:
    """On another system."""
    assert host_use(str(tmp_path), str(tmp_path / "meminfo")) == 0.0
    assert host_spare(str(tmp_path), str(tmp_path / "meminfo")) == sys.maxsize


def test_this_machine_has_some_left() -> None:
    """The real files are read."""
    assert 0.0 < host_use() < 1.0
