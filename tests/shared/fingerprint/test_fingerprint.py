"""What a function means, asked from outside."""

from __future__ import annotations

import pytest

from jaxd_protocol import fingerprint
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import content_id, walk
from tests.shared.fingerprint.defining import function


def test_a_walk_gives_a_fingerprint_what_is_reached_and_guards() -> None:
    """Of functions, classes and objects."""
    walked = walk(function("return x * RATE", RATE=2), "step")
    assert len(walked.fingerprint.digest) == 16
    assert walked.guards.hold()
    assert walked.reach.unpicklable == {}


def test_what_can_neither_be_in_a_key_nor_carried_is_refused_by_name() -> None:
    """The name that it is called by."""
    with pytest.raises(PackingError, match="step → f"):
        walk(function("import sys\nreturn sys.modules"), "step")


def test_a_content_id_is_found_once_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when something has."""
    made = function("return x * TABLE['rate']", TABLE={"rate": 1})
    before = content_id(made)
    assert len(before) == 16
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "walk", lambda *_: 1 / 0)
        assert content_id(made) == before
    made.__globals__["TABLE"]["rate"] = 2
    assert content_id(made) != before
    made.__globals__["TABLE"]["rate"] = 1
    assert content_id(made) == before


def test_a_content_id_is_not_that_of_another_object() -> None:
    """Of one that has the address of one that is gone."""
    assert len({content_id(function(f"return {number}")) for number in range(50)}) == 50
