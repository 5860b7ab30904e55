"""absl's flags: those that a function reads."""

from __future__ import annotations

from typing import Any

import pytest

from jaxd_protocol.errors import PackingError
from jaxd_protocol.fingerprint.values.configs import ReadFlags, is_config
from jaxd_protocol.pickling.pack.functions import pack_function
from jaxd_protocol.pickling.unpack.unpickler import unpack_function
from tests.shared.fingerprint.defining import digest_of, function, part_names, walk_of

absl_flags = pytest.importorskip("absl.flags")
DEFINE_float, DEFINE_list = absl_flags.DEFINE_float, absl_flags.DEFINE_list
FlagValues: Any = absl_flags.FlagValues


@pytest.fixture
def flags() -> Any:
    """A registry of its own, parsed."""
    registry: Any = FlagValues()
    holder = DEFINE_float("rate", 0.5, "Read.", flag_values=registry)
    DEFINE_float("unread", 1.0, "Not read.", flag_values=registry)
    DEFINE_list("layers", ["8"], "Read.", flag_values=registry)
    registry(["program"])
    vars(registry)["holder"] = holder
    return registry


def reading(flags: Any, body: str) -> Any:
    """A function with that body."""
    return function(body, FLAGS=flags, RATE=flags.holder, NAME="rate")


def replaced(made: Any) -> Any:
    """The function as a server has it, after its way there."""
    return unpack_function(bytes(pack_function(made, "f", walk_of(made).reach))).function


ONE_FLAG = [
    "return FLAGS.rate",
    "return FLAGS['rate'].value",
    "return RATE.value",
    "return RATE.default, FLAGS.rate",
    "return getattr(FLAGS, 'rate')",
    "return (lambda: FLAGS.rate)()",
]


@pytest.mark.parametrize("body", ONE_FLAG)
def test_the_flag_that_is_read_counts(flags: Any, body: str) -> None:
    """Its change is noticed; no other flag counts, and no other travels."""
    made = reading(flags, body)
    walked = walk_of(made)
    flags.unread = 2.0
    assert walked.guards.hold()
    assert digest_of(made) == walked.fingerprint.digest
    flags.rate = 0.25
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest
    travels = [repr(each.fields) for each in walked.reach.fields.values()]
    assert any("rate" in each or "value" in each for each in travels)
    assert not any("unread" in each for each in travels)


ALL_FLAGS = [
    "return FLAGS[RATE.name].value",
    "return hasattr(FLAGS, 'rate') and FLAGS.rate",
    "return FLAGS[NAME].value",
    "return sorted(FLAGS)",
    "return FLAGS.flag_values_dict()",
    "return FLAGS.get_flag_value('rate', 1.0)",
    "return getattr(FLAGS, NAME)",
    "return [FLAGS][0].rate",
    "return 'rate' in FLAGS, len(FLAGS)",
]


@pytest.mark.parametrize("body", ALL_FLAGS)
def test_of_flags_as_a_whole_all_count(flags: Any, body: str) -> None:
    """Each of them may be read."""
    made = reading(flags, body)
    walked = walk_of(made)
    flags.unread = 2.0
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


HOLDERS = ["return [held.value for held in [RATE]]", "return (lambda held: held.value)(*[RATE])"]


@pytest.mark.parametrize("body", [*ONE_FLAG, *ALL_FLAGS, *HOLDERS, "return FLAGS['rate'], 1"])
def test_on_a_server_it_reads_the_same_and_means_the_same(flags: Any, body: str) -> None:
    """With what replaces the flags there."""
    made = reading(flags, body)
    there = replaced(made)
    assert type(there.__globals__.get("FLAGS")) is not FlagValues
    found = there(1)
    assert "], 1" in body or found == made(1)
    assert digest_of(there) == digest_of(made)


@pytest.mark.parametrize(("before", "after"), [(1, True), (0.0, -0.0), (1, 1.0)])
def test_an_equal_value_of_another_type_is_another_one(
    flags: Any, before: object, after: object
) -> None:
    """Also between two calls."""
    made = reading(flags, "return FLAGS.rate")
    flags.rate = before
    walked = walk_of(made)
    flags.rate = after
    assert not walked.guards.hold()
    assert digest_of(made) != walked.fingerprint.digest


def test_its_part_has_the_name_that_code_gives_it(flags: Any) -> None:
    """As any value."""
    assert part_names(reading(flags, "return FLAGS.rate"))[-1] == "value: global FLAGS.rate"
    assert part_names(reading(flags, "return RATE.value"))[-1] == "value: global RATE.value"


def test_a_change_inside_of_a_flag_is_noticed(flags: Any) -> None:
    """A list is the same object before and after."""
    made = reading(flags, "return FLAGS.layers")
    walked = walk_of(made)
    flags.layers.append("16")
    assert not walked.guards.hold()


def test_flags_as_a_whole_that_are_not_parsed_are_refused(flags: Any) -> None:
    """They have no values yet."""
    made = reading(flags, "return sorted(FLAGS)")
    flags.unparse_flags()
    with pytest.raises(PackingError, match="before they were parsed"):
        walk_of(made)


def test_what_replaces_flags_has_no_others(flags: Any) -> None:
    """As absl's, where there is no such flag."""
    stand_in = replaced(reading(flags, "return FLAGS.rate")).__globals__["FLAGS"]
    assert type(stand_in) is ReadFlags
    assert is_config(stand_in)
    with pytest.raises(AttributeError, match="unread"):
        stand_in.unread  # noqa: B018
