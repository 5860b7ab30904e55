"""What a client knows of a pool: read from a director that may be hostile."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from jaxd_protocol.errors import ProtocolError
from jaxd_protocol.messages.pool_view import STATES, PoolMember, PoolView, packed, unpacked
from tests.ids import row

_TLS = f"tls://10.0.0.7:18861#sha256={'ab' * 32}"
_MEMBER = PoolMember(
    "m1",
    ("unix:///run/user/1/jaxd/m1.sock", _TLS),
    machine="d0f1",
    node="gpu-7",
    devices=2,
    version="0.3",
    epoch=4,
    state="ready",
    load=3,
)


def _view(**members: dict[str, Any]) -> dict[str, Any]:
    return {"pool": "lab", "sequence": 1, "members": members}


def test_a_view_is_the_same_after_json() -> None:
    """A view comes back equal from what it is sent as."""
    view = PoolView("lab", 7, {"m1": _MEMBER}, {"ab" * 8: 3})
    assert PoolView.from_dict(json.loads(json.dumps(view.to_dict()))) == view


def test_a_change_has_only_the_members_that_changed() -> None:
    """A change sets fields of members, adds members and removes them; the rest stays."""
    before = PoolView("lab", 7, {"m1": _MEMBER, "m2": PoolMember("m2")})
    change = {"sequence": 9, "members": {"m1": {"load": 0}, "m2": None, "m3": {"name": "m3"}}}
    after = before.patched(change)
    assert (after.pool, after.sequence, set(after.members)) == ("lab", 9, {"m1", "m3"})
    assert after.members["m1"].load == 0
    assert after.members["m1"].addresses == _MEMBER.addresses
    assert set(before.members) == {"m1", "m2"}


def test_a_change_has_only_the_functions_that_are_spread_otherwise() -> None:
    """The others stay as they are, and so do the members."""
    before = PoolView("lab", 7, {"m1": _MEMBER}, {"ab" * 8: 3, "cd" * 8: 2})
    after = before.patched({"sequence": 8, "spreads": {"ab" * 8: None, "ef" * 8: 9}})
    assert after.spreads == {"cd" * 8: 2, "ef" * 8: 9}
    assert after.members == before.members
    assert after.patched({"sequence": 9}).spreads == after.spreads


def test_a_long_change_is_compressed_and_a_whole_view_is_text() -> None:
    """Which `jaxd pool status --director` reads as it reads what servers answer."""
    loads = {f"member-{number:04}": {"load": number % 7} for number in range(700)}
    change = {"change": {"members": loads}, "source": "a", "more": False}
    sent = packed(change)
    assert unpacked(sent) == change
    assert len(sent) < len(json.dumps(change)) / 4
    others: list[dict[str, Any]] = [{"change": {}}, {"view": {"members": loads}}]
    for told in others:
        assert json.loads(packed(told)) == unpacked(packed(told)) == told


def test_what_is_no_answer_is_refused() -> None:
    """Neither compressed nor as text; and not more than a client has room for."""
    sent = packed({"change": {"members": {f"m{number}": None for number in range(700)}}})
    assert type(sent) is bytes
    for wrong in (sent[:-9], b"{}", b"", "no JSON", 7, zlib.compress(b" " * (1 << 27))):
        with pytest.raises((TypeError, ValueError)):
            unpacked(wrong)


def test_fields_of_a_newer_director_are_left_out() -> None:
    """What this version does not know is no error."""
    newer = {**_view(m1={**_MEMBER.to_dict(), "colour": "red"}), "moon": 1}
    assert PoolView.from_dict(newer).members == {"m1": _MEMBER}


@pytest.mark.parametrize("state", STATES)
def test_each_state_is_read(state: str) -> None:
    """The states that a director tells are those that a client takes."""
    view = PoolView.from_dict(_view(m1={"name": "m1", "state": state}))
    assert view.members["m1"].state == state


def test_what_is_no_view_is_refused() -> None:
    """A director cannot have a client take other types, or dial what is not encrypted."""
    rows: list[dict[str, Any]] = [
        {"pool": 3},
        {"pool": "x" * 65},
        {"sequence": "1"},
        {"sequence": True},
        {"spreads": {"ab" * 8: "3"}},
        {"spreads": {"ab" * 8: True}},
        {"spreads": {"AB" * 8: 3}},
        {"spreads": {"ab" * 9: 3}},
        {"spreads": ["ab" * 8]},
        {"members": ["m1"]},
        {"members": {"m1": 5}},
        _view(m1={"name": "m2"}),
        _view(**{"m 1": {"name": "m 1"}}),
        _view(m1={"name": "m1", "state": "asleep"}),
        _view(m1={"name": "m1", "load": "many"}),
        _view(m1={"name": "m1", "devices": 10**12}),
        _view(m1={"name": "m1", "devices": -1}),
        _view(m1={"name": "m1", "addresses": ["pool+unix:///run/director.sock"]}),
        _view(m1={"name": "m1", "addresses": ["ssh://-oProxyCommand=x/"]}),
        _view(m1={"name": "m1", "addresses": ["ssh://elsewhere"]}),
        _view(m1={"name": "m1", "addresses": ["tcp://elsewhere:1?insecure=1"]}),
        _view(m1={"name": "m1", "addresses": ["tls://elsewhere:1#sha256=12"]}),
        _view(**{f"m{each}": {"name": f"m{each}"} for each in range(10_001)}),
    ]
    for content in rows:
        with row(content), pytest.raises(ProtocolError, match="director"):
            PoolView.from_dict(content)
