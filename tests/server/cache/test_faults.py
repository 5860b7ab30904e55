"""What disks and other processes do: nothing wrong is served, and each trouble is said once."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxd_server.cache.record_file import Record
from jaxd_server.cache.store import Store
from jaxd_server.cache.sweep import sweep
from tests.server.cache.keeping import TARGET, file_of, open_here, unused_for, usage_of

PROGRAM = bytes(range(256)) * 100
Warned = Callable[[], list[str]]
StartChild = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def file(store: Store, root: Path) -> Path:
    """The file of the program `n`, which is on disk."""
    store.write("programs", b"n", ("inputs", 2), PROGRAM)
    assert store.flush(20)
    return file_of(root, "programs", b"n")


# entries that are not what was written ----------------------------------------------------------


def truncate(file: Path) -> None:
    """As a full disk or a power cut leaves it."""
    os.truncate(file, file.stat().st_size // 2)


def empty(file: Path) -> None:
    """As some file systems leave it after a power cut."""
    os.truncate(file, 0)


def flip(file: Path) -> None:
    """One bit in the middle of the payload."""
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)


def foreign(file: Path) -> None:
    """The number of another format."""
    data = bytearray(file.read_bytes())
    data[11] += 1
    file.write_bytes(data)


def renamed(file: Path) -> None:
    """The file of another program."""
    file.with_name(b"other".hex()).rename(file)


def folder(file: Path) -> None:
    """Something else of that name, with something in it."""
    file.unlink()
    file.mkdir()
    (file / "x").write_text("x")


def unreadable(file: Path) -> None:
    """A link that goes nowhere cannot be opened, not even by root."""
    file.unlink()
    file.symlink_to(file)


def open_to_all(file: Path) -> None:
    """Anybody could have put code there."""
    file.chmod(0o666)


@pytest.mark.parametrize(
    "damage", [truncate, empty, flip, foreign, renamed, folder, unreadable, open_to_all]
)
def test_a_broken_entry_is_not_there(
    store: Store, file: Path, warned: Warned, damage: Callable[[Path], None]
) -> None:
    """It is removed with one warning, and can be written anew."""
    store.write("programs", b"other", ("inputs", 2), PROGRAM)
    assert store.flush(20)
    damage(file)
    assert store.read("programs", b"n") is None
    assert not os.path.lexists(file)
    assert store.read("programs", b"n") is None
    assert warned() == ["cache_broken"]
    store.write("programs", b"n", ("inputs", 2), PROGRAM)
    assert store.flush(20)
    assert store.read("programs", b"n") == Record(("inputs", 2), PROGRAM)


def test_many_broken_entries_are_one_warning(store: Store, root: Path, warned: Warned) -> None:
    """A broken disk does not fill the log."""
    for i in range(20):
        store.write("calls", b"%d" % i, i)
    assert store.flush(20)
    for i in range(20):
        empty(file_of(root, "calls", b"%d" % i))
        assert store.read("calls", b"%d" % i) is None
    assert warned() == ["cache_broken"]


def test_a_moment_without_descriptors_removes_nothing(
    store: Store, file: Path, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That says nothing about the file: it is there the next time."""

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        assert store.read("programs", b"n") is None
    assert store.read("programs", b"n") == Record(("inputs", 2), PROGRAM)
    assert warned() == ["cache_unreadable"]


# writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_what_the_disk_refuses_is_not_kept(
    store: Store, file: Path, warned: Warned, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What is there already can still be read; and one warning says why nothing more is kept."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        for i in range(3):
            store.write("programs", b"%d" % i, (), PROGRAM)
        assert store.flush(20)
    assert warned() == ["cache_not_written"]
    assert sorted(os.listdir(file.parent)) == [file.name]
    assert store.read("programs", b"n") == Record(("inputs", 2), PROGRAM)


def test_a_full_disk_at_the_start_does_not_hide_what_is_kept(
    store: Store, file: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading needs no room."""
    assert store.close()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    again = open_here(root)
    assert again.read("programs", b"n") == Record(("inputs", 2), PROGRAM)
    assert again.close()


def test_a_folder_in_the_place_of_a_file_gives_way(store: Store, file: Path) -> None:
    """Also when nobody has read it first."""
    folder(file)
    store.write("programs", b"n", 2, b"new")
    assert store.flush(20)
    assert store.read("programs", b"n") == Record(2, b"new")


def test_the_folder_may_be_removed_while_the_server_runs(
    store: Store, file: Path, root: Path, warned: Warned
) -> None:
    """What was there is not there any more; the next record makes the folder again."""
    shutil.rmtree(root)
    assert store.read("programs", b"n") is None
    assert not store.has("programs", b"n")
    assert store.names("programs") == []
    assert usage_of(store).bytes == 0
    store.touch("programs", b"n")
    store.write("programs", b"m", 1, PROGRAM)
    assert store.flush(20)
    assert store.read("programs", b"m") == Record(1, PROGRAM)
    assert root.stat().st_mode & 0o777 == 0o700
    assert warned() == []


def test_a_folder_that_a_stranger_has_put_there_is_not_used(
    store: Store, file: Path, root: Path, warned: Warned
) -> None:
    """Nothing is written into it, and one warning says so."""
    shutil.rmtree(root)
    root.mkdir()
    root.chmod(0o777)
    for name in (b"a", b"b"):
        store.write("programs", name, 1, PROGRAM)
        assert store.flush(20)
    assert os.listdir(root) == []
    assert warned() == ["cache_refused"]


# other processes ---------------------------------------------------------------------------------


def test_two_processes_may_write_the_same_names(store: Store, start_child: StartChild) -> None:
    """Whoever reads finds one of the whole records, or none, and never a mixture."""
    program = (
        "for turn in range(60):\n"
        "    for name in (b'a', b'b', b'c'):\n"
        "        store.write('programs', name, turn, name * 30_000 + bytes([turn]))\n"
        "        assert store.flush(20)\n"
        "        found = store.read('programs', name)\n"
        "        assert found and found.payload == name * 30_000 + bytes([found.content])\n"
        "assert store.close(); print('done')\n"
    )
    children = [start_child(program) for _ in range(2)]
    while any(child.poll() is None for child in children):
        for name in (b"a", b"b", b"c"):
            found = store.read("programs", name)
            assert found is None or found.payload == name * 30_000 + bytes([found.content])
    for child in children:
        said, complained = child.communicate(timeout=40)
        assert (said, complained) == ("done\n", "")


def test_a_process_that_is_killed_while_writing_leaves_nothing_wrong(
    store: Store, root: Path, start_child: StartChild, warned: Warned
) -> None:
    """Half a file is never found; what it left is swept when it is a minute old."""
    child = start_child(
        "import os, sys\n"
        "from jaxd_server.cache import store as module\n"
        "encode = module.encode\n"
        "def halves(*args):\n"
        "    for piece in encode(*args):\n"
        "        yield piece[: len(piece) // 2]\n"
        "        if len(piece) > 10_000:\n"
        "            print('half', flush=True); sys.stdin.read()\n"
        "        yield piece[len(piece) // 2 :]\n"
        "module.encode = halves\n"
        "store.write('programs', b'n', (), os.urandom(50_000))\n"
        "store.flush(60)\n"
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = list((root / "v2").rglob("*.tmp"))
    assert len(left) == 1
    assert store.read("programs", b"n") is None
    assert store.names("programs") == []
    unused_for(100, *left)
    sweep(str(root), TARGET, 1 << 30)
    assert not left[0].exists()
    assert warned() == []


def test_a_drained_server_has_kept_all(root: Path, start_child: StartChild) -> None:
    """`close` and then the hardest end there is."""
    child = start_child(
        "import os\n"
        "for i in range(50): store.write('calls', b'%d' % i, i, b'x' * 10_000)\n"
        "assert store.close(); os._exit(0)\n"
    )
    assert child.wait(40) == 0
    store = open_here(root)
    assert len(store.names("calls")) == 50
    assert store.read("calls", b"49") == Record(49, b"x" * 10_000)
    assert store.close()
