from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from jaxd_server.cache.store import Store
from jaxd_server.cache.sweep import clear, sweep
from tests.server.cache.keeping import (
    OTHER,
    TARGET,
    OpenStore,
    file_of,
    keep_call,
    unused_for,
    usage_of,
)

if TYPE_CHECKING:
    import pytest

DAY = 86_400


def used_before(root: Path, seconds: float, *names: bytes) -> None:
    """Lets calls and their programs look as if they were used last so long ago."""
    for name in names:
        unused_for(seconds, file_of(root, "calls", name), file_of(root, "programs", b"p" + name))


def test_below_the_limit_nothing_goes(store: Store, root: Path) -> None:
    """However old it is."""
    keep_call(store, b"a")
    used_before(root, 1000 * DAY, b"a")
    swept = sweep(str(root), TARGET, 1 << 20)
    assert (swept.files, swept.bytes) == (0, 0)
    assert store.has("calls", b"a")


def test_what_is_longest_unused_goes_first(store: Store, root: Path) -> None:
    """With its program."""
    for age, name in enumerate((b"new", b"old", b"older")):
        keep_call(store, name)
        used_before(root, 1000 * (age + 1), name)
    swept = sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert swept.files == 2
    assert sorted(store.names("calls")) == [b"new", b"old"]
    assert sorted(store.names("programs")) == [b"pnew", b"pold"]


def test_what_took_long_to_build_stays_longer(store: Store, root: Path) -> None:
    """A program that took ten minutes is not given up for one that took a second."""
    keep_call(store, b"dear", compile_s=600.0)
    keep_call(store, b"cheap", compile_s=1.0)
    used_before(root, 10_000, b"dear")
    used_before(root, 1000, b"cheap")
    sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert store.names("calls") == [b"dear"]


def test_a_program_stays_while_another_call_has_it(store: Store, root: Path) -> None:
    """Also the function, its code and its environment."""
    store.write("code", b"\x22" * 16, (), b"code")
    keep_call(store, b"a", program=b"\x33")
    keep_call(store, b"b", program=b"\x33")
    unused_for(1000, file_of(root, "calls", b"a"))
    sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert store.names("calls") == [b"b"]
    assert store.names("programs") == [b"\x33"]
    assert store.names("code") == [b"\x22" * 16]


def test_what_no_call_needs_goes_before_any_call(store: Store, root: Path) -> None:
    """Code and programs whose calls are gone are of no use."""
    keep_call(store, b"a")
    for kind in ("programs", "functions", "code", "environments"):
        store.write(kind, b"lost", (), b"x")
        assert store.flush(20)
        unused_for(2 * 3600, file_of(root, kind, b"lost"))
    used_before(root, 100 * DAY, b"a")
    swept = sweep(str(root), TARGET, usage_of(store).bytes - 4 * 4096)
    assert swept.files == 4
    assert store.names("calls") == [b"a"]
    assert store.names("programs") == [b"pa"]


def test_a_program_that_was_just_written_is_not_without_a_call(store: Store, root: Path) -> None:
    """Its call comes after it."""
    keep_call(store, b"a")
    store.write("programs", b"new", (), b"x")
    assert store.flush(20)
    sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert store.names("programs") == [b"new"]


def test_entries_of_jaxs_own_cache_go_by_their_last_use(store: Store, root: Path) -> None:
    """Of two as old as each other it goes before a call: the call's program holds the same."""
    keep_call(store, b"a")
    for name in (b"x", b"y"):
        store.write("xla", name, (), os.urandom(10_000))
    assert store.flush(20)
    used_before(root, 1000, b"a")
    unused_for(1000, file_of(root, "xla", b"x"))
    sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert store.names("xla") == [b"y"]
    assert store.names("calls") == [b"a"]


def test_a_target_that_nobody_used_for_a_day_goes_as_a_whole(
    store: Store, open_: OpenStore, root: Path
) -> None:
    """After an upgrade, what the old version compiled makes room."""
    other = open_(OTHER)
    keep_call(store, b"a")
    used_before(root, 10 * DAY, b"a")
    for name in (b"b", b"c"):
        keep_call(other, name, compile_s=1e6)
        unused_for(2 * DAY, file_of(root, "calls", name, OTHER))
        unused_for(2 * DAY, file_of(root, "programs", b"p" + name, OTHER))
    sweep(str(root), TARGET, usage_of(store).bytes + usage_of(other).bytes - 1)
    assert not (root / "v2" / OTHER).exists()
    assert store.names("calls") == [b"a"]


def test_a_target_that_is_in_use_elsewhere_is_treated_as_ours(
    store: Store, open_: OpenStore, root: Path
) -> None:
    """Two servers with different devices do not empty each other's cache."""
    other = open_(OTHER)
    keep_call(store, b"a")
    keep_call(other, b"b")
    used_before(root, 1000, b"a")
    unused_for(500, file_of(root, "calls", b"b", OTHER))
    sweep(str(root), TARGET, usage_of(store).bytes + usage_of(other).bytes - 1)
    assert (store.names("calls"), other.names("calls")) == ([], [b"b"])


def test_without_a_target_the_one_used_last_is_kept(
    store: Store, open_: OpenStore, root: Path
) -> None:
    """`jaxd cache gc` after a weekend does not take everything at once."""
    keep_call(store, b"a")
    keep_call(store, b"b")
    used_before(root, 3 * DAY, b"a")
    used_before(root, 4 * DAY, b"b")
    sweep(str(root), None, usage_of(store).bytes - 1)
    assert store.names("calls") == [b"a"]


def test_targets_in_another_format_go_first(store: Store, root: Path) -> None:
    """Nobody here can read them; they count, and they go."""
    keep_call(store, b"a")
    used_before(root, 100 * DAY, b"a")
    foreign = root / "v0" / OTHER
    foreign.mkdir(parents=True)
    (foreign / "target.json").write_text("{}")
    (foreign / "blob").write_bytes(bytes(10_000))
    assert sweep(str(root), TARGET, 1 << 20).left > usage_of(store).bytes
    sweep(str(root), TARGET, usage_of(store).bytes)
    assert not foreign.exists()
    assert store.names("calls") == [b"a"]


def test_a_call_that_cannot_be_read_is_worth_nothing(store: Store, root: Path) -> None:
    """A broken file is in nobody's way."""
    keep_call(store, b"a", compile_s=1e6)
    keep_call(store, b"b")
    file_of(root, "calls", b"a").write_bytes(b"broken")
    unused_for(10, file_of(root, "calls", b"a"), file_of(root, "calls", b"b"))
    sweep(str(root), TARGET, usage_of(store).bytes - 1)
    assert store.names("calls") == [b"b"]


def test_it_removes_down_to_a_level(store: Store, root: Path) -> None:
    """So that the next record does not mean another sweep."""
    for i in range(10):
        keep_call(store, b"%d" % i)
    size = usage_of(store).bytes
    assert sweep(str(root), TARGET, size, level=size // 2).files == 0
    swept = sweep(str(root), TARGET, size - 1, level=size // 2)
    assert swept.left == usage_of(store).bytes <= size // 2
    assert swept.files == 20 - sum(usage_of(store).files.values())


def left_by(root: Path, pid: int, age_s: float) -> Path:
    """An unfinished file."""
    file = file_of(root, "calls", b"x").with_name(f".{pid}-0123456789abcdef.tmp")
    file.write_text("half")
    unused_for(age_s, file)
    return file


def test_who_has_more_than_a_share_loses_of_its_own(store: Store, root: Path) -> None:
    """The least worth first; others lose nothing, though theirs is older."""
    for age, name in enumerate((b"a-new", b"a-old", b"a-older")):
        keep_call(store, name, principal="ann")
        used_before(root, 1000 * (age + 1), name)
    keep_call(store, b"bobs", principal="bob")
    used_before(root, 100 * DAY, b"bobs")
    swept = sweep(str(root), TARGET, 1 << 30, principal_limit=20_000)
    assert swept.files == 4
    assert sorted(store.names("calls")) == [b"a-new", b"bobs"]
    assert sorted(store.names("programs")) == [b"pa-new", b"pbobs"]
    assert sweep(str(root), TARGET, 1 << 30, principal_limit=20_000).files == 0


def test_what_others_need_as_well_counts_for_nobody(store: Store, root: Path) -> None:
    """And stays."""
    keep_call(store, b"a", principal="ann", program=b"\x33", size=100_000)
    keep_call(store, b"b", principal="bob", program=b"\x33", size=100_000)
    assert sweep(str(root), TARGET, 1 << 30, principal_limit=40_000).files == 0
    store.remove("calls", b"b")
    assert sweep(str(root), TARGET, 1 << 30, principal_limit=40_000).files == 2
    assert store.names("programs") == []


def test_what_dead_processes_left_is_removed(store: Store, root: Path) -> None:
    """Below the limit, too; what a live one is writing stays, unless it is an hour old."""
    keep_call(store, b"a")
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    dead, fresh = left_by(root, child.pid, 100), left_by(root, child.pid + 1, 10)
    alive, stale = left_by(root, os.getpid(), 100), left_by(root, os.getppid(), 2 * 3600)
    sweep(str(root), TARGET, 1 << 20)
    assert [file.exists() for file in (dead, fresh, alive, stale)] == [False, True, True, False]


def test_two_sweeps_at_once_do_not_mind_each_other(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another server has removed meanwhile is gone, and counted by that one."""
    keep_call(store, b"a")
    unlink = os.unlink

    def other_first(path: str) -> None:
        unlink(path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", other_first)
    swept = sweep(str(root), TARGET, 0)
    monkeypatch.undo()
    assert (swept.files, swept.left) == (0, 0)


def test_clearing_leaves_what_is_not_ours(store: Store, open_: OpenStore, root: Path) -> None:
    """All targets go, and nothing else that somebody put there."""
    keep_call(store, b"a")
    keep_call(open_(OTHER), b"a")
    (root / "notes").mkdir()
    clear(str(root))
    assert sorted(os.listdir(root)) == ["CACHEDIR.TAG", "notes", "v2"]
    assert os.listdir(root / "v2") == []
