from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxd.request.arguments import encode_arguments
from jaxd_protocol.jit.static_args import StaticArgs
from jaxd_server.cache.catalog import CachedCall, cached_calls, check_records, target_facts
from jaxd_server.cache.store import Store
from tests.server.cache.keeping import (
    OTHER,
    TARGET,
    OpenStore,
    file_of,
    keep_call,
    unused_for,
    usage_of,
)


def only(root: Path) -> CachedCall:
    """The one call that is kept."""
    (call,) = cached_calls(str(root))
    return call


def skeleton_of(*args: Any) -> bytes:
    """That of a call, as a client makes it."""
    return bytes(encode_arguments(args, {}, StaticArgs(), {}).skeleton)


def test_a_call_is_described(store: Store, root: Path) -> None:
    """Who it is, what it takes, what it cost, and how much room it takes with its program."""
    skeleton = skeleton_of(np.zeros((3, 4), np.float32), {"w": 1})
    keep_call(store, b"\x01\x02", skeleton=skeleton, parameters=("x", "params"))
    call = only(root)
    assert (call.record, call.key, call.program) == ("0102", "11" * 16, b"p\x01\x02".hex())
    assert (call.name, call.principal, call.target) == ("step", "ann", TARGET)
    assert call.arguments == {"x": "float32[3,4]", "params": "dict of 1"}
    assert (call.trace_s, call.compile_s, call.build_s) == (0.25, 1.0, 1.25)
    assert call.created == 1_700_000_000.0
    assert call.last_use == file_of(root, "calls", b"\x01\x02").stat().st_mtime
    assert call.bytes == usage_of(store).bytes
    assert (call.shared_with, call.obstacle) == ((), "")


def test_the_call_used_last_comes_first(store: Store, root: Path, open_: OpenStore) -> None:
    """From all targets."""
    keep_call(store, b"\x01")
    keep_call(open_(OTHER), b"\x02")
    unused_for(100, file_of(root, "calls", b"\x01"))
    assert [call.target for call in cached_calls(str(root))] == [OTHER, TARGET]


def test_who_shares_a_program_is_told(store: Store, root: Path, open_: OpenStore) -> None:
    """Within one target: another device's program of the same name is another one."""
    keep_call(store, b"\x01", program=b"p")
    keep_call(store, b"\x02", program=b"p")
    keep_call(open_(OTHER), b"\x03", program=b"p")
    shared = {call.record: call.shared_with for call in cached_calls(str(root))}
    assert shared == {"01": ("02",), "02": ("01",), "03": ()}


def test_what_is_odd_is_shown_as_far_as_it_goes(store: Store, root: Path) -> None:
    """Why a program is not kept; a name cannot talk to the terminal; broken files are left out."""
    keep_call(store, b"\x01", obstacle="callbacks")
    assert only(root).obstacle == "callbacks"
    keep_call(store, b"\x01", name="f\x1b[2J\n", principal="a\x07")
    assert (only(root).name, only(root).principal) == ("f?[2J?", "a?")
    keep_call(store, b"\x01")
    file_of(root, "calls", b"\x01").write_bytes(b"x")
    assert cached_calls(str(root)) == []
    assert file_of(root, "calls", b"\x01").exists()


def test_what_another_version_wrote_is_shown_as_far_as_it_goes(store: Store, root: Path) -> None:
    """Fields that are missing, new or of another type are no trouble."""
    store.write("calls", b"\x01", (("name", 3), ("compile_s", "long"), ("skeleton", b"?")))
    store.write("calls", b"\x02", "something else")
    store.write("calls", b"\x03", (("name", "f"), ("parameters", (1, 2)), ("colour", "red")))
    assert store.flush(20)
    found = {call.record: (call.name, call.build_s) for call in cached_calls(str(root))}
    assert found == {"01": ("", 0.0), "02": ("", 0.0), "03": ("f", 0.0)}


def test_a_target_says_what_it_is(store: Store, root: Path) -> None:
    """As far as its file can be read."""
    assert target_facts(str(root), TARGET) == {"jax": "1.2.3"}
    assert target_facts(str(root), OTHER) == {}
    Path(store.folder, "target.json").write_text("[1]")
    assert target_facts(str(root), TARGET) == {}
    Path(store.folder, "target.json").write_bytes(b"\xff")
    assert target_facts(str(root), TARGET) == {}


def test_every_byte_is_checked(store: Store, root: Path) -> None:
    """Also those of a payload, and whether the file is where it belongs."""
    keep_call(store, b"\x01")
    keep_call(store, b"\x02")
    assert [reason for _, reason in check_records(str(root))] == [None] * 4
    program = file_of(root, "programs", b"p\x01")
    data = program.read_bytes()
    program.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    file_of(root, "calls", b"\x02").rename(file_of(root, "calls", b"\x03"))
    found = {entry.path: reason for entry, reason in check_records(str(root)) if reason}
    assert found == {
        str(program): "its payload was changed",
        str(file_of(root, "calls", b"\x03")): "it is the file of another record",
    }


def test_the_folder_of_another_target_is_noticed(store: Store, root: Path) -> None:
    """Its records name the target that they are for."""
    keep_call(store, b"\x01")
    (root / "v2" / TARGET).rename(root / "v2" / OTHER)
    assert {reason for _, reason in check_records(str(root))} == {
        "it is the file of another record"
    }
