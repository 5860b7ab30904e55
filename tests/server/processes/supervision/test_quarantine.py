from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxd_protocol.errors import Quarantined, WorkerLost
from jaxd_server.execution.crash_guard import MAX_ALONE_S, CrashSuspects
from jaxd_server.processes.supervision import quarantine as quarantine_file
from jaxd_server.processes.supervision.quarantine import (
    Quarantine,
    QuarantineEntry,
    QuarantineFile,
)
from jaxd_server.runtime.flight_recorder import FlightEntry

KEY, FINGERPRINT = b"k" * 16, b"f" * 16


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(
    *, repeated: bool = True, alone: bool = True, name: str = "deadly", ran_s: float = 0.0
) -> FlightEntry:
    started = time.monotonic() - ran_s
    return FlightEntry(name, (FINGERPRINT, KEY), "uid:1", started, repeated, alone)


def judged(quarantine: Quarantine, epoch: int, lost: int = 0) -> bool:
    return CrashSuspects(quarantine.for_worker(), epoch).judge(KEY, name="deadly", lost=lost)


def test_bystanders_have_done_nothing() -> None:
    """A worker that dies of something else leaves no trace on what ran beside that."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry(repeated=False, alone=False)], 1, "SIGKILL")
    assert quarantine.for_worker() == []
    assert not judged(quarantine, 2)
    assert judged(quarantine, 2, lost=1)  # but it is repeated alone


def test_one_death_alone_makes_a_suspect() -> None:
    """It runs alone from then on, and is still called."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry()], 2, "SIGSEGV")
    assert judged(quarantine, 3)
    assert quarantine.rows() == []


def test_a_call_that_was_repeated_is_not_repeated_for_ever() -> None:
    """Its caller learns how the worker ended, of the last worker only."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry(alone=False)], 2, "SIGSEGV")
    with pytest.raises(WorkerLost, match=r"ran deadly, and again .*\(SIGSEGV\).*JAXD_INLINE=1"):
        judged(quarantine, 3, lost=2)
    assert judged(quarantine, 4, lost=2)  # this one died of another thing
    assert not judged(quarantine, 4)


def test_two_deaths_alone_are_enough() -> None:
    """A typed error says whose fault it is, how often, and how to have it called again."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry()], 2, "SIGSEGV")
    clock.now += 60
    quarantine.record_deaths([entry(repeated=False)], 3, "exit code 7")
    (row,) = quarantine.rows()
    assert (row["name"], row["workers_ended"], row["how"]) == ("deadly", 2, "exit code 7")
    clock.now += 1e6
    quarantine.record_deaths([], 9, "SIGKILL")
    with pytest.raises(Quarantined, match=r"2 times .*exit code 7.*--release 666666666666\)\."):
        judged(quarantine, 10)
    assert Quarantined.blame == "function"
    assert not Quarantined.may_repeat


def test_who_kills_a_worker_from_outside_is_no_function() -> None:
    """Nor is its caller told that it may be the function, however often it is repeated."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    for epoch in (2, 3, 4):
        quarantine.record_deaths([entry(alone=False)], epoch, "SIGKILL", from_outside=True)
        assert judged(quarantine, epoch + 1, lost=epoch)  # is repeated, alone
    quarantine.record_deaths([entry()], 5, "SIGKILL", from_outside=True)
    assert judged(quarantine, 6, lost=5)
    assert (quarantine.for_worker(), quarantine.rows()) == ([], [])
    clock.now += 3601
    quarantine.record_deaths([entry()], 7, "SIGKILL", from_outside=True)
    assert quarantine.for_worker() == []  # the earlier one is forgotten


def test_what_runs_alone_whenever_a_worker_is_killed_may_be_what_kills_it() -> None:
    """Two more such deaths are as two others."""
    quarantine = Quarantine()
    quarantine.record_deaths([entry()], 2, "SIGKILL", from_outside=True)
    quarantine.record_deaths([entry()], 3, "SIGKILL", from_outside=True)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        judged(quarantine, 4, lost=2)
    quarantine.record_deaths([entry()], 4, "SIGKILL", from_outside=True)
    with pytest.raises(Quarantined, match=r"2 times .*SIGKILL"):
        judged(quarantine, 5)


def test_what_outlasts_its_time_alone_is_given_more() -> None:
    """So that a function which kills slowly is found as well, be others as busy as they like.

    Nobody else than calls that were lost waits longer for that, and nobody for ever.
    """
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry(alone=False, ran_s=30.0)], 2, "SIGSEGV")
    known = CrashSuspects(quarantine.for_worker(), 3)
    assert 50.0 <= known.alone_s(KEY) < 60.0
    assert known.alone_s(b"another") == 0.0
    assert not known.judge(KEY, name="deadly", lost=0)
    assert known.judge(KEY, name="deadly", lost=1)
    quarantine.record_deaths([entry(alone=True, ran_s=31.0)], 3, "SIGSEGV")
    quarantine.record_deaths([entry(alone=True, ran_s=31.0)], 4, "SIGSEGV")
    (row,) = quarantine.rows()
    assert row["workers_ended"] == 2
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry(alone=False, ran_s=5000.0)], 5, "SIGSEGV")
    assert CrashSuspects(quarantine.for_worker(), 6).alone_s(KEY) == MAX_ALONE_S
    clock.now += 3601  # then it is forgotten
    quarantine.record_deaths([], 6, "SIGKILL")
    assert CrashSuspects(quarantine.for_worker(), 7).alone_s(KEY) == 0.0


def test_a_death_is_forgotten_after_an_hour() -> None:
    """Two in a year are not a habit."""
    clock = Clock()
    quarantine = Quarantine(clock=clock)
    quarantine.record_deaths([entry()], 2, "SIGKILL")
    clock.now += 3601
    quarantine.record_deaths([entry()], 3, "SIGKILL")
    assert quarantine.rows() == []


@pytest.mark.parametrize("what", ["deadly", "666666", "6B6B6B6B", "all"])
def test_a_function_is_released(what: str) -> None:
    """By its name, its fingerprint or its key, in the host and in a worker that knows of it."""
    quarantine = Quarantine()
    for epoch in (2, 3):
        quarantine.record_deaths([entry()], epoch, "SIGSEGV")
    suspects = CrashSuspects(quarantine.for_worker(), 4)
    for little in ("", "66", "other", "666667"):  # a few digits do not mean one function
        assert quarantine.release(little) == []
    (row,) = quarantine.release(what)
    suspects.release(row["fingerprint"])
    assert not suspects.judge(KEY, FINGERPRINT, name="deadly", lost=0)
    assert not judged(quarantine, 4)
    assert quarantine.rows() == quarantine.release(what) == []


def test_it_does_not_grow_for_ever() -> None:
    """The oldest of very many suspects is forgotten."""
    quarantine = Quarantine()
    for number in range(1100):
        one = FlightEntry(str(number), (number.to_bytes(16, "big"),), "uid:1", 0.0, True, True)
        quarantine.record_deaths([one], number, "SIGSEGV")
    assert len(quarantine.for_worker()) == 1000


DEADLY = QuarantineEntry("deadly", (b"f" * 16, b"k" * 16), 2, "SIGSEGV", 1e9)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk may be slow, and what is written last is read here."""
    monkeypatch.setattr(quarantine_file, "_CLOSE_TIMEOUT_S", 30.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cache folder."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return folder


def opened(root: Path, server: str = "unix:///s") -> QuarantineFile:
    """As a host does at its start."""
    return QuarantineFile(str(root), server)


def written(root: Path) -> Path:
    """The file, with one function of a server in it."""
    file = opened(root)
    file.of()
    file.keep("", "", [DEADLY])
    file.close()
    (path,) = (root / "quarantine").iterdir()
    return path


def condemned(quarantine: Quarantine) -> None:
    """Its function ends two workers."""
    for epoch in (2, 3):
        quarantine.record_deaths([entry()], epoch, "SIGSEGV")


def test_the_next_host_calls_it_no_more(root: Path) -> None:
    """It says so as the one before did, until somebody releases the function."""
    file = opened(root)
    condemned(Quarantine(file))
    file.close()
    following = opened(root)
    quarantine = Quarantine(following)
    (row,) = quarantine.rows()
    assert (row["name"], row["workers_ended"], row["how"]) == ("deadly", 2, "SIGSEGV")
    assert 0.0 <= row["ago_s"] < 60.0
    (told,) = quarantine.for_worker()
    assert (told["quarantined"], told["epoch"]) == (True, 0)  # epochs begin anew
    assert quarantine.release("deadly") == [row | {"ago_s": pytest.approx(row["ago_s"], abs=60)}]
    following.close()
    assert Quarantine(opened(root)).rows() == []


def test_one_that_is_only_suspected_is_not_written_down(root: Path) -> None:
    """A death counts for an hour at most."""
    file = opened(root)
    Quarantine(file).record_deaths([entry()], 2, "SIGSEGV")
    file.close()
    assert list(root.iterdir()) == []


def test_the_file_is_ours_alone(root: Path) -> None:
    """Whatever the umask; nothing is left beside it."""
    before = os.umask(0)
    try:
        path = written(root)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_servers_of_one_folder_have_a_file_each(root: Path) -> None:
    """What ends the worker of one may run on the device of another."""
    written(root)
    assert opened(root, "tcp://127.0.0.1:1").of() == []
    assert opened(root).of() == [DEADLY]


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], Any]:
    """Does something to what is in a file."""

    def spoil(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))

    return spoil


def in_row(**values: Any) -> Callable[[Path], Any]:
    """Puts something else into the row of the function."""
    return changed(lambda content: content["functions"][0].update(values))


def replaced(make: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Puts something else in the place of a file."""

    def spoil(path: Path) -> None:
        path.rename(f"{path}.old")
        make(path)

    return spoil


SPOILT: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_text(""),
    "cut off": lambda path: path.write_text(path.read_text()[:-20]),
    "no json": lambda path: path.write_bytes(b"\xff\x00"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "another form": lambda path: path.write_text('["functions"]'),
    "a number": lambda path: path.write_text("7"),
    "no functions": changed(lambda content: content.pop("functions")),
    "too large": lambda path: path.write_text(" " * (4 << 20) + path.read_text()),
    "of others": lambda path: path.chmod(0o666),
    "a link": replaced(lambda path: path.symlink_to(f"{path}.old")),
    "a folder": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "no fingerprint": in_row(ids=[]),
    "short fingerprint": in_row(ids=["ab"]),
    "no name": in_row(name=None),
    "long name": in_row(name="x" * 1000),
    "no deaths": in_row(deaths=0),
    "many deaths": in_row(deaths=10**9),
    "endless deaths": in_row(deaths=float("inf")),
    "no time": in_row(at="yesterday"),
    "never": in_row(at=float("inf")),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_file_that_cannot_be_believed_is_none(
    root: Path, how: str, warned: Callable[[], list[str]]
) -> None:
    """The server starts, says so, and writes another one."""
    path = written(root)
    SPOILT[how](path)
    file = opened(root)
    assert file.of() == []
    assert warned() == ["quarantine_not_read"]
    if how != "a folder":
        file.keep("", "", [DEADLY])
        file.close()
        assert opened(root).of() == [DEADLY]


@pytest.mark.parametrize(
    "older", [{"format": 0}, {"versions": {"jax": "0.4.0"}}], ids=["format", "versions"]
)
def test_what_other_versions_died_of_is_tried_again(
    root: Path, older: dict[str, Any], warned: Callable[[], list[str]]
) -> None:
    """The fault may have been theirs; nobody needs to be told."""
    changed(lambda content: content.update(older))(written(root))
    assert opened(root).of() == []
    assert warned() == []


def test_a_folder_that_cannot_be_written_costs_a_warning(
    root: Path, warned: Callable[[], list[str]]
) -> None:
    """The function is in quarantine all the same, until this host ends."""
    (root / "quarantine").write_text("in the way")
    file = opened(root)
    assert warned() == ["quarantine_not_read"]
    quarantine = Quarantine(file)
    condemned(quarantine)
    file.close()
    assert warned()[-1] == "quarantine_not_kept"
    assert len(quarantine.rows()) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_without_a_folder_that_is_ours_it_is_kept_in_memory(root: Path, is_there: bool) -> None:
    """As with `--cache-dir none`."""
    root.chmod(0o777)
    file = QuarantineFile(str(root) if is_there else None, "unix:///s")
    condemned(Quarantine(file))
    file.close()
    assert list(root.iterdir()) == []
    assert len(Quarantine(file).rows()) == 1


def test_the_file_does_not_grow_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each the newest, and of all of them the newest."""
    monkeypatch.setattr(quarantine_file, "_MAX_PER_WORKER", 3)
    monkeypatch.setattr(quarantine_file, "_MAX_ENTRIES", 4)
    file = opened(root)
    for first, who in ((10, "a"), (0, "b")):
        file.of(who)
        file.keep(who, "", [DEADLY._replace(at=1.0 + first + n) for n in range(5)])
    file.close()
    found = opened(root)
    assert [one.at for one in found.of("a")] == [13.0, 14.0, 15.0]
    assert [one.at for one in found.of("b")] == [5.0]


def test_what_is_written_last_counts(root: Path) -> None:
    """However quickly one follows the other."""
    file = opened(root)
    file.of()
    for number in range(50):
        file.keep("", "", [DEADLY._replace(at=time.time(), deaths=number + 2)])
    file.close()
    assert [one.deaths for one in opened(root).of()] == [51]


def test_each_holder_of_a_name_begins_anew(root: Path) -> None:
    """And one whose token was taken away leaves nothing, also when its worker ends later."""
    file = opened(root)
    old, other = Quarantine(file, "account:a", "a-1"), Quarantine(file, "uid:1", "uid-1")
    condemned(old)
    condemned(other)
    assert [one.principal for one in file.quarantines()] == ["account:a", "uid:1"]
    assert Quarantine(file, "account:a", "a-2").rows() == []
    condemned(old)
    assert Quarantine(file, "account:a", "a-2").rows() == []
    file.forget("account:a")
    condemned(old)
    file.close()
    (left,) = opened(root).quarantines()
    assert left.principal == "uid:1"
