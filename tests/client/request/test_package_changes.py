"""Packages that are upgraded while this process runs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxd.request import function_snapshot as module
from jaxd.request.function_snapshot import PackageChanges
from jaxd_protocol.base import process
from jaxd_protocol.errors import SkewWarning
from jaxd_protocol.packages.distributions import Package

OLD, NEW = (Package("optax", version, version.encode()) for version in ("1.0", "1.1"))


class Disk:
    """What is installed, and how often somebody has looked."""

    def __init__(self) -> None:
        self.changes: list[Any] = []
        self.looked = 0
        self.now = 100.0

    def poll(self) -> list[Any]:
        """What has changed since the last look."""
        self.looked += 1
        found, self.changes = self.changes, []
        return found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """In place of the real one, with a clock that stands still."""
    disk = Disk()
    monkeypatch.setattr(module, "changed_since_first_seen", disk.poll)
    monkeypatch.setattr("jaxd.request.function_snapshot.time.monotonic", lambda: disk.now)
    return disk


def call(package_changes: PackageChanges, disk: Disk) -> int:
    """What a call of a persistent function does; the count that it sees."""
    if disk.now >= package_changes.next_poll_s:
        package_changes.poll()
    return package_changes.count


def test_it_says_when_to_look_again(disk: Disk) -> None:
    """Once a second: a call takes microseconds."""
    package_changes = PackageChanges()
    for step_s in (0.0, 0.5, 0.4, 0.2, 0.1):
        disk.now += step_s
        assert call(package_changes, disk) == 0
    assert disk.looked == 2


def test_each_change_counts_and_is_warned_of_once(disk: Disk) -> None:
    """In the line that calls; keys are made anew then."""
    package_changes = PackageChanges()
    disk.changes = [(OLD, NEW)]
    with pytest.warns(SkewWarning, match=r"optax was changed from 1\.0 to 1\.1 while") as heard:
        assert call(package_changes, disk) == 1
    assert heard[0].filename == __file__
    assert "restart this process" in str(heard[0].message)
    disk.now += 2.0
    assert call(package_changes, disk) == 1


def test_the_child_of_a_fork_can_look(disk: Disk) -> None:
    """Also when another thread of the parent was looking as it forked."""
    package_changes = PackageChanges()
    thread = threading.Thread(target=package_changes._lock.acquire)
    thread.start()
    thread.join()
    process._in_child()
    package_changes.poll()
    assert package_changes.count == 0
