"""What a call would do, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxd import Client, persistent_call
from jaxd.api.why import Why, is_valid_call
from jaxd.errors import NoServer
from jaxd_protocol.explain.key_differences import Difference

PROGRAM: dict[str, Any] = {
    "arguments": {"x": "float32[3]", "steps": "10 (static)"},
    "seconds": 8.21,
    "age_s": 200.0,
    "calls": 17,
}
MISS = Why(
    "compile",
    "train_step",
    "ab" * 16,
    "cd" * 16,
    "global LR: 0.1 → 0.01",
    {"function": "train_step", "key": "01234567" * 4, "same_key": False, **PROGRAM},
    (Difference.of_values("value", "global LR", "0.1", "0.01"),),
    ("pass it.",),
    (),
)


def test_a_miss_reads_as_sentences() -> None:
    """The verdict, what differs, from what, and what to do."""
    given = "x: float32[3], steps: 10 (static)"
    assert str(MISS).splitlines() == [
        "train_step: compile",
        "  global LR: 0.1 → 0.01",
        f"  compared with the version 01234567 compiled 3 min ago in 8.2 s for {given}; 17 calls",
        "  advice: pass it.",
    ]


def test_a_hit_reads_as_sentences() -> None:
    """With the program that will answer."""
    hit = Why("hit", "f", "", "", "it is ready", None, (), (), ({**PROGRAM, "calls": 1},))
    assert str(hit).splitlines() == [
        "f: hit",
        "  it is ready",
        "  compiled 3 min ago in 8.2 s for x: float32[3], steps: 10 (static); 1 call",
    ]


@pytest.mark.parametrize(
    ("age_s", "words"), [(0.4, "0 s ago"), (119, "119 s ago"), (8000, "2 h ago"), (2e5, "2 days")]
)
def test_ages_are_rounded(age_s: float, words: str) -> None:
    """As people say them."""
    hit = Why("hit", "f", "", "", "ready", None, (), (), ({**PROGRAM, "age_s": age_s},))
    assert f"compiled {words}" in str(hit)


def test_what_it_is_compared_with_is_named() -> None:
    """The same key, an earlier version, or another function."""
    nearest = dict(MISS.nearest or {})
    for change, words in (
        ({"same_key": True}, "compared with the program compiled"),
        ({"function": "old_step"}, "compared with old_step (01234567) compiled"),
    ):
        fields = {**MISS.to_dict(), "nearest": {**nearest, **change}}
        assert words in str(Why.from_report(fields))


def test_it_survives_json() -> None:
    """With names that stay."""
    told = json.loads(json.dumps(MISS.to_dict()))
    assert Why.from_report(told) == MISS
    assert list(told) == [
        "verdict",
        "function",
        "key",
        "fingerprint",
        "reason",
        "nearest",
        "differences",
        "advice",
        "programs",
        "place",
    ]
    assert list(told["differences"][0]) == [
        "kind",
        "name",
        "change",
        "before",
        "after",
        "where",
        "text",
    ]


def test_no_arguments_are_a_call_where_none_are_needed() -> None:
    """Else the question is about all calls."""

    def needs(x: Any) -> None: ...

    def does_not(x: Any = 1) -> None: ...

    assert is_valid_call(does_not, (), {})
    assert is_valid_call(needs, (1,), {})
    assert is_valid_call(needs, (), {"x": 1})
    assert not is_valid_call(needs, (), {})
    assert is_valid_call(type, (), {})  # says nothing of what it needs


def test_a_question_is_no_call(client: Client) -> None:
    """No counter moves, and nothing is kept."""
    negate = client.persistent_call(lambda x: -x - 3.25)
    negate(1.0)
    before = client.statistics()
    for args in ((1.0,), (2,), ()):
        negate.why(*args)
    client.persistent_call(lambda x: -x - 4.25).why(1.0)
    after = client.statistics()
    names = ("bytes_received", "bytes_sent", "uptime_s", "disk_bytes", "disk_files")
    moves = dict.fromkeys(names, 0)  # what `negate` left may still be on its way to the disk
    assert {**before._asdict(), **moves} == {**after._asdict(), **moves}


def test_a_question_starts_no_server(runtime: Path) -> None:
    """Asking is not calling."""
    with pytest.raises(NoServer, match=r"no server runs at .*jaxd start"):
        persistent_call(lambda x: x).why(1.0)
    assert not (runtime / "jaxd").exists()


def test_without_a_server_at_all_there_is_nobody_to_ask(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says which setting it is."""
    monkeypatch.setenv("JAXD_INLINE", "1")
    with pytest.raises(NoServer, match="JAXD_INLINE=1"):
        persistent_call(lambda x: x).why(1.0)
