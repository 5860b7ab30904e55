"""The walk itself: numbers, paths, parts and what was found on the way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxd_protocol import fingerprint
from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint import content_id, walk
from jaxd_protocol.fingerprint import walk as package_walk
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.fingerprint.dispatch import HANDLERS
from jaxd_protocol.fingerprint.process_view import SALT, ClientProcess, LocalProcess
from jaxd_protocol.fingerprint.walk import MAX_PARTS, Walk, short_repr
from tests.shared.fingerprint.defining import define, digest_of, function, part_names, walk_of

LIST = [1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([LIST, LIST], [[1], [1]], False),
        ((LIST, LIST), ([1], [1]), False),
        (((1,), (1,)), ((1,), (1,)), True),
        ([(1,), (1,)], [(1,), (1,)], True),
        ({"a": LIST, "b": LIST}, {"a": [1], "b": [1]}, False),
    ],
)
def test_what_can_change_has_a_number_and_a_value_has_none(
    one: Any, other: Any, same: bool
) -> None:
    """One list that is reached twice is not two equal ones; tuples are."""
    assert (digest_of(one) == digest_of(other)) is same


@pytest.mark.parametrize("wrap", [lambda v: (v,), lambda v: [v], lambda v: {"a": v}])
def test_a_nest_may_be_deep(wrap: Callable[[Any], Any]) -> None:
    """Deeper than Python's stack; what lies at the bottom counts."""

    def nest(bottom: int) -> Any:
        value: Any = bottom
        for _ in range(5000):
            value = wrap(value)
        return value

    assert digest_of(nest(1)) == digest_of(nest(1)) != digest_of(nest(2))


def test_what_is_nested_too_deeply_in_sets_is_refused() -> None:
    """Their elements have to be taken apart on top of each other."""
    value: Any = frozenset()
    for _ in range(5000):
        value = frozenset({value})
    with pytest.raises(PackingError, match="f reaches objects that are nested too deeply"):
        package_walk(value, "f")


def test_the_salt_is_in_every_digest() -> None:
    """Another version of Python, or of this algorithm, has other keys."""
    here = LocalProcess()
    assert walk_of(1, here).fingerprint.digest == walk_of(1).fingerprint.digest

    def process_view(salt: bytes) -> ClientProcess:
        return ClientProcess(salt, {}, {}, frozenset())

    assert walk_of(1, process_view(SALT)).fingerprint.digest == walk_of(1).fingerprint.digest
    assert walk_of(1, process_view(b"other")).fingerprint.digest != walk_of(1).fingerprint.digest


def numbers() -> Any:
    return (number for number in [1])


def test_what_has_no_content_makes_the_digest_like_no_other() -> None:
    """And is named by the path that leads there."""
    module = define(
        """
        def helper(x): return next(CONFIG["stream"])
        def f(x): return helper(x)
        """,
        CONFIG={"stream": numbers()},
    )
    first, again = walk_of(module.f), walk_of(module.f)
    assert first.fingerprint.digest != again.fingerprint.digest
    (found,) = first.fingerprint.unshared
    assert found.path == "f → helper → CONFIG['stream']"
    assert found.type_name == "generator"
    assert first.reach.unpicklable[id(module.CONFIG["stream"])] == found


@pytest.mark.parametrize(
    ("body", "ignored"),
    [
        ("return NAME", "NAME"),
        ("return CONFIG['a']", "CONFIG['a']"),
        ("return CONFIG.a", "CONFIG.a"),
        ("return CONFIG['a'].b['c']", "CONFIG['a']"),
    ],
)
def test_what_is_ignored_does_not_count(body: str, ignored: str) -> None:
    """By the text that reads it; it travels all the same."""

    def made(value: Any) -> Any:
        config: Any = {"a": value}
        if "CONFIG.a" in body:
            config = SimpleNamespace(a=value)
        return function(body, CONFIG=config, NAME=value)

    one, other = (walk_of(made(value), None, (ignored,)) for value in ([1], [2]))
    assert one.fingerprint.digest == other.fingerprint.digest
    assert one.fingerprint.unshared == ()
    assert one.reach.unpicklable == {}


def test_what_is_ignored_takes_no_numbers_from_the_rest() -> None:
    """Two clients with the same key must mean the same object by a number."""
    source = "def helper(x): return x\nCONFIG = {}\ndef f(x): return CONFIG, helper(x)"
    places = []
    for config in ("[[]]", "[[], [], []]"):
        module = define(source.format(config))
        found = walk_of(module.f, None, ["CONFIG"]).reach.numbered
        places.append([value is module.helper for value in found].index(True))
    assert places[0] == places[1]


def test_what_is_ignored_and_has_no_content_is_shared() -> None:
    """This is what it is for."""
    made = function("return next(STREAM)", STREAM=numbers())
    assert walk_of(made, None, ["STREAM"]).fingerprint.unshared == ()
    assert walk_of(made, None, ["OTHER"]).fingerprint.unshared != ()


def test_a_walk_can_be_told_from_where() -> None:
    """The path begins with the name that it is given."""
    made = function("return STREAM", STREAM=numbers())
    (found,) = walk(made, "step").fingerprint.unshared
    assert found.path == "step → f → STREAM"
    assert Walk(HANDLERS, LocalProcess()).run(1, "one").fingerprint.digest == digest_of(1)


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


def test_what_is_inside_of_a_container_is_named_by_the_way_there() -> None:
    """As code would write it."""
    config = {"layers": [(8, {"act": "relu"})], 1: 2.5}
    assert part_names(function("return CONFIG", CONFIG=config))[1:] == [
        "value: global CONFIG[1]",
        "value: global CONFIG['layers'][0][0]",
        "value: global CONFIG['layers'][0][1]['act']",
    ]


def test_a_part_says_its_value_and_where_it_is_read() -> None:
    """File and line of the function that reads it."""
    module = define("RATE = 0.5\n\ndef f(x):\n    return x * RATE\n")
    parts = walk_of(module.f).fingerprint.parts
    assert [(part.name, part.shown, part.where) for part in parts] == [
        ("function f", "", "made_up.py:3"),
        ("global RATE", "0.5", "made_up.py:3"),
    ]
    assert all(type(part) is Part and len(part.digest) == 8 for part in parts)


def test_not_all_parts_of_a_large_function_are_named() -> None:
    """All of them count."""
    many = list(range(MAX_PARTS + 10))
    parts = walk_of(function("return MANY", MANY=many)).fingerprint.parts
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
    (note,) = walk_of(module.f).fingerprint.notes
    assert note == ("f → clock", "the clock (time.time)", "made_up.py:4")
    assert walk_of(module.quiet).fingerprint.notes == ()


def test_what_was_decided_about_modules_is_told() -> None:
    """Which are local, which packages are reached, and what counts of them by its value."""
    module = define("import math, json, numpy as np\ndef f(x): return np.sum(x), json.dumps(x)")
    found = walk_of(module.f).fingerprint
    assert found.local["numpy"] is False
    assert found.local["made_up"] is True
    assert set(found.packages) == {"numpy"}
    assert found.carried == frozenset()


def test_a_value_is_shown_in_a_few_characters() -> None:
    """Sixty at most."""
    assert short_repr("a") == "'a'"
    assert len(short_repr("a" * 100)) == 60
    assert short_repr("a" * 100).endswith("...")


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
