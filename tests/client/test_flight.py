"""One call on values: what its reply means for the arrays that it took."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxd.encoded import Encoded
from jaxd.flight import Flight
from jaxd.origin import Origin, Stretch
from jaxd.remote_array import RemoteArray
from jaxd_protocol.calls import FAILED, OK
from jaxd_protocol.elsewhere import Stay, pack_numbers
from jaxd_protocol.errors import ValuesDied, WorkerReplaced
from jaxd_protocol.failures import describe_failure
from jaxd_protocol.trees import Leaf
from tests.client.fake_keeper import FakeKeeper


def flight(*donated: int, **more: Any) -> tuple[Flight, list[RemoteArray]]:
    """A call on three arrays of two origins, and these."""
    keeper, leaf = FakeKeeper(), Leaf("A", "float32", ())
    one, other = Origin(keeper, 10, [leaf] * 9), Origin(keeper, 20, [leaf])
    kind = RemoteArray.kind()
    arrays = [kind(one, 4), kind(one, 5), kind(other, 0)]
    values = [Stretch(0, one, 4, arrays[:2]), Stretch(2, other, 0, arrays[2:])]
    spec: Any = SimpleNamespace(identity=SimpleNamespace(name="step", reader=None))
    stay = Stay(7, -1, 1 << 16)
    call = Encoded(spec, b"s", b"b", (), None, "auto", values=values, stay=stay)
    return Flight(call, None, donated, **more), arrays


def takers(arrays: list[RemoteArray]) -> list[str | None]:
    """Who has the arrays."""
    return [array.donated_to for array in arrays]


def succeeded(*given_up: int) -> tuple[Any, ...]:
    """The reply of a call that went well."""
    return (OK, b"skeleton", b"", pack_numbers(given_up), b"")


def failed(*given_up: int) -> tuple[Any, ...]:
    """The reply of a call that did not."""
    return (FAILED, describe_failure(ArithmeticError("no")), pack_numbers(given_up))


def test_what_is_known_to_be_taken_is_dead_at_once() -> None:
    """Before anything was sent."""
    _, arrays = flight(1)
    assert takers(arrays) == [None, "step", None]


@pytest.mark.parametrize("reply", [succeeded, failed])
def test_the_reply_decides_what_was_taken(reply: Any) -> None:
    """More than was known, or less."""
    one, arrays = flight(1)
    one.settle(reply(0, 2), ())
    assert takers(arrays) == ["step", None, "step"]


def test_a_failure_may_say_nothing_of_what_was_taken() -> None:
    """Then nothing was."""
    one, arrays = flight(1)
    one.settle(failed()[:2], ())
    assert isinstance(one.error, ArithmeticError)
    assert takers(arrays) == [None] * 3


def test_a_worker_that_gives_way_takes_along_what_the_call_needs() -> None:
    """To repeat it would be of no use: the next one has not got these arrays."""
    one, arrays = flight(1)
    one.settle((FAILED, describe_failure(WorkerReplaced("repeat it")), b""), ())
    assert isinstance(one.error, ValuesDied)
    assert "step needs 3 of them" in str(one.error)
    assert takers(arrays) == [None] * 3


def test_what_a_lost_call_may_have_taken_stays_dead() -> None:
    """Nobody knows whether the server has it."""
    one, arrays = flight(1)
    one.lose(ConnectionError("gone"))
    assert takers(arrays) == [None, "step", None]


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda one: one.settle(succeeded(0, 2), ()), [15]),
        (lambda one: one.settle(failed(0, 2), ()), [15]),
        (lambda one: one.refuse(ValueError("no")), [14, 15, 20]),
        (lambda one: one.lose(ConnectionError("gone")), [14, 15, 20]),
    ],
    ids=["succeeds", "fails", "is refused", "is lost"],
)
def test_the_server_is_told_of_what_it_does_not_know(end: Any, told: list[int]) -> None:
    """It need not be told of what it has taken, as it says; of all else that is gone, it must."""
    one, arrays = flight(0, 2)
    keeper: Any = arrays[0].keeper
    end(one)
    arrays.clear()
    assert sorted(keeper.told) == [("drop", number) for number in told]


def test_what_was_not_made_does_not_come_back_to_life() -> None:
    """The first end counts: a second one changes nothing."""
    one, arrays = flight(1)
    one.lose(ConnectionError("gone"))
    one.settle(succeeded(), ())
    one.refuse(ValueError("no"))
    assert isinstance(one.error, ConnectionError)
    assert takers(arrays) == [None, "step", None]


class Counted:
    """Stands for data on its way."""

    def __init__(self) -> None:
        self.released = 0

    def release(self, reply: Any = None) -> None:
        """Counts."""
        self.released += 1


def test_its_data_is_let_go_once() -> None:
    """Whatever takes its place, and whenever that comes."""
    loads: Any = [Counted() for _ in range(3)]
    one, _ = flight()
    for load in loads[:2]:
        one.carry(load, one.call)
    one.settle(succeeded(), ())
    one.lose(ConnectionError("gone"))
    one.carry(loads[2], one.call)
    assert [load.released for load in loads] == [1, 1, 1]


def test_a_call_that_was_not_made_gives_back_only_what_was_its_own() -> None:
    """Another one has taken an array in the meantime."""
    one, arrays = flight(1)
    arrays[0].origin.gone[4] = "other"
    one.refuse(ConnectionError("gone"))
    assert takers(arrays) == ["other", None, None]
    assert isinstance(one.error, ConnectionError)


def test_its_end_is_told_once_and_its_arrays_are_let_go() -> None:
    """Though two threads may settle it."""
    ended: list[Flight] = []
    one, _ = flight(ended=ended.append)
    one.settle(succeeded(), ())
    one.settle(succeeded(), ())
    one.tell()
    one.tell()
    assert ended == [one]
    assert one.done
    assert not one.call.values


def test_another_structure_than_before_is_an_error() -> None:
    """What was returned before it had run would not fit."""
    one, _ = flight()
    one.skeleton = b"known"
    one.settle(succeeded(), ())
    with pytest.raises(Exception, match="another structure"):
        raise one.error or AssertionError
    assert one.changed == b"skeleton"


def test_numbers_grow_in_the_order_of_sending() -> None:
    """Whichever was encoded first."""
    first, second = flight()[0], flight()[0]
    second.renumber()
    first.renumber()
    assert second.number < first.number
    assert first.call.stay is not None
    assert first.call.stay.number == first.number
