from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxd_protocol.errors import LimitExceeded, ProtocolError, ValueDeleted
from jaxd_protocol.messages.data_locations import pack_ids
from jaxd_server.values.held_snapshots import ABANDONED_S, HeldSnapshots
from jaxd_server.values.store import ValueStore
from jaxd_server.values.value import SessionValues
from tests.server.value_desks import ValueServiceRig

SECRET = "0123456789abcdef" * 2
PAGE = 4096
DATA = [memoryview(bytes([n]) * n) for n in (1, 200, 0, 65)]


class Clock:
    """Seconds that pass when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def held_in(folder: Path, limit: int = 1 << 20, clock: Any = None) -> HeldSnapshots:
    """Those of one worker."""
    return HeldSnapshots(str(folder), limit, 60.0, clock or Clock())


def write(held: HeldSnapshots, own: SessionValues, number: int, nbytes: int = 100) -> None:
    """One of so many bytes, and a few more."""
    held.write(own, SECRET, number, b"what", [memoryview(bytes(nbytes))])


def test_the_next_worker_reads_what_was_written(tmp_path: Path) -> None:
    """To the last bit; nobody else can, neither by the secret nor by the name."""
    me, other = SessionValues("uid:1"), SessionValues("uid:2")
    held_in(tmp_path).write(me, SECRET, 3, b"skeleton", DATA)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    held = held_in(tmp_path)
    skeleton, data = held.read(SessionValues("uid:1"), SECRET, 3)
    assert (skeleton, [*map(bytes, data)]) == (b"skeleton", [*map(bytes, DATA)])
    for own, secret in ((other, SECRET), (me, SECRET[::-1])):
        with pytest.raises(ValueDeleted, match="--snapshot-bytes"):
            held.read(own, secret, 3)
        held.remove(own, secret, ())
    with pytest.raises(ProtocolError):
        held.read(me, "../" + SECRET[3:], 3)
    assert held.read(me, SECRET, 3)[0] == b"skeleton"


def test_what_was_read_stays_when_it_is_removed(tmp_path: Path) -> None:
    """One by one, or all of a client."""
    held, own = held_in(tmp_path), SessionValues("uid:1")
    for number in range(4):
        write(held, own, number)
    _, (data,) = held.read(own, SECRET, 1)
    held.remove(own, SECRET, (1, 2, 9))
    assert len([*tmp_path.iterdir()]) == 2
    assert bytes(data) == bytes(100)
    held.remove(own, SECRET, ())
    assert not [*tmp_path.iterdir()]


def test_there_is_no_more_than_the_limit(tmp_path: Path) -> None:
    """Nothing of what has no room stays; what can be told from others is left alone."""
    held, own = held_in(tmp_path, limit=10 * PAGE), SessionValues("uid:1")
    write(held, own, 0, 3 * PAGE)
    with pytest.raises(LimitExceeded, match="--snapshot-bytes"):
        write(held, own, 1, 6 * PAGE)
    with pytest.raises(ProtocolError):
        write(held, own, 0, 10)
    held.remove(own, SECRET, (0,))
    write(held, own, 1, 6 * PAGE)
    assert len([*tmp_path.iterdir()]) == 1


def test_a_file_system_without_room_is_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for room before anything is written: memory that is not there would kill."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LimitExceeded, match="No space left"):
        write(held_in(tmp_path), SessionValues("uid:1"), 0)
    assert not [*tmp_path.iterdir()]


def test_without_its_folder_there_is_no_room(tmp_path: Path) -> None:
    """Who has removed it, such as systemd at the end of a login, leaves snapshots to clients."""
    with pytest.raises(LimitExceeded, match="No such file"):
        write(held_in(tmp_path / "gone"), SessionValues("uid:1"), 0)


@pytest.mark.parametrize("number", ["1", "1/../x", -1, 1 << 70, True, None])
def test_a_number_that_is_none_names_no_file(tmp_path: Path, number: Any) -> None:
    """Whatever a client says."""
    held, own = held_in(tmp_path), SessionValues("uid:1")
    for ask in (
        lambda: write(held, own, number),
        lambda: held.read(own, SECRET, number),
        lambda: held.remove(own, SECRET, (number,)),
    ):
        with pytest.raises(ProtocolError, match="numbers its snapshots"):
            ask()
    assert not [*tmp_path.iterdir()]


def test_those_of_a_client_that_is_gone_make_room(tmp_path: Path) -> None:
    """Not while it may come back, and not while it has a session."""
    clock = Clock()
    held, gone, other = held_in(tmp_path, 10 * PAGE, clock), *map(SessionValues, ("uid:1", "uid:2"))
    write(held, gone, 0, 3 * PAGE)
    clock.now += ABANDONED_S + 1
    held.poll()
    held.leave(gone)
    for _ in range(2):
        with pytest.raises(LimitExceeded):
            write(held, other, 0, 6 * PAGE)
        clock.now += 59.0
    again = SessionValues("uid:1")
    held.read(again, SECRET, 0)
    clock.now += 100.0
    with pytest.raises(LimitExceeded):
        write(held, other, 0, 6 * PAGE)
    held.leave(again)
    clock.now += 61.0
    write(held, other, 0, 6 * PAGE)
    with pytest.raises(ValueDeleted):
        held.read(again, SECRET, 0)


def test_a_client_is_gone_when_its_session_is_over(tmp_path: Path) -> None:
    """And not when it drops arrays, as each loop does; what it has left is removed in time."""
    clock = Clock()
    store = ValueStore(snapshots=held_in(tmp_path, clock=clock))
    own = SessionValues("uid:1")
    held = store.snapshots
    assert held is not None
    write(held, own, 0)
    store.drop(own, [range(1 << 40, 1 + (1 << 40))])
    clock.now += ABANDONED_S + 1
    store.poll()
    assert [*tmp_path.iterdir()]
    store.end(own)
    clock.now += ABANDONED_S + 1
    store.poll()
    assert not [*tmp_path.iterdir()]


def test_what_nobody_asks_for_is_removed_after_an_hour(tmp_path: Path) -> None:
    """Of clients that the worker before has had, an hour after its end."""
    held_in(tmp_path).write(SessionValues("uid:1"), SECRET, 0, b"", DATA)
    clock = Clock()
    held = held_in(tmp_path, clock=clock)
    clock.now += ABANDONED_S - 1
    held.poll()
    assert [*tmp_path.iterdir()]
    clock.now += 2
    held.poll()
    assert not [*tmp_path.iterdir()]


def test_values_are_what_they_were(tmp_path: Path) -> None:
    """In another session, under other ids: dtypes, weak types, keys, and what is empty."""
    held = held_in(tmp_path)
    arrays = (
        *(jnp.arange(5, dtype=jnp.bfloat16), np.float32(2.5), 3, np.zeros((0, 2), np.int8)),
        *(jax.random.key(7), jnp.ones((2, 3), bool)),
    )
    rig = ValueServiceRig(ValueStore(snapshots=held))
    ids = rig.put(*arrays)
    rig.ask("hold", SECRET, 1, pack_ids(ids))
    next_one = ValueServiceRig(ValueStore(snapshots=held))
    wanted = range(1 << 40, (1 << 40) + len(ids))
    with pytest.raises(ProtocolError):
        next_one.ask("held", SECRET, 1, pack_ids(wanted[1:]))
    next_one.ask("held", SECRET, 1, pack_ids(wanted))
    for before, after in zip(ids, wanted, strict=True):
        old, new = rig.own.get(before), next_one.own.get(after)
        assert old.leaf == new.leaf
        np.testing.assert_array_equal(rig.fetch(before)[0], next_one.fetch(after)[0])
