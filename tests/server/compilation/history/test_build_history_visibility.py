from __future__ import annotations

import pytest

from jaxd_server.compilation.history import build_history as module
from jaxd_server.compilation.history.build_history import KnownFunctions, belongs_to

ALICE, BOB, OWNER = "account:alice", "account:bob", "uid:7"
KEYS = [bytes([n]) * 16 for n in range(4)]


@pytest.fixture
def known_functions() -> KnownFunctions:
    """Of a server that belongs to user 7."""
    return KnownFunctions(belongs_to(7))


def test_each_sees_what_they_have_called(known_functions: KnownFunctions) -> None:
    """And the owner everything, also what nobody has called."""
    known_functions.record(ALICE, KEYS[0])
    known_functions.record(BOB, KEYS[1])
    known_functions.record(OWNER, KEYS[2])
    seen = {
        who: [key for key in KEYS if known_functions.visibility(who)(key)]
        for who in (ALICE, BOB, OWNER)
    }
    assert seen == {ALICE: KEYS[:1], BOB: KEYS[1:2], OWNER: KEYS}


def test_what_is_seen_grows_with_the_next_call(known_functions: KnownFunctions) -> None:
    """Who has looked before sees it, too."""
    sees = known_functions.visibility(ALICE)
    assert not sees(KEYS[0])
    known_functions.record(ALICE, KEYS[0])
    assert sees(KEYS[0])
    known_functions.forget(ALICE)
    assert not known_functions.visibility(ALICE)(KEYS[0])


def test_only_so_much_is_remembered(
    known_functions: KnownFunctions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was called last; and nothing of the owner."""
    monkeypatch.setattr(module, "_MAX_KEYS", 2)
    for index in (0, 1, 0, 2):
        known_functions.record(ALICE, KEYS[index])
        known_functions.record(OWNER, KEYS[index])
    sees = known_functions.visibility(ALICE)
    assert [sees(key) for key in KEYS] == [True, False, True, False]
    assert list(known_functions._known) == [ALICE]


@pytest.mark.parametrize(
    ("principal", "is_owner"),
    [
        ("uid:7", True),
        ("uid:0", True),
        ("token", True),
        ("anonymous@127.0.0.1", True),
        ("uid:8", False),
        ("uid:77", False),
        ("account:token", False),
        ("account:uid:7", False),
    ],
)
def test_whose_a_server_is(principal: str, is_owner: bool) -> None:
    """Its user's, root's, and who has that user's own token; nobody else's."""
    assert belongs_to(7)(principal) is is_owner
