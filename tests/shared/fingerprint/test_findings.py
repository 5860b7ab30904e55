"""What a walk notes on its way: parts, notes, decisions, paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxd_protocol.fingerprint.facts import Part
from jaxd_protocol.fingerprint.findings import MAX_PARTS, shown
from tests.shared.fingerprint.defining import define, digest_of, function, part_names, seen

if TYPE_CHECKING:
    import pytest


def test_parts_are_named_as_people_call_them() -> None:
    """A function, its helpers, what they read and close over."""
    module = define(
        """
        RATE, TABLE = 0.5, {"a": {"b": 1}}
        def helper(x, scale=2): return x * scale * TABLE["a"]["b"]
        def make(width): return lambda x: helper(x) * width * RATE
        step = make(8)
        """
    )
    assert part_names(module.step) == [
        "function: lambda make.<locals>.<lambda>",
        "value: closure width",
        "value: global RATE",
        "function: function helper",
        "value: default scale of helper",
        "value: global TABLE['a']['b']",
    ]


def test_a_part_says_its_value_and_where_it_is_read() -> None:
    """File and line of the function that reads it."""
    module = define("RATE = 0.5\n\ndef f(x):\n    return x * RATE\n")
    parts = seen(module.f).fingerprint.parts
    assert [(part.name, part.shown, part.where) for part in parts] == [
        ("function f", "", "made_up.py:3"),
        ("global RATE", "0.5", "made_up.py:3"),
    ]
    assert all(type(part) is Part and len(part.digest) == 8 for part in parts)


def test_not_all_parts_of_a_large_function_are_named() -> None:
    """All of them count."""
    many = list(range(MAX_PARTS + 10))
    parts = seen(function("return MANY", MANY=many)).fingerprint.parts
    assert len(parts) == MAX_PARTS
    other = function("return MANY", MANY=[*many[:-1], 0])
    assert digest_of(other) != digest_of(function("return MANY", MANY=many))


def test_a_note_says_who_reads_what_and_where() -> None:
    """A read that no key can hold; nothing is noted of what runs after tracing."""
    source = """
    import time
    def clock(x):
        return x + time.time()
    def f(x):
        return clock(x)
    def quiet(x):
        import jax
        return jax.pure_callback(lambda: time.time(), x)
    """
    module = define(source)
    (note,) = seen(module.f).fingerprint.notes
    assert note == ("f → clock", "the clock (time.time)", "made_up.py:4")
    assert seen(module.quiet).fingerprint.notes == ()


def test_what_was_decided_about_modules_is_told() -> None:
    """Which are local, which packages are reached, and what counts of them by its value."""
    module = define("import math, json, numpy as np\ndef f(x): return np.sum(x), json.dumps(x)")
    found = seen(module.f).fingerprint
    assert found.local["numpy"] is False
    assert found.local["made_up"] is True
    assert set(found.packages) == {"numpy"}
    assert found.carried == frozenset()


def test_what_is_carried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its value, for the packing."""
    module = define("import json\ndef f(x): return json.limit")
    monkeypatch.setattr("json.limit", 10, raising=False)
    walked = seen(module.f)
    assert walked.fingerprint.carried == {"json:limit"}
    assert walked.reach.carried == {"json": {"limit": 10}}


def test_a_value_is_shown_in_a_few_characters() -> None:
    """Sixty at most."""
    assert shown("a") == "'a'"
    assert len(shown("a" * 100)) == 60
    assert shown("a" * 100).endswith("...")
