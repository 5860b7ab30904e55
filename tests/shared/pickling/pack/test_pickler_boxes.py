"""Sets and parts of dicts, which pickle would write in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxd_protocol.pickling.pack.arguments import pack
from jaxd_protocol.pickling.pack.pickler import boxed_dict
from jaxd_protocol.pickling.unpack.unpickler import unpack
from tests.shared.pickling.processes import call_in_subprocess, pack_in_subprocess, write

SETS = """
import enum
class Color(enum.Enum):
    RED = 1
    BLUE = 2
def helper(): return 1
NAMES = {"a", "b", "c", "d", "e", "f"}
PAIRS = frozenset([(1, "a"), (2, "b"), (3, frozenset({"x", "y"}))])
MEMBERS = {Color.RED, Color.BLUE, int, helper}
def use():
    return sorted(NAMES), len(PAIRS), "a" in {"a", "b", "c", "d"}, helper in MEMBERS
"""


def test_sets_are_equal_bytes_whatever_the_hash_seed(tmp_path: Path) -> None:
    """Strings, tuples, members, classes and functions in them."""
    author = write(tmp_path / "author", {"sets.py": SETS})
    first, second = (
        pack_in_subprocess(author, "sets", ["use"], PYTHONHASHSEED=seed) for seed in "12"
    )
    assert first == second
    assert call_in_subprocess(tmp_path, first) == {
        "use": "(['a', 'b', 'c', 'd', 'e', 'f'], 3, True, True)"
    }


def test_a_set_that_is_met_twice_is_one_set() -> None:
    """Also through an object that it holds."""

    class Holder:
        pass

    holder: Any = Holder()
    holder.own = {holder}
    shared = {1, 2}
    found = unpack(pack([shared, shared, holder, frozenset(shared)], "it"))
    assert found[0] is found[1]
    assert found[0] == found[3] == shared
    assert type(found[3]) is frozenset
    assert found[2].own == {found[2]}


def test_a_part_of_a_dict_keeps_its_order() -> None:
    """It may be what code goes by."""
    box = boxed_dict({"c": 1, "a": 2, "b": 3}, {"a", "c"})
    assert list(box.reduce()[4]) == [("c", 1), ("a", 2)]


def test_subclasses_of_set_and_dict_are_left_to_pickle() -> None:
    """They may have more than their items."""
    kind = type("Kind", (set,), {})
    value = kind([1])
    value.note = "mine"
    found = unpack(pack(value, "it"))
    assert found == {1}
    assert found.note == "mine"
