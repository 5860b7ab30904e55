from __future__ import annotations

from pathlib import Path

from jaxd_server.cache import Store
from jaxd_server.cache.usage import Usage, entries, foreign_targets, room, targets, usage
from tests.server.cache.keeping import OTHER, TARGET, OpenStore, file_of, keep_call, unused_for


def test_every_record_is_found(store: Store, root: Path) -> None:
    """With its kind, its room and its last use; of what is not finished nothing is seen."""
    keep_call(store, b"\x01", program=b"\x02")
    file_of(root, "calls", b"\x01").with_name(".1-ab.tmp").write_text("half")
    unused_for(500, file_of(root, "calls", b"\x01"))
    found = {entry.kind: entry for entry in entries(str(root))}
    assert set(found) == {"calls", "programs"}
    entry = found["calls"]
    assert entry.path == str(file_of(root, "calls", b"\x01"))
    assert entry.target == str(root / "v1" / TARGET)
    assert entry.bytes == 4096
    assert entry.used == file_of(root, "calls", b"\x01").stat().st_mtime


def test_one_target_can_be_looked_at(store: Store, open_: OpenStore, root: Path) -> None:
    """Or all of them."""
    keep_call(store, b"\x01")
    keep_call(open_(OTHER), b"\x01")
    assert targets(str(root)) == [TARGET, OTHER]
    assert usage(str(root), OTHER).files == {"calls": 1, "programs": 1}
    assert usage(str(root)).files == {"calls": 2, "programs": 2}


def test_a_folder_that_is_not_there_is_empty(root: Path) -> None:
    """No error: nothing is kept."""
    assert usage(str(root)) == Usage(0, {})
    assert targets(str(root)) == []


def test_a_file_takes_whole_blocks() -> None:
    """Many small files are not free."""
    assert [room(size) for size in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]


def test_only_what_says_so_is_a_target_of_another_version(root: Path) -> None:
    """A folder `v2` of the user's own is none of ours."""
    for name in ("v2/0123456789abcdef", "v2/notes", "v3/0123456789abcdef"):
        (root / name).mkdir(parents=True)
    (root / "v2/0123456789abcdef/target.json").write_text("{}")
    (root / "v2/notes/target.json").write_text("{}")
    assert foreign_targets(str(root)) == [f"{root}/v2/0123456789abcdef"]
