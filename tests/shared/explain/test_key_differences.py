"""What differs between two keys, in words."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from jaxd_protocol.explain.key_differences import (
    Difference,
    dependency_difference,
    option_differences,
    part_differences,
    similarity,
    summarize,
)
from jaxd_protocol.fingerprint.data_model import Part
from jaxd_protocol.jit.options import Options
from jaxd_protocol.jit.transforms import encode_transformation
from jaxd_protocol.packages.distributions import Package
from tests.ids import row


def part(kind: str, name: str, content: str = "", shown: str = "", where: str = "") -> Part:
    """A part with the digest of its content, or of what is shown."""
    digest = hashlib.blake2b((content or shown).encode(), digest_size=8).digest()
    return Part(kind, name, digest, shown, where)


ROOT = part("function", "function step", "code", where="train.py:7")


def texts(before: list[Part], after: list[Part]) -> list[str]:
    """The sentences about two functions that are the same themselves."""
    return [difference.text for difference in part_differences([ROOT, *before], [ROOT, *after])]


def test_a_change_is_one_sentence() -> None:
    """With what a person needs to find it."""
    rows: list[tuple[Part, Part, str]] = [
        (
            part("function", "function normalize", "a", where="utils.py:40"),
            part("function", "function normalize", "b", where="utils.py:41"),
            "helper normalize (utils.py:41): code changed",
        ),
        (
            part("class", "class Model", "a", where="model.py:3"),
            part("class", "class Model", "b", where="model.py:3"),
            "class Model (model.py:3): code changed",
        ),
        (
            part("value", "global LR", shown="0.1", where="train.py:7"),
            part("value", "global LR", shown="0.01", where="train.py:9"),
            "global LR: 0.1 → 0.01",
        ),
        (
            part("package", "package optax", shown="0.2.7"),
            part("package", "package optax", shown="0.2.8"),
            "package optax 0.2.7 → 0.2.8",
        ),
        (
            part("package", "package optax", "a", "0.2.7"),
            part("package", "package optax", "b", "0.2.7"),
            "package optax 0.2.7: its installed files changed",
        ),
        (
            part("python", "python", shown="3.11"),
            part("python", "python", shown="3.12"),
            "python 3.11 → 3.12",
        ),
        (
            part("variable", "environment MODE", shown="'a'"),
            part("variable", "environment MODE", shown="'b'"),
            "environment MODE: 'a' → 'b'",
        ),
        (
            part("array", "global TABLE", shown="float32[3]"),
            part("array", "global TABLE", shown="float32[4]"),
            "global TABLE: float32[3] → float32[4]",
        ),
        (
            part("array", "global TABLE", "a", "float32[3]"),
            part("array", "global TABLE", "b", "float32[3]"),
            "global TABLE: contents changed (float32[3])",
        ),
        (
            part("value", "global CONFIG", "a"),
            part("value", "global CONFIG", "b"),
            "global CONFIG: contents changed",
        ),
        (
            part("value", "global X", shown="3"),
            part("array", "global X", shown="float32[3]"),
            "global X: was value 3, is now array float32[3]",
        ),
    ]
    for before, after, text in rows:
        with row((before, after, text)):
            assert texts([before], [after]) == [text]


@pytest.mark.parametrize(
    ("new", "what"),
    [
        (part("value", "global LR", shown="0.1"), "reads global LR (0.1)"),
        (part("value", "global CONFIG", "a"), "reads global CONFIG"),
        (part("function", "function f", "a", where="u.py:1"), "uses helper f (u.py:1)"),
        (part("package", "package optax", shown="0.2.7"), "uses package optax 0.2.7"),
        (part("module", "module utils", "a"), "uses module utils"),
    ],
)
def test_parts_come_and_go(new: Part, what: str) -> None:
    """Each with the word that fits it."""
    assert texts([], [new]) == [f"now {what}"]
    assert texts([new], []) == [f"no longer {what}"]


def test_what_changed_comes_first() -> None:
    """What came and went is mostly a consequence."""
    before = [part("value", "global A", shown="1"), part("value", "global B", shown="1")]
    after = [part("value", "global C", shown="1"), part("value", "global B", shown="2")]
    assert texts(before, after) == [
        "global B: 1 → 2",
        "now reads global C (1)",
        "no longer reads global A (1)",
    ]


def test_the_function_itself_is_no_helper() -> None:
    """It keeps its name."""
    changed = ROOT._replace(digest=b"other")
    (found,) = part_differences([ROOT], [changed])
    assert found.text == "function step (train.py:7): code changed"


def test_equal_ones_of_one_name_go_together() -> None:
    """A lambda in front of two others leaves those what they are."""
    one, two, new = (part("function", "lambda <lambda>", text) for text in ("a", "b", "c"))
    assert texts([one, two], [new, one, two]) == ["now uses lambda <lambda>"]
    assert texts([one, two], [new, two]) == ["lambda <lambda>: code changed"]


def test_what_two_helpers_read_changes_once() -> None:
    """Though it is a part of each."""
    before, after = (
        [part("value", "global LR", shown=value, where=f"u.py:{n}") for n in (1, 2)]
        for value in ("0.1", "0.2")
    )
    assert texts(before, after) == ["global LR: 0.1 → 0.2"]


def test_where_no_part_differs_it_says_so() -> None:
    """The fingerprints differ, and nothing can be named."""
    (found,) = part_differences([ROOT], [ROOT])
    assert (found.kind, found.text) == (
        "structure",
        "every part is the same, but they refer to each other in another way",
    )


def test_where_no_part_is_known_it_says_so() -> None:
    """On either side."""
    for before, after in (([], [ROOT]), ([ROOT], [])):
        (found,) = part_differences(before, after)
        assert found.kind == "unknown"
        assert found.text.startswith("its code, or something that it reads, changed")


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({}, {"config": (("jax_enable_x64", True),)}, "jax_enable_x64: False → True"),
        ({}, {"donate_argnums": (0,)}, "donate_argnums: None → (0,)"),
        ({}, {"compiler_options": (("xla_a", 1),)}, "xla_a: not set → 1"),
        ({"extra_key": 1}, {"extra_key": True}, "extra_key: 1 → True"),
        (
            {},
            {"transformations": (encode_transformation("grad", {"argnums": 1}),)},
            "transformations: none → grad(argnums=1)",
        ),
        (
            {"transformations": (encode_transformation("flat_vmap", {"axes": (0,)}),)},
            {"transformations": (encode_transformation("flat_vmap", {"axes": (1,)}),)},
            "transformations: vmap → vmap, for other arguments",
        ),
    ],
)
def test_options_and_settings_are_told(
    before: dict[str, Any], after: dict[str, Any], text: str
) -> None:
    """By name; a setting that was not said has jax's default."""
    (found,) = option_differences(Options(**before), Options(**after))
    assert found.text == text
    assert option_differences(Options(**after), Options(**after)) == ()


def test_similarity_counts_what_is_not_installed() -> None:
    """Every function uses python."""
    python = part("python", "python", shown="3.11")
    one, two = part("value", "global A", shown="1"), part("value", "global B", shown="1")
    assert similarity([python], [python]) == 0.0
    assert similarity([python, one, two], [python, one]) == 0.5
    assert similarity([one], [one]) == 1.0


def test_one_line_holds_the_first_few() -> None:
    """And no more than fits."""
    many = [Difference.of_values("value", f"global {name}", "1", "2") for name in "ABCDE"]
    assert summarize(many[:1]) == "global A: 1 → 2"
    assert summarize(many) == "global A: 1 → 2; global B: 1 → 2; global C: 1 → 2; and 2 more"
    long = Difference.of_values("value", "a\nb" * 200, "1", "2")
    assert len(summarize([long])) == 301
    assert "\n" not in summarize([long])


def test_it_survives_json() -> None:
    """Also when a newer server says more."""
    found = Difference.of_values("value", "global LR", "0.1", "0.01")
    assert Difference.from_dict({**found.to_dict(), "more": 1}) == found


LOW = Package("lowlib", "1.0", b"d" * 16)


@pytest.mark.parametrize(
    ("after", "text"),
    [
        (LOW._replace(version="1.1"), "dependency lowlib 1.0 → 1.1"),
        (LOW._replace(digest=b"e" * 16), "dependency lowlib 1.0: its installed files changed"),
        (None, "dependency lowlib 1.0 is gone"),
    ],
    ids=["version", "files", "gone"],
)
def test_what_has_become_of_a_dependency(after: Package | None, text: str) -> None:
    """No key names it."""
    found = dependency_difference(LOW, after)
    assert (found.kind, found.name, found.text) == ("dependency", "dependency lowlib", text)
