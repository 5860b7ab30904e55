"""Forks and threads of a process, and whether two processes run on one machine."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxd_protocol.base import process
from jaxd_protocol.base.process import (
    IdentityMemo,
    Lazy,
    PerProcess,
    _group_threads,
    machine_id,
    notify_before_forks,
    reset_after_fork,
    start_daemon,
    start_thread,
)
from jaxd_protocol.errors import Busy
from tests.live_server import source_environment

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def test_a_thread_that_cannot_be_had_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the limits; what else prevents a start is as it is."""
    texts = iter(["can't start new thread", "threads can only be started once"])

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError(next(texts))

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Busy, match=r"ulimit -u.*pids\.max"):
        start_thread(threading.Thread())
    with pytest.raises(RuntimeError, match="once"):
        start_thread(threading.Thread())


def test_a_daemon_has_its_name_and_does_not_keep_the_process_alive() -> None:
    """It gets its arguments."""
    found: list[object] = []
    thread = start_daemon("jaxd-some", lambda *args: found.append(args), 1, "two")
    thread.join(30)
    assert (found, thread.name, thread.daemon) == ([(1, "two")], "jaxd-some", True)


@pytest.mark.parametrize(
    ("own", "folder"),
    [("0::/a/b", "a/b"), ("9:pids:/a\n0::/", "pids/a"), ("9:memory:/a\n8:pids:/gone", "pids")],
)
def test_the_limit_of_threads_is_found(tmp_path: Path, own: str, folder: str) -> None:
    """In either version of control groups, and in a container, which sees its own as the root."""
    (tmp_path / "own").write_text(f"{own}\n")
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "pids.max").write_text("77\n")
    assert _group_threads(str(tmp_path / "own"), str(tmp_path)) == "77"
    assert "unknown" in _group_threads(str(tmp_path / "none"), str(tmp_path))


class Thing:
    """Remembers whether it was told."""

    forgot = False
    told = 0

    def on_fork(self) -> None:
        self.told += 1

    def after_fork(self) -> None:
        self.forgot = True


def exit_code_of_child(thing: Thing | None) -> int:
    """0 when the child found that the thing had forgotten."""
    child = os.fork()
    if not child:
        os._exit(0 if thing is not None and thing.forgot else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_the_child_is_told_and_the_parent_is_not() -> None:
    """Only the child has something to forget."""
    thing = Thing()
    reset_after_fork(thing)
    assert exit_code_of_child(thing) == 0
    assert not thing.forgot


def test_the_parent_is_told_before_and_after() -> None:
    """The child knows of the first only."""
    thing = Thing()
    notify_before_forks(thing)
    child = os.fork()
    if not child:
        os._exit(thing.told)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert thing.told == 2


def test_what_is_gone_is_not_kept_for_a_fork() -> None:
    """The list of things to tell does not keep them alive."""
    thing = Thing()
    reset_after_fork(thing)
    del thing
    gc.collect()
    assert exit_code_of_child(None) == 1


def test_a_child_has_its_own_and_need_not_wait_for_a_thread_of_its_parent() -> None:
    """The lock is held in the parent while it forks; there the same one is asked for again."""
    lock = PerProcess(threading.Lock)
    with lock():
        child = os.fork()
        if not child:
            os._exit(0 if lock().acquire(blocking=False) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lock().locked()


def test_it_is_made_when_somebody_asks() -> None:
    """And looking whether it was does not make it."""
    made: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    later = Lazy(make)
    assert later.made is None
    assert made == []
    assert later() is later() is later.made is made[0]
    assert len(made) == 1


def test_threads_that_ask_together_get_the_same() -> None:
    """Although each of them has made one."""
    both = threading.Barrier(2)

    def make() -> object:
        both.wait(10)
        return object()

    later, found = Lazy(make), list[object]()
    threads = [threading.Thread(target=lambda: found.append(later())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is later.made


def test_a_fact_belongs_to_one_object_and_is_dropped_with_it() -> None:
    """Also one that has no hash and equals another."""
    memo = IdentityMemo[str]()
    one, other = {1}, {1}
    assert memo.put(one, "first") == "first"
    assert (memo.get(one), memo.get(other)) == ("first", None)
    del one
    assert not memo._known


def test_an_old_object_that_goes_keeps_the_fact_of_a_new_one_with_its_id() -> None:
    """Its weak reference may be called late."""
    memo = IdentityMemo[str]()
    thing = {1}
    memo.put(thing, "old")
    gone = memo._known[id(thing)][0]
    memo.put(thing, "new")
    memo._forget(id(thing), gone)
    assert memo.get(thing) == "new"


def test_two_processes_of_one_machine_agree(tmp_path: Path) -> None:
    """Sixteen hex digits that are not the kernel's own name for this boot."""
    program = "from jaxd_protocol.base.process import machine_id; print(machine_id())"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=source_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == machine_id()
    assert int(str(machine_id()), 16) >= 0
    assert str(machine_id()) not in Path(process._BOOT).read_text().replace("-", "")


@pytest.mark.parametrize("path", ["/nowhere/boot_id", "/proc"])
def test_a_system_without_that_name_is_like_no_other(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Nothing is guessed."""
    monkeypatch.setattr(process, "_BOOT", path)
    assert machine_id() is None
