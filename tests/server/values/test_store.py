from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxd_protocol.errors import ValueDeleted, ValuesFull
from jaxd_protocol.messages.data_locations import first_value_id, value_ids_of
from jaxd_protocol.messages.failures import ForwardedFailure, encode_failure
from jaxd_protocol.pytree import Leaf
from jaxd_server.values.store import ContentStore, ValueStore
from jaxd_server.values.value import Batch, SessionValues, Value
from tests.server.staging import at_once
from tests.spans import each

MIB = 1 << 20


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Array:
    """Stands for one."""


def value(nbytes: int = 8, maker: str = "step") -> Value:
    """A value of that size."""
    return Value(Array(), Leaf("A", "uint8", (nbytes,)), nbytes, maker)


LEAF = Leaf("A", "uint8", (1,))


def batch(first: int, mask: Sequence[bool]) -> Batch:
    """What a call returned, of which some stays: the first of one byte, the next of two."""
    arrays = [Array() if stays else None for stays in mask]
    sizes = [(place + 1) * stays for place, stays in enumerate(mask)]
    leaves = [Leaf("A", "uint8", (place + 1,)) for place in range(len(mask))]
    return Batch(first, arrays, leaves, bytes(mask), (0, *accumulate(sizes)), "step")


def test_what_a_call_returned_is_one_until_somebody_asks() -> None:
    """Then that array is one by itself; returned once more."""
    values, own = ValueStore(), SessionValues("uid:1")
    first = first_value_id(7)
    made = batch(first, [True] * 4)
    arrays = list(made.arrays)
    values.add_batch(own, made)
    assert (len(values), values.nbytes, own.nbytes) == (4, 10, 10)
    assert [row["values"] for row in values.holders("uid:1")] == [4]
    single = own.get(first + 2)
    assert (single.array, single.nbytes, single.holders, single.maker) == (arrays[2], 3, 1, "step")
    assert own.get(first + 2) is single
    assert (made.count, made.nbytes, made.arrays[2]) == (3, 7, None)
    assert (len(values), values.nbytes, own.nbytes) == (4, 10, 10)
    assert [row["values"] for row in values.holders("uid:1")] == [4]
    lent = own.lend(range(first, first + 4))
    assert [one for each in lent for one in each.arrays] == arrays
    values.drop(own, [range(first + 1, first + 4)])
    assert (len(values), values.nbytes, own.nbytes) == (1, 1, 1)
    values.drop(own, [range(first, first + 9)])
    assert (own.batches, own.values, values.nbytes) == ({}, {}, 0)
    values, own = ValueStore(), SessionValues("uid:1")
    made = batch(first_value_id(7), [True] * 4)
    values.add_batch(own, made)
    single = own.get(made.first + 1)
    values.drop(own, [range(made.first + 3, made.first + 4)])
    again = [Array() for _ in range(4)]
    own.refill(made, again)
    assert made.arrays == [again[0], None, again[2], None]
    assert single.array is again[1]
    assert (len(values), values.nbytes) == (3, 6)


def test_a_call_that_goes_on_is_found_by_what_it_makes() -> None:
    """By all of it, and by what was asked for by itself; a run that is over is not."""

    class Run:
        """Stands for one."""

    values, own, run = ValueStore(), SessionValues("uid:1"), Run()
    made = batch(first_value_id(7), [True] * 4)
    made.run = weakref.ref(run)
    values.add_batch(own, made)
    own.get(made.first)
    for ids in (range(made.first, made.first + 1), range(made.first + 1, made.first + 3)):
        assert own.makers([ids]) == {run}
    assert own.makers([range(1, 3)]) == set()
    del run
    assert own.makers([range(made.first, made.first + 4)]) == set()


def test_what_was_added_is_found_and_what_was_dropped_is_not() -> None:
    """By its number, which stands for what came last; dropping what is not there is nothing."""
    values, own = ValueStore(), SessionValues("uid:1")
    one, two = value(8), value(16)
    values.add(own, {1: one, 2: two})
    assert (own.get(1), own.get(2)) == (one, two)
    assert (len(values), values.nbytes, own.nbytes) == (2, 24, 24)
    values.drop(own, each(1, 7))
    values.drop(own, each(1))
    assert own.nbytes == 16
    with pytest.raises(ValueDeleted, match="not there any more"):
        own.get(1)
    assert (len(values), values.nbytes) == (1, 16)
    values, own = ValueStore(), SessionValues("uid:1")
    values.add(own, {1: value(8)})
    last = value(16)
    values.add(own, {1: last})
    assert own.get(1) is last
    assert (len(values), values.nbytes) == (1, 16)


def test_copies_of_what_a_client_has_are_not_missed() -> None:
    """A worker that holds nothing else can be replaced."""
    values, own = ValueStore(), SessionValues("uid:1")
    copy = value(8)
    copy.copied = True
    assert not values.has_only_copies()
    values.add(own, {1: copy})
    assert not values.has_only_copies()
    values.add(own, {2: value(8)})
    assert values.has_only_copies()
    values.drop(own, each(2))
    values.name("uid:1", "n", b"", [copy], None)
    assert values.has_only_copies()


def test_what_is_let_go_of_is_freed() -> None:
    """Nothing else keeps the array; a session that is over takes nothing in."""
    values, own = ValueStore(), SessionValues("uid:1")
    values.add(own, {1: value(), 2: value()})
    arrays = [weakref.ref(own.get(number).array) for number in (1, 2)]
    values.drop(own, each(1))
    values.end(own)
    gc.collect()
    assert [array() for array in arrays] == [None, None]
    values, own = ValueStore(), SessionValues("uid:1")
    values.add(own, {1: value()})
    values.end(own)
    values.add(own, {2: value()})
    assert (len(values), values.nbytes, values.holders("uid:1")) == (0, 0, [])
    with pytest.raises(ValueDeleted):
        own.get(2)


def test_a_name_outlives_its_session() -> None:
    """And counts once; given again, it stands for what came last."""
    values, own = ValueStore(), SessionValues("uid:1")
    kept = value(8)
    values.add(own, {1: kept, 2: value(16)})
    values.name("uid:1", "weights", b"skeleton", [kept], None)
    assert (len(values), values.nbytes) == (2, 24)
    values.end(own)
    found = values.named("uid:1", "weights")
    assert (found.skeleton, found.values) == (b"skeleton", (kept,))
    assert (len(values), values.nbytes) == (1, 8)
    assert values.unname("uid:1", "weights")
    assert not values.unname("uid:1", "weights")
    assert (len(values), values.nbytes) == (0, 0)
    values = ValueStore()
    first, both, last = value(8), value(16), value(32)
    values.name("uid:1", "state", b"1", [first, both], None)
    values.name("uid:1", "state", b"2", [both, last], None)
    assert values.named("uid:1", "state").values == (both, last)
    assert (len(values), values.nbytes) == (2, 48)


def test_a_name_lives_as_long_as_was_said() -> None:
    """Then it is gone, and its memory, whether anybody asks for it or not."""
    clock = Clock()
    values = ValueStore(clock=clock)
    values.name("uid:1", "short", b"", [value()], 10.0)
    values.name("uid:1", "long", b"", [value()], None)
    clock.now += 9.9
    values.poll()
    assert len(values.named("uid:1", "short").values) == 1
    assert len(values) == 2
    clock.now += 0.1
    values.poll()
    assert len(values) == 1
    with pytest.raises(ValueDeleted, match="There are: 'long'"):
        values.named("uid:1", "short")
    assert not values.unname("uid:1", "short")
    clock = Clock()
    values, own = ValueStore(limit=MIB, clock=clock), SessionValues("uid:1")
    values.name("uid:1", "n", b"", [value(MIB)], 10.0)
    with pytest.raises(ValuesFull):
        enter(values, own, 1)
    clock.now += 11
    enter(values, own, MIB)


def test_nobody_sees_the_names_of_others() -> None:
    """Not even in the error, and not when they choose the same one."""
    values = ValueStore()
    mine, theirs = value(), value()
    values.name("uid:1", "secret", b"", [mine], None)
    with pytest.raises(ValueDeleted, match="You have none here") as refused:
        values.named("uid:2", "else")
    assert "secret" not in str(refused.value)
    with pytest.raises(ValueDeleted):
        values.named("uid:2", "secret")
    assert not values.unname("uid:2", "secret")
    values.name("uid:2", "secret", b"", [theirs], None)
    assert values.named("uid:1", "secret").values == (mine,)
    rows = values.holders("uid:2")
    assert [row["what"] for row in rows] == ["named 'secret'", "values of uid:1"]


# room -----------------------------------------------------------------------------------------


def test_there_is_room_up_to_the_limit() -> None:
    """And the error names the largest holders, those of others by no more than their size."""
    values = ValueStore(limit=10 * MIB)
    own, other = SessionValues("uid:1"), SessionValues("uid:2")
    values.add(own, {1: value(4 * MIB, "train_step"), 2: value(MIB, "loss")})
    values.add(other, {1: value(2 * MIB, "of_another")})
    enter(values, own, 3 * MIB)
    with pytest.raises(ValuesFull) as full:
        enter(values, own, 3 * MIB + 1)
    text = str(full.value)
    assert "take 7.0 of 10.0 MiB, yours 5.0 of 10.0 MiB" in text
    assert "train_step 4.0 MiB; values of uid:2 2.0 MiB; loss 1.0 MiB" in text
    assert "3.0 MiB more have no room" in text
    assert text.endswith("a larger --value-bytes.")
    assert "of_another" not in text
    assert "being filled" not in text


def enter(
    values: ValueStore, owner: SessionValues, nbytes: int, given_up: tuple[int, ...] = ()
) -> None:
    """Asks for room, and does nothing with it."""
    with values.room(owner, nbytes, each(*given_up)):
        pass


def test_room_is_promised_to_one_at_a_time() -> None:
    """Whoever asks in between finds it taken; afterwards it is there, also when nothing came."""
    values, own, other = ValueStore(limit=10 * MIB), SessionValues("a"), SessionValues("b")
    values.add(own, {1: value(4 * MIB)})
    with values.room(own, 8 * MIB, each(1)):  # four that go, and four of those that are free
        enter(values, other, 2 * MIB)
        with pytest.raises(ValuesFull, match=r"and 4.0 MiB are being filled"):
            enter(values, other, 2 * MIB + 1)
        values.drop(own, each(1))
        values.add(own, {2: value(8 * MIB)})
    enter(values, other, 2 * MIB)
    with pytest.raises(ValuesFull):
        enter(values, other, 2 * MIB + 1)
    with pytest.raises(ZeroDivisionError), values.room(other, 2 * MIB):
        raise ZeroDivisionError
    enter(values, other, 2 * MIB)


def test_one_principal_has_a_share_of_it() -> None:
    """Over all of its sessions and names; what a call gives up makes room for its results."""
    values = ValueStore(limit=10 * MIB, share=0.5)
    one, two, other = (SessionValues(who) for who in ("uid:1", "uid:1", "uid:2"))
    values.add(one, {1: value(3 * MIB)})
    values.name("uid:1", "n", b"", [value(MIB)], None)
    enter(values, two, MIB)
    with pytest.raises(ValuesFull, match=r"yours 4.0 of 5.0 MiB"):
        enter(values, two, MIB + 1)
    enter(values, other, 5 * MIB)
    values, own = ValueStore(limit=10 * MIB), SessionValues("uid:1")
    named = value(2 * MIB)
    values.add(own, {1: value(6 * MIB), 2: named})
    values.name("uid:1", "n", b"", [named], None)
    enter(values, own, 8 * MIB, (1, 1))
    with pytest.raises(ValuesFull):
        enter(values, own, 8 * MIB)
    with pytest.raises(ValuesFull):
        enter(values, own, 8 * MIB + 1, (1, 2, 7))  # the name holds the other one


def test_without_a_limit_there_is_always_room() -> None:
    """And nothing is no bytes; what is to be free beside it is not promised."""
    values, own = ValueStore(), SessionValues("uid:1")
    enter(values, own, 1 << 60)
    values, own = ValueStore(limit=MIB), SessionValues("uid:1")
    values.add(own, {1: value(2 * MIB)})
    enter(values, own, 0)
    values, own = ValueStore(limit=10 * MIB), SessionValues("a")
    with values.room(own, MIB, spare=9 * MIB):
        enter(values, own, 9 * MIB)
        with pytest.raises(ValuesFull), values.room(own, MIB, spare=9 * MIB):
            pass


# the count never drifts -----------------------------------------------------------------------

MASKS = st.lists(st.booleans(), min_size=1, max_size=5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 5), st.integers(0, 99)),
        st.tuples(st.just("drop"), st.integers(0, 2), st.integers(0, 5)),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.tuples(st.just("name"), st.integers(0, 2), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("named"), st.integers(0, 2), st.integers(0, 1), st.integers(0, 5)),
        st.tuples(st.just("unname"), st.integers(0, 2), st.integers(0, 1)),
        st.tuples(st.just("wait")),
        st.tuples(st.just("batch"), st.integers(0, 2), st.integers(1, 2), MASKS),
        st.tuples(st.just("ask"), st.integers(0, 2), st.integers(1, 2), st.integers(0, 5)),
        st.tuples(st.just("lend"), st.integers(0, 2), st.integers(1, 2)),
        st.tuples(
            st.just("cut"),
            st.integers(0, 2),
            st.integers(1, 2),
            st.integers(0, 4),
            st.integers(1, 9),
        ),
    ),
    max_size=60,
)


class Model:
    """A `ValueStore`, and what it should hold in dicts. Two sessions share a principal."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.values = ValueStore(clock=self.clock)
        self.sessions = [SessionValues(who) for who in ("a", "a", "b")]
        self.held: list[dict[int, Value]] = [{}, {}, {}]
        self.names: dict[tuple[str, int], tuple[list[Value], bool]] = {}

    def add(self, who: int, number: int, nbytes: int) -> None:
        one = value(nbytes)
        self.values.add(self.sessions[who], {number: one})
        if not self.sessions[who].ended:
            self.held[who][number] = one

    def drop(self, who: int, number: int) -> None:
        self.values.drop(self.sessions[who], each(number))
        self.held[who].pop(number, None)

    def batch(self, who: int, number: int, mask: list[bool]) -> None:
        """A call has returned some: the first of one byte, the next of two."""
        first, own = first_value_id(number), self.sessions[who]
        made = batch(first, mask)
        self.values.add_batch(own, made)
        if own.ended or not any(mask):
            return
        known = {id_ for id_ in self.held[who] if id_ in value_ids_of(number)}
        for id_ in known:
            del self.held[who][id_]
        for place, stays in enumerate(mask):
            if stays:
                self.held[who][first + place] = Value(made.arrays[place], LEAF, place + 1, "step")

    def ask(self, who: int, number: int, place: int) -> None:
        """Somebody asks for one, which is one by itself from then on."""
        id_ = first_value_id(number) + place
        if id_ in self.held[who]:
            found = self.sessions[who].get(id_)
            assert (found.array, found.nbytes) == (
                self.held[who][id_].array,
                self.held[who][id_].nbytes,
            )
            self.held[who][id_] = found
        else:
            with pytest.raises(ValueDeleted):
                self.sessions[who].get(id_)

    def lend(self, who: int, number: int) -> None:
        """A call takes all that follow one another from the first on, in their order."""
        first, held = first_value_id(number), self.held[who]
        count = next(i for i in range(9) if first + i not in held)
        lent = self.sessions[who].lend(range(first, first + count))
        assert [one for each in lent for one in each.arrays] == [
            held[first + i].array for i in range(count)
        ]
        assert [each.id for each in lent] == sorted(each.id for each in lent)
        with pytest.raises(ValueDeleted):
            self.sessions[who].lend(range(first, first + count + 1))

    def cut(self, who: int, number: int, start: int, count: int) -> None:
        """A range goes, of which some may not be there."""
        ids = range(first_value_id(number) + start, first_value_id(number) + start + count)
        held = self.held[who]
        one_holder = sum(held[id_].nbytes for id_ in ids if id_ in held and held[id_].holders <= 1)
        assert self.sessions[who].freed([ids]) == one_holder
        self.values.drop(self.sessions[who], [ids])
        for id_ in ids:
            held.pop(id_, None)

    def end(self, who: int) -> None:
        self.values.end(self.sessions[who])
        self.held[who].clear()

    def name(self, who: int, name: int, passes: bool) -> None:
        self.held[who] = {id_: self.sessions[who].get(id_) for id_ in self.held[who]}
        found = [*self.held[who].values()]
        principal = self.sessions[who].principal
        self.values.name(principal, str(name), b"", found, 10.0 if passes else None)
        self.names[principal, name] = found, passes

    def named(self, who: int, name: int, number: int) -> None:
        known = self.names.get((self.sessions[who].principal, name))
        if known is None or not known[0]:
            return
        (first, *_) = self.values.named(self.sessions[who].principal, str(name)).values
        self.values.add(self.sessions[who], {number: first})
        if not self.sessions[who].ended:
            self.held[who][number] = first

    def unname(self, who: int, name: int) -> None:
        principal = self.sessions[who].principal
        was = self.values.unname(principal, str(name))
        assert was == (self.names.pop((principal, name), None) is not None)

    def wait(self) -> None:
        self.clock.now += 20
        self.names = {key: held for key, held in self.names.items() if not held[1]}
        self.values.poll()

    def all(self) -> dict[int, Value]:
        lists = [*(held.values() for held in self.held), *(held for held, _ in self.names.values())]
        return {id(one): one for each in lists for one in each}


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_the_count_never_drifts(steps: list[tuple[Any, ...]]) -> None:
    """Whatever is added, dropped, named, found, forgotten and ended, in whatever order."""
    model = Model()
    for what, *arguments in steps:
        do: Callable[..., None] = getattr(model, what)
        do(*arguments)
        expected = model.all()
        size = sum(one.nbytes for one in expected.values())
        assert (len(model.values), model.values.nbytes) == (len(expected), size)
        assert sum(row["bytes"] for row in model.values.holders("a")) == size
    for who in range(3):
        model.end(who)
        for name in range(2):
            model.unname(who, name)
    assert (len(model.values), model.values.nbytes, model.values.holders("a")) == (0, 0, [])
    assert model.values._room.values.used_by == {}


def test_many_threads_count_right() -> None:
    """Each adds, names, drops and ends what is its own, and of what they share a part."""
    values, shared = ValueStore(), value(1000)

    def work(index: int) -> None:
        for turn in range(100):
            own = SessionValues("uid:1")
            values.add(own, {number: value(number) for number in range(5)} | {9: shared})
            values.name("uid:1", f"n{index}", b"", [own.get(1), shared], None)
            values.drop(own, each(turn % 5))
            values.holders("uid:1")
            values.end(own)
            values.unname("uid:1", f"n{index}")

    assert at_once(6, work) == [None] * 6
    assert (len(values), values.nbytes, shared.holders) == (0, 0, 0)


def test_what_somebody_had_goes_with_them() -> None:
    """Under names and as contents; that of others stays."""
    values = ValueStore(contents=ContentStore(100))
    for who in ("account:alice", "account:bob"):
        values.name(who, "w", b"", [value(8)], None)
        values.contents.put(who, (1, 2), value(8))
    values.forget("account:alice")
    with pytest.raises(ValueDeleted):
        values.named("account:alice", "w")
    assert values.named("account:bob", "w").values
    assert (len(values), values.nbytes, values.contents.nbytes) == (1, 8, 8)


def test_the_failure_of_a_call_is_what_its_results_say() -> None:
    """Those of other calls are just not there; only the last failures are known."""
    own = SessionValues("uid:1")
    for number in range(300):
        own.failures[number] = encode_failure(ZeroDivisionError(f"in call {number}"))
    with pytest.raises(ForwardedFailure) as failed:
        own.get(first_value_id(299) + 3)
    assert "in call 299" in str(failed.value.failure)
    for number in (0, 300):
        with pytest.raises(ValueDeleted):
            own.get(first_value_id(number))


# contents -------------------------------------------------------------------------------------


def test_contents_are_found_by_whose_they_are() -> None:
    """By nobody else; what comes twice counts once; who does not come back is forgotten."""
    contents, one = ContentStore(100), value(40)
    contents.put("uid:1", (1, 2), value(40))
    contents.put("uid:1", (1, 2), one)
    assert (contents.find("uid:1", (1, 2)), contents.nbytes) == (one, 40)
    assert contents.find("uid:2", (1, 2)) is None
    assert contents.find("uid:1", (2, 1)) is None
    contents.put("uid:2", (1, 2), value(40))
    contents.forget("uid:1")
    assert contents.find("uid:1", (1, 2)) is None
    assert contents.find("uid:2", (1, 2)) is not None
    assert contents.nbytes == 40


def test_the_least_recently_used_content_goes_first() -> None:
    """And its memory; nothing goes for what is larger than all room. It can be emptied."""
    contents, second = ContentStore(100), value(40)
    oldest = weakref.ref(second.array)
    contents.put("uid:1", (1, 0), value(40))
    contents.put("uid:1", (2, 0), second)
    del second
    contents.find("uid:1", (1, 0))
    contents.put("uid:1", (3, 0), value(40))
    contents.put("uid:1", (4, 0), value(101))
    assert [n for n in (1, 2, 3, 4) if contents.find("uid:1", (n, 0)) is not None] == [1, 3]
    gc.collect()
    assert oldest() is None
    assert (len(contents), contents.nbytes) == (2, 80)
    assert contents.shrink() == 0
    assert contents.reclaim(1) == 1
    assert contents.find("uid:1", (3, 0)) is not None
    assert contents.reclaim(sys.maxsize) == 1
    assert (len(contents), contents.nbytes) == (0, 0)
    nothing = ContentStore()
    nothing.put("uid:1", (1, 0), value(1))
    assert len(nothing) == 0
