"""The vocabulary of a walk."""

from __future__ import annotations

from jaxd_protocol.fingerprint.data_model import PartialRead, ReachedObjects


def test_what_is_read_in_part_has_the_names_that_are_read() -> None:
    """Of one object; another one that is equal has none."""
    table, equal = {"a": 1}, {"a": 1}
    reach = ReachedObjects()
    reach.partial_reads[id(table)] = PartialRead(table, {"a"})
    assert reach.part_of(table) == {"a"}
    assert reach.part_of(equal) is None


def test_what_is_read_as_a_whole_as_well_counts_whole() -> None:
    """Whichever of the two was seen first."""
    table = {"a": 1, "b": 2}
    reach = ReachedObjects()
    reach.partial_reads[id(table)] = PartialRead(table, {"a"})
    reach.whole.add(id(table))
    assert reach.part_of(table) is None


def test_what_is_read_in_part_may_be_read_not_at_all() -> None:
    """An import statement whose module nobody uses."""
    table = {"a": 1}
    reach = ReachedObjects()
    reach.partial_reads[id(table)] = PartialRead(table)
    assert reach.part_of(table) == set()


def test_there_is_one_note_of_what_is_read_of_an_object() -> None:
    """Which keeps the object alive."""
    reach, table = ReachedObjects(), {"a": 1}
    assert reach.partial_read_of(table) is reach.partial_read_of(table)
    assert any(value is table for value in reach.objects)
