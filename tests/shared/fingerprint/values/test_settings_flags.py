"""absl's flags: those that a function reads."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.values.settings import ReadFlags, is_flags
from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of

absl_flags = pytest.importorskip("absl.flags")
DEFINE_float, DEFINE_list = absl_flags.DEFINE_float, absl_flags.DEFINE_list
FlagValues: Any = absl_flags.FlagValues


@pytest.fixture
def flags() -> Any:
    """A registry of its own, parsed."""
    registry: Any = FlagValues()
    DEFINE_float("rate", 0.5, "Read.", flag_values=registry)
    DEFINE_float("unread", 1.0, "Not read.", flag_values=registry)
    DEFINE_list("layers", ["8"], "Read.", flag_values=registry)
    registry(["program"])
    return registry


def reading(flags: Any, body: str) -> Any:
    """A function with that body."""
    return function(body, FLAGS=flags)


@pytest.mark.parametrize("body", ["return FLAGS.rate", "return FLAGS['rate'].value"])
def test_the_flag_that_is_read_counts(flags: Any, body: str) -> None:
    """Its change is noticed; no other flag counts, and no other travels."""
    made = reading(flags, body)
    walked = walk_of(made)
    flags.unread = 2.0
    assert walked.guards.hold()
    flags.rate = 0.25
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest
    stand_in = walked.reach.replacements[id(flags)]
    assert vars(stand_in) == {"rate": 0.5}


def test_its_part_has_the_name_that_code_gives_it(flags: Any) -> None:
    """As any value."""
    assert part_names(reading(flags, "return FLAGS.rate"))[-1] == "value: global FLAGS.rate"


def test_a_change_inside_of_a_flag_is_noticed(flags: Any) -> None:
    """A list is the same object before and after."""
    made = reading(flags, "return FLAGS.layers")
    walked = walk_of(made)
    flags.layers.append("16")
    assert not walked.guards.hold()


@pytest.mark.parametrize(
    "body",
    [
        "return FLAGS",
        "return FLAGS[x]",
        "return FLAGS['rate']",
        "return FLAGS._flags()",
        "return FLAGS.flag_values_dict()",
    ],
)
def test_the_flags_as_a_whole_are_refused(flags: Any, body: str) -> None:
    """Every flag would be in the key."""
    with pytest.raises(PackingError, match="absl's flags as a whole"):
        walk_of(reading(flags, body))


@pytest.mark.parametrize("body", ["return FLAGS.rate", "return FLAGS['rate'].value"])
def test_a_second_walk_over_the_stand_in_finds_the_same(flags: Any, body: str) -> None:
    """As the server does it, where the function has it instead."""
    made = reading(flags, body)
    stand_in = walk_of(made).reach.replacements[id(flags)]
    assert type(stand_in) is ReadFlags
    assert is_flags(stand_in)
    assert is_flags(flags)
    there = reading(stand_in, body)
    assert there(1) == made(1) == 0.5
    assert digest_of(there) == digest_of(made)
