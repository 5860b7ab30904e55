"""How many bytes values take, and whether there is room for more."""

from __future__ import annotations

import pytest

from jaxd_server.values.byte_accounting import ValueAccounting


def test_there_is_room_up_to_the_limit_and_to_ones_share() -> None:
    """Of what is used and what is promised."""
    room = ValueAccounting(limit=100, share=0.6)
    assert room.has("a", 60)
    assert not room.has("a", 61)
    room.charge("b", 30)
    room.promise("b", 20)
    assert room.has("a", 50)
    assert not room.has("a", 51)
    assert room.has("b", 10)
    assert not room.has("b", 11)


def test_what_goes_leaves_nothing_behind() -> None:
    """No principal stays in the account with nothing."""
    room = ValueAccounting(limit=100, share=1.0)
    room.charge("a", 30)
    room.promise("a", 70)
    room.promise("a", -70)
    room.charge("a", -30)
    assert (room.values.used_by, room.values.used) == ({}, 0)
    assert room.has("b", 100)


def test_without_a_limit_there_is_always_room() -> None:
    """Whatever is used."""
    room = ValueAccounting(limit=0, share=0.5)
    room.charge("a", 1 << 60)
    assert room.has("a", 1 << 60)


@pytest.mark.parametrize("promised", [0, 3 << 20])
def test_who_gets_none_learns_why(promised: int) -> None:
    """How much there is, whose it is, and what to do."""
    room = ValueAccounting(limit=10 << 20, share=0.5)
    room.charge("a", 4 << 20)
    room.charge("b", 1 << 20)
    room.promise("b", promised)
    text = str(room.full("a", 2 << 20, [{"what": "step", "bytes": 4 << 20}]))
    assert "2.0 MiB more have no room" in text
    assert "take 5.0 of 10.0 MiB, yours 4.0 of 5.0 MiB" in text
    assert ("and 3.0 MiB are being filled" in text) == bool(promised)
    assert "step 4.0 MiB" in text
    assert text.endswith("a larger --value-bytes.")
