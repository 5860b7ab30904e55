from __future__ import annotations

import time

from jaxd_protocol.pytree import Leaf
from jaxd_server.values.byte_accounting import ValueAccounting, holder_rows, largest
from jaxd_server.values.value import NamedValues, SessionValues, Value

MIB = 1 << 20


def value(nbytes: int, maker: str, age_s: float = 0.0) -> Value:
    """A value of that size."""
    leaf = Leaf("A", "uint8", (nbytes,))
    return Value(None, leaf, nbytes, maker, made_at=time.time() - age_s)


def session(principal: str, *values: Value) -> SessionValues:
    """One that holds these."""
    own = SessionValues(principal)
    own.values = dict(enumerate(values))
    return own


def test_there_is_a_row_for_each_name_and_each_maker() -> None:
    """The largest first; with the age of the oldest, and what is left of a name's time."""
    sessions = [
        session("me", value(8, "step", 50.0), value(8, "step", 10.0), value(1, "put")),
        session("me", value(4, "step")),
    ]
    names = {("me", "w"): NamedValues(b"", (value(100, "put", 7.0),), 130.0)}
    rows = holder_rows("me", names, sessions, {"me": 121}, 100.0)
    told = [(row["what"], row["values"], row["bytes"], row["ttl_s"]) for row in rows]
    assert told == [
        ("named 'w'", 1, 100, 30.0),
        ("step", 2, 16, None),
        ("step", 1, 4, None),
        ("put", 1, 1, None),
    ]
    assert [row["name"] for row in rows] == ["w", None, None, None]
    assert 50.0 <= rows[1]["age_s"] < 60.0


def test_what_has_a_name_is_in_its_row_alone() -> None:
    """The rows add up to what is held, whatever stands for it; of others only the size is told."""
    one = value(8, "step")
    names = {("me", name): NamedValues(b"", (one,), None) for name in "ab"}
    rows = holder_rows("me", names, [session("me", one, one, value(2, "step"))], {"me": 10}, 0.0)
    assert sum(row["bytes"] for row in rows) == 10
    assert sum(row["values"] for row in rows) == 2
    names = {("you", "secret"): NamedValues(b"", (value(8, "put"),), None)}
    rows = holder_rows("me", names, [session("you", value(8, "private"))], {"you": 16}, 0.0)
    (row,) = rows
    assert (row["what"], row["principal"], row["bytes"]) == ("values of you", "you", 16)
    assert "secret" not in str(rows)
    assert "private" not in str(rows)


def test_the_largest_are_told_in_words() -> None:
    """No more than five."""
    rows = holder_rows("me", {}, [session("me", *(value(MIB, f"f{i}") for i in range(7)))], {}, 0.0)
    assert largest(rows) == "; ".join(f"f{i} 1.0 MiB" for i in range(5))
    assert largest([]) == "none"


def test_what_goes_leaves_nothing_behind() -> None:
    """No principal stays in the account with nothing."""
    room = ValueAccounting(limit=100, share=1.0)
    room.charge("a", 30)
    room.promise("a", 70)
    room.promise("a", -70)
    room.charge("a", -30)
    assert (room.values.used_by, room.values.used) == ({}, 0)
    assert room.has("b", 100)
